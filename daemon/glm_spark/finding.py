"""A fault in the world as a value: what the journal, the CLI, the status, the metrics and the tests share."""

from __future__ import annotations

from enum import StrEnum

from pydantic import BaseModel, ConfigDict, Field


class Severity(StrEnum):
    """How much a finding matters to the set."""

    NOTE = "note"  # worth knowing, nothing to do
    WARNING = "warning"  # the set runs, with less than it could have
    ERROR = "error"  # the set cannot run until this is mended
    UNKNOWN = "unknown"  # could not be found out; nothing is concluded from it


class Finding(BaseModel):
    """One thing that is, or may be, wrong: on which Spark, what, how it is, how it should be, what to do.

    `code` is stable, lower case with dots ("fabric.mtu-differs"); programs key on it. `measured`, `wanted`
    and `fix` are plain text for a person; `fix` is an imperative sentence.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    code: str = Field(max_length=80, pattern=r"^[a-z0-9]+([.-][a-z0-9]+)*$")
    severity: Severity
    node: str = Field(max_length=64)
    subject: str = Field(max_length=300)
    measured: str = Field(default="", max_length=4000)
    wanted: str = Field(default="", max_length=1000)
    fix: str = Field(default="", max_length=2000)

    def __str__(self) -> str:
        """One line: `spark-2: enp1s0f0np0: MTU 1500, wanted 9000. Set it on both ends. [fabric.mtu-differs]`."""
        head = f"{self.node}: {self.subject}"
        if self.measured:
            head += f": {self.measured}"
        if self.wanted:
            head += f", wanted {self.wanted}"
        tail = f". {self.fix}" if self.fix else "."
        return f"{head.rstrip('.')}{tail} [{self.code}]"


def worst(findings: tuple[Finding, ...] | list[Finding]) -> Severity | None:
    """The severity that decides an exit status: error over unknown over warning over note; None for none."""
    order = [Severity.ERROR, Severity.UNKNOWN, Severity.WARNING, Severity.NOTE]
    present = {finding.severity for finding in findings}
    return next((severity for severity in order if severity in present), None)
