"""The image from one Spark's podman to the other's: whole and proven, taken up where it broke, or refused."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm_spark.handover import chain, notes, place, record
from glm_spark.handover.store import machine
from glm_spark.weights import lists, sender, tidy
from glm_spark.weights.job import Job, Word
from glm_spark.weights.look import Store
from glm_spark.weights.partial import CHUNK
from tests.unit.handover.stores import Image, Spark, door, make, pair, sha256, some_layers
from tests.unit.weights.repositories import LEADER, WORKER, Child, done, doors, free_port

# Several chunks, an empty layer that is there twice, and a small one.
LAYERS = some_layers(9_000_000, 1024, 20_000, 1024)
LAYERS = (LAYERS[0], LAYERS[1], LAYERS[2], LAYERS[1])
SIZE = 9_000_000 + 1024 + 20_000


@pytest.fixture
def sparks(tmp_path: Path) -> tuple[Spark, Spark]:
    return pair(tmp_path)


def hand_over(
    leader: Spark, worker: Spark, pin: str, *, refusal: str = "", lie: Callable[[Job], None] = lambda _job: None
) -> tuple[Word, Word, Word]:
    """The last words of the leader's export, of its sending and of the worker. `lie` changes the export."""
    exported = done(leader.job("export", pin))
    way = door(free_port())
    sending = leader.job("send", pin, door=way)
    assert sending.image is not None
    refused = exported.findings[0].measured if exported.findings else refusal
    sending = sending.model_copy(update={"image": sending.image.model_copy(update={"refusal": refused})})
    lie(sending)
    sender.PATIENCE_SECONDS = 1.0
    with ThreadPoolExecutor(1) as aside:
        sent = aside.submit(done, sending)
        received = done(worker.job("receive", pin, door=way))
        return exported, sent.result(), received


def code(word: Word) -> str:
    return word.findings[0].code if word.findings else ""


@pytest.mark.parametrize("docker", [False, True])
@pytest.mark.parametrize("which", ["index", "manifest", "config"])
def test_the_image_comes_whole_and_nothing_is_left_of_its_way(
    sparks: tuple[Spark, Spark], which: str, docker: bool
) -> None:
    leader, worker = sparks
    image = make(LAYERS, docker=docker)
    pin = getattr(image, which)
    leader.has(image, pin)
    exported, sent, received = hand_over(leader, worker, pin)
    assert exported.findings == sent.findings == received.findings == ()
    assert worker.loaded() == {image.config: image.diff_ids}
    assert received.moved == SIZE + len(image.documents[image.config])
    known = record.known(worker.state / "images", pin)
    assert known is not None
    assert known.config == image.config
    assert not place.top(str(worker.cache)).exists()
    # A Spark that was handed the image can hand it on, when it leads: its record has the documents.
    third = Spark(worker.store.parent, "spark-3")
    exported, sent, received = hand_over(worker, third, pin)
    assert (code(exported), code(sent), code(received)) == ("", "", "")
    assert third.loaded() == worker.loaded()


def test_an_export_that_is_there_is_not_made_again(sparks: tuple[Spark, Spark]) -> None:
    leader, _ = sparks
    image = make(LAYERS)
    leader.has(image, image.index)
    assert done(leader.job("export", image.index)).findings == ()
    files = {file: file.stat().st_mtime_ns for file in place.top(str(leader.cache)).rglob("*")}
    assert done(leader.job("export", image.index)).findings == ()
    assert {file: file.stat().st_mtime_ns for file in place.top(str(leader.cache)).rglob("*")} == files


def test_an_unfinished_or_damaged_export_is_made_anew(sparks: tuple[Spark, Spark]) -> None:
    leader, worker = sparks
    image = make(LAYERS)
    leader.has(image, image.index)
    assert done(leader.job("export", image.index)).findings == ()
    job = leader.job("export", image.index)
    file = lists.snapshot(job.cache, job.pins[0]) / sha256(LAYERS[0])
    file.write_bytes(b"half")
    assert hand_over(leader, worker, image.index)[2].findings == ()
    assert worker.loaded() == {image.config: image.diff_ids}


