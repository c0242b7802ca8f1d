"""The engine's error lines as findings, one row a kind: its own words, a stable code, and what to do about it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from glm_spark.finding import Finding, Severity

MEASURED_CHARACTERS = 1000
PEER_HINT = "Look at the other ranks: the one that ended first says why."


@dataclass(frozen=True, slots=True)
class FaultRow:
    """A line that holds `pattern` and not `unless` means `code`. `wanted` and `fix` may use the pattern's groups."""

    code: str
    pattern: re.Pattern[str]
    subject: str
    wanted: str
    fix: str
    severity: Severity = Severity.ERROR
    unless: re.Pattern[str] | None = None

    def match(self, line: str) -> re.Match[str] | None:
        found = self.pattern.search(line)
        if found is None or (self.unless is not None and self.unless.search(line)):
            return None
        return found

    def finding(self, match: re.Match[str], rank: int, node: str) -> Finding:
        groups = {name: value or "" for name, value in match.groupdict().items()}
        line = match.string[max(0, match.start() - 200) :].strip()
        return Finding(
            code=self.code,
            severity=self.severity,
            node=node[:64],
            subject=f"rank {rank}: {self.subject}",
            measured=line[:MEASURED_CHARACTERS],
            wanted=self.wanted.format(**groups)[:1000],
            fix=self.fix.format(**groups)[:2000],
        )


def _row(
    code: str,
    pattern: str,
    subject: str,
    wanted: str,
    fix: str,
    *,
    severity: Severity = Severity.ERROR,
    unless: str = "",
) -> FaultRow:
    barred = re.compile(unless, re.ASCII) if unless else None
    return FaultRow(code, re.compile(pattern, re.ASCII), subject, wanted, fix, severity, barred)


# What other rows name more exactly, though it also reads `tensorfold: ...`.
_NAMED_REFUSALS = r"startup memory budget cannot fit|ranks were started with different settings|address already in use"

# 0 is the engine's word for "not even the weights fit"; given back as --context it would mean "as much as fits".
_NO_WINDOW = r"startup memory budget cannot fit .{0,400}prompt-plus-reply window: 0 tokens"

FAULTS: tuple[FaultRow, ...] = (
    _row(
        "engine.window-refused",
        r"startup memory budget cannot fit .{0,400}prompt-plus-reply window: (?P<window>[0-9]{1,12}) tokens",
        "the context does not fit into memory",
        "room for the whole context",
        "Free memory on this Spark, or set engine.context to {window} or less.",
        unless=_NO_WINDOW,
    ),
    _row(
        "engine.window-none",
        _NO_WINDOW,
        "the weights alone do not fit into memory",
        "room for the weights and a window",
        "Free memory on this Spark; a smaller context does not help.",
    ),
    _row(
        "engine.settings-differ",
        r"ranks were started with different settings",
        "the ranks' settings differ",
        "the same settings on every rank",
        "Use one configuration file and one engine version on all Sparks.",
    ),
    _row(
        "engine.nccl-error",
        r"NCCL error (?P<number>[0-9]{1,6})\b",
        "NCCL failed",
        "a connection between the ranks",
        "It is tried again, then with HC_SPLIT and PREFILL_OVERLAP off; if it stays, run glm-spark check --cluster.",
    ),
    _row(
        "engine.memory-registration",
        r"ibv_reg_mr\S* .{0,200}Cannot allocate memory",
        "RDMA memory could not be registered",
        "memory that RDMA may use",
        "Raise the memlock limit to unlimited; if it is, update this Spark's kernel and firmware.",
        severity=Severity.WARNING,  # the NCCL error that follows is what ends the rank
    ),
    _row(
        "engine.rdma-device-missing",
        r"RDMA device (?P<device>\S{1,64}) not found",
        "RDMA device not found",
        "the device {device}",
        "Look at the cable and at glm-spark check on this Spark.",
    ),
    _row(
        "engine.roce-port-inactive",
        r"RoCE all-gather setup failed.{0,300}\bport (?P<port>[0-9]{1,3}) is not active",
        "a RoCE port is not active",
        "port {port} active",
        "Look at the cable at both ends.",
    ),
    _row(
        "engine.roce-geometry",
        r"the ranks' RoCE geometry differs",
        "the ranks use different rails",
        "the same rails on every rank",
        "Look at glm-spark plan on all Sparks: the number of rails and their MTU must be the same.",
    ),
    _row(
        "engine.path-broken",
        r"RDMA write to rank (?P<peer>[0-9]{1,3}) failed",
        "the RDMA path to another rank is broken",
        "a path to rank {peer}",
        "Look at cable, addresses and MTU of every rail at both ends; glm-spark check --cluster probes them.",
    ),
    _row(
        "engine.peer-late",
        r"RoCE all-gather failed",
        "another rank is late or lost",
        "an answer within TF_ROCE_WAIT_S",
        PEER_HINT,
        unless=r"RDMA write|setup failed",
    ),
    _row(
        "engine.out-of-step",
        r"the ranks are out of step",
        "the ranks are out of step",
        "all ranks in the same round",
        "All ranks are restarted together.",
    ),
    _row(
        "engine.latched",
        r"--parallel scheduler iteration failed:|request error: RuntimeError:",
        "the engine is broken for good while its process lives",
        "requests that are answered",
        "All ranks are restarted together.",
    ),
    _row(
        "engine.step-stuck",
        r"^\s*(?:\[tensorfold\] )?Timeout \([0-9:.]{1,20}\)!",
        "a step is stuck",
        "a step that ends",
        "All ranks are restarted together; the thread stacks are in the journal above.",
    ),
    _row(
        "engine.out-of-memory",
        r"CUDA out of memory|torch\.(?:cuda\.)?OutOfMemoryError",
        "out of GPU memory",
        "memory for the whole load",
        "Free memory on this Spark, or lower engine.context.",
    ),
    _row(
        "engine.port-busy",
        r"(?i:address already in use)|\bEADDRINUSE\b|Errno 98\b",
        "a port of the engine is taken",
        "a free port",
        "Find who listens there (glm-spark check names the owner) and end it.",
    ),
    _row(
        "engine.peer-absent",
        r"DistStoreError|Timed out after [0-9]{1,6} seconds waiting for clients|client socket has timed out",
        "the other ranks did not come to the rendezvous",
        "all ranks within 600 s",
        PEER_HINT,
    ),
    _row(
        "engine.peer-lost",
        r"Connection was likely closed\. Did the remote server shutdown or crash",
        "rank 0's rendezvous store is gone",
        "rank 0 alive",
        PEER_HINT,
    ),
    _row(
        "engine.build-lock",
        r"(?:waits|still waiting after [0-9.]{1,12} s) on the build lock (?P<lock>[^;]{1,300});",
        "the kernel build waits on a lock",
        "no lock, or a build that goes on",
        "If no compiler runs on this Spark, a killed build left {lock}: stop, delete it and start again.",
        severity=Severity.WARNING,
    ),
    _row(
        "engine.refused",
        r"^tensorfold: (?!error: ).",
        "the engine refused to start",
        "a start",
        "Correct what it names.",
        unless=_NAMED_REFUSALS,
    ),
    _row(
        "engine.arguments-refused",
        r"^tensorfold(?: serve)?: error: .",
        "the engine rejects its command line",
        "a command line that it takes",
        "Correct what it names; glm-spark plan shows the whole command line.",
    ),
)
