"""What speaks against ending a set that runs in order to start it anew: with it in the way the set would stay down."""

from __future__ import annotations

from collections.abc import Iterable

from glm_spark.cluster.world import Spark
from glm_spark.config import agreement
from glm_spark.config.effects import changes
from glm_spark.config.model import Config
from glm_spark.finding import Finding, Severity


def then(running: Config, on_disk: Config) -> Config:
    """What this daemon would run with after taking the file over: nothing of it where a change needs a new daemon."""
    return running if changes(running, on_disk).restart else on_disk


def differences(config: Config, sparks: Iterable[Spark]) -> tuple[Finding, ...]:
    """Settings on which this Spark (the first) would differ from what the others run with. Pure."""
    leader, *others = sparks
    mine = agreement.settings(config)
    return tuple(
        finding
        for spark in others
        if spark.hello is not None
        for finding in agreement.differences(mine, spark.hello.settings, leader.name, spark.name)
    )


def errors(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    return tuple(dict.fromkeys(finding for finding in findings if finding.severity is Severity.ERROR))


def overtaken(node: str) -> Finding:
    """The owner changed their mind while the Sparks checked themselves."""
    return _not_now(node, "a stop was asked for meanwhile", "glm-spark restart starts the set again.")


def leaving(node: str) -> Finding:
    return _not_now(node, "this daemon is ending", f"On {node}: systemctl start glm-spark.")


def _not_now(node: str, measured: str, fix: str) -> Finding:
    return Finding(
        code="set.not-restarted",
        severity=Severity.ERROR,
        node=node,
        subject="glm-spark restart",
        measured=measured,
        wanted="a set that is to run",
        fix=fix,
    )
