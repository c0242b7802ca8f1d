"""`python -m tests.bench [NAME ...] [--quick] [--check]`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import time
from collections.abc import Awaitable, Callable

from rich.console import Console

from tests import enclosure
from tests.bench import faults, machine, measures, report, weights
from tests.enclosure import ROOT

RESULT = ROOT / ".cache/bench.json"
Measure = Callable[[bool], Awaitable[list[report.Figure]]]

MEASURES: dict[str, Measure] = {
    "start": lambda quick: measures.start_to_live(2 if quick else 5),
    "faults": faults.faults,
    "killed": lambda quick: measures.rank_killed(2 if quick else 5),
    "idle": lambda quick: measures.idle(5 if quick else 20),
    "first": lambda quick: measures.first_token(50 if quick else 300),
    "streams": lambda quick: measures.many_streams(50, 100.0, 4 if quick else 12),
    "weights": weights.sync_of_weights,
}
BY_NAME_ONLY = {"weights"}  # takes minutes and 9 GB of disk


async def run(names: list[str], quick: bool, console: Console) -> list[report.Figure]:
    figures: list[report.Figure] = []
    for name in names:
        with console.status(f"measuring: {name}"):
            found = await MEASURES[name](quick)
        if not console.is_terminal:
            print(f"measured: {name}", file=sys.stderr, flush=True)
        figures += found
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(prog="./dev bench", description=__doc__)
    known = ", ".join(MEASURES)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of: {known} (default: all but weights)")
    parser.add_argument("--quick", action="store_true", help="fewer repetitions")
    parser.add_argument("--check", action="store_true", help="exit status 1 when a wanted figure is missed")
    arguments = parser.parse_args()
    if unknown := set(arguments.names) - set(MEASURES):
        parser.error(f"no such measurement: {', '.join(sorted(unknown))}; known: {', '.join(MEASURES)}")
    if not enclosure.inside():
        command = enclosure.command([sys.executable, "-m", "tests.bench", *sys.argv[1:]])
        os.execve(command[0], command, enclosure.environment(os.environ))
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=140)
    described = machine.describe()
    console.print(machine.sentence(described), soft_wrap=True)
    if described["load"] > 0.5 * described["cores"]:
        console.print("the machine is busy with something else: times will be too long", style="yellow")
    usual = [name for name in MEASURES if name not in BY_NAME_ONLY]
    figures = asyncio.run(run(arguments.names or usual, arguments.quick, console))
    console.print(report.table(figures))
    when = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    report.save(RESULT, described, when, figures)
    console.print(f"written to {RESULT.relative_to(ROOT)}")
    missed = [figure.name for figure in figures if figure.met is False]
    return 1 if arguments.check and missed else 0


if __name__ == "__main__":
    sys.exit(main())