def test_a_leader_without_the_image_says_so(sparks: tuple[Spark, Spark]) -> None:
    leader, worker = sparks
    image = make(LAYERS)
    exported, _, received = hand_over(leader, worker, image.index)
    assert code(exported) == code(received) == "image.leader-lacks"
    assert received.findings[0].node == WORKER
    assert f"{LEADER} says: it is not in podman's store here" in received.findings[0].measured
    assert "podman pull" in received.findings[0].fix


def test_a_leader_with_another_image_under_the_name_gives_nothing(sparks: tuple[Spark, Spark]) -> None:
    leader, worker = sparks
    image, other = make(LAYERS), make(some_layers(5000, seed=3))
    leader.has(other, image.index)  # podman says that this is the pinned one
    exported, _, received = hand_over(leader, worker, image.index)
    assert code(exported) == "image.not-the-pinned"
    assert code(received) == "image.leader-lacks"
    assert worker.loaded() == {}


def test_a_leader_whose_layers_are_others_than_its_documents_say_gives_nothing(sparks: tuple[Spark, Spark]) -> None:
    leader, worker = sparks
    image = make(LAYERS)
    leader.has(image, image.index)
    (leader.store / "layers" / sha256(LAYERS[0])).write_bytes(LAYERS[0][:-1] + b"x")
    exported, _, received = hand_over(leader, worker, image.index)
    assert code(exported) == "image.not-the-pinned"
    assert code(received) == "image.leader-lacks"


def _forged(other: Image) -> Callable[[Job], None]:
    """The sender's notes are those of another image, under the worker's pin: a leader that lies with all it has."""

    def lie(job: Job) -> None:
        assert job.image is not None
        recipe = chain.follow(other.index, machine(), lambda digest: other.documents[digest])
        texts = {job.image.digest: recipe.documents[other.index], **recipe.documents}
        forged = recipe.model_copy(update={"pin": job.image.digest, "documents": texts})
        notes.remember(job.store.state, forged)

    return lie


def _without(digest: str) -> Callable[[Job], None]:
    def lie(job: Job) -> None:
        pin = job.pins[0]
        listed = lists.kept(job.store.state, pin)
        assert listed is not None
        files = tuple(entry for entry in listed.files if entry.digest != digest)
        lists.keep(LEADER, job.store.state, pin, listed.model_copy(update={"files": files}))

    return lie


def _longer(digest: str) -> Callable[[Job], None]:
    """Another size than the content has, which the leader's file has too."""

    def lie(job: Job) -> None:
        pin = job.pins[0]
        listed = lists.kept(job.store.state, pin)
        assert listed is not None
        file = lists.snapshot(job.cache, pin) / digest
        file.write_bytes(file.read_bytes() + b"more")
        files = tuple(
            entry.model_copy(update={"size": entry.size + 4}) if entry.digest == digest else entry
            for entry in listed.files
        )
        lists.keep(LEADER, job.store.state, pin, listed.model_copy(update={"files": files}))
        from glm_spark.weights.remembered import Remembered

        Remembered(job.store.state).add({str(file.resolve()): (file.stat(), digest)})  # as if it had been proven

    return lie


