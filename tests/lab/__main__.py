"""`./dev lab`: boot a topology and prove its rails; with --keep leave it running, with a shell on each Spark."""

from __future__ import annotations

import argparse
import signal
import sys
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from . import console, host, image, kept, product, recipe
from .lab import Lab
from .snapshots import Snapshots
from .topology import TOPOLOGIES, spark_name
from .verbs import pingpong


def main(argv: Sequence[str] | None = None) -> int:
    arguments = _parser().parse_args(argv)
    # a lab that is told to end removes its machines and files as after Ctrl-C
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    return int(arguments.act(arguments))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="./dev lab", description="Virtual Sparks with soft-RoCE.")
    parser.add_argument("--sparks", type=int, choices=(2, 3), default=2, help="how many (2)")
    parser.add_argument("--topology", choices=sorted(TOPOLOGIES), help="instead of the plain one of that many Sparks")
    parser.add_argument("--keep", action="store_true", help="leave them running until Ctrl-C")
    parser.add_argument("--cold", action="store_true", help="boot, even when a booted state is kept")
    parser.add_argument("--daemon", action="store_true", help="install the daemon, its unit and a configuration")
    parser.set_defaults(act=_up)
    verbs = parser.add_subparsers(title="instead of booting")
    build = verbs.add_parser("build", help="make the image")
    build.add_argument("--again", action="store_true", help="with the newest packages, even when it is there")
    build.set_defaults(act=_build)
    here = verbs.add_parser("build-here", help=argparse.SUPPRESS)
    here.add_argument("target", type=Path)
    here.set_defaults(act=_build_here)
    shell = verbs.add_parser("shell", help="the console of a Spark that --keep left running (Ctrl-] leaves it)")
    shell.add_argument("spark", type=_spark_number, help="spark-1, or 1")
    shell.set_defaults(act=_shell)
    execute = verbs.add_parser("exec", help="run a command on a Spark that --keep left running")
    execute.add_argument("spark", type=_spark_number, help="spark-1, or 1")
    execute.add_argument("command", nargs=argparse.REMAINDER)
    execute.set_defaults(act=_exec)
    return parser


def _spark_number(text: str) -> int:
    try:
        return int(text.removeprefix("spark-"))
    except ValueError:
        raise argparse.ArgumentTypeError(f"a Spark is named spark-1, not {text}") from None


def _build(arguments: argparse.Namespace) -> int:
    print(image.ensure(again=arguments.again).directory)
    return 0


def _build_here(arguments: argparse.Namespace) -> int:
    recipe.build(arguments.target, host.arch())
    return 0


def _up(arguments: argparse.Namespace) -> int:
    topology = TOPOLOGIES[arguments.topology or ("two", "three")[arguments.sparks - 2]]
    start = time.monotonic()

    def say(text: str) -> None:
        print(f"{time.monotonic() - start:6.1f} s  {text}", flush=True)

    lab = Lab(topology)
    try:
        if arguments.cold:
            lab.boot()
        else:
            Snapshots(lab).restore()
        say(f"{', '.join(spark.name for spark in lab.sparks.values())} are up (topology {topology.name})")
        good = _prove(lab, say)
        if arguments.daemon:
            product.install(lab, product.settings(lab))
            say("the daemon is installed: systemctl start glm-spark")
        if arguments.keep:
            _keep(lab)
    except KeyboardInterrupt:
        return 130
    finally:
        lab.close()
    return 0 if good else 1


def _prove(lab: Lab, say: product.Say) -> bool:
    good = True
    for cable in lab.topology.cables:
        for a, b in lab.topology.rails(cable):
            near, far = lab[a.port.spark], lab[b.port.spark]
            exchange = pingpong(near, a, far, b)
            good = good and exchange.ok
            verdict = "RDMA works" if exchange.ok else f"broken: {exchange.text.strip()}"
            say(f"{near.name} {a.device} {near.address(a)} - {far.name} {b.device} {far.address(b)}: {verdict}")
    return good


def _keep(lab: Lab) -> None:
    for spark in lab.sparks.values():
        spark.release_agent()
    with kept.announced(lab.place.directory):
        for spark in lab.sparks.values():
            print(f"  ./dev lab shell {spark.name}      ./dev lab exec {spark.name} COMMAND")
        print("  consoles: Ctrl-] leaves; Ctrl-C here ends the lab", flush=True)
        threading.Event().wait()


def _shell(arguments: argparse.Namespace) -> int:
    return console.attach(kept.place().of(arguments.spark, "console"), spark_name(arguments.spark))


def _exec(arguments: argparse.Namespace) -> int:
    return kept.execute(arguments.spark, " ".join(arguments.command))


if __name__ == "__main__":
    sys.exit(main())
