"""Is the program there that a rank is started with?"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

_CONTAINERS = ("podman", "docker")


def run(context: Context) -> Iterator[Finding]:
    engine = context.config.engine
    path = context.environ.get("PATH", os.defpath)
    if engine.runtime == "process":
        yield from _process(context, engine.command[0], path)
        return
    if shutil.which(engine.runtime, path=path) is None:
        others = [name for name in _CONTAINERS if shutil.which(name, path=path)]
        there = f'{others[0]} is there: set engine.runtime = "{others[0]}"' if others else ""
        yield context.finding(
            "engine.no-runtime",
            Severity.ERROR,
            f'engine.runtime = "{engine.runtime}"',
            measured=f"no program {engine.runtime} in PATH ({path})",
            wanted=f"{engine.runtime}, which runs the engine's container",
            fix=f"{there}, or install {engine.runtime}." if there else f"Install {engine.runtime}.",
        )


def _process(context: Context, command: str, path: str) -> Iterator[Finding]:
    found = shutil.which(command, path=path)
    if found is not None:
        return
    if os.sep in command and os.path.isfile(command):
        measured, fix = "is there, but cannot be executed by this user", f"Run chmod +x {command}."
    elif os.sep in command:
        measured, fix = "no such file", "Correct engine.command, or install the engine there."
    else:
        measured, fix = f"not in PATH ({path})", "Give engine.command an absolute path, or install the engine."
    yield context.finding(
        "engine.program-missing",
        Severity.ERROR,
        f"engine program {command}",
        measured=measured,
        wanted="an executable program (engine.command)",
        fix=fix,
    )


CHECK = Check(
    id="program",
    measures='engine.command with runtime = "process", else the container runtime',
    wants="an executable program",
    advice="Install it, or correct engine.command or engine.runtime.",
    run=run,
)
