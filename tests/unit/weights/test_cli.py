"""glm-spark weights, as a person and a program see it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_spark.cli import main
from glm_spark.config import toml
from tests.unit.weights.hub_server import Behaviour, Hub
from tests.unit.weights.repositories import PIN, blob_file, content, fill, some_files

FILES = some_files({"model.safetensors": 300_000})
Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """`run("status", endpoint=...)`: the exit status, what was printed, what was complained."""
    for name in ("STATE", "RUNTIME"):
        (tmp_path / name).mkdir()
        monkeypatch.setenv(f"{name}_DIRECTORY", str(tmp_path / name))

    def call(*words: str, node: str = "spark-1", endpoint: str = "http://127.0.0.1:9") -> tuple[int, str, str]:
        tables: dict[str, Any] = {
            "model": {"cache": str(tmp_path / "cache"), "repository": PIN.repository, "revision": PIN.revision},
            "weights": {"endpoint": endpoint, "keep_free_gib": 0},
            "engine": {"runtime": "process"},
        }
        nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
        lines = [f"{name} = {toml.value(table)}" for name, table in {"node": nodes, **tables}.items()]
        file = tmp_path / "config.toml"
        file.write_text("\n".join(lines) + "\n")
        status = main(["weights", words[0], "--config", str(file), "--node", node, *words[1:]])
        printed = capsys.readouterr()
        return status, printed.out, printed.err

    return call


def test_from_nothing_to_verified(run: Run, tmp_path: Path) -> None:
    status, out, _ = run("status")
    assert status == 2
    assert "not here" in out
    assert "glm-spark weights fetch" in out
    with Hub({PIN.repository: FILES}) as server:
        status, out, _ = run("fetch", endpoint=server.endpoint)
    assert status == 0
    assert "complete and verified" in out
    assert content(tmp_path / "cache") == FILES
    status, out, _ = run("status", "--json")
    told = json.loads(out)
    assert status == 0
    assert told["pins"][0]["complete"] is True
    assert told["pins"][0]["bytes"] == told["pins"][0]["verified_bytes"] == sum(map(len, FILES.values()))
    assert told["findings"] == []


def test_verify_again_finds_what_the_disk_did_behind_everyone_s_back(run: Run, tmp_path: Path) -> None:
    with Hub({PIN.repository: FILES}) as server:
        run("fetch", endpoint=server.endpoint)
    with open(blob_file(tmp_path / "cache", "model.safetensors", FILES["model.safetensors"]), "r+b") as file:
        file.write(b"rot")
    status, out, err = run("verify", "--again")
    assert status == 2
    assert "weights.wrong" in out + err
    with Hub({PIN.repository: FILES}) as server:
        assert run("fetch", endpoint=server.endpoint)[0] == 0
    assert content(tmp_path / "cache") == FILES


def test_a_refusal_of_the_hub_is_told_and_is_an_error(run: Run) -> None:
    with Hub({PIN.repository: FILES}, behaviour=Behaviour(refuse=(404, "RepoNotFound"))) as server:
        status, out, err = run("fetch", endpoint=server.endpoint)
    assert status == 2
    assert "weights.hub-404" in out + err


def test_a_worker_fetches_nothing_itself(run: Run) -> None:
    status, out, err = run("fetch", node="spark-2")
    assert status == 2
    assert "On spark-1: glm-spark weights fetch" in out + err


def test_gc_shows_first_and_removes_when_told(run: Run, tmp_path: Path) -> None:
    with Hub({PIN.repository: FILES}) as server:
        run("fetch", endpoint=server.endpoint)
    older = PIN.model_copy(update={"revision": "12" * 20})
    old = blob_file(tmp_path / "cache", "old.safetensors", b"old" * 5000)
    fill(tmp_path / "cache", {"old.safetensors": b"old" * 5000}, older)
    status, out, _ = run("gc")
    assert status == 0
    assert str(old) in out
    assert old.exists()
    status, out, _ = run("gc", "--yes")
    assert status == 0
    assert not old.exists()
    assert content(tmp_path / "cache") == FILES
    assert "Nothing can go" in run("gc")[1]


def test_without_a_daemon_a_sync_could_not_be_found_out(run: Run) -> None:
    status, _, err = run("sync")
    assert status == 3
    assert "systemctl start glm-spark" in err
