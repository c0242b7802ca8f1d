"""The two daemons' sides of a hand-over: what is asked for, exported once, refused with a reason, cleared."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_spark.config.model import Config
from glm_spark.engine import images
from glm_spark.finding import Finding, Severity
from glm_spark.handover import offer, place, taking
from glm_spark.handover.offer import Offer
from glm_spark.handover.taking import Taking
from glm_spark.status import WeightsStatus
from glm_spark.weights import process
from glm_spark.weights.job import Job, Word
from glm_spark.weights.steward import Steward
from tests.sparks import until
from tests.unit.engine.test_container import config as configured

IMAGE = f"registry.example/engine@sha256:{'ab' * 32}"
MISSING = Finding(code="image.missing", severity=Severity.ERROR, node="spark-2", subject="image", measured="gone")
TROUBLE = MISSING.model_copy(update={"code": "image.podman", "measured": "the disk is sick"})


def config(tmp_path: Path, **engine: Any) -> Config:
    return configured(engine={"image": IMAGE, **engine}, model={"cache": str(tmp_path / "cache")})


def steward(tmp_path: Path, made: Config, node: str) -> Steward:
    return Steward(node, tmp_path, b"t" * 32, lambda: made, dict, lambda: None)


@pytest.fixture
def jobs(monkeypatch: pytest.MonkeyPatch) -> list[Job]:
    """What processes were started for; each ends at once, in trouble as long as there is one in TROUBLES."""
    started: list[Job] = []

    async def run(job: Job, on_word: Callable[[Word], None]) -> tuple[Finding, ...]:
        started.append(job)
        on_word(Word(phase="exporting" if job.verb == "export" else "receiving", done=1, total=2))
        await asyncio.sleep(0)
        return (TROUBLES.pop(0),) if TROUBLES else ()

    TROUBLES.clear()
    monkeypatch.setattr(process, "run", run)
    return started


TROUBLES: list[Finding] = []


def an_offer(tmp_path: Path, made: Config, asking: Callable[[], bool] = lambda: False) -> Offer:
    return Offer("spark-1", tmp_path, steward(tmp_path, made, "spark-1"), lambda: made, asking, lambda: None)


async def test_two_workers_share_an_export_and_have_doors_of_their_own(tmp_path: Path, jobs: list[Job]) -> None:
    made = config(tmp_path)
    own = an_offer(tmp_path, made)
    sent = await asyncio.gather(own.job("spark-2"), own.job("spark-3"))
    assert [job.verb for job in jobs] == ["export", "export"]  # one after the other: the second finds it done
    assert [job.door.worker for job in sent if job.door] == ["spark-2", "spark-3"]
    assert all(job.image is not None and not job.image.refusal for job in sent)
    assert all(job.door is not None and job.door.key != own._steward.door("spark-2").key for job in sent)


async def test_a_worker_is_told_why_it_gets_nothing(tmp_path: Path, jobs: list[Job]) -> None:
    TROUBLES.append(TROUBLE)
    own = an_offer(tmp_path, config(tmp_path))
    told = await own.job("spark-2")
    assert told.image is not None
    assert told.image.refusal == "the disk is sick"
    assert own.status == WeightsStatus(phase="failed", finding=TROUBLE)
    assert (await own.job("spark-2")).image == told.image.model_copy(update={"refusal": ""})
    assert own.status is None


@pytest.mark.parametrize("engine", [{"hand_over": False}, {"runtime": "docker"}, {"image": "localhost/own"}])
async def test_a_leader_that_must_not_or_cannot_exports_nothing(
    tmp_path: Path, jobs: list[Job], engine: dict[str, Any]
) -> None:
    told = await an_offer(tmp_path, config(tmp_path, **engine)).job("spark-2")
    assert told.image is not None
    assert "hands no image over" in told.image.refusal
    assert jobs == []


async def test_an_export_goes_when_nobody_asks_any_more(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offer, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(place, "EXPORT_SECONDS", 0.1)
    made = config(tmp_path)
    folder = place.top(made.model.cache)
    folder.mkdir(parents=True)
    asked = True
    own = an_offer(tmp_path, made, lambda: asked)
    running = asyncio.create_task(own.run())
    await asyncio.sleep(0.3)
    assert folder.exists()
    asked = False
    await until(lambda: not folder.exists(), 10.0, "the end of the export")
    running.cancel()


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What a look at podman's store finds, one after the other; the last stays."""
    found: list[Any] = [MISSING]

    async def look(_config: Config, _node: str) -> Any:
        return found.pop(0) if len(found) > 1 else found[0]

    monkeypatch.setattr(images, "look", look)
    return found


def a_taking(tmp_path: Path, made: Callable[[], Config]) -> tuple[Taking, list[WeightsStatus | None]]:
    heard: list[WeightsStatus | None] = []
    own = Taking("spark-2", tmp_path, steward(tmp_path, made(), "spark-2"), made, lambda: heard.append(own.status))
    return own, heard


async def test_a_worker_asks_by_its_status_until_the_image_is_here(
    tmp_path: Path, jobs: list[Job], looked: list[Any]
) -> None:
    made = config(tmp_path)
    own, heard = a_taking(tmp_path, lambda: made)
    assert own.may(made)
    assert await own.take() == ()
    assert [status.phase if status else None for status in heard] == ["waiting", "receiving", None]
    (job,) = jobs
    assert (job.verb, job.image.digest if job.image else "") == ("receive", "ab" * 32)
    assert job.door is not None
    assert not job.door.address


async def test_what_came_by_other_means_is_not_asked_for(tmp_path: Path, jobs: list[Job], looked: list[Any]) -> None:
    made = config(tmp_path)
    looked[:] = [images.Image("content", "kernels")]
    assert await a_taking(tmp_path, lambda: made)[0].take() == ()
    assert jobs == []


async def test_another_image_in_the_configuration_ends_the_asking(
    tmp_path: Path, looked: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(taking, "LOOK_SECONDS", 0.01)
    ended = asyncio.Event()

    async def forever(_job: Job, _on_word: Callable[[Word], None]) -> tuple[Finding, ...]:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        raise AssertionError

    monkeypatch.setattr(process, "run", forever)
    made = [config(tmp_path)]
    own, _ = a_taking(tmp_path, lambda: made[0])
    running = asyncio.create_task(own.take())
    await until(lambda: own.status is not None, 5.0, "its asking")
    made[0] = config(tmp_path, image=f"registry.example/engine@sha256:{'cd' * 32}")
    async with asyncio.timeout(10):
        assert await running == ()
    assert ended.is_set()
    assert own.status is None


async def test_only_a_worker_with_a_pinned_image_in_podman_may_ask(tmp_path: Path) -> None:
    made = config(tmp_path)
    own, _ = a_taking(tmp_path, lambda: made)
    assert not Taking("spark-1", tmp_path, own._steward, lambda: made, lambda: None).may(made)
    for engine in ({"hand_over": False}, {"runtime": "docker"}, {"runtime": "process"}, {"image": "localhost/own"}):
        assert not own.may(config(tmp_path, **engine))


async def test_what_an_earlier_life_left_goes_once_the_image_is_here(tmp_path: Path, looked: list[Any]) -> None:
    made = config(tmp_path)
    own, _ = a_taking(tmp_path, lambda: made)
    folder = place.top(made.model.cache)
    (folder / "hub").mkdir(parents=True)
    await own.tidy()
    assert folder.exists()  # it is taken up again
    looked[:] = [images.Image("content", "kernels")]
    await own.tidy()
    assert not folder.exists()
