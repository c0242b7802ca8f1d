"""Judgements over the world: what keeps a start from beginning, what ended a generation, what is in doubt. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glm_spark.cluster.lease import Freshness
from glm_spark.cluster.world import Spark, World
from glm_spark.engine.images import differing
from glm_spark.engine.pull import HOLDING
from glm_spark.finding import Finding, Severity
from glm_spark.host.kernel_log import FATAL_CODES

# What another try cannot mend: the configuration, the program, the weights or the hardware are wrong.
TERMINAL = frozenset(
    {
        "engine.settings-differ",
        "engine.arguments-refused",
        "engine.window-none",
        "engine.answer-collapsed",
        "engine.refused",
        *FATAL_CODES,
    }
)

# Hopeless until a person acts, and plugging the cable in again is an act: pulling it can look like a PCIe failure.
PLUGGABLE = frozenset({"hardware.pcie-fatal"})

# What a rank says when another one is gone.
CONSEQUENCES = frozenset({"engine.peer-lost", "engine.peer-absent", "engine.peer-late"})

# What a living rank says after which it answers nothing any more (TensorFold v0.6.0: the process stays).
BROKEN = frozenset(
    {"engine.latched", "engine.step-stuck", "engine.path-broken", "engine.out-of-step", "engine.peer-late"}
)

# After these a rank may hang rather than fail: its threads' stacks are taken before it is killed.
HUNG = frozenset({"engine.stalled", "engine.step-stuck", "engine.load-silent", "engine.canary-silent"})


def images_differ(sparks: Iterable[Spark]) -> Finding | None:
    """Why Sparks that are prepared may not start together: what they would run is not the same."""
    return differing({spark.name: spark.report.image_content for spark in sparks if spark.report})


def obstacle(world: World) -> Finding | None:
    """Why no start can begin, the nearest cause first."""
    leader = world.sparks[0].name
    for spark in world.sparks:
        if not spark.up or spark.freshness is not Freshness.FRESH:
            return spark.problem or note(leader, "cluster.dialling", f"{spark.name} is being dialled")
        if spark.report is None or spark.hello is None:
            return spark.problem or note(leader, "cluster.no-report", f"{spark.name} has not said how it is yet")
        if spark.report.leaving:
            return fault(spark.name, "cluster.leaving", "its daemon was asked to stop")
        if held := next((finding for finding in spark.report.findings if finding.code in HOLDING), None):
            return held
    if world.obstacles:
        return world.obstacles[0]
    for spark in world.sparks:
        if spark.occupied:
            return fault(spark.name, "set.clearing", "an earlier rank is still ending")
    return None


def loss(world: World, generation: int, instances: Mapping[str, str], started: bool) -> Finding | None:
    """What broke this generation, or None. `started`: its ranks were asked for. `instances`: its daemons."""
    for spark in world.sparks:
        found = _rank_loss(spark, generation) or _spark_loss(spark, generation, instances, started)
        if found is not None:
            return found
    return None


def _rank_loss(spark: Spark, generation: int) -> Finding | None:
    rank = spark.rank
    if rank is None or rank.generation != generation:
        return None
    if rank.state == "ended":
        if spark.report is not None and spark.report.reason is not None:
            return spark.report.reason
        return fault(spark.name, "engine.rank-ended", rank.exit_text or "its rank ended")
    if spark.report is not None and spark.report.broken and spark.report.doubt is not None:
        return spark.report.doubt
    return next((finding for finding in rank.findings if finding.code in BROKEN), None)


def _spark_loss(spark: Spark, generation: int, instances: Mapping[str, str], started: bool) -> Finding | None:
    if spark.gone:
        return fault(spark.name, "cluster.daemon-gone", "its daemon is not running")
    if spark.freshness is Freshness.LAPSED:
        return spark.problem or fault(spark.name, "cluster.lease-lapsed", "no sign of life")
    if spark.opening and spark.opening.instance_id != instances.get(spark.name):
        return fault(spark.name, "cluster.daemon-restarted", "its daemon started anew")
    if started and spark.report is not None and spark.report.prepared != generation:
        return spark.report.reason or fault(spark.name, "engine.rank-given-up", "it gave its rank up")
    return None


def unsure(world: World) -> Finding | None:
    """Why a request may not be answered although nothing is known to be lost."""
    if world.cable is not None:
        return world.cable
    for spark in world.sparks:
        if not spark.up:
            return spark.problem or fault(spark.name, "cluster.session-lost", "its session broke")
        if spark.freshness is not Freshness.FRESH:
            return fault(spark.name, "cluster.suspect", "its beats stopped")
        if spark.report is not None and spark.report.doubt is not None:
            return spark.report.doubt
    return None


def cause(world: World, generation: int) -> Finding | None:
    """What a rank of this generation ended of by itself, rather than of another's end."""
    for spark in world.sparks:
        if spark.rank is not None and spark.rank.generation == generation:
            found = next((finding for finding in spark.rank.findings if _is_cause(finding)), None)
            if found is not None:
                return found
    return None


def _is_cause(finding: Finding) -> bool:
    return finding.severity is Severity.ERROR and finding.code not in CONSEQUENCES


def fault(node: str, code: str, measured: str, subject: str = "this Spark") -> Finding:
    return Finding(
        code=code,
        severity=Severity.ERROR,
        node=node,
        subject=subject,
        measured=measured,
        wanted=_WANTED.get(code, ""),
        fix=_FIXES.get(code, f"See journalctl -u glm-spark on {node}."),
    )


def note(node: str, code: str, measured: str, fix: str = "") -> Finding:
    return Finding(code=code, severity=Severity.NOTE, node=node, subject="the set", measured=measured, fix=fix)


_WANTED = {
    "cluster.suspect": "a beat twice a second",
    "cluster.leaving": "a running daemon",
    "cluster.daemon-gone": "a running daemon",
}
_FIXES = {
    "cluster.leaving": "systemctl start glm-spark there brings the set back.",
    "cluster.daemon-gone": "There: systemctl start glm-spark; journalctl -u glm-spark says why it ended.",
    "cluster.daemon-restarted": "Nothing to do: all ranks start anew.",
    "set.clearing": "Nothing to do: it is being ended.",
}
