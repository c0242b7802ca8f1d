"""The same image is the same whatever store holds it, and one that is not is named. Recorded answers of podman 4.3.1
and Docker 20.10 about one image, imported into both from one archive."""

from __future__ import annotations

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest

from glm_spark.engine import container, flags, images
from glm_spark.engine.pull import HOLDING, Pull
from glm_spark.finding import Finding, Severity
from glm_spark.handover import record
from glm_spark.handover.chain import Recipe
from glm_spark.status import WeightsStatus
from tests.unit.engine.test_container import SPEC, config

LAYER = "sha256:119989b9f34ad0dd64db48dd77a10b95de63655354e71a506c74dc2c1297bf3d"
PODMAN: dict[str, Any] = {
    "Id": "e7ba18e4307bc99f6a36d34cbe45fd7f1dc2454adb88563d1016f3b7e1031255",
    "Digest": "sha256:65e27079dd6a195539cb3b3bcedcab207b31cc55a62415ffe9c0a8a44aac01d4",
    "RepoTags": ["localhost/bb:latest"],
    "RepoDigests": ["localhost/bb@sha256:65e27079dd6a195539cb3b3bcedcab207b31cc55a62415ffe9c0a8a44aac01d4"],
    "Config": {},
    "Size": 1987655,
    "RootFS": {"Type": "layers", "Layers": [LAYER]},
    "Labels": None,
}
DOCKER: dict[str, Any] = {
    "Id": "sha256:24a3e020d724eb82267d2cb3ad75b30c59914658506a6e3335336d7738985617",
    "RepoTags": ["bb:latest"],
    "RepoDigests": [],
    "Config": {"Env": None, "Cmd": None, "WorkingDir": "", "Entrypoint": None, "Labels": None},
    "Size": 1982256,
    "RootFS": {"Type": "layers", "Layers": [LAYER]},
}
PINNED = "sha256:" + "ab" * 32


def test_one_image_in_two_stores_has_two_ids_and_one_content() -> None:
    one, other = images.read(PODMAN), images.read(DOCKER)
    assert one.content == other.content
    assert one.digests != other.digests


@pytest.mark.parametrize(
    "change",
    [{"RootFS": {"Layers": [LAYER, LAYER]}}, {"Config": {"Env": ["A=1"]}}, {"Config": {"Entrypoint": ["/bin/x"]}}],
)
def test_another_layer_or_another_way_to_run_it_is_another_content(change: dict[str, Any]) -> None:
    assert images.read({**PODMAN, **change}).content != images.read(PODMAN).content


def test_kernels_have_a_folder_for_each_build_of_the_image() -> None:
    assert images.read({**PODMAN, "Config": {"Labels": {"tf.patches": "a1897d591f70"}}}).kernels == "a1897d591f70"
    plain = images.read(PODMAN)
    assert plain.kernels == plain.content[:12]
    assert images.read({**PODMAN, "Config": {"Labels": {"tf.patches": "../../etc"}}}).kernels == plain.kernels


def test_the_spark_with_the_other_content_is_named() -> None:
    assert images.differing({"spark-1": "a", "spark-2": "a", "spark-3": ""}) is None
    found = images.differing({"spark-1": "a" * 64, "spark-2": "b" * 64, "spark-3": "b" * 64})
    assert found is not None
    assert (found.code, found.node) == ("image.content-differs", "spark-1")
    assert "aaaaaaaaaaaa" in found.measured


def runtime(tmp_path: Path, script: str) -> None:
    """A podman and a docker that answer as recorded."""
    for name in ("podman", "docker"):
        program = tmp_path / name
        program.write_text(f"#!/bin/sh\n{script}\n")
        program.chmod(0o755)


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def make(script: str) -> None:
        runtime(tmp_path, script)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")

    return make


def pinned(runtime: str = "podman", *, pull: bool = False) -> Any:
    return config(engine={"runtime": runtime, "image": f"registry.example/engine@{PINNED}", "pull": pull})


async def test_an_image_of_the_pinned_digest_is_taken(told: Any) -> None:
    told("echo '" + json.dumps([{**PODMAN, "Digest": PINNED}]) + "'")
    found = await images.look(pinned(), "spark-1")
    assert isinstance(found, images.Image)


async def test_an_image_of_another_digest_is_not(told: Any) -> None:
    told("echo '" + json.dumps([PODMAN]) + "'")
    found = await images.look(pinned(), "spark-1")
    assert isinstance(found, Finding)
    assert found.code == "image.digest-differs"
    assert PINNED in found.wanted


