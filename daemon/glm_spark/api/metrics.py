"""The set as Prometheus metrics, made from the status at the moment of the scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import get_args

from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from glm_spark.api import answers
from glm_spark.api.bind import bind_fault, listening_socket
from glm_spark.api.gate import Gate
from glm_spark.api.server import Listeners
from glm_spark.api.source import Source
from glm_spark.config.model import Config
from glm_spark.status import LeaderState, RankState, Status, WorkerState

_GIB = 1 << 30
_SESSIONS = ("up", "down", "unknown")


def _one_hot(family: GaugeMetricFamily, labels: list[str], values: Iterable[str], actual: str) -> None:
    """One series a possible value, 1 for the actual one: so that an alert needs no knowledge of numbers."""
    for value in dict.fromkeys((*values, actual)):
        family.add_metric([*labels, value], float(value == actual))


def _set_metrics(status: Status) -> Iterator[Metric]:
    info = InfoMetricFamily("glm_spark", "This daemon and what it serves.")
    info.add_metric(
        [], {"version": status.version, "cluster": status.cluster, "node": status.node, "model": status.api.model}
    )
    yield info
    yield GaugeMetricFamily("glm_spark_ready", "1 when a request would be answered by the model.", value=status.ready)
    state = GaugeMetricFamily("glm_spark_state", "1 for the state this Spark is in.", labels=["role", "state"])
    states = get_args(LeaderState if status.role == "leader" else WorkerState)
    _one_hot(state, [status.role], states, status.state)
    yield state
    yield GaugeMetricFamily(
        "glm_spark_state_since_timestamp_seconds", "When that state was entered, UNIX time.", value=status.since
    )
    yield GaugeMetricFamily("glm_spark_generation", "The running start of the set.", value=status.generation)
    degraded = GaugeMetricFamily(
        "glm_spark_degraded", "1 for each thing that is less than it could be.", labels=["code"]
    )
    for code in sorted(set(status.degraded)):
        degraded.add_metric([code], 1)
    yield degraded


def _node_metrics(status: Status) -> Iterator[Metric]:
    session = GaugeMetricFamily("glm_spark_session", "1 for how a Spark's session is.", labels=["node", "session"])
    rank = GaugeMetricFamily("glm_spark_rank_state", "1 for the state of a rank.", labels=["node", "rank", "state"])
    available = GaugeMetricFamily("glm_spark_memory_available_bytes", "MemAvailable of a Spark.", labels=["node"])
    total = GaugeMetricFamily("glm_spark_memory_total_bytes", "MemTotal of a Spark.", labels=["node"])
    found: Counter[tuple[str, str, str]] = Counter()
    for node in status.nodes:
        _one_hot(session, [node.name], _SESSIONS, node.session)
        _one_hot(rank, [node.name, str(node.rank)], get_args(RankState), node.rank_state)
        if node.memory is not None:
            available.add_metric([node.name], node.memory.available_gib * _GIB)
            total.add_metric([node.name], node.memory.total_gib * _GIB)
        found.update((node.name, finding.code, finding.severity.value) for finding in node.findings)
    findings = GaugeMetricFamily("glm_spark_findings", "Findings now.", labels=["node", "code", "severity"])
    for labels, count in sorted(found.items()):
        findings.add_metric(list(labels), count)
    yield from (session, rank, available, total, findings)


def _engine_metrics(status: Status) -> Iterator[Metric]:
    engine = status.engine
    optional = (
        (
            "glm_spark_engine_tokens_per_second",
            "Tokens the engine makes, all requests together.",
            engine.tokens_per_second,
        ),
        (
            "glm_spark_engine_iteration_seconds",
            "Age of the engine's current step; 0 between steps.",
            engine.iteration_s,
        ),
        ("glm_spark_engine_served_context_tokens", "Prompt and reply that fit.", engine.served_context),
        ("glm_spark_engine_pool_tokens", "Size of the engine's cache pool.", engine.pool_tokens),
        ("glm_spark_engine_pool_free_tokens", "Free tokens in that pool.", engine.pool_free_tokens),
    )
    for name, help_text, value in optional:
        if value is not None:  # absent is honest, 0 is not
            yield GaugeMetricFamily(name, help_text, value=value)
    if engine.streams is not None:
        streams = GaugeMetricFamily("glm_spark_engine_streams", "The engine's streams by state.", labels=["state"])
        for state, count in sorted(engine.streams.items()):
            streams.add_metric([state], count)
        yield streams


def _gate_metrics(gate: Gate) -> Iterator[Metric]:
    yield GaugeMetricFamily("glm_spark_requests_in_flight", "Requests under way.", value=gate.in_flight)
    requests = CounterMetricFamily(
        "glm_spark_requests",
        "Requests by key (first 8 hex digits of its SHA-256; - without one) and outcome.",
        labels=["key", "outcome"],
    )
    for (key, outcome), count in sorted(gate.counts.items()):
        requests.add_metric([key, outcome], count)
    yield requests


class _Scrape(Collector):
    def __init__(self, source: Source, gate: Gate | None) -> None:
        self._source = source
        self._gate = gate

    def collect(self) -> Iterable[Metric]:
        status = self._source.status()
        yield from _set_metrics(status)
        yield from _node_metrics(status)
        yield from _engine_metrics(status)
        yield CounterMetricFamily(
            "glm_spark_restarts", "Starts of the set after this daemon's first.", value=self._source.restarts()
        )
        if self._gate is not None:
            yield from _gate_metrics(self._gate)

    def describe(self) -> Iterable[Metric]:
        """Nothing: so that registering does not ask a daemon that is not set up yet."""
        return ()


class Metrics:
    """Renders /metrics; with `config.metrics.listen` also serves it there, without the token."""

    def __init__(self, config: Config, source: Source, gate: Gate | None = None) -> None:
        self._config = config
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(_Scrape(source, gate))
        self._listeners: Listeners | None = None

    def response(self) -> web.Response:
        """The metrics now, in Prometheus' text format."""
        return web.Response(body=generate_latest(self._registry), headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def start(self, node: str) -> None:
        """Listen when metrics.listen is set and it does not yet. Raises BindFault, and may then be called again."""
        if not self._config.metrics.listen or self._listeners is not None:
            return
        host, _, text = self._config.metrics.listen.rpartition(":")
        host, port = host.strip("[]"), int(text)
        listeners = Listeners(self._handle)
        try:
            await listeners.listen("metrics", listening_socket(host, port))
        except (OSError, OverflowError) as fault:
            cause = fault if isinstance(fault, OSError) else OSError(str(fault))
            raise await bind_fault(node, "metrics.listen", host, port, cause) from None
        self._listeners = listeners

    async def stop(self) -> None:
        if self._listeners is not None:
            await self._listeners.stop(1.0)
            self._listeners = None

    async def _handle(self, request: web.BaseRequest) -> web.StreamResponse:
        if request.path != "/metrics" or request.method not in ("GET", "HEAD"):
            return answers.error(404, "invalid_request_error", "not_found", "Only GET /metrics is here.")
        return self.response()
