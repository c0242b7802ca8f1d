"""podman on each Spark of a test: stores of their own, an image made on the spot from the stand-in engine."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from tests.enclosure import ROOT
from tests.sparks.spark import Spark

IMAGE = "localhost/engine"
PATCHES = "a1897d591f70"
PYTHON = ROOT / ".venv/bin/python"
GLM_SPARK = ROOT / ".venv/bin/glm-spark"

# Every Spark is a machine of its own to podman: its store, its run directory and its view of the control groups. The
# CDI device "all" is a device every machine has.
_FURNISH = """set -e
mount -t tmpfs tmpfs /run
mount -t tmpfs tmpfs /var/lib/containers
mkdir -p /run/lock /run/cdi
printf '%s' "$1" >/run/cdi/nvidia.json
mount -t tmpfs cgroup /sys/fs/cgroup
for kind in cpu cpuacct cpuset memory devices freezer blkio pids; do
  mkdir /sys/fs/cgroup/$kind
  mount -t cgroup -o $kind cgroup /sys/fs/cgroup/$kind
done
mkdir /sys/fs/cgroup/systemd /sys/fs/cgroup/unified
mount -t cgroup -o none,name=systemd cgroup /sys/fs/cgroup/systemd
mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified
"""

# A root file system without programs of its own, told on standard output; the same archive on every Spark.
ROOTFS = """set -e
mkdir -p "$1/usr" "$1/etc" "$1/tmp" "$1/root" "$1/var" "$1/run" "$1/proc" "$1/sys" "$1/dev" "$1/opt"
for name in bin sbin lib lib64; do [ -e "$1/$name" ] || ln -s usr/$name "$1/$name"; done
echo root:x:0:0:root:/root:/bin/sh >"$1/etc/passwd"
tar -C "$1" --sort=name --mtime=@0 --owner=0 --group=0 -c . | """
_IMPORT = ROOTFS + 'podman import --change "LABEL tf.patches=$3" - "$2" >/dev/null'

_SPECIFICATION = {
    "cdiVersion": "0.5.0",
    "kind": "nvidia.com/gpu",
    "devices": [{"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/null"}]}}],
}

# The stand-in as the image has the engine: a program, and a package whose parser can be asked.
_TENSORFOLD = f"""#!/bin/sh
exec {ROOT}/.venv/bin/glm-spark-standin "$@"
"""
_PYTHON = f"""#!/bin/sh
exec {ROOT}/.venv/bin/python "$@"
"""
_CLI = "from glm_spark.standin.options import build_parser\n"


def settings(directory: Path, engine: Path) -> dict[str, Any]:
    """The configuration of Sparks that run the stand-in in podman. `directory` holds what they share."""
    shown = [f"--volume={path}:{path}:ro" for path in ("/usr", str(ROOT), str(directory))]
    return {
        "engine": {
            "runtime": "podman",
            "image": IMAGE,
            "command": ["tensorfold"],
            "runtime_options": ["--runtime=runc", "--cgroup-manager=cgroupfs"],
            "container_options": [
                # This machine's own limits: it has no CAP_SYS_RESOURCE.
                *("--ulimit=nofile=20000:20000", "--ulimit=nproc=1000:1000", "--ulimit=memlock=8388608:8388608"),
                *(*shown, f"--volume={engine}:/opt/engine:ro"),
                "--env=PATH=/opt/engine/bin:/usr/bin:/bin",
                "--env=PYTHONPATH=/opt/engine",
            ],
            "gpu_options": ["--device=nvidia.com/gpu=all"],
        },
    }


def make_engine(directory: Path) -> None:
    for name, text in (("tensorfold", _TENSORFOLD), ("python", _PYTHON)):
        program = directory / "bin" / name
        program.parent.mkdir(parents=True, exist_ok=True)
        program.write_text(text)
        program.chmod(0o755)
    package = directory / "tensorfold"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "cli.py").write_text(_CLI)


def furnish(spark: Spark, *, image: bool = True) -> None:
    _run(spark, _FURNISH, json.dumps(_SPECIFICATION))
    if image:
        load_image(spark, spark.directory / "rootfs")


def load_image(spark: Spark, root: Path) -> None:
    """Imports a folder as the engine's image."""
    _run(spark, _IMPORT, str(root), IMAGE, PATCHES)


def _run(spark: Spark, script: str, *arguments: str) -> None:
    done = spark.run(["sh", "-c", script, "sh", *arguments])
    assert done.returncode == 0, done.stderr


def podman(spark: Spark, *arguments: str) -> str:
    done = spark.run(["podman", *arguments])
    assert done.returncode == 0, done.stderr
    return done.stdout


def containers(spark: Spark) -> list[str]:
    """All that podman knows of on this Spark, whatever its state."""
    return podman(spark, "ps", "--all", "--format", "{{.Names}}").split()


def mounts(spark: Spark) -> list[str]:
    """What is mounted for containers on this Spark: their layers and their shm."""
    table = Path(f"/proc/{spark.holder.pid}/mountinfo").read_text().splitlines()
    places = (line.split()[4] for line in table)
    return [place for place in places if place.startswith("/var/lib/containers/storage/overlay") and "merged" in place]


def conmons(spark: Spark) -> list[int]:
    """conmon processes on this Spark."""
    found = []
    for pid in spark.pids():
        try:
            if Path(f"/proc/{pid}/comm").read_text().strip() == "conmon":
                found.append(pid)
        except OSError:
            continue
    return found


def in_container(pid: int) -> bool:
    """Whether the process sees another process table than this one."""
    try:
        return os.readlink(f"/proc/{pid}/ns/pid") != os.readlink("/proc/self/ns/pid")
    except OSError:
        return False
