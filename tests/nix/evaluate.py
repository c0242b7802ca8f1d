"""Nix's evaluator, offline: the project's module with the stand-in lib, as data.

No store is needed and nothing is built. `dummy://` is a store that exists only inside the evaluator, so that it
works as any user, in a sandbox and without /nix.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
HERE = Path(__file__).resolve().parent

# What a Spark has besides our module: the container toolkit that hardware.dgx-spark brings.
SPARK = "{ hardware.nvidia-container-toolkit.enable = true; hardware.nvidia.open = true; }"


class Refused(Exception):
    """The evaluator's own error, without its trace."""


def _program() -> str:
    program = shutil.which("nix-instantiate")
    assert program is not None, "nix-instantiate is missing: apt-get install nix-bin"
    return program


def _run(*arguments: str) -> str:
    environment = {"PATH": os.environ["PATH"], "HOME": "/nonexistent", "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        [_program(), "--store", "dummy://", *arguments],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        raise Refused(done.stderr)
    assert done.stderr == "", done.stderr
    return done.stdout


def parse(path: Path) -> None:
    """Raises Refused with the line and column of a syntax error."""
    _run("--parse", str(path))


def value(expression: str) -> Any:
    """The value of an expression, paths in it relative to this folder."""
    return json.loads(_run("--eval", "--strict", "--json", "-E", f"let here = {HERE}; in {expression}"))


def module(*modules: str, store: str = "/nix/store") -> dict[str, Any]:
    """One Spark's system with these modules (Nix texts); see `result` in eval.nix for what it holds."""
    written = " ".join(f"({text})" for text in modules)
    evaluated: dict[str, Any] = value(f'((import (here + "/eval.nix")) {{ store = "{store}"; }} [ {written} ]).result')
    return evaluated


def spark(host: str, *modules: str, example: str = "pair", store: str = "/nix/store") -> dict[str, Any]:
    """The Spark `host` of an example text, with further modules."""
    text = f"import {ROOT}/nixos-modules/example/{example}.nix"
    return module(text, SPARK, f'{{ networking.hostName = "{host}"; }}', *modules, store=store)
