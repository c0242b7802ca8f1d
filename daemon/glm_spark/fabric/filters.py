"""The packet filters of this network namespace, over nfnetlink. Runs in the child program, as `fabric.netlink` does.

Rules are told as steps that `fabric.firewall` can follow: ["dport", "eq", 8899] and the like, ["verdict", "drop", ""],
["unknown"] for a condition that is not followed. Needs CAP_NET_ADMIN. iptables of today writes the same tables; what
iptables-legacy has is only seen to be there.

The attributes are taken apart here (linux/netfilter/nf_tables.h): pyroute2's module for them takes ten times as long
to import as everything else in this process, before every start.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

Parts = dict[str, Any]
Attributes = dict[int, bytes]

_NETLINK_NETFILTER, _SUBSYSTEM = 12, 10 << 8
_GET_CHAIN, _GET_RULE = 4, 7
_REQUEST, _DUMP, _INTERRUPTED = 0x1, 0x300, 0x10
_ERROR, _DONE = 2, 3
_HEADER, _ATTRIBUTE = struct.Struct("=IHHII"), struct.Struct("=HH")
_TABLE, _CHAIN_NAME, _HOOK, _POLICY = 1, 3, 4, 5  # of a chain
_RULE_CHAIN, _EXPRESSIONS = 2, 4  # of a rule
_NAME, _DATA = 1, 2  # of an expression

_FAMILIES = {1: "inet", 2: "ip"}
_HOOKS = {1: "input", 2: "forward"}
_VERDICTS = {0: "drop", 1: "accept", -1: "continue", -3: "jump", -4: "goto", -5: "return"}
_META = {4: "iif", 6: "iifname", 15: "nfproto", 16: "l4proto"}
_COMPARISONS = ("eq", "neq", "lt", "lte", "gt", "gte")
_NETWORK, _TRANSPORT = 1, 2
_PAYLOADS = {  # by header, offset and length; None: any length
    (_TRANSPORT, 2, 2): "dport",
    (_TRANSPORT, 0, 4): "ports",  # source and destination at once, as iptables does
    (_NETWORK, 12, None): "saddr",
    (_NETWORK, 9, 1): "l4proto",
}
_WITHOUT_EFFECT = ("counter", "log", "comment")
_HARMLESS_TARGETS = ("LOG", "MARK", "CONNMARK")
_NEW = 8  # the bit of a new connection among nftables' states
_LEGACY = Path("/proc/net/ip_tables_names")


def read() -> Parts:
    """{"chains": [...], "rules": [...], "legacy": bool}. Raises OSError (EPERM without the right to ask)."""
    for _ in range(4):
        with contextlib.suppress(InterruptedError):
            chains = [chain for family, told in _dump(_GET_CHAIN) if (chain := _chain(family, told))]
            rules = [rule for family, told in _dump(_GET_RULE) if (rule := _rule(family, told))]
            return {"chains": chains, "rules": rules, "legacy": _legacy()}
    raise OSError(errno.EAGAIN, "the packet filters changed during four readings")


def _legacy() -> bool:
    """Whether iptables-legacy has made its filter table; only root can see that."""
    with contextlib.suppress(OSError):
        return "filter" in _LEGACY.read_text(encoding="ascii").split()
    return False


def _dump(kind: int) -> Iterator[tuple[int, Attributes]]:
    """(family, attributes) of every chain or rule. Raises OSError; InterruptedError when they changed meanwhile."""
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, _NETLINK_NETFILTER) as kernel:
        kernel.bind((0, 0))
        # All families, version 0.
        kernel.send(_HEADER.pack(_HEADER.size + 4, _SUBSYSTEM | kind, _REQUEST | _DUMP, 1, 0) + bytes(4))
        while True:
            data, offset = kernel.recv(1 << 18), 0
            while offset < len(data):
                length, answer, flags, _, _ = _HEADER.unpack_from(data, offset)
                body = data[offset + _HEADER.size : offset + length]
                offset += (length + 3) & ~3
                if flags & _INTERRUPTED:
                    raise InterruptedError
                if answer == _DONE:
                    return
                if answer == _ERROR:
                    code = -struct.unpack_from("=i", body)[0]
                    raise OSError(code, os.strerror(code))
                yield body[0], _attributes(body[4:])


def _pairs(data: bytes) -> Iterator[tuple[int, bytes]]:
    offset = 0
    while offset + _ATTRIBUTE.size <= len(data):
        length, kind = _ATTRIBUTE.unpack_from(data, offset)
        if length < _ATTRIBUTE.size:
            return
        yield kind & 0x3FFF, data[offset + _ATTRIBUTE.size : offset + length]
        offset += (length + 3) & ~3


def _attributes(data: bytes) -> Attributes:
    return dict(_pairs(data))


def _text(data: bytes) -> str:
    return data.rstrip(b"\0").decode(errors="replace")


def _number(told: Attributes, kind: int, default: int = -1) -> int:
    data = told.get(kind)
    return int.from_bytes(data, "big") if data else default


def _chain(family: int, told: Attributes) -> Parts | None:
    if family not in _FAMILIES:
        return None
    hook = _attributes(told.get(_HOOK, b""))
    return {
        "family": _FAMILIES[family],
        "table": _text(told.get(_TABLE, b"")),
        "name": _text(told.get(_CHAIN_NAME, b"")),
        "hook": _HOOKS.get(_number(hook, 1), "other") if hook else "",
        "priority": int.from_bytes(hook.get(2, b""), "big", signed=True),
        "drops": bool(hook) and _number(told, _POLICY) == 0,
    }


def _rule(family: int, told: Attributes) -> Parts | None:
    if family not in _FAMILIES:
        return None
    expressions = [_attributes(data) for _, data in _pairs(told.get(_EXPRESSIONS, b""))]
    return {
        "family": _FAMILIES[family],
        "table": _text(told.get(_TABLE, b"")),
        "chain": _text(told.get(_RULE_CHAIN, b"")),
        "steps": _steps([(_text(one.get(_NAME, b"")), _attributes(one.get(_DATA, b""))) for one in expressions]),
    }


def _steps(expressions: list[tuple[str, Attributes]]) -> list[list[Any]]:
    """A rule's expressions in order; what one loads is compared by a later one."""
    steps: list[list[Any]] = []
    loaded, mask = "", b""
    for name, data in expressions:
        if name in _WITHOUT_EFFECT:
            continue
        if name in ("meta", "payload", "ct"):
            loaded, mask = _load(name, data), b""
        elif name == "bitwise":
            mask = _value(data, 4)
        elif name == "cmp":
            steps.append(_compare(loaded, mask, data))
        elif name == "match" and _text(data.get(1, b"")) in ("conntrack", "state"):
            steps.append(["never"])  # states are compared to let known connections in, or to drop invalid packets
        elif name == "immediate" and _number(data, 1) == 0:
            steps.append(_verdict(data))
        elif name in ("reject", "target", "queue", "tproxy", "lookup"):
            steps.extend(_ending(name, data))
        else:
            steps.append(["unknown"])
    return steps


