"""The program: verbs, exit status, and how its end is told on stderr."""

from __future__ import annotations

import asyncio
import faulthandler
import json
import os
import signal
import sys
import traceback
from collections.abc import Mapping

from glm_spark.standin.failures import Refusal
from glm_spark.standin.faults import VARIABLE, FaultSource
from glm_spark.standin.options import ServeOptions, build_parser, refuse_unusable, serve_options, with_verb
from glm_spark.standin.rank import live


def run(argv: list[str]) -> int:
    """0 after a stop while serving, 1 for a refusal or an error; argparse itself exits with 0 or 2."""
    found = build_parser().parse_args(with_verb(argv))
    try:
        if found.verb == "info":
            return info(found.model)
        return serve(serve_options(found), os.environ)
    except Refusal as refusal:
        print(f"tensorfold: {refusal}", file=sys.stderr, flush=True)
    except ExceptionGroup as group:
        # The engine has no task groups: its traceback shows the one error that ended it.
        traceback.print_exception(first_of(group))
    except (RuntimeError, OSError) as error:
        traceback.print_exception(error)
    sys.stderr.flush()
    return 1


def first_of(group: ExceptionGroup[Exception]) -> Exception:
    error: Exception = group
    while isinstance(error, ExceptionGroup):
        error = error.exceptions[0]
    return error


def serve(options: ServeOptions, environment: Mapping[str, str]) -> int:
    faults = FaultSource(environment.get(VARIABLE, ""), options.rank)
    script = faults.now()
    if script.deaf:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    refuse_unusable(options)
    if options.model.startswith("/") and not os.path.isdir(options.model) and not script.any_model:
        raise Refusal(f"no such model folder: {options.model}")
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    asyncio.run(live(options, faults, environment))
    return 0


def info(folder: str) -> int:
    """Prints what config.json says. Raises Refusal when it cannot be read."""
    try:
        with open(os.path.join(folder, "config.json"), encoding="utf-8") as file:
            config = json.load(file)
        kinds = config.get("model_type", "unknown")
    except (OSError, ValueError, AttributeError) as error:
        raise Refusal(f"{folder}: {error}") from error
    print(f"{os.path.basename(folder.rstrip('/'))}: {kinds}, {config.get('num_hidden_layers', '?')} layers")
    return 0
