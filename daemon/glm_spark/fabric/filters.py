"""The packet filters of this network namespace, over nfnetlink. Runs in the child program, as `fabric.netlink` does.

Rules are told as steps that `fabric.firewall` can follow: ["dport", "eq", 8899] and the like, ["verdict", "drop", ""],
["unknown"] for a condition that is not followed. Needs CAP_NET_ADMIN. iptables of today writes the same tables; what
iptables-legacy has is only seen to be there.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

Parts = dict[str, Any]

_FAMILIES = {1: "inet", 2: "ip"}
_HOOKS = {1: "input", 2: "forward"}
_VERDICTS = {
    "NF_ACCEPT": "accept",
    "NF_DROP": "drop",
    "NFT_JUMP": "jump",
    "NFT_GOTO": "goto",
    "NFT_RETURN": "return",
    "NFT_CONTINUE": "continue",
}
_META = {"NFT_META_L4PROTO": "l4proto", "NFT_META_NFPROTO": "nfproto", "NFT_META_IIF": "iif"}
_PAYLOADS = {  # by header, offset and length; None: any length
    ("NFT_PAYLOAD_TRANSPORT_HEADER", 2, 2): "dport",
    ("NFT_PAYLOAD_TRANSPORT_HEADER", 0, 4): "ports",  # source and destination at once, as iptables does
    ("NFT_PAYLOAD_NETWORK_HEADER", 12, None): "saddr",
    ("NFT_PAYLOAD_NETWORK_HEADER", 9, 1): "l4proto",
}
_WITHOUT_EFFECT = ("counter", "log", "comment")
_NEW = 8  # the bit of a new connection among nftables' states
_LEGACY = Path("/proc/net/ip_tables_names")


def read() -> Parts:
    """{"chains": [...], "rules": [...], "legacy": bool}. Raises OSError (EPERM without the right to ask)."""
    from pyroute2.netlink.exceptions import NetlinkError
    from pyroute2.nftables.main import NFTables

    chains: list[Parts] = []
    rules: list[Parts] = []
    try:
        with NFTables(nfgen_family=0) as kernel:
            chains = [chain for told in kernel.get_chains() if (chain := _chain(told))]
            rules = [rule for told in kernel.get_rules() if (rule := _rule(told))]
    except NetlinkError as error:
        raise OSError(error.code, f"the packet filters cannot be read: {error}") from None
    return {"chains": chains, "rules": rules, "legacy": _legacy()}


def _legacy() -> bool:
    """Whether iptables-legacy has made its filter table; only root can see that."""
    with contextlib.suppress(OSError):
        return "filter" in _LEGACY.read_text(encoding="ascii").split()
    return False


def _chain(told: Any) -> Parts | None:
    family = _FAMILIES.get(told["nfgen_family"])
    if family is None:
        return None
    hook = told.get_attr("NFTA_CHAIN_HOOK")
    number = hook.get_attr("NFTA_HOOK_HOOKNUM") if hook is not None else None
    return {
        "family": family,
        "table": told.get_attr("NFTA_CHAIN_TABLE"),
        "name": told.get_attr("NFTA_CHAIN_NAME"),
        "hook": _HOOKS.get(number, "other") if number is not None else "",
        "priority": _signed(hook.get_attr("NFTA_HOOK_PRIORITY")) if hook is not None else 0,
        "drops": hook is not None and told.get_attr("NFTA_CHAIN_POLICY") == 0,
    }


def _signed(value: int) -> int:
    return value - (1 << 32) if value >= 1 << 31 else value


def _rule(told: Any) -> Parts | None:
    family = _FAMILIES.get(told["nfgen_family"])
    if family is None:
        return None
    return {
        "family": family,
        "table": told.get_attr("NFTA_RULE_TABLE"),
        "chain": told.get_attr("NFTA_RULE_CHAIN"),
        "steps": _steps(told.get_attr("NFTA_RULE_EXPRESSIONS") or ()),
    }


def _steps(expressions: Any) -> list[list[Any]]:
    """A rule's expressions in order; what one loads is compared by a later one."""
    steps: list[list[Any]] = []
    loaded, mask = "", b""
    for expression in expressions:
        name, data = expression.get_attr("NFTA_EXPR_NAME"), expression.get_attr("NFTA_EXPR_DATA")
        if name in _WITHOUT_EFFECT:
            continue
        if name in ("meta", "payload", "ct"):
            loaded, mask = _load(name, data), b""
        elif name == "bitwise":
            mask = _value(data, "NFTA_BITWISE_MASK")
        elif name == "cmp":
            steps.append(_compare(loaded, mask, data))
        elif name == "match" and data.get_attr("NFTA_MATCH_NAME") in ("conntrack", "state"):
            steps.append(["never"])  # states are compared to let known connections in, or to drop invalid packets
        elif name == "reject":
            steps.append(["verdict", "drop", ""])
        elif name == "immediate" and data.get_attr("NFTA_IMMEDIATE_DREG") == "NFT_REG_VERDICT":
            steps.append(_verdict(data))
        elif name == "target" and data.get_attr("NFTA_TARGET_NAME") == "REJECT":
            steps.append(["verdict", "drop", ""])
        elif name in ("target", "queue", "tproxy") or _maps_to_verdict(name, data):
            if name != "target" or data.get_attr("NFTA_TARGET_NAME") not in ("LOG", "MARK", "CONNMARK"):
                steps.append(["verdict", "unknown", ""])
        else:
            steps.append(["unknown"])
    return steps