def _flipped(digest: str) -> Callable[[Job], None]:
    def lie(job: Job) -> None:
        from glm_spark.weights.remembered import Remembered

        file = lists.snapshot(job.cache, job.pins[0]) / digest
        body = bytearray(file.read_bytes())
        body[len(body) // 2] ^= 1
        file.write_bytes(bytes(body))
        Remembered(job.store.state).add({str(file.resolve()): (file.stat(), digest)})

    return lie


IMAGE = make(LAYERS)
LIES: dict[str, tuple[Callable[[Job], None], str]] = {
    "another image's documents": (_forged(make(some_layers(5000, seed=3))), "image.not-the-pinned"),
    "a layer is not in its list": (_without(sha256(LAYERS[2])), "image.not-the-pinned"),
    "a layer is longer than its content": (_longer(sha256(LAYERS[2])), "weights.content-differs"),
    "one byte of a layer": (_flipped(sha256(LAYERS[0])), "weights.content-differs"),
    "one byte of the configuration": (_flipped(IMAGE.config), "weights.content-differs"),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_leader_that_lies_is_refused_and_nothing_is_loaded(sparks: tuple[Spark, Spark], lie: str) -> None:
    leader, worker = sparks
    leader.has(IMAGE, IMAGE.index)
    tell, wanted = LIES[lie]
    exported, _, received = hand_over(leader, worker, IMAGE.index, lie=tell)
    assert exported.findings == ()
    assert code(received) == wanted
    assert worker.loaded() == {}
    assert record.known(worker.state / "images", IMAGE.index) is None


def test_a_connection_for_weights_is_a_strangers_to_an_image(sparks: tuple[Spark, Spark]) -> None:
    leader, worker = sparks
    leader.has(IMAGE, IMAGE.index)
    assert done(leader.job("export", IMAGE.index)).findings == ()
    port = free_port()
    receiver = Child(worker.job("receive", IMAGE.index, door=door(port)))
    try:
        sender.PATIENCE_SECONDS = 5.0
        assert code(done(leader.job("send", IMAGE.index, door=doors(port)))) in ("weights.refused", "weights.broken")
        assert receiver.process.poll() is None
        assert done(leader.job("send", IMAGE.index, door=door(port))).findings == ()
        assert receiver.wait().findings == ()
    finally:
        receiver.process.kill()


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(share=st.floats(0.05, 0.6), who=st.sampled_from(["sender", "receiver"]))
def test_a_kill_at_any_point_is_taken_up(tmp_path_factory: pytest.TempPathFactory, share: float, who: str) -> None:
    leader, worker = pair(tmp_path_factory.mktemp("killed"))
    image = make(some_layers(40_000_000, 5000))
    leader.has(image, image.index)
    assert done(leader.job("export", image.index)).findings == ()
    way = door(free_port(), rate=10_000_000)  # four seconds, of which the last are left to the kill
    pair_of = [
        Child(leader.job("send", image.index, door=way)),
        Child(worker.job("receive", image.index, door=way)),
    ]
    # On a machine so busy that its words come late it may have ended, which is a point as good as any.
    while pair_of[1].last.done < share * 40_000_000 and pair_of[1].process.poll() is None:
        time.sleep(0.001)
    for child in pair_of if who == "sender" else reversed(pair_of):
        child.kill()
    had = pair_of[1].last.done
    _, _, received = hand_over(leader, worker, image.index)
    assert received.findings == ()
    assert worker.loaded() == {image.config: image.diff_ids}
    # Chunks under way on four connections come again.
    assert received.moved <= 40_000_000 - had + 16 * CHUNK
    assert received.moved < 40_000_000


def _resumed(worker: Spark, pin: str) -> Word:
    """Without any leader."""
    return done(worker.job("receive", pin, door=door(free_port())))


def test_a_load_that_fails_leaves_what_came(sparks: tuple[Spark, Spark], tmp_path: Path) -> None:
    leader, worker = sparks
    leader.has(IMAGE, IMAGE.index)
    broken = tmp_path / "podman"
    broken.write_text(
        '#!/bin/sh\n[ "$1" = pull ] && { echo "Error: its disk is sick" >&2; exit 125; }\n'
        f'exec {" ".join(worker.tool)} "$@"\n'
    )
    broken.chmod(0o755)
    real, worker.tool = worker.tool, (str(broken),)
    received = hand_over(leader, worker, IMAGE.index)[2]
    assert code(received) == "image.podman"
    assert "its disk is sick" in received.findings[0].measured
    worker.tool = real
    assert _resumed(worker, IMAGE.index).findings == ()
    assert worker.loaded() == {IMAGE.config: IMAGE.diff_ids}
    assert not place.top(str(worker.cache)).exists()


def test_a_content_that_the_disk_damaged_is_found_by_the_load_and_mended(
    sparks: tuple[Spark, Spark], tmp_path: Path
) -> None:
    leader, worker = sparks
    leader.has(IMAGE, IMAGE.index)
    broken = tmp_path / "podman"
    broken.write_text(f'#!/bin/sh\n[ "$1" = pull ] && exit 125\nexec {" ".join(worker.tool)} "$@"\n')
    broken.chmod(0o755)
    real, worker.tool = worker.tool, (str(broken),)
    assert code(hand_over(leader, worker, IMAGE.index)[2]) == "image.podman"
    worker.tool = real
    file = place.top(str(worker.cache)) / "hub" / "models--engine--image" / "blobs" / sha256(LAYERS[0])
    status = file.stat()
    with file.open("r+b") as damaged:
        damaged.write(b"damage")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))  # as a disk does it
    received = hand_over(leader, worker, IMAGE.index)[2]
    assert received.findings == ()
    assert received.moved == CHUNK
    assert worker.loaded() == {IMAGE.config: IMAGE.diff_ids}