def _ending(name: str, data: Attributes) -> list[list[Any]]:
    """Of a statement that may end the packet's way: its verdict, as far as it is followed."""
    target = _text(data.get(1, b"")) if name == "target" else ""
    if name == "reject" or target == "REJECT":
        return [["verdict", "drop", ""]]
    if name == "lookup" and _number(data, 3) != 0:
        return [["unknown"]]  # in a set that is not read; with a verdict for each element below
    return [] if target in _HARMLESS_TARGETS else [["verdict", "unknown", ""]]


def _load(name: str, data: Attributes) -> str:
    """What is in the register afterwards, "" for what is not followed."""
    if name == "ct":
        return "ctstate" if _number(data, 2) == 0 else ""
    if name == "meta":
        return _META.get(_number(data, 2), "")
    place, length = (_number(data, 2), _number(data, 3)), _number(data, 4)
    return _PAYLOADS.get((*place, length)) or (_PAYLOADS.get((*place, None), "") if length <= 4 else "")


def _value(data: Attributes, kind: int) -> bytes:
    return _attributes(data.get(kind, b"")).get(1, b"")


def _compare(loaded: str, mask: bytes, data: Attributes) -> list[Any]:
    value, how = _value(data, 3), _COMPARISONS[_number(data, 2, 0)]
    if loaded == "ctstate":
        new = bool(mask and mask[0] & _NEW)
        return ["always"] if (how == "neq") == new else ["never"]
    if loaded == "iifname":
        # Shorter than a name's 16 bytes and without its end: a prefix.
        return ["iifname", how, _text(value), b"\0" in value]
    if loaded == "saddr":
        return ["saddr", how, value.ljust(4, b"\0").hex(), (mask or b"\xff" * len(value)).ljust(4, b"\0").hex()]
    if loaded == "iif":
        return ["iif", how, int.from_bytes(value, "little")]
    if loaded and not mask:
        return [loaded, how, int.from_bytes(value, "big")]
    return ["unknown"]


def _verdict(data: Attributes) -> list[Any]:
    verdict = _attributes(_attributes(data.get(2, b"")).get(2, b""))
    told = _VERDICTS.get(int.from_bytes(verdict.get(1, b""), "big", signed=True), "unknown")
    return ["verdict", told, _text(verdict.get(2, b""))]
