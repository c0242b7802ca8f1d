"""Exit statuses that scripts and systemd rely on."""

from __future__ import annotations

from collections.abc import Iterable

from glm_spark.finding import Finding, Severity, worst

FINE = 0
WARNINGS = 1
WRONG = 2
UNKNOWN = 3  # could not find out: no daemon, no permission
BAD_CONFIGURATION = 78  # EX_CONFIG of sysexits.h; systemd does not restart on it


def of(findings: Iterable[Finding]) -> int:
    """The status that the worst finding gives."""
    statuses = {Severity.ERROR: WRONG, Severity.UNKNOWN: UNKNOWN, Severity.WARNING: WARNINGS}
    severity = worst(list(findings))
    return statuses.get(severity, FINE) if severity else FINE
