"""The verbs of the demo that are typed in another terminal."""

from __future__ import annotations

import argparse
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from tests import enclosure
from tests.demo.record import Record
from tests.enclosure import ROOT
from tests.sparks import processes, wiring
from tests.sparks.holder import entering, run_ip
from tests.sparks.layout import describe
from tests.sparks.settings import DAEMON
from tests.sparks.spark import directories

MODEL = "GLM-5.3-Flash-EXL3"


def perform(record: Record, arguments: argparse.Namespace) -> int:
    """Runs one verb in the namespaces of the running demo; its exit status."""
    try:
        enclosure.join(record.init)
    except PermissionError:
        print("the demo was started by another user: use the same one (sudo, if it was root)", file=sys.stderr)
        return 1
    child = os.fork()  # a PID namespace is entered by a new process only
    if child == 0:
        status = 1
        try:
            os.environ[enclosure.MARK] = record.mark
            os.chdir(ROOT)
            status = _VERBS[arguments.verb](record, arguments)
        finally:
            sys.stdout.flush()
            os._exit(status)
    # The terminal's Ctrl-C is for the child alone.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def on_spark(record: Record, number: int, argv: list[str], extra: dict[str, str] | None = None) -> int:
    """Becomes a program on a Spark; returns only when that fails."""
    full = [*entering(record.holders[number - 1], ROOT), *argv]
    path = f"{ROOT / '.venv/bin'}:{os.environ.get('PATH', '/usr/bin:/bin')}"
    env = {**os.environ, **directories(record.spark_directory(number)), "PATH": path, **(extra or {})}
    sys.stdout.flush()
    os.execvpe(full[0], full, env)


def _ask(record: Record, arguments: argparse.Namespace) -> int:
    question = str(Path(__file__).with_name("question.py"))
    return on_spark(record, 1, [sys.executable, question, "http://127.0.0.1:8888", MODEL, " ".join(arguments.text)])


def _status(record: Record, arguments: argparse.Namespace) -> int:
    return on_spark(record, arguments.spark, [str(DAEMON), "status", *arguments.rest])


def _shell(record: Record, arguments: argparse.Namespace) -> int:
    name = record.names[arguments.spark - 1]
    file = Path(record.directory) / "config.toml"
    print(f"a shell on {name}; exit leaves it. Try: glm-spark status; glm-spark check --config {file}")
    return on_spark(record, arguments.spark, ["bash", "--norc", "-i"], {"PS1": rf"{name}:\w\$ "})


def _journal(record: Record, arguments: argparse.Namespace) -> int:
    file = record.spark_directory(arguments.spark) / "journal.log"
    more = ["-f"] if arguments.follow else []
    return on_spark(record, arguments.spark, ["tail", "-n", "40", *more, str(file)])


def _kill_rank(record: Record, arguments: argparse.Namespace) -> int:
    name = record.names[arguments.spark - 1]
    found = processes.ranks(name)
    for rank in found:
        processes.send(rank.pid, signal.SIGKILL)
        print(f"killed the rank of {name} (pid {rank.pid}, generation {rank.generation})")
    if not found:
        print(f"no rank runs on {name}")
    return 0 if found else 1


def _daemons(record: Record, number: int) -> list[int]:
    return [
        pid
        for pid in processes.in_network_of(record.holders[number - 1])
        if processes.argv(pid)[1:3] == (str(DAEMON), "run")
    ]


def _kill_daemon(record: Record, arguments: argparse.Namespace) -> int:
    found = _daemons(record, arguments.spark)
    for pid in found:
        processes.send(pid, signal.SIGKILL)
        print(f"killed the daemon of {record.names[arguments.spark - 1]} (pid {pid})")
    return 0 if found else 1


def _signal_all(number: int, word: str) -> Callable[[Record, argparse.Namespace], int]:
    def verb(record: Record, arguments: argparse.Namespace) -> int:
        holder = record.holders[arguments.spark - 1]
        for pid in processes.in_network_of(holder):
            if pid != holder:
                processes.send(pid, number)
        print(f"{record.names[arguments.spark - 1]} {word}")
        return 0

    return verb


def _cable(plug: bool) -> Callable[[Record, argparse.Namespace], int]:
    def verb(record: Record, arguments: argparse.Namespace) -> int:
        layout = describe(record.count)
        try:
            cable = layout.cable(*arguments.sparks)
        except KeyError as error:
            print(error.args[0], file=sys.stderr)
            return 2
        for twin in wiring.chosen(arguments.twin):
            run_ip(record.room, (wiring.plugged if plug else wiring.cut)(layout, cable, twin))
        first, second = (record.names[number - 1] for number in arguments.sparks)
        print(f"the cable between {first} and {second} is {'back' if plug else 'cut'}")
        return 0

    return verb


_VERBS: dict[str, Callable[[Record, argparse.Namespace], int]] = {
    "ask": _ask,
    "status": _status,
    "shell": _shell,
    "journal": _journal,
    "kill-rank": _kill_rank,
    "kill-daemon": _kill_daemon,
    "freeze": _signal_all(signal.SIGSTOP, "stands still"),
    "thaw": _signal_all(signal.SIGCONT, "goes on"),
    "cut": _cable(plug=False),
    "plug": _cable(plug=True),
}
