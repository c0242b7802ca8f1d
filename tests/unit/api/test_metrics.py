"""What Prometheus reads."""

from __future__ import annotations

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from glm_spark.api.gate import Gate
from glm_spark.api.metrics import Metrics
from glm_spark.preflight import holders
from glm_spark.status import EngineStatus, MemoryStatus, NodeStatus
from tests.unit.api.parts import LOST, Daemon, configured, free_port

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def samples(text: str) -> Samples:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def told() -> Daemon:
    daemon = Daemon()
    nodes = (
        NodeStatus(
            name="spark-1",
            rank=0,
            role="leader",
            address="192.168.100.1",
            session="up",
            rank_state="ready",
            memory=MemoryStatus(available_gib=7.0, total_gib=121.5),
        ),
        NodeStatus(
            name="spark-2", rank=1, role="worker", address="192.168.100.2", session="down", findings=(LOST, LOST)
        ),
    )
    daemon.told = daemon.told.model_copy(
        update={
            "generation": 7,
            "degraded": ("rail.lost",),
            "nodes": nodes,
            "engine": EngineStatus(tokens_per_second=60.4, streams={"decoding": 2}),
        }
    )
    return daemon


def scraped(daemon: Daemon, gate: Gate | None) -> Samples:
    body = Metrics(configured(), daemon, gate).response().body
    assert isinstance(body, bytes)
    return samples(body.decode())


def test_the_set_can_be_alarmed_on() -> None:
    gate = Gate()
    gate.counts["0123abcd", "answered"] = 5
    found = scraped(told(), gate)
    one = {
        ("glm_spark_ready", ()): 1,
        ("glm_spark_generation", ()): 7,
        ("glm_spark_state", (("role", "leader"), ("state", "live"))): 1,
        ("glm_spark_state", (("role", "leader"), ("state", "failed"))): 0,
        ("glm_spark_degraded", (("code", "rail.lost"),)): 1,
        ("glm_spark_session", (("node", "spark-2"), ("session", "down"))): 1,
        ("glm_spark_session", (("node", "spark-2"), ("session", "up"))): 0,
        ("glm_spark_rank_state", (("node", "spark-1"), ("rank", "0"), ("state", "ready"))): 1,
        ("glm_spark_memory_available_bytes", (("node", "spark-1"),)): 7 * 2**30,
        ("glm_spark_findings", (("code", "rank.lost"), ("node", "spark-2"), ("severity", "error"))): 2,
        ("glm_spark_engine_tokens_per_second", ()): 60.4,
        ("glm_spark_engine_streams", (("state", "decoding"),)): 2,
        ("glm_spark_restarts_total", ()): 3,
        ("glm_spark_requests_in_flight", ()): 0,
        ("glm_spark_requests_total", (("key", "0123abcd"), ("outcome", "answered"))): 5,
    }
    assert {name: found.get(name) for name in one} == one


def test_exactly_one_state_is_set() -> None:
    found = scraped(told(), None)
    assert sum(value for (name, _), value in found.items() if name == "glm_spark_state") == 1


def test_what_is_not_known_is_absent_rather_than_zero() -> None:
    found = scraped(told(), None)
    names = {name for name, _ in found}
    assert "glm_spark_engine_iteration_seconds" not in names
    assert "glm_spark_requests_in_flight" not in names  # a worker has no endpoint
    assert ("glm_spark_memory_available_bytes", (("node", "spark-2"),)) not in found


async def test_metrics_are_served_elsewhere_only_when_asked_for(client: aiohttp.ClientSession) -> None:
    quiet = Metrics(configured(), told())
    await quiet.start("spark-1")
    owners = holders.owners({listener.inode for listener in holders.listeners()})
    assert not any(owner.me for owner in owners.values())
    await quiet.stop()

    config = configured(metrics={"listen": f"127.0.0.1:{free_port()}"})
    listening = Metrics(config, told())
    await listening.start("spark-1")
    async with client.get(f"http://{config.metrics.listen}/metrics") as reply:
        assert reply.status == 200
        assert samples(await reply.text())[("glm_spark_ready", ())] == 1
    for method, path in (("GET", "/v1/status"), ("POST", "/metrics"), ("POST", "/v1/stop")):
        async with client.request(method, f"http://{config.metrics.listen}{path}") as reply:
            assert reply.status == 404
    await listening.stop()
