"""Two Sparks from empty disks to LIVE: fetched on one, handed to the other, which loses its power meanwhile."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from glm_spark.config.model import Model
from tests.unit.weights.repositories import some_files

from . import host, product
from .conftest import Labs
from .lab import Lab
from .recipe import CODE
from .spark import Spark
from .test_gate import LIVE, LIVE_SECONDS
from .waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.full]

HUB, PORT = "/opt/hub-of-the-lab", 9700
REPOSITORY = Model().repository
SNAPSHOT = f"{Model().cache}/hub/models--{REPOSITORY.replace('/', '--')}/snapshots/{Model().revision}"
FILES = some_files({"model-1.safetensors": 24_000_000, "model-2.safetensors": 9_000_000, "sub/vocab.json": 500})
PACED = 2  # MiB a second, so that a reset finds it in the middle


def _hub(spark: Spark) -> None:
    """The server that answers as the Hub does, on the leader itself."""
    here = host.REPOSITORY / "tests/unit/weights"
    code = {f"tests/unit/weights/{name}": (here / name).read_bytes() for name in ("hub_server.py", "repositories.py")}
    files = {f"served/{REPOSITORY}/{path}": body for path, body in FILES.items()}
    spark.run(f"mkdir -p {HUB}")
    spark.push(code | files, HUB)
    command = f"/usr/bin/python3 -m tests.unit.weights.hub_server {PORT} {HUB}/served"
    environment = f"-E PYTHONPATH={HUB}:{CODE} -p WorkingDirectory={HUB}"
    spark.run(f"systemd-run -q --unit hub-of-the-lab {environment} {command}")
    until(lambda: spark.run(f"ss -Hltn sport = :{PORT}", check=False).stdout != "", True, 120.0, "the hub's port")


def _status(spark: Spark) -> dict[str, Any]:
    """/v1/status over control.sock, {} while nobody answers: no Python starts in the guest for a look."""
    ask = "curl -s -m 20 --unix-socket /run/glm-spark/control.sock http://localhost/v1/status"
    said = spark.run(ask, check=False).stdout
    return dict(json.loads(said)) if said.startswith("{") else {}


def _received(lab: Lab) -> int:
    """Bytes that the worker says it has, as the leader heard."""
    nodes = _status(lab[1]).get("nodes") or []
    told = nodes[1].get("weights") if len(nodes) > 1 else None
    return int(told["done"]) if told and told["phase"] == "receiving" else 0


def _sums(spark: Spark) -> dict[str, str]:
    lines = spark.out(f"cd {SNAPSHOT} && find -L . -type f -exec sha256sum {{}} +").splitlines()
    return {path.removeprefix("./"): digest for digest, path in (line.split(maxsplit=1) for line in lines)}


def test_from_empty_disks_to_live_with_a_reset_in_the_middle_of_the_sync(labs: Labs, tmp_path: Path) -> None:
    lab = labs.restore("two")
    weights = {"endpoint": f"http://127.0.0.1:{PORT}", "keep_free_gib": 0, "rate_mib": PACED}
    product.install(lab, product.settings(lab, {"model": {"path": None}, "weights": weights}))
    _hub(lab[1])
    lab[2].run("systemctl enable -q glm-spark-boot.service && sync")
    product.start(lab)
    until(lambda: _received(lab) > 8_000_000, True, 2 * LIVE_SECONDS, "8 MB at the worker")
    before = lab[2].boot_id()
    lab[2].reset()
    lab[2].await_boot(before)
    lab[1].await_journal(product.UNIT, LIVE, 2 * LIVE_SECONDS)
    assert _sums(lab[1]) == _sums(lab[2])
    assert set(_sums(lab[1])) == set(FILES)
    assert _status(lab[1])["nodes"][1]["weights"]["phase"] == "complete"