def _maps_to_verdict(name: str, data: Any) -> bool:
    """A verdict map: which verdict follows is in a set that is not followed."""
    return name == "lookup" and data.get_attr("NFTA_LOOKUP_DREG") == "NFT_REG_VERDICT"


def _load(name: str, data: Any) -> str:
    """What is in the register afterwards, "" for what is not followed."""
    if name == "ct":
        return "ctstate" if data.get_attr("NFTA_CT_KEY") == "NFT_CT_STATE" else ""
    if name == "payload":
        place = data.get_attr("NFTA_PAYLOAD_BASE"), data.get_attr("NFTA_PAYLOAD_OFFSET")
        length = data.get_attr("NFTA_PAYLOAD_LEN")
        return _PAYLOADS.get((*place, length)) or (_PAYLOADS.get((*place, None), "") if length <= 4 else "")
    key = data.get_attr("NFTA_META_KEY")
    return "iifname" if key == "NFT_META_IIFNAME" else _META.get(key, "")


def _value(data: Any, attribute: str) -> bytes:
    inner = data.get_attr(attribute)
    return (inner.get_attr("NFTA_DATA_VALUE") if inner is not None else None) or b""


def _compare(loaded: str, mask: bytes, data: Any) -> list[Any]:
    value = _value(data, "NFTA_CMP_DATA")
    how = str(data.get_attr("NFTA_CMP_OP")).removeprefix("NFT_CMP_").lower()
    if loaded == "ctstate":
        new = bool(mask and mask[0] & _NEW)
        return ["always"] if (how == "neq") == new else ["never"]
    if loaded == "iifname":
        # Shorter than a name's 16 bytes and without its end: a prefix.
        whole = b"\0" in value
        return ["iifname", how, value.rstrip(b"\0").decode(errors="replace"), whole]
    if loaded == "saddr":
        return ["saddr", how, value.ljust(4, b"\0").hex(), (mask or b"\xff" * len(value)).ljust(4, b"\0").hex()]
    if loaded == "iif":
        return ["iif", how, int.from_bytes(value, "little")]
    if loaded and not mask:
        return [loaded, how, int.from_bytes(value, "big")]
    return ["unknown"]


def _verdict(data: Any) -> list[Any]:
    inner = data.get_attr("NFTA_IMMEDIATE_DATA")
    verdict = inner.get_attr("NFTA_DATA_VERDICT") if inner is not None else None
    if verdict is None:
        return ["unknown"]
    told = _VERDICTS.get(str(verdict.get_attr("NFTA_VERDICT_CODE")))
    return ["verdict", told, verdict.get_attr("NFTA_VERDICT_CHAIN") or ""] if told else ["unknown"]
