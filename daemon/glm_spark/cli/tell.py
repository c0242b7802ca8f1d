"""Findings for a person: the worst first, what is and should be, and the next step below it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from glm_spark.cli.wording import printable
from glm_spark.finding import Finding, Severity

if TYPE_CHECKING:
    from rich.console import RenderableType

_ORDER = [Severity.ERROR, Severity.UNKNOWN, Severity.WARNING, Severity.NOTE]
STYLES = {Severity.ERROR: "bold red", Severity.UNKNOWN: "magenta", Severity.WARNING: "yellow", Severity.NOTE: "dim"}


def findings(found: Iterable[Finding], limit: int = 0) -> RenderableType:
    """One block a finding; what was measured cut at `limit` characters, 0 for never."""
    from rich.table import Table
    from rich.text import Text

    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for finding in sorted(found, key=lambda finding: _ORDER.index(finding.severity)):
        grid.add_row(Text(finding.severity.value, STYLES[finding.severity]), Text(said(finding, limit)))
        if finding.fix:
            grid.add_row("", Text(next_step(finding), "dim"))
    return grid


def said(finding: Finding, limit: int = 0) -> str:
    """What is, and what should be; the code too where there is nothing to do. `limit` in characters, 0 for none."""
    text = f"{finding.node}: {finding.subject}"
    if finding.measured:
        text += f": {finding.measured}"
    if limit and len(text) > limit:
        text = f"{text[:limit]}..."
    if finding.wanted:
        text += f", wanted {finding.wanted}"
    return printable(text if finding.fix else f"{text} [{finding.code}]")


def next_step(finding: Finding) -> str:
    """What to do, and the code to look it up by."""
    return printable(f"{finding.fix} [{finding.code}]")


def summary(found: list[Finding], whose: str) -> str:
    """2 errors, 1 warning on spark-1."""
    names = {
        Severity.ERROR: ("error", "errors"),
        Severity.UNKNOWN: ("thing unknown", "things unknown"),
        Severity.WARNING: ("warning", "warnings"),
    }
    counts = {severity: sum(finding.severity is severity for finding in found) for severity in names}
    parts = [f"{count} {names[severity][count > 1]}" for severity, count in counts.items() if count]
    return f"{', '.join(parts)} on {whose}." if parts else f"Nothing wrong on {whose}."
