"""The appliance on virtual Sparks: what NixOS would put there, from the module's own evaluation.

Not NixOS: the guests are Debian. The units and config.toml are the module's, evaluated with the stand-in lib of
tests/nix; a switch does here what NixOS's switch does with the units that changed.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tests.nix.evaluate import spark as evaluated
from tests.sparks.settings import merged, text

from . import product
from .lab import Lab
from .machine import BOOT_SECONDS
from .recipe import CODE
from .spark import Spark
from .waiting import until

STORE = "/opt/store"
BOOT = f"{product.UNIT}-boot.service"
_UNITS = "/etc/systemd/system"
# Where the programs lie that the units name; the second package stands for a newer one.
_PROGRAMS = {
    "glm-spark/bin/glm-spark": f"{CODE}/bin/glm-spark",
    "glm-spark-newer/bin/glm-spark": f"{CODE}/bin/glm-spark",
    "coreutils/bin": "/usr/bin",
    "systemd/bin": "/usr/bin",
}
_NEWER = f'{{ outPath = "{STORE}/glm-spark-newer"; meta.mainProgram = "glm-spark"; }}'


@dataclass(frozen=True)
class Generation:
    """What a generation of one Spark's system holds of ours: the unit files by name, what the boot wants, the file."""

    units: Mapping[str, str]
    wanted: tuple[str, ...]
    config: str

    def triggers(self, key: str) -> list[str]:
        """What a switch compares: X-Restart-Triggers or X-Reload-Triggers of the unit that starts the daemon."""
        return [line for line in self.units[BOOT].splitlines() if line.startswith(f"{key}=")]


def generation(host: str, changes: Mapping[str, Any] | None = None, *, newer: bool = False) -> Generation:
    """The example pair with the stand-in engine as a process, evaluated for a host; refused settings fail here."""
    settings = merged(
        {
            "fabric": {"transport": "socket"},
            "model": {"path": product.MODEL},
            "memory": product.MEMORY,
            "timeouts": product.TIMEOUTS,
            "engine": {
                "runtime": "process",
                "command": [product.STANDIN],
                "environment": {"TENSORFOLD_STANDIN": product.STANDIN_SCRIPT},
            },
        },
        changes or {},
    )
    wanted = f"{{ services.glm-spark.settings = builtins.fromJSON ''{json.dumps(settings)}''; }}"
    package = f"{{ services.glm-spark.package = {_NEWER}; }}" if newer else "{ }"
    result = evaluated(host, wanted, package, store=STORE)
    assert result["refused"] == []
    boots = tuple(f"{name}.service" for name, by in result["wantedBy"].items() if by == ["multi-user.target"])
    return Generation(result["units"], boots, text(result["settings"]))


def install(lab: Lab) -> None:
    """The daemon's code, token and stand-in, and on each Spark its own generation; nothing is started."""
    product.install(lab, product.settings(lab))
    links = " && ".join(
        f"mkdir -p $(dirname {STORE}/{path}) && ln -sfn {target} {STORE}/{path}" for path, target in _PROGRAMS.items()
    )
    lab.together(lambda spark: spark.run(links))
    lab.together(lambda spark: _lay(spark, generation(spark.name)))
    lab.together(lambda spark: spark.run("sync"))


def _lay(spark: Spark, made: Generation) -> None:
    spark.push({name: unit.encode() for name, unit in made.units.items()}, _UNITS)
    spark.write(product.CONFIG, made.config)
    wants = f"{_UNITS}/multi-user.target.wants"
    enable = "".join(f" && ln -sf ../{name} {wants}/{name}" for name in made.wanted)
    spark.run(f"mkdir -p {wants}{enable} && systemctl daemon-reload")


def switch(spark: Spark, old: Generation, new: Generation) -> str:
    """What `nixos-rebuild switch` does from one generation to the other: "restart", "reload" or "nothing".

    glm-spark.service itself is exempt (X-RestartIfChanged=false).
    """
    assert "X-RestartIfChanged=false" in new.units[f"{product.UNIT}.service"]
    _lay(spark, new)
    verb = "nothing"
    if old.triggers("X-Restart-Triggers") != new.triggers("X-Restart-Triggers"):
        verb = "restart"
    elif old.triggers("X-Reload-Triggers") != new.triggers("X-Reload-Triggers"):
        verb = "reload"
    if verb != "nothing":
        spark.run(f"systemctl {verb} {BOOT}", timeout=30.0)
    return verb


def switch_on(lab: Lab, spark: Spark) -> None:
    """A cold boot up to multi-user.target; `Lab.power_on` would wait for the queued start, and so for the set."""
    spark.start()
    lab.show_carriers()
    spark.release()
    until(functools.partial(_multi_user, spark), "active", BOOT_SECONDS, f"multi-user.target of {spark.name}")


def _multi_user(spark: Spark) -> str:
    try:
        return spark.run("systemctl is-active multi-user.target", check=False).stdout.strip()
    except TimeoutError:
        return "no agent yet"


def status(spark: Spark) -> dict[str, Any]:
    """`glm-spark status --json`; a set that is not live makes its exit status 2."""
    return dict(json.loads(spark.run("glm-spark status --json", check=False).stdout))
