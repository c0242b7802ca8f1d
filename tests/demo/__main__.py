"""`python -m tests.demo`: the demo, or a verb for the one that runs."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys

from tests import enclosure
from tests.demo import record


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="./dev demo",
        usage="./dev demo [--sparks {2,3}] [--once] [VERB ...]",
        description="Two or three Sparks on this machine, live, with a stand-in engine.",
    )
    made.add_argument("--sparks", dest="count", type=int, choices=(2, 3), default=2, help="how many (default 2)")
    made.add_argument("--once", action="store_true", help="end after the status, for a machine that checks")
    verbs = made.add_subparsers(dest="verb", metavar="VERB", title="while a demo runs, in another terminal")
    ask = verbs.add_parser("ask", help="a question to the endpoint")
    ask.add_argument("text", nargs="+")
    status = verbs.add_parser("status", help="glm-spark status [of Spark N] [its flags]")
    status.add_argument("spark", nargs="?", type=int, default=1)
    status.add_argument("rest", nargs=argparse.REMAINDER)
    journal = verbs.add_parser("journal", help="what the daemon of Spark N said")
    journal.add_argument("spark", nargs="?", type=int, default=1)
    journal.add_argument("--follow", "-f", action="store_true")
    shell = verbs.add_parser("shell", help="a shell on Spark N")
    shell.add_argument("spark", nargs="?", type=int, default=1)
    for name, text in (
        ("kill-rank", "kill -9 of the rank on Spark N"),
        ("kill-daemon", "kill -9 of the daemon of Spark N"),
        ("freeze", "every process of Spark N stands still"),
        ("thaw", "and goes on"),
    ):
        verbs.add_parser(name, help=text).add_argument("spark", type=int)
    for name, text in (("cut", "pull the cable between two Sparks (default 1 2)"), ("plug", "put it back")):
        cable = verbs.add_parser(name, help=text)
        cable.add_argument("sparks", nargs="*", type=int, default=[1, 2])
        cable.add_argument("--twin", choices=("a", "b"), help="one rail only")
    return made


def main() -> int:
    arguments = parser().parse_args(_with_spark(sys.argv[1:]))
    if arguments.verb:
        return _verb(arguments)
    if not enclosure.inside():
        if not arguments.once and (other := record.running()):
            print(f"a demo runs already (pid {other.init}): end it first, or use its verbs", file=sys.stderr)
            return 1
        command = enclosure.command([sys.executable, "-m", "tests.demo", *sys.argv[1:]])
        os.execve(command[0], command, enclosure.environment(os.environ))
    # Not needed by the verbs, which so answer sooner.
    from tests.demo.show import perform

    return asyncio.run(perform(arguments.count, once=arguments.once))


def _with_spark(words: list[str]) -> list[str]:
    """`status --history` means spark-1's: argparse takes no flag for the rest before the number is given."""
    if words[:1] == ["status"] and words[1:2] and words[1].startswith("-") and words[1] not in ("-h", "--help"):
        return ["status", "1", *words[1:]]
    return words


def _verb(arguments: argparse.Namespace) -> int:
    from tests.demo import remote

    running = record.running()
    if running is None:
        print("no demo runs: start one with ./dev demo", file=sys.stderr)
        return 1
    numbers = getattr(arguments, "sparks", None) if arguments.verb in ("cut", "plug") else None
    for number in numbers or [getattr(arguments, "spark", 1)]:
        if not 1 <= number <= running.count:
            print(f"Spark {number}: this demo has Sparks 1 to {running.count}", file=sys.stderr)
            return 2
    if numbers is not None and len(numbers) != 2:
        print("a cable joins two Sparks: give two numbers, or none for 1 2", file=sys.stderr)
        return 2
    return remote.perform(running, arguments)


if __name__ == "__main__":
    sys.exit(main())
