"""The configuration as it is on disk now, beside the one that this daemon runs with."""

from __future__ import annotations

from pathlib import Path

from glm_spark.config.load import ConfigFault, load
from glm_spark.config.me import find_me
from glm_spark.config.model import Config
from glm_spark.engine import processes
from glm_spark.finding import Finding, Severity

READ_SECONDS = 10.0  # one small file; a disk that needs longer is in trouble


class OnDisk:
    def __init__(self, path: Path, me: str) -> None:
        self._path = path
        self._me = me

    async def read(self) -> Config | Finding:
        """The file read anew, or why it cannot be used."""
        try:
            return await processes.aside(self._load, READ_SECONDS)
        except ConfigFault as fault:
            return self.unusable(fault)
        except TimeoutError:
            return self._finding(f"not read within {READ_SECONDS:g} s")

    def _load(self) -> Config:
        config = load(self._path)
        find_me(config, self._me, self._me)
        return config

    def unusable(self, fault: ConfigFault) -> Finding:
        return self._finding("; ".join(fault.faults))

    def _finding(self, measured: str) -> Finding:
        return Finding(
            code="config.unusable",
            severity=Severity.ERROR,
            node=self._me,
            subject=str(self._path),
            measured=measured[:4000],
            wanted="a file that glm-spark can start from",
            fix="Correct it; glm-spark config tells when it is right.",
        )