def test_a_podman_that_stands_still_is_ended(sparks: tuple[Spark, Spark], tmp_path: Path) -> None:
    leader, _ = sparks
    leader.has(IMAGE, IMAGE.index)
    stuck = tmp_path / "podman"
    stuck.write_text(f'#!/bin/sh\n[ "$1" = push ] && exec sleep 1000\nexec {" ".join(leader.tool)} "$@"\n')
    stuck.chmod(0o755)
    leader.tool = (str(stuck),)
    job = leader.job("export", IMAGE.index)
    assert job.image is not None
    job = job.model_copy(update={"image": job.image.model_copy(update={"silence": 0.5})})
    word = done(job)
    assert code(word) == "image.podman"
    assert "no progress" in word.findings[0].measured


def test_what_is_left_of_another_image_is_dropped(sparks: tuple[Spark, Spark]) -> None:
    leader, worker = sparks
    leader.has(IMAGE, IMAGE.index)
    blobs = place.top(str(worker.cache)) / "hub" / "models--engine--image" / "blobs"
    blobs.mkdir(parents=True)
    (blobs / ("ab" * 32)).write_bytes(b"of an older image")
    _, _, received = hand_over(leader, worker, IMAGE.index)
    assert received.findings == ()
    assert worker.loaded() == {IMAGE.config: IMAGE.diff_ids}
    assert not blobs.exists()


@pytest.mark.parametrize("side", ["leader", "worker"])
def test_no_room_is_said_before_anything_is_moved(sparks: tuple[Spark, Spark], side: str) -> None:
    leader, worker = sparks
    leader.has(IMAGE, IMAGE.index)
    much: dict[str, Any] = {"keep_free": 1 << 60}
    if side == "leader":
        word = done(leader.job("export", IMAGE.index, **much))
    else:
        assert done(leader.job("export", IMAGE.index)).findings == ()
        way = door(free_port())
        sender.PATIENCE_SECONDS = 1.0
        with ThreadPoolExecutor(1) as aside:
            aside.submit(done, leader.job("send", IMAGE.index, door=way))
            word = done(worker.job("receive", IMAGE.index, door=way, **much))
    assert code(word) == "image.no-room"
    assert word.moved == 0


def test_gc_names_what_is_left_of_an_image_and_removes_it(sparks: tuple[Spark, Spark]) -> None:
    leader, _ = sparks
    leader.has(IMAGE, IMAGE.index)
    store = Store(leader.node, str(leader.cache), leader.state / "weights")
    assert tidy.of_image(store) == ()
    assert done(leader.job("export", IMAGE.index)).findings == ()
    (found,) = tidy.of_image(store)
    assert found.size >= SIZE
    assert tidy.remove(leader.node, [found]) == found.size
    assert not place.top(str(leader.cache)).exists()
    assert done(leader.job("export", IMAGE.index)).findings == ()
