"""How the engine ends: refusals, and errors with the texts a supervisor keys on."""

from __future__ import annotations

import os
import signal
from typing import NoReturn


class Refusal(Exception):
    """Ends the program with one stderr line `tensorfold: ...` and status 1."""


class OutOfMemoryError(RuntimeError):
    """CUDA's allocator gave up."""


class DistNetworkError(RuntimeError):
    """The rendezvous store could not be bound, or rank 0 went away."""


class RoceError(RuntimeError):
    """A round over RDMA failed for good."""


class Unusable(Exception):
    """An RDMA device that cannot be used, in the words of the engine's RoCE set-up."""


class RegistrationFailed(Exception):
    """Memory could not be registered for RDMA."""


# A traceback names an exception by module and class: these must read as PyTorch's own, and as a plain RuntimeError.
OutOfMemoryError.__module__ = "torch"
DistNetworkError.__module__ = "torch.distributed"
RoceError.__module__, RoceError.__qualname__ = "builtins", "RuntimeError"

NCCL = "NCCL error 2: unhandled system error (run with NCCL_DEBUG=INFO for details)"
REG_MR = "WARN Call to ibv_reg_mr failed with error {error}"
ROCE_SETUP = "RoCE all-gather setup failed on some rank: "


def roce_failed(sequence: int, peer: int, hca: int, what: str = "") -> str:
    counters = f"[doorbell {sequence}, posted {sequence}, completed {max(sequence - 1, 0)}, last {sequence}]"
    return f"RoCE all-gather failed (sequence {sequence}, peer {peer}, hca {hca}){what} {counters}"


def roce_write(sequence: int, peer: int, hca: int, status: str, vendor: int) -> str:
    """The path to that rank is broken."""
    what = f": RDMA write to rank {peer} failed: {status} (vendor_err {vendor:#x}, wr {sequence})"
    return roce_failed(sequence, peer, hca, what)


def roce_late(sequence: int, peer: int, hca: int) -> str:
    """Nothing came from that rank within TF_ROCE_WAIT_S."""
    return roce_failed(sequence, peer, hca)


def roce_altered(sequence: int, peer: int, hca: int) -> str:
    return roce_failed(sequence, peer, hca, f": what rank {peer} wrote arrived altered")


def out_of_step(peer: int, answered: int, sequence: int) -> str:
    return f"rank {peer} answered round {answered}, not {sequence}: the ranks are out of step: restart both"


ROCE_WRITE = roce_write(12, 1, 0, "transport retry counter exceeded", 0x81)
ROCE_LATE = roce_late(12, 1, 0)
OUT_OF_STEP = out_of_step(1, 11, 12)

# kind -> (phase it strikes in, error). The phase is where the real one was seen to fail.
START_FAILURES: dict[str, tuple[str, RuntimeError]] = {
    "nccl": ("transport", RuntimeError(NCCL)),
    "roce-write": ("transport", RuntimeError(ROCE_WRITE)),
    "roce-late": ("transport", RuntimeError(ROCE_LATE)),
    "roce-device": ("transport", RuntimeError(ROCE_SETUP + "RDMA device rocep1s0f0 not found")),
    "roce-port": ("transport", RuntimeError(ROCE_SETUP + "rocep1s0f0 port 1 is not active")),
    "roce-geometry": ("transport", RuntimeError(ROCE_SETUP + "the ranks' RoCE geometry differs")),
    "oom": (
        "weights",
        OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has 1.21 GiB free."),
    ),
}

# kind -> the log line of an engine that is broken for good while its process lives on.
LATCHED: dict[str, str] = {
    "request": "request error: RuntimeError: CUDA error: an illegal memory access was encountered",
    "scheduler": "--parallel scheduler iteration failed: RuntimeError: CUDA error: unspecified launch failure",
    "out-of-step": f"request error: RuntimeError: {OUT_OF_STEP}",
    "roce-write": f"request error: RuntimeError: {ROCE_WRITE}",
    "roce-late": f"request error: RuntimeError: {ROCE_LATE}",
}


def window_refusal(context: int, fitting: int) -> Refusal:
    """The start-up refusal of a context that does not fit; `fitting` is M, in tokens."""
    wanted = f"requested context {context}" if context else "the native window or any smaller one"
    way_out = f"Use --context {fitting} with a smaller prompt/reply reserve, or " if fitting else "Please "
    return Refusal(
        f"CUDA startup memory budget cannot fit {wanted}; estimated largest fitting prompt-plus-reply "
        f"window: {fitting} tokens across the ranks. {way_out}free memory or use smaller/quantized weights; "
        "no model weights or KV caches have been loaded. KV precision is unchanged."
    )


def store_lost() -> NoReturn:
    """What a rank above 0 raises when rank 0's store is gone."""
    raise DistNetworkError(
        "Failed to recv, got 0 bytes. Connection was likely closed. Did the remote server shutdown or crash?"
    )


def leave(code: int) -> NoReturn:
    """Ends the process on the spot: with that status, or for a negative one with that signal."""
    if code < 0:
        signal.signal(-code, signal.SIG_DFL) if -code not in (signal.SIGKILL, signal.SIGSTOP) else None
        os.kill(os.getpid(), -code)
    os._exit(code)
