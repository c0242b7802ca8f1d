"""Why a rank was killed: by glm-spark, by the kernel for want of memory, or by somebody else on this Spark.

The kernel's log is read from /dev/kmsg, which needs CAP_SYSLOG where kernel.dmesg_restrict is 1, else through the
journal. Neither may be readable; then that is said.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, replace

from glm_spark.engine import processes
from glm_spark.engine.command import Unanswered, ask
from glm_spark.engine.container import tool_environment
from glm_spark.engine.runtime import Exit

KMSG = "/dev/kmsg"
RECORD_BYTES = 8192
READ_SECONDS = 1.0
JOURNAL = ("journalctl", "--dmesg", "--no-pager", "--output=short-monotonic", "--lines=1000")
JOURNAL_SECONDS = 3.0
SLACK_SECONDS = 2.0  # between the log's clock and this program's

_KILLED = re.compile(r"(?:Out of memory|Memory cgroup out of memory|oom_reaper)\b.{0,80}?[Kk]ill(?:ed)? process (\d+)")
_INVOKED = re.compile(r"(\S{1,40}) invoked oom-killer")
_FAULT = re.compile(r"^(\S{1,40})\[(\d+)\]: (segfault at .{1,120}|trap .{1,120})")
_XID = re.compile(r"NVRM: Xid \(.{1,60}?\): (\d+), pid='?(\d+)")
_NO_MEMORY = re.compile(r"NVRM: .{0,200}NV_ERR_NO_MEMORY")


@dataclass(frozen=True, slots=True)
class Line:
    """One line of the kernel's log; `at` in seconds since boot."""

    at: float
    text: str


def kmsg_line(record: str) -> Line | None:
    """Pure: a record of /dev/kmsg, "PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;TEXT"."""
    head, _, text = record.partition(";")
    fields = head.split(",")
    if len(fields) < 3 or not fields[2].isdigit():
        return None
    return Line(int(fields[2]) / 1e6, text.partition("\n")[0])


def journal_line(text: str) -> Line | None:
    """Pure: a line of `journalctl -k -o short-monotonic`, "[SECONDS] HOST kernel: TEXT"."""
    found = re.match(r"\[ *(\d+\.\d+)\] \S+ kernel: (.*)", text)
    return Line(float(found[1]), found[2]) if found else None


def cause(lines: Iterable[Line], pid: int, since: float) -> str:
    """Pure: what the kernel's log of this rank's life says about the end of `pid`; "" when it says nothing."""
    said, invoker, starved = "", "", ""
    for line in lines:
        if line.at < since - SLACK_SECONDS:
            continue
        if found := _INVOKED.search(line.text):
            invoker = found[1]
        elif (found := _KILLED.search(line.text)) and int(found[1]) == pid:
            asked = f", when {invoker} asked for more" if invoker else ""
            said = f"killed by the kernel for want of memory{asked}"
        elif (found := _FAULT.search(line.text)) and int(found[2]) == pid:
            said = said or f"the kernel's log: {found[3]}"
        elif (found := _XID.search(line.text)) and int(found[2]) == pid:
            said = said or f"the NVIDIA driver's log: Xid {found[1]}"
        elif _NO_MEMORY.search(line.text):
            starved = "the NVIDIA driver found no memory (NV_ERR_NO_MEMORY)"
    return said or starved


def read_kmsg() -> list[Line]:
    """The kernel's ring buffer. Raises OSError where it may not be read."""
    found: list[Line] = []
    number = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        while True:
            try:
                record = os.read(number, RECORD_BYTES)
            except BrokenPipeError:  # records were overwritten meanwhile; the next read goes on after them
                continue
            if not record:
                return found
            if line := kmsg_line(record.decode(errors="replace")):
                found.append(line)
    except BlockingIOError:  # its end
        return found
    finally:
        os.close(number)


async def kernel_log() -> list[Line] | None:
    """The kernel's log, None where it cannot be read."""
    with suppress(OSError):  # TimeoutError is one
        return await processes.aside(read_kmsg, READ_SECONDS)
    try:
        told = await ask(JOURNAL, JOURNAL_SECONDS, tool_environment(os.environ))
    except Unanswered:
        return None
    found = [line for text in told.output.splitlines() if (line := journal_line(text))]
    return found or None


async def explained(exit: Exit, pid: int, since: float, *, by_us: bool) -> Exit:
    """The exit with who killed it. `since` is the rank's start on the monotonic clock."""
    if exit.killed and by_us:
        return replace(exit, cause="killed by glm-spark")
    violent = exit.signal is not None or (exit.code is not None and exit.code > 128)
    if not violent:
        return exit
    log = await kernel_log()
    said = cause(log, pid, since) if log is not None else ""
    if said or not exit.killed:
        return replace(exit, cause=said)
    if log is None:
        return replace(exit, cause="killed by somebody else, or by the kernel, whose log cannot be read here")
    return replace(exit, cause="killed by somebody on this Spark: neither by glm-spark nor by the kernel")
