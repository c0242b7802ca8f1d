"""The set put into words: /v1/status from what the leader knows, or from what a worker was told. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from glm_spark import __version__
from glm_spark.cluster.course import Course
from glm_spark.cluster.lease import Freshness
from glm_spark.cluster.protocol import Report
from glm_spark.cluster.world import Spark
from glm_spark.config.model import Config
from glm_spark.engine.health import EngineHealth
from glm_spark.engine.rank import RankView
from glm_spark.fabric.links import Found, link_status
from glm_spark.finding import Finding, Severity
from glm_spark.status import ApiStatus, EngineStatus, MemoryStatus, NodeStatus, RankState, ServedStatus, Status
from glm_spark.weights import pins


@dataclass(frozen=True, slots=True)
class Known:
    """What the leader's status is made of. `since` is the state's beginning in UNIX seconds."""

    course: Course
    sparks: tuple[Spark, ...]
    found: Found
    ready: bool
    since: float
    memory: MemoryStatus | None
    health: EngineHealth | None = None
    tokens_per_second: float | None = None
    warnings: tuple[Finding, ...] = ()


def leader_status(config: Config, known: Known) -> Status:
    dropped = known.course.dropped
    nodes = tuple(_node(config, rank, spark, known.memory, dropped) for rank, spark in enumerate(known.sparks))
    inventories = {spark.name: spark.inventory for spark in known.sparks if spark.inventory is not None}
    links = known.course.links or known.found.links
    return Status(
        cluster=config.cluster.name,
        node=config.leader.name,
        role="leader",
        state=known.course.state,
        ready=known.ready,
        degraded=degraded(config, known) if known.course.state == "live" else (),
        since=known.since,
        reason=None if known.ready else known.course.reason,
        generation=known.course.generation,
        version=__version__,
        api=api_status(config),
        nodes=nodes,
        links=link_status(config, inventories, links),
        engine=_engine(config, known),
        served=served_status(config),
    )


def degraded(config: Config, known: Known) -> tuple[str, ...]:
    """The codes of what makes a live set less than it could be, sorted."""
    findings = [*known.found.findings, *known.warnings, *known.course.dropped]
    views = []
    for spark in known.sparks:
        if spark.report is not None:
            findings.extend(spark.report.findings)
            if spark.report.rank is not None:
                views.append(spark.report.rank)
                findings.extend(spark.report.rank.findings)
    codes = {finding.code for finding in findings if finding.severity is Severity.WARNING}
    if config.fabric.transport == "roce" and any(view.transport == "Socket" for view in views):
        codes.add("engine.transport-socket")
    if known.course.variant.context is not None:
        codes.add("engine.smaller-window")
    if known.course.variant.gentle:
        codes.add("engine.gentle-start")
    return tuple(sorted(codes))


def worker_status(
    config: Config,
    me: str,
    told: Status | None,
    report: Report,
    reason: Finding | None,
    now: float,
    memory: MemoryStatus,
) -> Status:
    """A worker's answer: the leader's last word under its own name, or what it knows alone."""
    if told is not None:
        return told.model_copy(update={"node": me, "role": "worker"})
    rank = config.rank_of(me)
    nodes = []
    for index, node in enumerate(config.node):
        if index == rank:
            nodes.append(_own(config, index, report, memory))
        else:
            nodes.append(_unheard(config, index, node.name))
    return Status(
        cluster=config.cluster.name,
        node=me,
        role="worker",
        state="unknown",
        ready=False,
        since=now,
        reason=reason,
        generation=report.generation,
        version=__version__,
        api=api_status(config),
        nodes=tuple(nodes),
        engine=EngineStatus(context=config.engine.context, parallel=config.parallel),
        served=served_status(config),
    )


def served_status(config: Config) -> ServedStatus:
    told = {pin.kind: pin.path or f"{pin.repository}@{pin.revision}" for pin in pins.wanted(config)}
    image = pins.image(config)
    return ServedStatus(
        checkpoint=told["checkpoint"], drafter=told.get("drafter", ""), image=image.reference if image else ""
    )


def api_status(config: Config) -> ApiStatus:
    host = config.leader.name if config.api.host in ("0.0.0.0", "::") else config.api.host
    host = f"[{host}]" if ":" in host else host
    url = f"http://{host}:{config.api.port}/v1"
    return ApiStatus(url=url, model=config.model.name, max_tokens=config.engine.max_tokens)


def _node(
    config: Config, rank: int, spark: Spark, own_memory: MemoryStatus | None, dropped: tuple[Finding, ...]
) -> NodeStatus:
    report = spark.report
    view = report.rank if report else None
    heard = spark.reachable
    return NodeStatus(
        name=spark.name,
        rank=rank,
        role="leader" if rank == 0 else "worker",
        address=config.node[rank].address,
        session="up" if spark.up and spark.freshness is Freshness.FRESH else ("unknown" if heard else "down"),
        boot_id=spark.opening.boot_id if spark.opening else "",
        state=report.state if report and heard else "unknown",
        rank_state=_rank_state(view) if heard else "unknown",
        phase=view.phase if view and heard else "",
        phase_since=view.phase_since if view and heard else None,
        pid=view.pid if view and heard else None,
        memory=own_memory if rank == 0 else (report.memory if report else None),
        weights=report.weights if report and heard else None,
        handover=report.handover if report and heard else None,
        findings=_node_findings(spark, dropped),
    )


def _node_findings(spark: Spark, dropped: tuple[Finding, ...]) -> tuple[Finding, ...]:
    findings: list[Finding] = [spark.problem] if spark.problem and not spark.reachable else []
    findings.extend(finding for finding in dropped if finding.node == spark.name)
    if spark.report is not None:
        findings.extend(spark.report.findings)
        if spark.report.rank is not None and not _ended_as_asked(spark.report):
            findings.extend(spark.report.rank.findings)
    if spark.inventory is not None:
        findings.extend(spark.inventory.findings)
    return tuple(dict.fromkeys(findings))


def _ended_as_asked(report: Report) -> bool:
    """What a rank says because the others were stopped before it is nothing that went wrong."""
    told = report.reason
    stopped = report.rank is not None and report.rank.state == "ended"
    return stopped and told is not None and told.severity is Severity.NOTE


def _own(config: Config, rank: int, report: Report, memory: MemoryStatus) -> NodeStatus:
    view = report.rank
    return NodeStatus(
        name=config.node[rank].name,
        rank=rank,
        role="leader" if rank == 0 else "worker",
        address=config.node[rank].address,
        session="down",
        state=report.state,
        rank_state=_rank_state(view),
        phase=view.phase if view else "",
        phase_since=view.phase_since if view else None,
        pid=view.pid if view else None,
        memory=memory,
        weights=report.weights,
        handover=report.handover,
        findings=report.findings,
    )


def _unheard(config: Config, rank: int, name: str) -> NodeStatus:
    role = "leader" if rank == 0 else "worker"
    return NodeStatus(name=name, rank=rank, role=role, address=config.node[rank].address, session="unknown")


def _rank_state(view: RankView | None) -> RankState:
    return view.state if view else "none"


def _engine(config: Config, known: Known) -> EngineStatus:
    views = [spark.report.rank for spark in known.sparks if spark.report and spark.report.rank]
    first = views[0] if views and views[0].rank == 0 else None
    laggard = slowest(views)
    health = known.health
    return EngineStatus(
        context=config.engine.context,
        parallel=config.parallel,
        served_context=first.served_context if first else None,
        phase=laggard.phase if laggard else "",
        phase_since=laggard.phase_since if laggard else None,
        estimate_gib=first.estimate_gib if first else None,
        tokens_per_second=known.tokens_per_second,
        iteration_s=health.iteration_s if health else None,
        streams=health.streams if health else None,
        pool_tokens=health.pool_tokens if health else None,
        pool_free_tokens=health.pool_free_tokens if health else None,
    )


def slowest(views: list[RankView]) -> RankView | None:
    """The rank that the load waits for: the one still loading that has been longest in its phase, else any."""
    loading = [view for view in views if view.state == "loading"]
    return min(loading or views, key=lambda view: view.phase_since or 0.0, default=None)
