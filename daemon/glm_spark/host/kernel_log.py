"""What the kernel says about the hardware and the memory: one table of signs, and an ear that counts them. Pure."""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from glm_spark.finding import Finding, Severity

AGAIN_SECONDS = 60.0  # the same sign of the same thing is told once in so long
SAID = 500  # characters of a line
MOST_REMEMBERED = 200


@dataclass(frozen=True, slots=True)
class Sign:
    """A line that holds `pattern` means `code`. `subject` may use the pattern's groups.

    `fatal`: no start can go well until a person did something. `times` such lines within `seconds` make the sign.
    """

    code: str
    pattern: re.Pattern[str]
    subject: str
    wanted: str
    fix: str
    severity: Severity = Severity.WARNING
    fatal: bool = False
    times: int = 1
    seconds: float = 0.0


def _sign(code: str, pattern: str, subject: str, wanted: str, fix: str, **more: object) -> Sign:
    return Sign(code, re.compile(pattern, re.ASCII), subject, wanted, fix, **more)  # type: ignore[arg-type]


# NVIDIA's Xid catalog (driver branch r590) names a reset of the GPU or a reboot as the next step for these.
_RESETS = "46|48|62|64|79|95|109|119|120|136|140|143|155|156|158"
_GPU_RESET = "Shut this Spark down, take it off mains power for a minute and start it; then glm-spark restart."
_NO_MEMORY = r"NVRM: .{0,200}\[NV_ERR_NO_MEMORY\]"
_WIFI = r"\b(?:mt79\w+|mt76\w*|iwlwifi|ath1[12]k\w*|rtw8[89]\w+|cfg80211|mac80211)\b"

# The first row that fits is the one.
SIGNS: tuple[Sign, ...] = (
    _sign(
        "hardware.gpu-reset-needed",
        rf"NVRM: Xid \((?P<device>[^)]{{1,60}})\): (?:(?:{_RESETS})\b"
        r"|154\b.{0,200} to 0x[0-9a-fA-F]+ \((?:GPU Reset Required|Node Reboot Required|Drain and Reset))",
        "the GPU ({device}) needs a reset",
        "a GPU that works",
        _GPU_RESET,
        severity=Severity.ERROR,
        fatal=True,
    ),
    _sign(
        "hardware.gpu-reset-needed",
        r"NVRM: .{0,200}(?:\[NV_ERR_RESET_REQUIRED\]|GPU has fallen off the bus)",
        "the GPU needs a reset",
        "a GPU that works",
        _GPU_RESET,
        severity=Severity.ERROR,
        fatal=True,
    ),
    _sign(
        "hardware.gpu-xid",
        r"NVRM: Xid \((?P<device>[^)]{1,60})\): (?P<number>[0-9]{1,4})\b",
        "the GPU driver reports Xid {number} ({device})",
        "no Xid",
        "Nothing to do for one; if it comes back, look the number up in NVIDIA's Xid catalog.",
    ),
    _sign(
        "hardware.gpu-memory-storm",
        _NO_MEMORY,
        "the GPU driver gets no memory, again and again",
        "memory for the driver: a Spark without it freezes",
        "End what else holds memory (glm-spark check names it) or lower engine.context; then glm-spark restart.",
        severity=Severity.ERROR,
        fatal=True,
        times=5,
        seconds=10.0,
    ),
    _sign(
        "hardware.pcie-fatal",
        r"(?:AER: .{0,60}Uncorrect(?:ed|able) \(Fatal\) error"
        r"|Bus Error: severity=Uncorrect(?:ed|able) \(Fatal\)"
        r"|DPC: containment event.{0,120}ERR_FATAL)",
        "a PCIe device failed ({place})",
        "a device that answers",
        "Shut this Spark down, take it off mains power for a minute and start it; then glm-spark restart. If it comes "
        "back, have this Spark looked at.",
        severity=Severity.ERROR,
        fatal=True,
    ),
    _sign(
        "hardware.nic-firmware",
        r"mlx5_core .{0,120}(?:Fatal error [0-9]+ detected|device's health compromised|firmware internal error"
        r"|assert_var\[|FW fatal error|fw[ _]fatal)",
        "the firmware of the cable's network card failed ({place})",
        "firmware that runs",
        "The driver starts it anew; if the cable stays down, reboot this Spark, and update the card's firmware.",
    ),
    _sign(
        "memory.oom-killed",
        r"(?:Out of memory|Memory cgroup out of memory): Killed process (?P<pid>[0-9]+) \((?P<name>[^)]{1,40})\)",
        "the kernel ended {name} (pid {pid}) for want of memory",
        "memory enough for what runs",
        "End what is not needed on this Spark; glm-spark check names what holds the most.",
    ),
    _sign(
        "hardware.wifi-oops",
        rf"(?:(?:pc|RIP)\s?: .{{0,80}}{_WIFI}|(?:Oops|BUG|WARNING): .{{0,200}}{_WIFI})",
        "the Wi-Fi driver crashed in the kernel",
        "a kernel whose network answers",
        "It can hold the network's lock for ever: reboot this Spark, and turn Wi-Fi off if it comes back.",
    ),
    _sign(
        "hardware.kernel-oops",
        r"(?:Internal error: Oops|Oops: [0-9]|BUG: unable to handle|Unable to handle kernel .{0,60}(?:address|pointer)"
        r"|kernel BUG at )",
        "a driver crashed in the kernel",
        "a kernel without a crash",
        "What it held may hang for good: reboot this Spark when you can; journalctl -k has the rest.",
    ),
    _sign(
        "hardware.lockup",
        r"watchdog: BUG: soft lockup - CPU#[0-9]+ stuck|(?:hard LOCKUP|rcu: INFO: rcu_\w+ self-detected stall)",
        "a processor of this Spark is stuck in the kernel",
        "a kernel that moves",
        "If it goes on, reboot this Spark; journalctl -k names what was running.",
    ),
    _sign(
        "hardware.task-hung",
        r"INFO: task (?P<name>.{1,60}):(?P<pid>[0-9]+) blocked for more than [0-9]+ seconds",
        "{name} (pid {pid}) is stuck in the kernel",
        "a kernel that answers",
        "If it stays, reboot this Spark; journalctl -k names what it waits for.",
    ),
)

