"""Units as text: for systems without Nix, with the reasons as comments."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.nix.evaluate import value

_HEAD = """\
# Written from nixos-modules/unit.nix, which NixOS uses as well. Do not change it here: put what differs on your
# Spark into /etc/systemd/system/glm-spark.service.d/local.conf (`systemctl edit glm-spark`).
"""

_FOR = {
    "podman": '# For engine.runtime = "podman" or "docker": the daemon starts a rootful container.\n',
    "process": '# For engine.runtime = "process": a rank is a child of the daemon, as an ordinary user.\n',
}

BOOT = """\
# `systemctl start glm-spark` waits until the set is live. A boot must not: the other Spark may be off. This unit is
# wanted by the boot in its place and is done as soon as it has queued the start.
[Unit]
Description=Start glm-spark without waiting for the other Sparks

[Service]
Type=oneshot
RemainAfterExit=true
ExecStart=systemctl --no-block start glm-spark.service

[Install]
WantedBy=multi-user.target
"""


def by_hand(runtime: str) -> str:
    """daemon/systemd's unit for a runtime."""
    plan = value(f'import (here + "/hand.nix") "{runtime}"')
    sections = [
        _HEAD + _FOR[runtime],
        "[Unit]\n" + _lines({"Description": plan["description"], "After": " ".join(plan["after"])}),
        *(_entry(entry) for entry in plan["unit"]),
        "[Service]\n" + _entry(plan["service"][0]),
        *(_entry(entry) for entry in plan["service"][1:]),
    ]
    return "\n".join(sections)


def _entry(entry: dict[str, Any]) -> str:
    return _comment(entry.get("why", "")) + _lines(entry["set"])


def _comment(why: str) -> str:
    lines = textwrap.wrap(" ".join(why.split()), 108, break_on_hyphens=False)
    return "".join(f"# {line}\n" for line in lines)


def _lines(keys: dict[str, Any]) -> str:
    return "".join(
        f"{key}={_word(one)}\n"
        for key, given in keys.items()
        for one in (given if isinstance(given, list) else [given])
    )


def _word(item: Any) -> str:
    return str(item).lower() if isinstance(item, bool) else str(item)
