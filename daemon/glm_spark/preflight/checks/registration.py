"""Does the kernel let memory be registered with the RoCE devices? Tried for real: nothing else tells."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from glm_spark.fabric.oneshot import ask_child
from glm_spark.fabric.selection import fabric_netdevs
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

_ENOMEM, _EPERM, _EACCES, _ENODEV = 12, 1, 13, 19
_MIB = 1 << 20
_DEADLINE = 6.0


async def run(context: Context) -> Iterable[Finding]:
    devices = _devices(context)
    if not devices:
        return ()
    try:
        told = await ask_child("register", *devices, deadline=_DEADLINE)
    except TimeoutError:
        return (_unknown(context, f"no answer within {_DEADLINE:g} s"),)
    except OSError as error:
        return (_unknown(context, error.strerror or str(error)),)
    return judge(context, told)


def _devices(context: Context) -> list[str]:
    """The devices of the cable that are up."""
    if context.config.fabric.transport != "roce" or context.inventory is None:
        return []
    found = [context.inventory.device_on(netdev.name) for netdev in fabric_netdevs(context.config, context.inventory)]
    return [device.name for device in found if device is not None and device.state == "ACTIVE"]


def judge(context: Context, told: dict[str, Any]) -> tuple[Finding, ...]:
    """Pure. `told` as `fabric.registration.register` returns it. A memlock limit is told once, tried or not."""
    limited = not told["unlimited"] and 0 <= told["memlock"] < told["needed"]
    faults = [one for one in told["tried"] if one["errno"] not in (0, _ENODEV)]
    if limited and all(one["errno"] == _ENOMEM for one in faults):
        return (_limited(context, told, faults),) if told["tried"] else ()
    return tuple(_fault(context, told, one) for one in faults)


def _limited(context: Context, told: dict[str, Any], faults: list[dict[str, Any]]) -> Finding:
    limit, wanted = f"the memlock limit is {told['memlock'] / _MIB:g} MiB", f"{told['needed'] // _MIB} MiB or more"
    if context.alone:
        return context.finding(
            "verbs.memlock-here",
            Severity.NOTE,
            "memory registration",
            measured=f"{limit} for whoever runs this, which says nothing about the daemon",
            wanted=wanted,
            fix="Run this as root, or ask the daemon: glm-spark check --cluster on the leader.",
        )
    refused = f"; {told['bytes'] // _MIB} MiB are refused (Cannot allocate memory)" if faults else ""
    return context.finding(
        "verbs.memory-registration",
        Severity.ERROR,
        f"memory registration on {', '.join(one['device'] for one in faults or told['tried'])}",
        measured=limit + refused,
        wanted=f"no memlock limit, at least {wanted}",
        fix="Set LimitMEMLOCK=infinity in the unit (systemctl edit glm-spark), then systemctl restart glm-spark.",
    )


def _fault(context: Context, told: dict[str, Any], one: dict[str, Any]) -> Finding:
    size, device, number = told["bytes"], one["device"], one["errno"]
    subject = f"memory registration on {device}"
    if one["step"] == "open" and number in (_EPERM, _EACCES):
        return context.finding(
            "verbs.no-access",
            Severity.UNKNOWN if context.alone else Severity.ERROR,
            f"RoCE device {device}",
            measured=one["text"],
            wanted="read and write access to /dev/infiniband/uverbs*",
            fix="Run this as root." if context.alone else "Let the unit have it: DeviceAllow=char-infiniband* rw.",
        )
    return context.finding(
        "verbs.memory-registration",
        Severity.ERROR,
        subject,
        measured=f"{size // _MIB} MiB are refused without a memlock limit: {one['text']}",
        wanted="a registration that succeeds, as NCCL does many at its start",
        fix="The kernel or the board's firmware is at fault, not free memory: see journalctl -k, reboot, then bring "
        "both up to date (fwupdmgr update).",
    )


def _unknown(context: Context, measured: str) -> Finding:
    return context.finding(
        "verbs.registration-unknown",
        Severity.UNKNOWN,
        "memory registration",
        measured=measured,
        wanted="an answer of the RoCE devices",
        fix="See journalctl -k: a driver may hold the call.",
    )


CHECK = Check(
    id="registration",
    measures="ibv_reg_mr of 16 MiB on each ACTIVE device of the cable, and the memlock limit",
    wants="that it succeeds",
    advice="Set LimitMEMLOCK=infinity; without a limit the kernel or the firmware is at fault.",
    run=run,
    deadline=_DEADLINE + 2.0,
)