@pytest.mark.parametrize(
    ("runtime", "words", "code", "fix"),
    [
        ("podman", "Error: registry.example/engine: image not known", "image.missing", "engine.pull = true"),
        ("docker", "Error: No such image: registry.example/engine", "image.missing", "docker pull"),
        (
            "docker",
            "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?",
            "engine.runtime-silent",
            "systemctl start docker",
        ),
        ("podman", "Error: database is locked", "engine.runtime-silent", "podman image inspect"),
    ],
)
async def test_why_there_is_no_image_is_said(told: Any, runtime: str, words: str, code: str, fix: str) -> None:
    told(f"echo '{words}' >&2; exit 1")
    found = await images.look(pinned(runtime), "spark-2")
    assert isinstance(found, Finding)
    assert (found.code, found.node) == (code, "spark-2")
    assert fix in found.fix


async def test_an_answer_that_cannot_be_read_is_no_image(told: Any) -> None:
    told("echo '[{}]'")
    found = await images.look(pinned(), "spark-1")
    assert isinstance(found, Finding)
    assert found.code == "engine.runtime-silent"


HANDED = "ce" * 32  # a configuration's digest, which is podman's Id


@pytest.fixture
def handed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Recipe:
    """The record of an image that the leader gave: the pin is the image with this Id."""
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    recipe = Recipe(pin=PINNED.removeprefix("sha256:"), config=HANDED, layers=("1" * 64,), docker=False, documents={})
    record.keep(record.here(), recipe)
    return recipe


def only_by(reference: str, **answer: Any) -> str:
    """A podman that knows its image by one name."""
    told = json.dumps([{**PODMAN, **answer}])
    return f"if [ \"$4\" = {reference} ]; then echo '{told}'; else echo 'Error: image not known' >&2; exit 125; fi"


async def test_an_image_that_was_handed_over_is_run_by_its_id(told: Any, handed: Recipe) -> None:
    told(only_by(HANDED, Id=HANDED))
    found = await images.look(pinned(), "spark-2")
    assert isinstance(found, images.Image)
    assert found.reference == HANDED
    assert HANDED in container.run(pinned(), SPEC, "/kernels", image=found.reference)
    assert pinned().engine.image not in container.parse_arguments(pinned(), (), found.reference)


async def test_a_record_is_worth_nothing_without_exactly_that_image(told: Any, handed: Recipe) -> None:
    for script in (only_by(HANDED, Id="ab" * 32), only_by("ab" * 32, Id="ab" * 32)):
        told(script)
        found = await images.look(pinned(), "spark-2")
        assert isinstance(found, Finding)
        assert found.code == "image.missing"


async def test_a_record_is_for_podman_only(told: Any, handed: Recipe) -> None:
    told(only_by(HANDED, Id=HANDED).replace("$4", "$3"))
    assert isinstance(await images.look(pinned("docker"), "spark-2"), Finding)


@pytest.mark.parametrize(
    ("node", "engine", "measured", "fix"),
    [
        ("spark-2", {"runtime": "docker"}, "docker keeps no manifest", 'engine.runtime = "podman"'),
        ("spark-1", {"runtime": "docker"}, "not in docker's store on this Spark", "docker pull"),
        ("spark-2", {"image": "localhost/own"}, "an image without a digest", "podman save localhost/own | ssh spark-2"),
        ("spark-1", {"image": "localhost/own"}, "not in podman's store on this Spark", "Build or load it"),
    ],
)
def test_why_an_image_is_not_handed_over_is_said(node: str, engine: dict[str, Any], measured: str, fix: str) -> None:
    found = images.missing(config(engine={"image": f"registry.example/engine@{PINNED}", **engine}), node)
    assert measured in found.measured
    assert fix in found.fix
    assert ("leader" in found.measured or "spark-1" in found.measured) is (node == "spark-2")


class Leader:
    """Another Spark that has the image, or has trouble."""

    def __init__(self, *troubles: Finding) -> None:
        self.status: WeightsStatus | None = None
        self.allowed = True
        self.asked = 0
        self._troubles = list(troubles)

    def may(self, _config: Any) -> bool:
        return self.allowed

    async def take(self) -> tuple[Finding, ...]:
        self.asked += 1
        self.status = WeightsStatus(phase="receiving", done=5_000_000, total=10_000_000)
        await asyncio.sleep(0.05)
        return (self._troubles.pop(0),) if self._troubles else ()

    async def tidy(self) -> None:
        pass


