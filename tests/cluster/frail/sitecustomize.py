"""Loaded by a daemon under test through PYTHONPATH: two faults that no signal of the kernel's brings about.

SIGUSR1: its loop stands still for ever while the process looks well. SIGUSR2: it exits 1 on the spot."""

import os
import signal
import sys
import time


def hang(_number: int, _frame: object) -> None:
    while True:
        time.sleep(3600)


def leave(_number: int, _frame: object) -> None:
    os._exit(1)


if any(word.endswith("/glm-spark") for word in sys.orig_argv):
    signal.signal(signal.SIGUSR1, hang)
    signal.signal(signal.SIGUSR2, leave)
