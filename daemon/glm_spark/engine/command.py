"""Runs a program that answers and ends, under a deadline: podman, docker, nvidia-smi, journalctl."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

MOST_BYTES = 4 << 20  # of an answer; an image's inspection is about 20 KiB
REAP_SECONDS = 2.0  # for a program that was killed; one stuck in the kernel is left to its fate


class Unanswered(Exception):
    """The program is not there, or did not answer in time; the text says which, in words."""


@dataclass(frozen=True, slots=True)
class Answer:
    """How a program ended and what it said. `code` is negative for a signal."""

    code: int
    output: str
    errors: str

    @property
    def last_words(self) -> str:
        """The last line of what it complained about, for a message."""
        lines = (self.errors or self.output).strip().splitlines()
        return lines[-1].strip()[:500] if lines else f"exit status {self.code}"


async def ask(argv: Sequence[str], deadline: float, environment: Mapping[str, str]) -> Answer:
    """Runs `argv` with nothing on its standard input; raises Unanswered after `deadline` seconds, or without it."""
    try:
        process = await asyncio.create_subprocess_exec(
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=dict(environment),
            start_new_session=True,
        )
    except FileNotFoundError:
        raise Unanswered(f"no program {argv[0]} in PATH") from None
    except OSError as error:
        raise Unanswered(f"{argv[0]} could not be started: {error.strerror or error}") from None
    try:
        async with asyncio.timeout(deadline):
            assert process.stdout is not None
            assert process.stderr is not None
            output, errors = await asyncio.gather(_read(process.stdout), _read(process.stderr))
            code = await process.wait()
    except TimeoutError:
        raise Unanswered(f"{argv[0]} did not answer within {deadline:g} s") from None
    finally:
        if process.returncode is None:
            await _end(process)
    return Answer(code, output.decode(errors="replace"), errors.decode(errors="replace"))


async def _read(stream: asyncio.StreamReader) -> bytes:
    kept = bytearray()
    while data := await stream.read(65536):
        kept += data[: MOST_BYTES - len(kept)]
    return bytes(kept)


async def _end(process: asyncio.subprocess.Process) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)  # its own session's group: nothing else is in it
    with suppress(TimeoutError):
        async with asyncio.timeout(REAP_SECONDS):
            await process.wait()
