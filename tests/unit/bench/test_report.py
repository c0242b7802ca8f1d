"""A figure is judged by its bound and shown with how it was measured."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path

import pytest
from rich.console import Console

from tests.bench.report import Figure, save, spread, table
from tests.bench.streams import request


@pytest.mark.parametrize(
    ("figure", "met"),
    [
        (Figure("start", 2.9, "s", 3.0), True),
        (Figure("start", 3.1, "s", 3.0), False),
        (Figure("rate", 4950, "/s", 4900, at_least=True), True),
        (Figure("rate", 4800, "/s", 4900, at_least=True), False),
        (Figure("ratio", 1.2, ""), None),
    ],
)
def test_a_bound_is_upper_unless_said_otherwise(figure: Figure, met: bool | None) -> None:
    assert figure.met is met


def test_the_table_names_what_was_missed() -> None:
    console = Console(file=StringIO(), width=150)
    console.print(table([Figure("start", 3.5, "s", 3.0, note=spread([3.4, 3.5, 3.9], 1, "s"))]))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "3.5 s" in shown
    assert "<= 3 s" in shown
    assert "missed" in shown
    assert "median of 3; 3.4 to 3.9 s" in shown


def test_the_file_holds_the_machine_and_every_figure(tmp_path: Path) -> None:
    file = tmp_path / "deep" / "bench.json"
    save(file, {"cores": 2}, "2026-01-01T00:00:00Z", [Figure("start", 1.0, "s", 3.0)])
    written = json.loads(file.read_text())
    assert written["machine"] == {"cores": 2}
    assert written["figures"][0]["met"] is True


def test_the_client_sends_one_whole_request() -> None:
    head, body = request(7).split(b"\r\n\r\n", 1)
    length = next(line for line in head.split(b"\r\n") if line.lower().startswith(b"content-length"))
    assert int(length.split(b":")[1]) == len(body)
    assert json.loads(body)["max_tokens"] == 7
