"""The daemon on the Sparks as an owner has it: its code, its unit, one configuration, one token."""

from __future__ import annotations

import importlib.util
import secrets
import sys
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from py_compile import PycInvalidationMode, compile
from typing import Any

from tests.sparks.settings import merged, text

from . import host
from .lab import Lab
from .machine import archive
from .recipe import CODE, GUEST_PYTHON
from .spark import Spark
from .topology import Function, lan_address, spark_name

Say = Callable[[str], None]
UNIT = "glm-spark"
CONFIG = "/etc/glm-spark/config.toml"
TOKEN = "/etc/glm-spark/token"
STANDIN = f"{CODE}/bin/glm-spark-standin"
STANDIN_SCRIPT = "/etc/glm-spark/standin.json"
# What it says that it needs is remembered, and a guest without that much is refused its second start.
STANDIN_SAYS = '{"estimate_gib": 0.1}'
# Three times the defaults: with three guests on two busy cores a daemon is held up for 2 s now and then, which
# on a Spark would be worth telling and here is not.
TIMEOUTS = {"suspect_seconds": 6.0, "lease_seconds": 45.0}
# a guest has 640 MB, of which a live set leaves about 370
MEMORY = {"want_available_gib": 0.2, "floor_gib": 0.05}
MODEL = "/var/lib/glm-spark-lab/GLM-5.3-Flash-EXL3"
_DAEMON = host.REPOSITORY / "daemon"
_LAUNCHERS = {"glm-spark": "glm_spark.cli", "glm-spark-standin": "glm_spark.standin"}


def code() -> dict[str, bytes]:
    """The package and its two programs, as files below CODE.

    Compiled here when this Python is the guest's: there it would take a minute.
    """
    files = {
        f"bin/{name}": f"#!/usr/bin/python3\nimport sys\nfrom {module} import main\nsys.exit(main())\n".encode()
        for name, module in _LAUNCHERS.items()
    }
    compiles = f"{sys.version_info.major}.{sys.version_info.minor}" == GUEST_PYTHON
    with tempfile.TemporaryDirectory() as scratch:
        for path in sorted((_DAEMON / "glm_spark").rglob("*")):
            if path.is_dir() or "__pycache__" in path.parts:
                continue
            name = str(path.relative_to(_DAEMON))
            files[name] = path.read_bytes()
            if compiles and path.suffix == ".py":
                files[importlib.util.cache_from_source(name)] = _compiled(path, name, Path(scratch))
    return files


def _compiled(path: Path, name: str, scratch: Path) -> bytes:
    target = scratch / "compiled.pyc"
    compile(
        str(path), str(target), f"{CODE}/{name}", doraise=True, invalidation_mode=PycInvalidationMode.UNCHECKED_HASH
    )
    return target.read_bytes()


def settings(lab: Lab, changes: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """config.toml's tables for a topology: the stand-in engine as a process, TCP between the ranks."""
    nodes: list[dict[str, Any]] = []
    for number in lab.topology.sparks:
        node: dict[str, Any] = {"name": spark_name(number)}
        if number > 1:
            cable = lab.topology.cable_between(1, number)
            end = next(port for port in cable.ends if port.spark == number)
            node["address"] = lab.topology.address(Function(end, 0))
        if lab.topology.count > 2:
            node["lan_address"] = lan_address(number)
        nodes.append(node)
    base = {
        "node": nodes,
        "fabric": {"transport": "socket"},
        "model": {"path": MODEL},
        "memory": dict(MEMORY),
        "timeouts": dict(TIMEOUTS),
        "engine": {
            "runtime": "process",
            "command": [STANDIN],
            "environment": {"TENSORFOLD_STANDIN": STANDIN_SCRIPT},
        },
    }
    return merged(base, changes or {})


def unit_file(tables: Mapping[str, Any]) -> bytes:
    """The project's own unit for the configured runtime; as a process the ranks run as an ordinary user."""
    as_process = tables["engine"]["runtime"] == "process"
    return (_DAEMON / "systemd" / ("glm-spark-process.service" if as_process else "glm-spark.service")).read_bytes()


def install(lab: Lab, tables: Mapping[str, Any], standin: str = STANDIN_SAYS) -> None:
    """Push code, unit, configuration, token and the stand-in's script; nothing is started."""
    packed = archive(code())
    token = secrets.token_hex(32) + "\n"
    boot = _DAEMON / "systemd" / f"{UNIT}-boot.service"
    units = {f"{UNIT}.service": unit_file(tables), boot.name: boot.read_bytes()}

    def one(number: int) -> None:
        spark = lab[number]
        spark.run(f"rm -rf {CODE}")
        spark.push_archive(packed, CODE)
        spark.push(units, "/etc/systemd/system")
        spark.run(
            f"ln -sf {CODE}/bin/glm-spark {CODE}/bin/glm-spark-standin /usr/local/bin/ && "
            f"mkdir -p {MODEL} && echo '{{}}' > {MODEL}/config.json && systemctl daemon-reload"
        )
        spark.write(CONFIG, text(tables))
        spark.write(TOKEN, token, 0o600)
        spark.write(STANDIN_SCRIPT, standin)

    lab.together(lambda spark: one(spark.number))


def start(lab: Lab) -> None:
    """`systemctl start` on every Spark at once, without waiting: the leader's start returns when the set is live."""
    lab.together(lambda spark: spark.run(f"systemctl start --no-block {UNIT}"))


def control(spark: Spark, path: str) -> str:
    """GET on a Spark's control port over its loopback: HTTP status, a line break, the body."""
    return spark.out(f"curl -s -m 20 -w '\\n%{{http_code}}' http://127.0.0.1:8899{path}")
