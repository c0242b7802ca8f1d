"""A transfer's process as the daemon and the command line have it: started, followed word by word, ended."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping

from pydantic import ValidationError

from glm_spark.engine.container import PROXY_VARIABLES
from glm_spark.fabric.reader import reader_environment
from glm_spark.finding import Finding
from glm_spark.weights.faults import finding
from glm_spark.weights.job import Job, Word

log = logging.getLogger(__name__)

_LINE_LIMIT = 1 << 20
_LAST_WORDS = 2000  # bytes


def environment(here: Mapping[str, str]) -> dict[str, str]:
    """What the process inherits: the interpreter's needs, and for the Hub the way out of this network."""
    names = (*PROXY_VARIABLES, "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE")
    passed = {name: here[name] for name in names if here.get(name)}
    # The client's own lines may hold signed addresses.
    return {**reader_environment(), **passed, "HF_HUB_VERBOSITY": "critical"}


async def run(job: Job, on_word: Callable[[Word], None]) -> tuple[Finding, ...]:
    """Does a job to its end; what stood in the way. Cancelling it kills the process: the next takes it up."""
    try:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "glm_spark.weights.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment(os.environ),
            limit=_LINE_LIMIT,
            start_new_session=True,
        )
    except OSError as error:
        return (_ended(job, error.strerror or str(error)),)
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    errors = asyncio.create_task(_tail(process.stderr), name="last words of a transfer")
    try:
        process.stdin.write(job.model_dump_json().encode() + b"\n")
        last: Word | None = None
        while line := await process.stdout.readline():
            try:
                last = Word.model_validate_json(line)
            except ValidationError:
                continue
            on_word(last)
        status = await process.wait()
        if last is not None and last.ended:
            return last.findings
        said = (await errors).strip().splitlines()
        return (_ended(job, f"its process ended with status {status}" + (f": {said[-1][:300]}" if said else "")),)
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
        errors.cancel()
        await asyncio.wait([errors])


async def _tail(stream: asyncio.StreamReader) -> str:
    kept = b""
    while data := await stream.read(4096):
        kept = (kept + data)[-_LAST_WORDS:]
    return kept.decode(errors="replace")


def _ended(job: Job, measured: str) -> Finding:
    return finding(
        job.node,
        "process",
        f"{job.verb} of the weights",
        measured,
        "an end of its own",
        "It is tried again; if this stays, report it with journalctl -u glm-spark.",
    )
