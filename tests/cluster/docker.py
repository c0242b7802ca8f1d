"""A docker engine of its own on each Spark of a test."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

from tests.cluster import podman
from tests.sparks.spark import Spark

# It makes no bridge and no firewall rule: ranks use the Spark's own network.
_ENGINE = (
    "dockerd",
    "--bridge=none",
    "--iptables=false",
    "--ip6tables=false",
    "--exec-opt=native.cgroupdriver=cgroupfs",
    "--storage-driver=overlay2",
)
_IMPORT = podman.ROOTFS + 'docker import --change "LABEL tf.patches=$3" - "$2"'
UP_SECONDS = 30.0


@contextlib.contextmanager
def engine(spark: Spark) -> Iterator[None]:
    """Runs it on a Spark that `podman.furnish` has made ready; its socket is where the client looks for it."""
    root = spark.directory / "docker"
    log = (spark.directory / "docker.log").open("wb")
    process = spark.popen(
        [*_ENGINE, f"--data-root={root}", "--exec-root=/run/docker"], stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        until = time.monotonic() + UP_SECONDS
        while spark.run(["docker", "version"]).returncode != 0:
            assert process.poll() is None, Path(log.name).read_text()
            assert time.monotonic() < until, Path(log.name).read_text()
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait()
        log.close()


def load_image(spark: Spark) -> None:
    done = spark.run(["sh", "-c", _IMPORT, "sh", str(spark.directory / "rootfs"), podman.IMAGE, podman.PATCHES])
    assert done.returncode == 0, done.stderr


def containers(spark: Spark) -> list[str]:
    done = spark.run(["docker", "ps", "--all", "--format", "{{.Names}}"])
    assert done.returncode == 0, done.stderr
    return done.stdout.split()
