"""A real memory registration on each RDMA device, in the child program.

NCCL and the engine register buffers before the first message; where the kernel refuses that, the set fails a minute
into its start with "Cannot allocate memory", whatever is free.
"""

from __future__ import annotations

import contextlib
import resource
from typing import Any

BYTES = 16 << 20  # tried: twice the memlock limit that distributions set
NEEDED = 64 << 20  # NCCL's buffers of four channels and both directions
_LOCAL_WRITE, _REMOTE_WRITE = 1, 2
_IPC_LOCK = 14  # CAP_IPC_LOCK lifts the memlock limit


def register(devices: list[str]) -> dict[str, Any]:
    """{"bytes", "needed", "memlock", "unlimited", "tried": [{"device", "errno", "text"}]}; errno 0 where it went well.

    `memlock` is the limit in bytes, -1 for none; `unlimited` says that it does not count for this process.
    """
    soft = resource.getrlimit(resource.RLIMIT_MEMLOCK)[0]
    return {
        "bytes": BYTES,
        "needed": NEEDED,
        "memlock": -1 if soft == resource.RLIM_INFINITY else soft,
        "unlimited": soft == resource.RLIM_INFINITY or _may_lock(),
        "tried": [_try(device) for device in devices],
    }


def _try(device: str) -> dict[str, Any]:
    from pyverbs.device import Context
    from pyverbs.mr import MR
    from pyverbs.pd import PD
    from pyverbs.pyverbs_error import PyverbsError

    step = "open"
    try:
        with Context(name=device) as context, PD(context) as pd:
            step = "register"
            MR(pd, BYTES, _LOCAL_WRITE | _REMOTE_WRITE).close()
    except (PyverbsError, OSError) as error:
        number = getattr(error, "error_code", None) or getattr(error, "errno", None)
        return {"device": device, "step": step, "errno": number or -1, "text": str(error)[:300]}
    return {"device": device, "step": step, "errno": 0, "text": ""}


def _may_lock() -> bool:
    with contextlib.suppress(OSError, ValueError, StopIteration), open("/proc/self/status", encoding="ascii") as file:
        line = next(line for line in file if line.startswith("CapEff:"))
        return bool(int(line.split()[1], 16) >> _IPC_LOCK & 1)
    return False