# After these no retry goes well until a person did something.
FATAL_CODES = frozenset(sign.code for sign in SIGNS if sign.fatal)

_PLACE = re.compile(r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b")


class Ear:
    """Hears one Spark's kernel lines in order and says what is news."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._told: dict[tuple[str, str], float] = {}
        self._counted: dict[str, deque[float]] = {}

    def hear(self, line: str, now: float) -> Finding | None:
        """The finding of a line, None for an ordinary one and for what was told a moment ago. `now` in seconds."""
        for sign in SIGNS:
            match = sign.pattern.search(line)
            if match is not None:
                return self._made(sign, match, now) if self._enough(sign, now) else None
        return None

    def _enough(self, sign: Sign, now: float) -> bool:
        if sign.times == 1:
            return True
        counted = self._counted.setdefault(sign.code, deque(maxlen=sign.times))
        counted.append(now)
        return len(counted) == sign.times and now - counted[0] <= sign.seconds

    def _made(self, sign: Sign, match: re.Match[str], now: float) -> Finding | None:
        groups = {name: value or "?" for name, value in match.groupdict().items()}
        places = _PLACE.findall(match.string)
        subject = sign.subject.format(**{"place": places[-1] if places else "?", **groups})
        told = self._told.get((sign.code, subject))
        if told is not None and now - told < AGAIN_SECONDS:
            return None
        if len(self._told) >= MOST_REMEMBERED:
            self._told.clear()
        self._told[sign.code, subject] = now
        text = "".join(letter if letter.isprintable() else " " for letter in match.string.strip())
        return Finding(
            code=sign.code,
            severity=sign.severity,
            node=self._node[:64],
            subject=subject[:300],
            measured=f'the kernel said "{text[:SAID]}"',
            wanted=sign.wanted,
            fix=sign.fix,
        )
