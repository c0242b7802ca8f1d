"""Lists of files: judged names, one order, one tree, and where they come from."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from glm_spark.weights import layout, lists, manifest
from glm_spark.weights.faults import Fault
from glm_spark.weights.manifest import Entry
from tests.unit.weights.repositories import LEADER, PIN, digest, fill, git_blob, listed, some_files

BAD = [
    "",
    "/etc/passwd",
    "../x",
    "a/../../x",
    "a//b",
    "./a",
    "a/.",
    "a\0b",
    "a\nb",
    "a\\b",
    "x" * 300,
    "/".join("a" * 20),
    "a.glm-part",
]


@pytest.mark.parametrize("path", BAD)
def test_a_name_that_could_lead_elsewhere_is_refused(path: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the words differ, the refusal is what counts
        Entry(path=path, size=1, digest="a" * 40)


NAMES = st.text(st.characters(exclude_categories=["C", "Z"], exclude_characters="/\\"), min_size=1, max_size=12)
PATHS = st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4).map("/".join)


@given(PATHS)
def test_a_link_leads_from_its_folder_to_the_blobs_whatever_the_depth(path: str) -> None:
    target = layout.link_target(path, "d" * 64)
    assert os.path.normpath(os.path.join("snapshots/REV", os.path.dirname(path), target)) == "blobs/" + "d" * 64


@pytest.mark.parametrize(
    "rows",
    [
        [["a", 1, "a" * 40], ["a", 2, "b" * 40]],
        [["a", 1, "a" * 40], ["a/b", 2, "b" * 40]],
        [["a", 1, "a" * 40], ["b", 2, "a" * 40]],
        [["a", -1, "a" * 40]],
        [["a", 1, "A" * 40]],
        [["a", 1, "a" * 41]],
        [],
        [["a"]],
        "x",
        None,
    ],
)
def test_a_list_that_contradicts_itself_is_refused(rows: object) -> None:
    told = {"repository": PIN.repository, "revision": PIN.revision, "files": rows}
    with pytest.raises(ValueError):  # noqa: PT011
        manifest.decode(json.dumps(told).encode())


@given(st.binary(max_size=300))
def test_any_bytes_are_a_list_or_a_value_error(noise: bytes) -> None:
    with pytest.raises(ValueError):  # noqa: PT011
        manifest.decode(noise)


def test_lists_compare_by_bytes_whatever_a_shell_would_sort(tmp_path: Path) -> None:
    files = some_files({"B.txt": 1, "a.txt": 2, "a-b.txt": 3, "ä.txt": 4, "a/b": 5})
    one, other = listed(files), listed(dict(reversed(files.items())))
    assert one == other
    assert [entry.path for entry in one.files] == sorted(files, key=str.encode)
    assert manifest.decode(manifest.encode(one)) == one


@settings(max_examples=8, deadline=None)
@given(st.dictionaries(PATHS, st.binary(max_size=20), min_size=1, max_size=8))
def test_the_tree_is_the_one_git_makes(tmp_path_factory: pytest.TempPathFactory, files: dict[str, bytes]) -> None:
    files = {"weights/one.safetensors": b"in LFS", **files}
    try:
        ours = listed(files)
    except ValueError:
        return  # a path that is both a file and a folder
    work = tmp_path_factory.mktemp("git")
    git = ["git", "-c", "core.autocrlf=false", "-c", "core.quotepath=false"]
    subprocess.run([*git, "init", "-q"], cwd=work, check=True)
    for entry in ours.files:
        body = files[entry.path]
        if entry.large:
            body = (
                f"version https://git-lfs.github.com/spec/v1\noid sha256:{entry.digest}\nsize {entry.size}\n".encode()
            )
        file = work / entry.path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(body)
    subprocess.run([*git, "add", "-f", "."], cwd=work, check=True, capture_output=True)
    done = subprocess.run([*git, "write-tree"], cwd=work, check=True, capture_output=True, text=True)
    assert ours.tree() == done.stdout.strip()


def test_hashes_are_git_s_and_lfs_s() -> None:
    for path, body in {"x.txt": b"hello", "x.safetensors": b"hello"}.items():
        entry = Entry(path=path, size=5, digest=digest(path, body))
        hasher = entry.hasher()
        hasher.update(body)
        assert hasher.hexdigest() == entry.digest
    assert git_blob(b"hello") == "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0"


def test_a_pinned_tree_binds_the_list(tmp_path: Path) -> None:
    found = listed(some_files({"model.safetensors": 10}))
    lists.keep(LEADER, tmp_path, PIN.model_copy(update={"tree": found.tree()}), found)
    with pytest.raises(Fault, match="list-differs"):
        lists.keep(LEADER, tmp_path, PIN.model_copy(update={"tree": "1" * 40}), found)


# -- read off a cache ----------------------------------------------------------------------------------------------


def test_a_cache_that_was_filled_by_other_means_shows_its_list(tmp_path: Path) -> None:
    files = some_files({"model-1.safetensors": 10, "model-2.safetensors": 11})
    index = {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    files["model.safetensors.index.json"] = json.dumps(index).encode()
    fill(tmp_path, files)
    found = lists.derived(str(tmp_path), PIN)
    assert found is not None
    assert found.derived
    assert found.files == listed(files).files


def test_a_part_that_was_never_begun_is_missed(tmp_path: Path) -> None:
    files = some_files({"model-1.safetensors": 10})
    files["model.safetensors.index.json"] = json.dumps(
        {"weight_map": {"a": "model-1.safetensors", "b": "model-2.safetensors"}}
    ).encode()
    fill(tmp_path, files)
    assert lists.derived(str(tmp_path), PIN) is None
    assert lists.derived(str(tmp_path / "nothing"), PIN) is None


def test_files_that_are_no_links_tell_no_digest(tmp_path: Path) -> None:
    top = lists.snapshot(str(tmp_path), PIN)
    top.mkdir(parents=True)
    (top / "config.json").write_text("{}")
    (top / "model.safetensors").write_bytes(b"x")
    assert lists.derived(str(tmp_path), PIN) is None


@pytest.mark.parametrize("content", [b"", b"{", b'{"repository": "a/b"}', b"\xff"])
def test_a_kept_list_that_is_damaged_counts_as_none(tmp_path: Path, content: bytes) -> None:
    lists.keep(LEADER, tmp_path, PIN, listed(some_files({"model.safetensors": 1})))
    (file,) = tmp_path.rglob("*.json")
    file.write_bytes(content)
    assert lists.kept(tmp_path, PIN) is None
