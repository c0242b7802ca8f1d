"""From one Spark's cache to another's, by real processes over TCP, broken wherever it hurts."""

from __future__ import annotations

import errno
import os
import socket
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from glm_spark.weights import layout, lists, shelf, wire
from glm_spark.weights.partial import CHUNK
from tests.unit.weights.repositories import (
    PIN,
    WORKER,
    Child,
    Pair,
    blob_file,
    digest,
    done,
    doors,
    fill,
    free_port,
    listed,
    some_files,
)

LARGE = {"model-1.safetensors": 9 * CHUNK + 17, "model-2.safetensors": 5 * CHUNK, "tokenizer/vocab.json": 3000}
FILES = some_files({**LARGE, "empty.txt": 0, "same.safetensors": 100_000})
FILES["again/same.safetensors"] = FILES["same.safetensors"]
SIZE = sum({digest(path, body): len(body) for path, body in FILES.items()}.values())


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    return Pair(tmp_path, FILES)


def part(pair: Pair, path: str) -> Path:
    """The unfinished blob of a file at the worker."""
    blob = blob_file(pair.worker.cache, path, FILES[path])
    return blob.with_name(blob.name + layout.PART)


def noted(pair: Pair) -> int:
    """Bytes that the worker has noted or finished, as its disk shows."""
    total = 0
    for path, body in {digest(path, body): (path, body) for path, body in FILES.items()}.values():
        blob = blob_file(pair.worker.cache, path, body)
        notes = blob.with_name(blob.name + layout.GOT)
        if blob.exists():
            total += len(body)
        elif notes.exists():
            raw = notes.read_bytes()[26:]
            chunks = {int.from_bytes(raw[at : at + 4], "big") for at in range(0, len(raw) - 3, 4)}
            total += sum(min(CHUNK, len(body) - index * CHUNK) for index in chunks)
    return total


def broken_off(pair: Pair, share: float, rate: int = 60_000_000) -> tuple[Child, Child]:
    """A sync under way with that share of its bytes noted."""
    sender, receiver = pair.start(rate=rate)
    while noted(pair) < share * SIZE:
        assert receiver.process.poll() is None, receiver.words
        time.sleep(0.001)
    return sender, receiver


def test_everything_arrives_and_is_proven(pair: Pair) -> None:
    sender, receiver = pair.sync()
    assert sender.findings == receiver.findings == ()
    assert pair.arrived()
    assert receiver.moved == SIZE
    assert lists.kept(pair.worker.state, PIN) == listed(FILES)
    assert not [file for file in pair.worker.cache.rglob("*") if ".glm-" in file.name]
    # Nothing is left to be read at a start.
    again = Child(pair.worker.job("verify"))
    assert again.wait().findings == ()
    assert all(word.phase != "verifying" for word in again.words)


def test_what_is_there_already_is_not_sent(pair: Pair) -> None:
    fill(pair.worker.cache, {path: FILES[path] for path in ("model-1.safetensors", "config.json")})
    _, receiver = pair.sync()
    assert pair.arrived()
    assert receiver.moved == SIZE - len(FILES["model-1.safetensors"]) - len(FILES["config.json"])


def test_content_that_another_revision_has_is_not_sent(pair: Pair) -> None:
    older = PIN.model_copy(update={"revision": "12" * 20})
    fill(pair.worker.cache, {"old-name.safetensors": FILES["model-2.safetensors"]}, older)
    _, receiver = pair.sync()
    assert pair.arrived()
    assert receiver.moved == SIZE - len(FILES["model-2.safetensors"])


def test_a_second_sync_moves_nothing(pair: Pair) -> None:
    pair.sync()
    began = time.monotonic()
    assert Child(pair.worker.job("receive", door=doors(free_port()))).wait().moved == 0
    assert time.monotonic() - began < 10


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(share=st.floats(0.02, 0.75), who=st.sampled_from(["sender", "receiver"]))
def test_a_kill_at_any_point_costs_nothing_that_was_noted(
    tmp_path_factory: pytest.TempPathFactory, share: float, who: str
) -> None:
    pair = Pair(tmp_path_factory.mktemp("killed"), FILES)
    sender, receiver = broken_off(pair, share)
    if who == "sender":
        sender.kill()
        time.sleep(0.2)  # the worker waits for its leader to dial again
        assert receiver.process.poll() is None
        receiver.kill()
    else:
        receiver.kill()
        sender.kill()
    had = noted(pair)
    assert had < SIZE
    _, after = pair.sync()
    assert after.findings == ()
    assert pair.arrived()
    assert after.moved <= SIZE - had + 0.01 * had


