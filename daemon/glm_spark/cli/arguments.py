"""The command line: verbs and their flags."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

from glm_spark import __version__

DEFAULT_CONFIG = Path("/etc/glm-spark/config.toml")

_SHORT_HELP = """\
GLM-5.3-Flash from two or three DGX Sparks as one OpenAI-compatible endpoint.

  glm-spark status    how the set is, and what to do when it is not live
  glm-spark check     look for what is wrong on this Spark; changes nothing
  glm-spark restart   stop and start the whole set

glm-spark --help lists every verb. The daemon itself: systemctl start glm-spark, journalctl -u glm-spark.
"""


def parser() -> argparse.ArgumentParser:
    top = argparse.ArgumentParser(
        prog="glm-spark",
        description="GLM-5.3-Flash from two or three DGX Sparks as one OpenAI-compatible endpoint.",
        epilog="Exit status: 0 fine, 1 warnings, 2 something is wrong, 3 could not find out, 78 bad configuration.",
    )
    top.add_argument("--version", action="version", version=f"glm-spark {__version__}")
    verbs = top.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    top.set_defaults(module="", function=None)

    run = _add(verbs, "run", "run this Spark's daemon in the foreground; what systemd starts")
    _config(run)

    check = _add(verbs, "check", "look for what is wrong on this Spark; works with the daemon stopped, changes nothing")
    check.add_argument("--cluster", action="store_true", help="ask the running daemon to check every Spark")
    _config(check)
    _socket(check)
    _json(check)

    plan = _add(verbs, "plan", "show the links and what every rank would be started with; starts nothing")
    _config(plan)
    _socket(plan)
    _json(plan)

    status = _add(verbs, "status", "the set at one glance")
    status.add_argument("--watch", action="store_true", help="stay and show changes until Ctrl-C")
    status.add_argument("--history", action="store_true", help="the incidents so far")
    _socket(status)
    _json(status)

    for name, said in (
        ("restart", "stop and start the whole set"),
        ("stop", "stop the whole set; it stays stopped until restart"),
    ):
        command = _add(verbs, name, said, module="command")
        command.add_argument("--no-wait", action="store_true", help="return as soon as it has begun")
        _socket(command)
        _json(command)

    config = _add(verbs, "config", "judge the configuration file")
    config.add_argument("--print", action="store_true", dest="effective", help="show every setting in effect")
    _config(config)
    _json(config)

    # What the unit runs when the daemon has ended, however it ended. Without a help text it is not listed.
    sweep = verbs.add_parser("sweep", description="Ends what a dead daemon left of this Spark's ranks.")
    sweep.set_defaults(module="sweep")
    _config(sweep)

    _weights(_add(verbs, "weights", "what is served: show it, fetch it, verify it, hand it to the workers"))

    token = _add(verbs, "token", "the secret that the Sparks share")
    _token(token)
    return top


def _weights(weights: argparse.ArgumentParser) -> None:
    kinds = weights.add_subparsers(dest="kind", metavar="KIND", required=True)
    for name, said in (
        ("status", "what is pinned, what of it is here and what is proven"),
        ("fetch", "on the leader: fetch what lacks from the Hub"),
        ("verify", "read what was not read yet and compare it with its pinned content"),
        ("sync", "on the leader: hand the weights to the workers; a start does the same"),
        ("gc", "show what no pinned revision needs any more"),
    ):
        kind = kinds.add_parser(name, help=said, description=f"{said[0].upper()}{said[1:]}.")
        if name == "verify":
            kind.add_argument("--again", action="store_true", help="read everything, also what was proven before")
        if name == "gc":
            kind.add_argument("--yes", action="store_true", help="remove it")
        _config(kind)
        _socket(kind)
        _json(kind)


def _token(token: argparse.ArgumentParser) -> None:
    kinds = token.add_subparsers(dest="kind", metavar="KIND", required=True)
    said = "print a new token, or write it to a file (--output)"
    new = kinds.add_parser("new", help=said, description="Prints a new token.")
    new.add_argument("--output", type=Path, metavar="FILE", help="write it to a new file of mode 0600 instead")


def _add(
    verbs: argparse._SubParsersAction[argparse.ArgumentParser], name: str, said: str, module: str = ""
) -> argparse.ArgumentParser:
    added = verbs.add_parser(name, help=said, description=f"{said[0].upper()}{said[1:]}.")
    added.set_defaults(module=module or name)
    return added


def _config(verb: argparse.ArgumentParser) -> None:
    verb.add_argument(
        "--config", type=Path, default=DEFAULT_CONFIG, metavar="FILE", help=f"the file (default: {DEFAULT_CONFIG})"
    )
    verb.add_argument("--node", metavar="NAME", help="which [[node]] entry this Spark is (default: by host name)")


def _socket(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--socket", type=Path, metavar="PATH", help="the daemon's control.sock")


def _json(verb: argparse.ArgumentParser) -> None:
    verb.add_argument("--json", action="store_true", help="for programs")


def verb(arguments: argparse.Namespace) -> int:
    """Runs what the command line names. Each verb is `main` of a module of this room, imported only then."""
    if not arguments.verb:
        print(_SHORT_HELP, end="")
        return 0
    function: Callable[[argparse.Namespace], int] = import_module(f"glm_spark.cli.{arguments.module}").main
    return function(arguments)
