"""Figures, what is wanted of them, and how they are shown. Pure but for `save`."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table


@dataclass(frozen=True)
class Figure:
    """`wanted` is a bound: an upper one unless `at_least`. None: shown, not judged. `note` says how it was
    measured, `baseline` what has been published for the same."""

    name: str
    value: float
    unit: str
    wanted: float | None = None
    at_least: bool = False
    note: str = ""
    baseline: str = ""

    @property
    def met(self) -> bool | None:
        if self.wanted is None:
            return None
        return self.value >= self.wanted if self.at_least else self.value <= self.wanted


def spread(values: Sequence[float], digits: int = 2, unit: str = "") -> str:
    """`median of 5; 0.10 to 0.14 s`."""
    low, high = min(values), max(values)
    return f"median of {len(values)}; {low:.{digits}f} to {high:.{digits}f} {unit}".rstrip()


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def table(figures: Sequence[Figure]) -> Table:
    shown = Table(box=None, padding=(0, 2, 0, 0))
    compared = any(figure.baseline for figure in figures)
    for heading in ("figure", "measured", "wanted", "", "how", *(["published elsewhere"] if compared else [])):
        shown.add_column(heading, justify="right" if heading in ("measured", "wanted") else "left")
    for figure in figures:
        wanted = ""
        if figure.wanted is not None:
            wanted = f"{'>=' if figure.at_least else '<='} {figure.wanted:g} {figure.unit}"
        word = {True: "[green]ok[/]", False: "[red]missed[/]", None: ""}[figure.met]
        beside = [figure.baseline] if compared else []
        shown.add_row(figure.name, f"{figure.value:.4g} {figure.unit}", wanted, word, figure.note, *beside)
    return shown


def save(file: Path, machine: dict[str, Any], when: str, figures: Sequence[Figure]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        {
            "name": figure.name,
            "value": figure.value,
            "unit": figure.unit,
            "wanted": figure.wanted,
            "at_least": figure.at_least,
            "met": figure.met,
            "note": figure.note,
            "baseline": figure.baseline,
        }
        for figure in figures
    ]
    file.write_text(json.dumps({"machine": machine, "when": when, "figures": rows}, indent=1) + "\n")
