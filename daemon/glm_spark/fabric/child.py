"""`python -m glm_spark.fabric.child MODE ...`: reads links and devices where a stuck call can be killed.

    once PEER...    prints {"ask": null, "inventory": {...}} and ends
    watch PEER...   prints such a line at the start and after every change; a line {"ask": 7} on standard input is
                    answered by a fresh one with "ask": 7, so that silence and being stuck can be told apart;
                    ends with standard input, or with the thread that started it
    filters         prints {"told": ...} with the packet filters, as `glm_spark.fabric.filters` reads them
    register DEVICE...  prints {"told": ...} with a memory registration on each, as `glm_spark.fabric.registration` does

The last two print {"refused": TEXT, "errno": NUMBER} where the kernel refuses.

An inventory has the shape of `glm_spark.fabric.inventory.Inventory`; what could not be read is among its findings.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import select
import signal
import socket
import sys
import time
from typing import Any

_SETTLE = 0.1  # seconds without a further change before a change is read
_HURRY = 0.5  # a stream of changes is read at least so often
_POLL = 2.0  # GID tables and port states change without a netlink message,
_POLL_AFTER = 0.5  # and some time after one: a port was seen ACTIVE half a second after its carrier went
_AFTER = 3.0
_PR_SET_PDEATHSIG = 1
_USAGE = "once PEER... | watch PEER... | filters | register DEVICE..."


def _light_pyroute2() -> None:
    """Import pyroute2's messages without all that its __init__ imports: 14 MB and 60 ms instead of 32 MB."""
    spec = importlib.util.find_spec("pyroute2")
    if spec is None or "pyroute2" in sys.modules:
        return
    sys.modules["pyroute2"] = importlib.util.module_from_spec(spec)
    try:
        importlib.import_module("pyroute2.netlink.rtnl.ifinfmsg")
    except ImportError:  # a version whose parts need the whole
        for name in [name for name in sys.modules if name.split(".")[0] == "pyroute2"]:
            del sys.modules[name]


def reading(peers: list[str]) -> dict[str, Any]:
    """One Inventory as a dict."""
    from glm_spark.fabric import netlink, verbs

    parts: dict[str, Any] = {}
    findings = []
    try:
        parts = netlink.read(peers)
    except OSError as error:
        findings.append(_finding("fabric.netlink-failed", "netdevs and routes", str(error), "a reading over netlink"))
    names = {netdev["index"]: netdev["name"] for netdev in parts.get("netdevs", [])}
    parts["devices"], faults = verbs.read(names)
    findings += [
        _finding("fabric.verbs-failed", f"RoCE device {device}", fault, "a device that answers")
        for device, fault in faults
    ]
    return {**parts, "findings": findings}


def _finding(code: str, subject: str, measured: str, wanted: str) -> dict[str, str]:
    return {
        "code": code,
        "severity": "unknown",
        "node": "",
        "subject": subject,
        "measured": measured[:300],
        "wanted": wanted,
        "fix": "See the kernel's log (journalctl -k).",
    }


def _say(inventory: dict[str, Any], ask: int | None) -> None:
    sys.stdout.write(json.dumps({"ask": ask, "inventory": inventory}, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def _steady(inventory: dict[str, Any]) -> dict[str, Any]:
    """What counts as a change: neighbours come and go with the traffic."""
    return {name: value for name, value in inventory.items() if name != "neighbours"}


def watch(peers: list[str]) -> None:
    from glm_spark.fabric import netlink

    heard = netlink.listener()
    last = reading(peers)
    _say(last, None)
    asked = b""
    changed_at: float | None = None
    read_at = news_at = time.monotonic()
    while True:
        now = time.monotonic()
        wait = (_POLL_AFTER if now < news_at + _AFTER else _POLL) - (now - read_at)
        if changed_at is not None:
            wait = min(_SETTLE, changed_at + _HURRY - now)
        sources: list[Any] = [heard, 0]
        ready, _, _ = select.select(sources, [], [], max(0.0, wait))
        asks: list[int] = []
        if 0 in ready:
            data = os.read(0, 1 << 16)
            if not data:
                return
            *lines, asked = (asked + data).split(b"\n")
            asks = [int(json.loads(line)["ask"]) for line in lines if line.strip()]
        if heard in ready:
            netlink.drain(heard)
            news_at = time.monotonic()
            changed_at = news_at if changed_at is None else changed_at
            if not asks and time.monotonic() < changed_at + _HURRY:
                continue
        elif ready and not asks:
            continue
        changed_at, read_at = None, time.monotonic()
        fresh = reading(peers)
        for ask in asks:
            _say(fresh, ask)
        if not asks and _steady(fresh) != _steady(last):
            _say(fresh, None)
        last = fresh


def _answer(mode: str, devices: list[str]) -> None:
    try:
        if mode == "filters":
            from glm_spark.fabric import filters

            told: dict[str, Any] = {"told": filters.read()}
        else:
            from glm_spark.fabric import registration

            told = {"told": registration.register(devices)}
    except OSError as error:
        told = {"refused": error.strerror or str(error), "errno": error.errno}
    sys.stdout.write(json.dumps(told, separators=(",", ":")) + "\n")
    sys.stdout.flush()


def main(arguments: list[str]) -> int:
    if not arguments or arguments[0] not in ("once", "watch", "filters", "register"):
        print(f"usage: python -m glm_spark.fabric.child {_USAGE}", file=sys.stderr)
        return 2
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    mode, *peers = arguments
    if mode in ("filters", "register"):
        _answer(mode, peers)
        return 0
    for peer in peers:
        socket.inet_aton(peer)
    _light_pyroute2()
    if mode == "once":
        _say(reading(peers), None)
    else:
        watch(peers)
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except BrokenPipeError:
        os._exit(0)
