"""A terminal on a Spark's serial console."""

from __future__ import annotations

import os
import select
import socket
import sys
import termios
import tty
from pathlib import Path

_LEAVE = b"\x1d"  # Ctrl-]


def attach(path: Path, name: str) -> int:
    """Join this terminal with the console until Ctrl-] or the console's end."""
    if not path.exists():
        raise SystemExit(f"the running lab has no {name}")
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
        print(f"{name}: Ctrl-] leaves, Enter shows the prompt", flush=True)
        keyboard = sys.stdin.fileno()
        before = termios.tcgetattr(keyboard) if os.isatty(keyboard) else None
        try:
            if before is not None:
                tty.setraw(keyboard)
            _join(line, keyboard)
        finally:
            if before is not None:
                termios.tcsetattr(keyboard, termios.TCSADRAIN, before)
    print()
    return 0


def _join(line: socket.socket, keyboard: int) -> None:
    while True:
        ready, _, _ = select.select([line.fileno(), keyboard], [], [])
        if line.fileno() in ready:
            said = line.recv(1 << 16)
            if not said:
                return
            os.write(sys.stdout.fileno(), said)
        if keyboard in ready:
            typed = os.read(keyboard, 1 << 12)
            if not typed or _LEAVE in typed:
                return
            line.sendall(typed)
