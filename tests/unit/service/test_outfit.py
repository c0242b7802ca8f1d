"""What a Spark does before a rank starts: the last rank's memory waited for, stale locks cleared, the clock capped."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from glm_spark.config.model import Config
from glm_spark.engine import images
from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Finding, Severity
from glm_spark.host.memory import Memory
from glm_spark.preflight.checks import image, kernels
from glm_spark.preflight.context import Context
from glm_spark.service.outfit import Outfit


def config(tmp_path: Path, **tables: Any) -> Config:
    nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
    engine = {"runtime": "process", "kernel_cache": str(tmp_path), **tables.pop("engine", {})}
    return Config.model_validate({"node": nodes, "engine": engine, **tables})


def made(settings: Config) -> Outfit:
    return Outfit("spark-2", lambda: settings, lambda: None)


@pytest.fixture
def available(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """What /proc/meminfo says at each look; the last figure stays."""

    def script(*gib: float) -> None:
        left = list(gib)

        def look() -> Memory:
            now = left.pop(0) if len(left) > 1 else left[0]
            return Memory(**{**dict.fromkeys(Memory.__dataclass_fields__, 0.0), "available": now, "total": 121.7})

        monkeypatch.setattr("glm_spark.host.memory.look", look)

    return script


async def test_a_start_waits_while_the_last_ranks_memory_comes_back(
    tmp_path: Path, available: Callable[..., None]
) -> None:
    own = made(config(tmp_path))
    available(118.0)
    own.starting()
    available(60.0, 80.0, 100.0, 117.0)
    assert await own.ready() == ()


async def test_memory_that_stays_away_is_told_with_its_holders(
    tmp_path: Path, available: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glm_spark.host.settling.STILL_SECONDS", 0.1)
    own = made(config(tmp_path))
    available(118.0)
    own.starting()
    available(87.0)
    (found,) = await own.ready()
    assert (found.code, found.severity, found.node) == ("memory.held", Severity.WARNING, "spark-2")
    assert "31.0 GiB did not come back" in found.measured


async def test_the_first_start_waits_for_nothing(tmp_path: Path, available: Callable[..., None]) -> None:
    available(10.0)
    assert await made(config(tmp_path)).ready() == ()


def left_lock(tmp_path: Path) -> Path:
    lock = tmp_path / "extension" / "lock"
    lock.parent.mkdir()
    lock.touch()
    os.utime(lock, (time.time() - 3600, time.time() - 3600))
    return lock


async def test_a_lock_of_a_killed_build_is_gone_before_the_start_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("glm_spark.engine.buildlock.BUILDERS", ("testcc",))
    lock = left_lock(tmp_path)
    (finding,) = kernels.run(Context(config=config(tmp_path), me="spark-2"))
    assert (finding.code, finding.severity) == ("engine.build-lock", Severity.NOTE)
    assert "removed before the next start" in finding.fix
    await made(config(tmp_path)).ready()
    assert not lock.exists()
    assert str(lock) in caplog.text


async def test_a_clock_that_cannot_be_capped_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (found,) = await made(config(tmp_path, gpu={"clock_limit_mhz": 2200})).ready()
    assert (found.code, found.severity) == ("gpu.clock-not-limited", Severity.WARNING)
    assert "2200" in found.wanted
    assert "no program nvidia-smi" in found.measured


async def test_a_missing_image_is_fetched_only_where_that_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    podman = tmp_path / "podman"
    podman.write_text("#!/bin/sh\necho 'Error: x: image not known' >&2\nexit 125\n")
    podman.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    for pull, code in ((False, "image.missing"), (True, "image.pulling")):
        settings = config(tmp_path, engine={"runtime": "podman", "pull": pull})
        found = await image.run(Context(config=settings, me="spark-2", moment="start"))
        assert [finding.code for finding in found] == ["image.missing"]
        assert [finding.code for finding in made(settings).fetched(tuple(found))] == [code]
    asked = await image.run(Context(config=settings, me="spark-2"))
    assert asked[0].severity is Severity.NOTE  # whoever only asks is told that it will be fetched
    settings = config(tmp_path, engine={"runtime": "podman"})
    (asked_for,) = await image.run(Context(config=settings, me="spark-2"))
    assert (asked_for.severity, "taken from spark-1" in asked_for.fix) == (Severity.NOTE, True)
    for me, engine in (("spark-1", {}), ("spark-2", {"hand_over": False}), ("spark-2", {"image": "localhost/own"})):
        settings = config(tmp_path, engine={"runtime": "podman", **engine})
        assert (await image.run(Context(config=settings, me=me)))[0].severity is Severity.ERROR


async def test_the_engine_is_asked_once_about_the_same_command_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[RankSpec] = []

    async def fault(_config: Config, spec: RankSpec, _image: images.Image | None) -> Finding | None:
        asked.append(spec)
        return None

    monkeypatch.setattr(images, "arguments_fault", fault)
    own = made(config(tmp_path))
    spec = RankSpec(
        cluster="glm", node="spark-2", rank=1, generation=1, argv=("tensorfold", "serve", "/m"), environment={}
    )
    for generation in (1, 2):
        assert await own.judge(spec.model_copy(update={"generation": generation})) is None
    assert len(asked) == 1
    await own.judge(spec.model_copy(update={"argv": (*spec.argv, "--vision")}))
    assert len(asked) == 2
