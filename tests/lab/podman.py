"""podman on the virtual Sparks as on a Spark: rootful, its store on the Spark's own disk; and what is left of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import product
from .recipe import CODE
from .spark import Spark

IMAGE = "localhost/engine"
PATCHES = "a1897d591f70"
_DISK = "/srv/disk"
_STORE = f"{_DISK}/containers"
_ENGINE = "/opt/engine"

# The guest's root is an overlay, in which podman's own cannot lie. The disk below it can be mounted a second time.
_FURNISH = f"""set -e
echo /dev/vdb {_DISK} ext4 defaults 0 0 >>/etc/fstab
mkdir -p {_DISK} /etc/containers
cat >/etc/containers/storage.conf <<'END'
[storage]
driver = "overlay"
graphroot = "{_STORE}"
runroot = "/run/containers/storage"
END
systemctl daemon-reload
systemctl start srv-disk.mount
"""

# The stand-in as the image has the engine: a program, a package whose parser can be asked, and the list of drivers
# that libibverbs goes by. The same archive on every Spark, so that the images' contents are equal.
_MAKE_IMAGE = f"""set -e
cd "$(mktemp -d)"
mkdir -p usr etc tmp root var run proc sys dev opt .{_ENGINE}/bin .{_ENGINE}/tensorfold
for name in bin sbin lib lib64; do ln -s usr/$name $name; done
echo root:x:0:0:root:/root:/bin/sh >etc/passwd
cp -r /etc/libibverbs.d etc/
printf '#!/bin/sh\\nexec {product.STANDIN} "$@"\\n' >.{_ENGINE}/bin/tensorfold
printf '#!/bin/sh\\nexec /usr/bin/python3 "$@"\\n' >.{_ENGINE}/bin/python
chmod 755 .{_ENGINE}/bin/*
touch .{_ENGINE}/tensorfold/__init__.py
echo 'from glm_spark.standin.options import build_parser' >.{_ENGINE}/tensorfold/cli.py
tar --sort=name --mtime=@0 --owner=0 --group=0 -c . | podman import --change 'LABEL tf.patches={PATCHES}' - {IMAGE}
"""

# One question to the guest for all of it: podman's own list; the engine, podman and conmon in the table of processes;
# what is mounted for containers; the unit's control group.
_LOOK = f"""
podman ps --all --format '{{{{.Names}}}}' | sed 's/^/container /'
pgrep -f '^/usr/bin/python3 {product.STANDIN} serve' | sed 's/^/engine /'
pgrep -f '^/usr/bin/python3 .*/engine/keeper.py' | sed 's/^/keeper /'
pgrep -x conmon | sed 's/^/conmon /'
pgrep -f '^podman .*run --name=glm-spark' | sed 's/^/podman /'
awk '$5 ~ "^{_STORE}/overlay.*/merged|^/var/lib/containers/.*merged|shm$" && $5 != "/dev/shm" {{print "mount", $5}}' \\
  /proc/self/mountinfo
true
"""


@dataclass(frozen=True)
class Seen:
    """What a Spark has of containers: podman's names, process ids, places of mounts."""

    containers: tuple[str, ...] = ()
    engines: tuple[int, ...] = ()
    keepers: tuple[int, ...] = ()
    conmons: tuple[int, ...] = ()
    podmans: tuple[int, ...] = ()
    mounts: tuple[str, ...] = ()


NOTHING = Seen()


def settings() -> dict[str, Any]:
    """The configuration's tables for ranks in podman: the guest's programs and the code are shown to the container."""
    shown = ("/usr", CODE, product.STANDIN_SCRIPT)
    return {
        "engine": {
            "runtime": "podman",
            "image": IMAGE,
            "command": ["tensorfold"],
            "container_options": [
                *(f"--volume={path}:{path}:ro" for path in shown),
                f"--env=PATH={_ENGINE}/bin:/usr/bin:/bin",
                f"--env=PYTHONPATH={_ENGINE}",
            ],
            "gpu_options": ["--device=/dev/null"],
        }
    }


def furnish(spark: Spark) -> None:
    """podman's store on the disk, with the image in it; both outlast a power cut once they are synced."""
    spark.run(_FURNISH)
    spark.run(_MAKE_IMAGE)
    spark.run("sync")


def look(spark: Spark) -> Seen:
    found: dict[str, list[str]] = {}
    for line in spark.out(_LOOK).splitlines():
        kind, _, what = line.partition(" ")
        found.setdefault(kind, []).append(what)

    def pids(kind: str) -> tuple[int, ...]:
        return tuple(int(what) for what in found.get(kind, []))

    return Seen(
        containers=tuple(found.get("container", [])),
        engines=pids("engine"),
        keepers=pids("keeper"),
        conmons=pids("conmon"),
        podmans=pids("podman"),
        mounts=tuple(found.get("mount", [])),
    )
