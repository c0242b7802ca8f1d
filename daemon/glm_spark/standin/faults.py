"""What a test wants the stand-in to do: pace, sizes and faults, read from TENSORFOLD_STANDIN.

The variable holds JSON or TOML, or the path of such a file. A file is read again whenever it changes, so that
a test can switch a fault on and off under a running engine. Keys at the top are for every rank; a table
`ranks.N` overrides them for rank N.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from glm_spark.standin.failures import LATCHED, START_FAILURES, Refusal

VARIABLE = "TENSORFOLD_STANDIN"
PHASES = ("banner", "loading", "rendezvous", "transport", "admission", "weights", "kernels", "meet", "ready")
REPLIES = ("normal", "bang", "empty")


@dataclass(frozen=True)
class Faults:
    """One rank's script. Seconds end in _s, mebibytes in _mib, gibibytes in _gib; the rest are counts."""

    # Pace and size
    delay_s: Mapping[str, float] = field(default_factory=dict)  # phase -> seconds spent in it
    token_rate: float = 100.0  # tokens a second and stream; 0 = as fast as it goes
    first_token_s: float = 0.0
    reply_tokens: int = 48  # length of an answer that max_tokens does not cut
    think_tokens: int = 12
    slots: int = 0  # replaces --parallel where a load test needs more than the engine's 8
    secret: str = ""  # the last rank's value; empty = random
    any_model: bool = False  # accept an absolute MODEL path that does not exist
    memory_mib: int = 0  # really allocated while the weights load
    estimate_gib: float = 88.09
    budget_gib: float = 97.31
    cache_slots: int = 32
    rendezvous_limit_s: float = 600.0
    waiting_line_s: float = 60.0
    meet_limit_s: float = 3600.0
    flush_s: float = 0.0  # how long the spill tier's flush takes at a stop
    # Start
    window: int = -1  # tokens that fit; -1 = everything does
    fail_with: str = ""  # a key of START_FAILURES
    fail_starts: int = 0  # only the first N starts, counted in counter_file; 0 = always
    fail_unless: Mapping[str, str] = field(default_factory=dict)  # not where the environment has all these
    counter_file: str = ""
    exit_phase: str = ""
    exit_code: int = 1  # negative: that signal
    silent_phase: str = ""
    silent_spin: bool = False  # silent with a core at 100 %
    noise_bytes: int = 0  # printed as random bytes and again as one line, before the weights
    served_context: int = 0  # served without a word instead of what was asked
    compilers: int = 0  # children that burn CPU while the kernels are built
    build_lock: str = ""  # lock of the kernel build: waited for where it exists, else made and removed
    nccl_fallback: bool = False  # NCCL reports TCP sockets whatever was asked
    environment: Mapping[str, str] = field(default_factory=dict)  # over the rank's own, for its network alone
    roce_timeout_s: float = 4.0  # a write on a dead path fails about then
    deaf: bool = False  # SIGTERM is ignored
    grandchild: bool = False  # leaves a process in a session of its own
    # Serving
    reply: str = "normal"
    hang: bool = False  # this rank stops taking part in rounds
    broken: str = ""  # a key of LATCHED; holds for the life of the process
    step_limit_s: float = 300.0
    cut_after_tokens: int = 0  # the connection of a stream is dropped there
    crash_after_s: float = 0.0  # after ready, with exit_code
    crash_at_round: int = 0  # the N-th round of the set's life, with exit_code
    peer_watch: bool = False
    peer_watch_lost_s: float = 120.0
    peer_watch_restart_s: float = 2.0


def parse(text: str, rank: int) -> Faults:
    """The script of one rank. Raises Refusal for anything that is not known, with the key."""
    try:
        table = json.loads(text) if text.lstrip().startswith("{") else tomllib.loads(text)
    except ValueError as error:
        raise Refusal(f"{VARIABLE}: {error}") from error
    if not isinstance(table, dict) or not isinstance(table.get("ranks", {}), dict):
        raise Refusal(f"{VARIABLE}: wants a table, got {table!r}")
    merged = {key: value for key, value in table.items() if key != "ranks"}
    merged.update(table.get("ranks", {}).get(str(rank), {}))
    return build(merged)


def build(table: Mapping[str, Any]) -> Faults:
    defaults = Faults()
    values: dict[str, Any] = {}
    for key, value in table.items():
        if not hasattr(defaults, key):
            known = ", ".join(one.name for one in dataclasses.fields(Faults))
            raise Refusal(f"{VARIABLE}: unknown key {key}; known: {known}")
        default = getattr(defaults, key)
        if isinstance(default, float) and type(value) is int:
            value = float(value)
        if type(value) is not type(default):
            raise Refusal(f"{VARIABLE}: {key} wants {type(default).__name__}, got {value!r}")
        values[key] = value
    faults = Faults(**values)
    for key, allowed in (
        ("fail_with", ("", *START_FAILURES)),
        ("broken", ("", *LATCHED)),
        ("reply", REPLIES),
        ("exit_phase", ("", *PHASES)),
        ("silent_phase", ("", *PHASES)),
    ):
        if getattr(faults, key) not in allowed:
            raise Refusal(f"{VARIABLE}: {key} is one of {allowed}, not {getattr(faults, key)!r}")
    if unknown := set(faults.delay_s) - set(PHASES):
        raise Refusal(f"{VARIABLE}: delay_s has unknown phases {sorted(unknown)}; known: {PHASES}")
    return faults


class FaultSource:
    """Gives the script as it is now; a file is looked at on every call and read when it changed."""

    def __init__(self, value: str, rank: int) -> None:
        self._rank = rank
        self._stamp: tuple[int, int] | None = None
        self._path = value if value and "=" not in value and not value.lstrip().startswith("{") else ""
        self._now = Faults() if self._path or not value else parse(value, rank)
        if self._path and not os.path.exists(self._path):
            raise Refusal(f"{VARIABLE}: {self._path}: no such file")

    def now(self) -> Faults:
        """The script in force. A file that cannot be used later keeps the last good one, and says so."""
        if not self._path:
            return self._now
        first = self._stamp is None
        try:
            found = os.stat(self._path)
            stamp = (found.st_mtime_ns, found.st_ino)
            if stamp != self._stamp:
                self._stamp = stamp
                with open(self._path, encoding="utf-8") as file:
                    self._now = parse(file.read(), self._rank)
        except (OSError, Refusal) as error:
            if first:
                raise
            if not isinstance(error, FileNotFoundError):
                print(f"stand-in: {error}", file=sys.stderr, flush=True)
        return self._now
