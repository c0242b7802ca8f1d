"""Where text goes: a terminal with colours, or plain text."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.console import Console, RenderableType

# Lines that go into a pipe or a file are not folded, so that grep finds them.
_UNFOLDED = 10_000


def console(stream: TextIO | None = None) -> Console:
    """A console on `stream` (stdout). No colour or other escape codes where it is no terminal or NO_COLOR is set."""
    from rich.console import Console

    out = stream or sys.stdout
    terminal = out.isatty()
    plain = not terminal or bool(os.environ.get("NO_COLOR"))
    return Console(
        file=out,
        force_terminal=terminal,
        color_system=None if plain else "auto",
        no_color=plain,
        highlight=False,
        markup=False,
        emoji=False,
        width=None if terminal else _UNFOLDED,
    )


def show(what: RenderableType, stream: TextIO | None = None) -> None:
    """Prints it; as plain lines without trailing blanks where there is no terminal."""
    out = stream or sys.stdout
    target = console(out)
    if target.is_terminal:
        target.print(what)
        return
    with target.capture() as captured:
        target.print(what)
    print("\n".join(line.rstrip() for line in captured.get().rstrip("\n").split("\n")), file=out)


@contextlib.contextmanager
def working(text: str, arguments: argparse.Namespace) -> Iterator[None]:
    """Says on stderr what is being done, while it lasts; only to a person at a terminal."""
    if arguments.json or not sys.stderr.isatty():
        yield
        return
    with console(sys.stderr).status(text):
        yield


def complain(text: str) -> None:
    """A message about the command itself, on stderr."""
    print(f"glm-spark: {text}", file=sys.stderr)
