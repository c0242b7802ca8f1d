"""What README and docs/ name exists: files, tests, settings, codes, verbs and flags; and every code is explained."""

from __future__ import annotations

import contextlib
import io
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from glm_spark.cli import arguments
from glm_spark.config.model import Config
from tests.demo.__main__ import parser as demo_parser
from tests.unit.docs.codes import PRODUCT, ROOT, codes, open_families, settings, texts

DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
WRITTEN_BY_HAND = [path for path in DOCUMENTS if path.name != "options.md"]
MESSAGES = ROOT / "docs" / "messages.md"
_FILE = re.compile(r"[\w-]+(/[\w.-]+)*/?(\.[a-z]+)?")
_NO_SETTING = (".py", ".toml", ".sock", ".example", ".enable")
_SUFFIXES = (".py", ".nix", ".md", ".nft", ".service", ".example", "/")


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def lines(path: Path) -> Iterator[tuple[str, bool]]:
    """Each line, and whether it stands in a block of code."""
    inside = False
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.lstrip().startswith("```"):
            inside = not inside
        else:
            yield line, inside


def spans(path: Path) -> Iterator[str]:
    """Every `text` in the prose."""
    for line, inside in lines(path):
        if not inside:
            yield from re.findall(r"`([^`]+)`", line)


def commands(path: Path, program: str) -> Iterator[list[str]]:
    """The arguments of every use of a program, in prose and in blocks, without what a shell would take for itself."""
    written = [*spans(path), *(line.strip() for line, inside in lines(path) if inside)]
    for text in written:
        if text.startswith(f"{program} "):
            words = shlex.split(re.split(r"\s[>|#]|;|\s{2}", text)[0], comments=True)[1:]
            if words and not words[0].isupper():
                yield words


@pytest.mark.parametrize("path", DOCUMENTS, ids=names(DOCUMENTS))
def test_every_link_leads_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        file, _, heading = target.partition("#")
        found = (path.parent / file) if file else path
        assert found.exists(), f"{path.name} links to {target}"
        if heading:
            assert heading in headings(found), f"{path.name} links to {target}"


def headings(path: Path) -> set[str]:
    titles = [line.lstrip("# ") for line, inside in lines(path) if not inside and line.startswith("#")]
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=names(WRITTEN_BY_HAND))
def test_every_file_that_is_named_is_there(path: Path) -> None:
    places = (ROOT, PRODUCT, ROOT / "daemon" / "systemd")
    ours = {entry.name for place in places for entry in place.iterdir() if entry.is_dir()}
    for span in spans(path):
        file = span.partition("::")[0]
        if not _FILE.fullmatch(file) or not (file.partition("/")[0] in ours or file.endswith(_SUFFIXES)):
            continue
        if "/" in file or file.endswith(_SUFFIXES):
            assert any(place.joinpath(file).exists() for place in places) or file in OWNERS, f"{path.name}: {file}"


# What an owner's folder has, not this repository.
OWNERS = frozenset({"sparks.nix", "flake.nix", "glm-spark.service"})


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=names(WRITTEN_BY_HAND))
def test_every_test_that_is_named_is_there(path: Path) -> None:
    for line, _ in lines(path):
        file = ""
        for named, test in re.findall(r"`([\w./]*)::(\w+)`", line):
            file = named or file
            source = (ROOT / file).read_text(encoding="utf-8")
            assert re.search(rf"^ *(async )?def {test}\(", source, re.M), f"{path.name}: {file} has no {test}"


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=names(WRITTEN_BY_HAND))
def test_every_setting_and_every_code_that_is_named_is_known(path: Path) -> None:
    known = settings() | codes()
    roots = set(Config.model_fields) | {code.partition(".")[0] for code in codes()}
    for span in spans(path):
        found = re.fullmatch(r"(?:settings\.)?([a-z]+(?:\.[a-z0-9_-]+)+)( = .+)?", span)
        if found is None or found[1].partition(".")[0] not in roots or found[1].endswith(_NO_SETTING):
            continue
        assert found[1] in known or found[1].startswith(open_families()), (
            f"{path.name}: {found[1]} is neither a setting nor a code"
        )


@pytest.mark.parametrize("path", WRITTEN_BY_HAND, ids=names(WRITTEN_BY_HAND))
def test_every_verb_with_its_flags_is_one(path: Path) -> None:
    for words in commands(path, "glm-spark"):
        _parses(words, arguments.parser().parse_args, f"{path.name}: glm-spark {shlex.join(words)}")
    verbs = re.findall(r"^  ([a-z| ]+)\)$", (ROOT / "dev").read_text(encoding="utf-8"), re.M)
    known = {verb.strip() for row in verbs for verb in row.split("|")} | {"setup"}
    for words in commands(path, "./dev"):
        assert words[0] in known, f"{path.name}: ./dev {words[0]}"
        if words[0] == "demo":
            _parses(words[1:], demo_parser().parse_args, f"{path.name}: ./dev {shlex.join(words)}")


def _parses(words: list[str], parse: object, told: str) -> None:
    assert callable(parse)
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            parse(words)
    except SystemExit as end:
        raise AssertionError(f"{told}: {said.getvalue()}") from end


def test_every_code_is_explained_in_messages_and_no_other() -> None:
    rows = [line.split("|")[1] for line, inside in lines(MESSAGES) if not inside and line.startswith("| ")]
    explained = {span for cell in rows for span in re.findall(r"`([a-z]+\.[a-z0-9-]+)`", cell)}
    unexplained, unknown = codes() - explained, explained - codes()
    unknown = {code for code in unknown if not code.startswith(open_families())}
    assert not unexplained, f"docs/messages.md has no row for {', '.join(sorted(unexplained))}"
    assert not unknown, f"docs/messages.md explains what does not exist: {', '.join(sorted(unknown))}"


def test_the_messages_in_readme_are_the_daemons_words() -> None:
    said = texts()
    table = (ROOT / "README.md").read_text(encoding="utf-8").split("| message | code |")[1].split("\n\n")[0]
    for row in table.splitlines()[2:]:
        for message in re.findall(r"`([^`]+)`", row.split("|")[1]):
            for piece in (part.strip(" ,") for part in message.split("...")):
                assert not piece or any(piece in text for text in said), f"nothing says {piece!r} ({message})"