TROUBLE = Finding(
    code="image.leader-lacks", severity=Severity.ERROR, node="spark-2", subject="it", measured="not there", fix="Do it."
)


async def brought(pull: Pull) -> None:
    running = asyncio.create_task(pull.run())
    async with asyncio.timeout(10):
        while pull.finding is not None:  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.01)
    running.cancel()


async def test_an_image_that_must_not_be_pulled_is_taken_from_the_leader(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm_spark.engine.pull.BACKOFF_SECONDS", (0.01,))
    monkeypatch.setattr("glm_spark.engine.pull.LOOK_SECONDS", 0.01)
    heard: list[Finding | None] = []
    leader = Leader(TROUBLE)
    pull = Pull("spark-2", pinned, lambda: heard.append(pull.finding), leader)
    assert pull.may
    assert pull.want().code == "image.handing-over"
    await brought(pull)
    assert leader.asked == 2
    told = [finding for finding in heard if finding is not None]
    assert any("receiving 5.0 MB of 10.0 MB" in finding.measured for finding in told)
    failed = next(finding for finding in told if finding.code == "image.not-handed-over")
    assert "not there; tried again" in failed.measured
    assert failed.fix == "Do it."
    assert {finding.code for finding in told} <= HOLDING


async def test_an_image_that_cannot_be_pulled_is_taken_from_the_leader(
    told: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("glm_spark.engine.pull.LOOK_SECONDS", 0.01)
    told('echo "Error: no route to the registry"; exit 125')
    heard: list[Finding | None] = []
    leader = Leader()
    pull = Pull("spark-2", lambda: pinned(pull=True), lambda: heard.append(pull.finding), leader)
    assert pull.want().code == "image.pulling"
    await brought(pull)
    assert leader.asked == 1
    assert any(finding is not None and "no route to the registry" in finding.measured for finding in heard)


async def test_who_has_nobody_to_ask_asks_nobody(told: Any) -> None:
    leader = Leader()
    leader.allowed = False
    pull = Pull("spark-2", pinned, lambda: None, leader)
    assert not pull.may
    pull.want()  # allowed a moment ago
    await brought(pull)
    assert leader.asked == 0


async def test_a_failed_fetch_says_why_and_is_tried_again(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm_spark.engine.pull.BACKOFF_SECONDS", (0.01,))
    monkeypatch.setattr("glm_spark.engine.pull.LOOK_SECONDS", 0.01)
    told('if [ -e "$0.twice" ]; then exit 0; fi; touch "$0.twice"; echo "Error: no space left on device"; exit 125')
    heard: list[Finding | None] = []
    pull = Pull("spark-2", lambda: pinned(pull=True), lambda: heard.append(pull.finding))
    assert pull.want().code == "image.pulling"
    running = asyncio.create_task(pull.run())
    async with asyncio.timeout(10):
        while pull.finding is not None:  # noqa: ASYNC110 - another process is waited for
            await asyncio.sleep(0.01)
    running.cancel()
    failed = [finding for finding in heard if finding is not None and finding.code == "image.pull-failed"]
    assert "no space left on device" in failed[0].measured
    assert heard[-1] is None


async def test_a_fetch_that_stands_still_is_ended(told: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("glm_spark.engine.pull.LOOK_SECONDS", 0.01)
    told("exec sleep 1000")
    stuck = pinned(pull=True)
    stuck = stuck.model_copy(update={"timeouts": stuck.timeouts.model_copy(update={"silence_seconds": 0.3})})
    pull = Pull("spark-2", lambda: stuck, lambda: None)
    pull.want()
    running = asyncio.create_task(pull.run())
    async with asyncio.timeout(10):
        while pull.finding is None or pull.finding.code != "image.pull-failed":  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.01)
    running.cancel()
    assert "no progress" in pull.finding.measured


@pytest.mark.parametrize(
    ("words", "fault"),
    [
        ("serve /model --tp 2 --rank 0 --vision --context=1024", ""),
        ("serve /model --tp 5", "--tp is one of"),
        ("serve /model --context many", "--context is a whole number"),
        ("serve /model --spill-gib much", "--spill-gib is a number"),
        ("serve /model --turbo", "no such flag"),
        ("serve --tp 2", "0 models are named"),
        ("serve /model --name", "--name needs a value"),
        ("serve /model --vision=1", "takes no value"),
        ("/model", "serve is wanted"),
    ],
)
def test_the_table_of_flags_judges_as_the_engine_does(words: str, fault: str) -> None:
    found = flags.faults(words.split())
    assert fault in "; ".join(found) if fault else found == []
