"""A sync of weights between two Sparks, against rsync over ssh, one iperf3 stream and this disk, in one run."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from glm_spark.weights import layout, lists, manifest, wire
from glm_spark.weights.job import Door, Job, Word
from glm_spark.weights.look import look
from glm_spark.weights.manifest import Entry
from glm_spark.weights.pins import Pin
from glm_spark.weights.prove import prove
from tests import enclosure
from tests.bench.report import Figure
from tests.enclosure import ROOT
from tests.sparks.cluster import Sparks
from tests.sparks.spark import Spark

PIN = Pin(kind="checkpoint", repository="bench/weights", revision="ab" * 20)
PLACE = ROOT / ".cache/bench-weights"  # on the disk: the enclosure's own files lie in memory
MIB = 1 << 20
# 4 GiB, large and small as in a checkpoint.
SIZES = (*[1024 * MIB] * 3, *[96 * MIB] * 9, *[9 * MIB] * 17, *[64 * 1024] * 170)
QUICK = (256 * MIB, *[24 * MIB] * 8, *[2 * MIB] * 20, *[64 * 1024] * 170)
SSH_PORT, PORT = 2222, 8898
SPEEDS = "MB/s"


async def sync_of_weights(quick: bool) -> list[Figure]:
    """Everything over the same link between two namespaces, to the same disk, each destination empty."""
    shutil.rmtree(PLACE, ignore_errors=True)
    PLACE.mkdir(parents=True)
    try:
        return await asyncio.to_thread(_measure, QUICK if quick else SIZES)
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)


def _measure(sizes: tuple[int, ...]) -> list[Figure]:
    total = sum(sizes)
    source = _make(PLACE / "leader", sizes)
    disk = _disk(total)
    memory = enclosure.scratch() / "bench-weights"
    memory.mkdir()
    with Sparks(2) as sparks:
        link = _iperf(sparks)
        rsync, ours, work = {}, {}, {}
        peaks, looked = dict.fromkeys(("receiver", "sender"), 0.0), 0.0
        for where in (PLACE, memory):
            before = _processor()
            rsync[where] = _rsync(sparks, source, where, total)
            work["rsync"] = _processor() - before
        for where in (PLACE, memory):
            before = _processor()
            ours[where], held = _sync(sparks, where, total)
            work["sync"] = _processor() - before
            peaks = {who: max(peaks[who], held[who]) for who in peaks}
            looked = _look_at_a_complete_cache(where, len(sizes))
            shutil.rmtree(where / "worker")
    size = f"{total / (1 << 30):.2f} GiB in {len(sizes)} files"
    return [
        Figure("disk: write and flush", disk, SPEEDS, note=f"{size} as one file, dd conv=fdatasync"),
        Figure("link: iperf3, one stream", link, SPEEDS, note="the same veth link"),
        Figure("to disk: rsync -a over ssh", rsync[PLACE], SPEEDS, note=f"{size}, then flushed"),
        Figure(
            "to disk: sync of weights",
            ours[PLACE],
            SPEEDS,
            0.6 * min(link, disk),
            at_least=True,
            note="proven and flushed; wanted: 0.6 of the slower of link and disk",
        ),
        Figure("to memory: rsync -a over ssh", rsync[memory], SPEEDS, note="no disk in the way"),
        Figure("to memory: sync of weights", ours[memory], SPEEDS, note="proven"),
        Figure("to memory: sync against rsync", ours[memory] / rsync[memory], "x", 2.0, at_least=True),
        Figure("processor: rsync -a over ssh", work["rsync"] / total * 1e9, "s/GB", note="both ends, to memory"),
        Figure("processor: sync of weights", work["sync"] / total * 1e9, "s/GB", note="both ends, to memory"),
        *(
            Figure(f"sync: the {who}'s process at most", peak / 1e6, "MB", 140, note="beside a daemon of 60 MB")
            for who, peak in peaks.items()
        ),
        _hash_speed(),
        Figure("start with complete weights", looked, "s", 1.0, note=f"a look at {len(sizes)} proven files"),
    ]


def _make(cache: Path, sizes: tuple[int, ...]) -> Path:
    """The leader's cache: files of random content, listed and proven."""
    folder = cache / "hub" / layout.folder(PIN.repository)
    (folder / "blobs").mkdir(parents=True)
    top = folder / "snapshots" / PIN.revision
    top.mkdir(parents=True)
    stock = os.urandom(8 * MIB)
    entries = []
    for number, size in enumerate(sizes):
        hasher, left = hashlib.sha256(), size
        path = folder / "blobs" / "new"
        with path.open("wb") as file:
            while left:
                mark = f"{number} {left} ".encode()
                piece = (mark + stock)[: min(left, len(stock))]
                file.write(piece)
                hasher.update(piece)
                left -= len(piece)
        entry = Entry(path=f"model-{number:05}.safetensors", size=size, digest=hasher.hexdigest())
        path.rename(folder / "blobs" / entry.digest)
        (top / entry.path).symlink_to(layout.link_target(entry.path, entry.digest))
        entries.append(entry)
    lists.keep("spark-1", PLACE / "leader-state", PIN, manifest.of(PIN.repository, PIN.revision, entries))
    job = _job("verify", PLACE / "leader", None)
    (one,) = look(job.store, job.pins)
    from glm_spark.weights.remembered import Remembered

    Remembered(job.store.state).add(prove("spark-1", one.files, lambda _: None))
    return folder


def _disk(total: int) -> float:
    """MB/s of writing as much as the tree holds."""
    os.sync()
    began = time.monotonic()
    argv = ["dd", "if=/dev/zero", f"of={PLACE}/dd", "bs=4M", f"count={total // (4 * MIB)}", "conv=fdatasync"]
    subprocess.run(argv, check=True, capture_output=True)
    taken = time.monotonic() - began
    (PLACE / "dd").unlink()
    os.sync()
    return total / taken / 1e6