@settings(max_examples=4, deadline=None, suppress_health_check=list(HealthCheck))
@given(share=st.floats(0.1, 0.75), at=st.floats(0, 0.999))
def test_one_byte_flipped_on_disk_is_found_and_only_its_chunk_sent_again(
    tmp_path_factory: pytest.TempPathFactory, share: float, at: float
) -> None:
    pair = Pair(tmp_path_factory.mktemp("flipped"), FILES)
    sender, receiver = broken_off(pair, share)
    sender.kill()
    receiver.kill()
    victims = [file for file in pair.worker.cache.rglob("*") if file.is_file() and file.name.endswith(layout.PART)]
    for victim in victims:
        with open(victim, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            file.seek(int(at * size))
            old = file.read(1)
            file.seek(int(at * size))
            file.write(bytes([old[0] ^ 0x10]) if old else b"")
    had = noted(pair)
    _, after = pair.sync()
    assert after.findings == ()
    assert pair.arrived()
    assert after.moved <= SIZE - had + len(victims) * CHUNK


def test_a_finished_file_that_was_damaged_is_mended_by_its_chunks(pair: Pair) -> None:
    pair.sync()
    damaged = blob_file(pair.worker.cache, "model-1.safetensors", FILES["model-1.safetensors"])
    with open(damaged, "r+b") as file:
        file.seek(3 * CHUNK + 5)
        file.write(b"damage")
    _, receiver = pair.sync()
    assert pair.arrived()
    assert receiver.moved == CHUNK


def test_chunks_are_compared_in_several_questions_where_there_are_many(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    pair.sync()
    monkeypatch.setattr(shelf, "_DIGESTS", 2)
    damaged = blob_file(pair.worker.cache, "model-1.safetensors", FILES["model-1.safetensors"])
    with open(damaged, "r+b") as file:
        for index in (0, 7):
            file.seek(index * CHUNK)
            file.write(b"damage")
    _, receiver = pair.sync()
    assert receiver.findings == ()
    assert pair.arrived()
    assert receiver.moved == 2 * CHUNK


def test_a_truncated_file_is_mended_by_what_it_lacks(pair: Pair) -> None:
    pair.sync()
    os.truncate(blob_file(pair.worker.cache, "model-1.safetensors", FILES["model-1.safetensors"]), 4 * CHUNK + 1)
    _, receiver = pair.sync()
    assert pair.arrived()
    assert receiver.moved <= 6 * CHUNK


def test_a_truncated_unfinished_file_is_mended(pair: Pair) -> None:
    sender, receiver = broken_off(pair, 0.4)
    sender.kill()
    receiver.kill()
    for unfinished in pair.worker.cache.rglob(f"*{layout.PART}"):
        os.truncate(unfinished, unfinished.stat().st_size // 2)
    _, after = pair.sync()
    assert after.findings == ()
    assert pair.arrived()


@pytest.mark.parametrize("where", ["part", "blobs", "models", "snapshots", "name", "notes"])
def test_a_planted_link_is_named_and_what_it_leads_to_stays(pair: Pair, tmp_path: Path, where: str) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "precious").write_text("precious")
    folder = pair.worker.cache / "hub" / layout.folder(PIN.repository)
    blob = digest("model-1.safetensors", FILES["model-1.safetensors"])
    place, target = {
        "part": (folder / "blobs" / (blob + layout.PART), outside / "precious"),
        "notes": (folder / "blobs" / (blob + layout.GOT), outside / "precious"),
        "blobs": (folder / "blobs", outside),
        "models": (folder, outside),
        "snapshots": (folder / "snapshots", outside),
        "name": (folder / "snapshots" / PIN.revision / "model-1.safetensors", outside / "precious"),
    }[where]
    place.parent.mkdir(parents=True)
    place.symlink_to(target)
    _, receiver = pair.sync()
    (found,) = receiver.findings
    assert found.code in ("weights.not-ours", "weights.outside")
    assert str(place) in found.subject or where == "name"
    assert [file.name for file in outside.iterdir()] == ["precious"]
    assert (outside / "precious").read_text() == "precious"


def test_a_hard_link_to_another_file_is_not_written_to(pair: Pair, tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.write_text("precious")
    planted = part(pair, "model-1.safetensors")
    planted.parent.mkdir(parents=True)
    os.link(precious, planted)
    _, receiver = pair.sync()
    assert [found.code for found in receiver.findings] == ["weights.not-ours"]
    assert precious.read_text() == "precious"


def test_the_cache_itself_may_be_a_link(pair: Pair, tmp_path: Path) -> None:
    (tmp_path / "other-disk").mkdir()
    pair.worker.cache.symlink_to(tmp_path / "other-disk")
    assert pair.sync()[1].findings == ()
    assert pair.arrived()


def test_a_content_that_the_leader_no_longer_has_is_never_named(pair: Pair) -> None:
    """The leader's disk rots after its files were proven: same size, time and inode, another content."""
    rotten = blob_file(pair.leader.cache, "model-1.safetensors", FILES["model-1.safetensors"])
    before = rotten.stat()
    with open(rotten, "r+b") as file:
        file.seek(CHUNK + 1)
        file.write(b"rot")
    os.utime(rotten, ns=(before.st_atime_ns, before.st_mtime_ns))
    _, receiver = pair.sync()
    (found,) = receiver.findings
    assert found.code == "weights.content-differs"
    assert "verify --again" in found.fix
    assert not (lists.snapshot(str(pair.worker.cache), PIN) / "model-1.safetensors").exists()


def test_a_leader_with_another_revision_is_named(pair: Pair) -> None:
    other = PIN.model_copy(update={"revision": "cd" * 20})
    _, receiver = pair.sync_of(pins=(other,))
    (found,) = receiver.findings
    assert found.code == "weights.leader-lacks"
    assert "cdcdcd" in found.measured


def test_a_list_that_is_not_the_pinned_tree_is_refused(pair: Pair) -> None:
    pinned = PIN.model_copy(update={"tree": "0" * 40})
    _, receiver = pair.sync_of(pins=(pinned,))
    (found,) = receiver.findings
    assert found.code == "weights.list-differs"


def test_no_room_is_said_before_anything_is_sent(pair: Pair) -> None:
    _, last = pair.sync_of(keep_free=1 << 60)
    assert [found.code for found in last.findings] == ["weights.no-room"]
    assert last.moved == 0


def test_a_stranger_with_another_token_gets_nothing(pair: Pair) -> None:
    way = doors(free_port())
    receiver = Child(pair.worker.job("receive", door=way))
    (found,) = done(pair.leader.job("send", door=way.model_copy(update={"key": "ab" * 32}))).findings
    assert found.code in ("weights.refused", "weights.broken")
    assert receiver.last.moved == 0
    # The right one is still let in.
    Child(pair.leader.job("send", door=way)).wait()
    assert receiver.wait().findings == ()
    assert pair.arrived()


def test_noise_on_the_port_neither_ends_nor_blocks_a_sync(pair: Pair) -> None:
    way = doors(free_port())
    receiver = Child(pair.worker.job("receive", door=way))
    noise: list[socket.socket] = []
    deadline = time.monotonic() + 10
    while len(noise) < 6:
        probe = socket.socket()
        if probe.connect_ex(("127.0.0.1", way.port)) == 0:
            probe.sendall(b"GET / HTTP/1.0\r\n\r\n" if len(noise) % 2 else b"\x00\x00\x00\x05hello")
            noise.append(probe)
        else:
            probe.close()
            assert time.monotonic() < deadline
    assert Child(pair.leader.job("send", door=way)).wait().findings == ()
    assert receiver.wait().findings == ()
    for probe in noise:
        probe.close()
    assert pair.arrived()


def test_a_rate_is_kept(pair: Pair) -> None:
    began = time.monotonic()
    pair.sync(rate=40_000_000)
    assert time.monotonic() - began > 0.8 * SIZE / 40_000_000


def test_the_process_ends_with_the_daemon(pair: Pair) -> None:
    receiver = Child(pair.worker.job("receive", door=doors(free_port())))
    while not receiver.words:
        time.sleep(0.01)
    assert receiver.process.stdin is not None
    receiver.process.stdin.close()
    assert receiver.process.wait(5) != 0
    receiver._reader.join()
    assert receiver.process.stdout is not None
    receiver.process.stdout.close()


@pytest.mark.parametrize(
    ("number", "code", "says"),
    [
        (errno.ENOSPC, "weights.disk-full", "is not sent again"),
        (errno.EROFS, "weights.read-only", "Mount it writable"),
        (errno.EACCES, "weights.owner", "chown"),
        (errno.EIO, "weights.disk", "journalctl -k"),
    ],
)
def test_each_refusal_of_a_disk_is_a_message(tmp_path: Path, number: int, code: str, says: str) -> None:
    from glm_spark.weights.faults import of_disk

    found = of_disk(WORKER, str(tmp_path), OSError(number, os.strerror(number))).finding
    assert (found.code, found.node, found.subject) == (code, WORKER, str(tmp_path))
    assert says in found.fix


def test_two_at_once_on_one_spark_is_refused(pair: Pair) -> None:
    first = Child(pair.worker.job("receive", door=doors(free_port())))
    while first.last.phase != "waiting":
        time.sleep(0.01)
    (found,) = Child(pair.worker.job("receive", door=doors(free_port()))).wait().findings
    first.kill()
    assert found.code == "weights.busy"
    assert str(first.process.pid) in found.measured


def test_a_silent_end_is_asked_whether_it_still_knows_the_connection() -> None:
    """A host that was reset has forgotten it, and nothing is on its way that would tell."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        wire.prepare(sock)
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
        for option in (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL):
            assert 0 < sock.getsockopt(socket.IPPROTO_TCP, option) <= wire.SILENCE_SECONDS