def _iperf(sparks: Sparks) -> float:
    server = sparks[1].popen(["iperf3", "-s", "-1"], stdout=subprocess.DEVNULL)
    address = sparks.layout.address(2, 1)
    try:
        for _ in range(50):
            done = sparks[0].run(["iperf3", "-c", address, "-t", "5", "-J"])
            received = json.loads(done.stdout)["end"].get("sum_received") if done.stdout.startswith("{") else None
            if received:
                return float(received["bits_per_second"]) / 8e6
            time.sleep(0.1)
        raise RuntimeError(f"iperf3: {done.stdout[-300:]}")
    finally:
        server.kill()
        server.wait()


def _rsync(sparks: Sparks, source: Path, where: Path, total: int) -> float:
    """MB/s into an empty folder there, what it wrote flushed."""
    with _sshd(sparks[1]) as (key, options):
        target = f"root@{sparks.layout.address(2, 1)}:{where}/rsync/"
        (where / "rsync").mkdir()
        ssh = f"ssh -p {SSH_PORT} -i {key} {options}"
        began = time.monotonic()
        done = sparks[0].run(["rsync", "-a", "-e", ssh, f"{source}/", target], timeout=900)
        os.sync()
        taken = time.monotonic() - began
    shutil.rmtree(where / "rsync")
    os.sync()
    if done.returncode != 0:
        raise RuntimeError(f"rsync over ssh: {done.stderr[-500:]}")
    return total / taken / 1e6


@contextlib.contextmanager
def _sshd(spark: Spark) -> Iterator[tuple[Path, str]]:
    """An sshd of its own on a Spark; the key that opens it, and the client's options."""
    home = PLACE / "ssh"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(mode=0o700)
    for name in ("host", "client"):
        argv = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(home / name)]
        subprocess.run(argv, check=True)
    Path("/run/sshd").mkdir(exist_ok=True)
    settings = [
        f"HostKey={home}/host",
        f"AuthorizedKeysFile={home}/client.pub",
        f"PidFile={home}/pid",
        "StrictModes=no",
        "UsePAM=no",
        "PermitRootLogin=prohibit-password",
    ]
    argv = ["/usr/sbin/sshd", "-D", "-e", "-f", "/dev/null", "-p", str(SSH_PORT)]
    for setting in settings:
        argv += ["-o", setting]
    server = spark.popen(argv, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while True:
            try:
                spark.connect("127.0.0.1", SSH_PORT).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        yield home / "client", "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    finally:
        server.kill()
        server.wait()


def _job(verb: str, cache: Path, door: Door | None) -> Job:
    node = "spark-1" if cache.name == "leader" else "spark-2"
    told: dict[str, Any] = {"verb": verb, "node": node, "cache": str(cache), "state": f"{cache}-state", "pins": (PIN,)}
    return Job.model_validate({**told, "door": door})


def _sync(sparks: Sparks, where: Path, total: int) -> tuple[float, dict[str, float]]:
    """MB/s from the start of both processes to the end of the receiver's, and what each held at most, bytes."""
    netdevs = [spark.plan.netdev(0, "a").name for spark in sparks]
    addresses = [sparks.layout.address(1, 2), sparks.layout.address(2, 1)]
    door = Door(
        key=wire.key_of(b"b" * 32).hex(),
        cluster="glm",
        leader="spark-1",
        worker="spark-2",
        port=PORT,
        addresses=((addresses[1], netdevs[1]),),
        address=addresses[1],
        netdev=netdevs[0],
        source=addresses[0],
    )
    began = time.monotonic()
    jobs = {"receiver": _job("receive", where / "worker", door), "sender": _job("send", PLACE / "leader", door)}
    children = {who: _start(sparks[who == "receiver"], job) for who, job in jobs.items()}
    peaks: dict[str, float] = dict.fromkeys(children, 0.0)
    try:
        while children["receiver"].poll() is None:
            for who, child in children.items():
                peaks[who] = max(peaks[who], _peak(child.pid))
            time.sleep(0.05)
        taken = time.monotonic() - began
        last = [_last(children[who]) for who in ("receiver", "sender")]
    finally:
        for child in children.values():
            child.kill()
            child.wait()
    if any(word.findings for word in last) or last[0].moved != total:
        raise RuntimeError(f"the sync did not end well: {last}")
    return total / taken / 1e6, peaks


def _start(spark: Spark, job: Job) -> subprocess.Popen[bytes]:
    argv = [sys.executable, "-m", "glm_spark.weights.child"]
    child = spark.popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(job.model_dump_json().encode() + b"\n")
    child.stdin.flush()
    return child


def _last(child: subprocess.Popen[bytes]) -> Word:
    assert child.stdout is not None
    return Word.model_validate_json(child.stdout.read().splitlines()[-1])


def _peak(pid: int) -> float:
    """Bytes that a process held at most (VmHWM)."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return float(line.split()[1]) * 1024
    return 0.0


def _processor() -> float:
    """Seconds of processor time of everything that was started and has ended."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _hash_speed() -> Figure:
    data = os.urandom(64 * MIB)
    began = time.monotonic()
    hashlib.sha256(data)
    return Figure("sha256, one core", len(data) / (time.monotonic() - began) / 1e6, SPEEDS, note="the hash of content")


def _look_at_a_complete_cache(where: Path, files: int) -> float:
    """Seconds that a start spends on weights that are here and proven."""
    job = _job("verify", where / "worker", None)
    began = time.monotonic()
    (one,) = look(job.store, (PIN,))
    taken = time.monotonic() - began
    if not one.complete or len(one.files) != files:
        raise RuntimeError("the synced cache is not complete")
    return taken
