"""Real stand-in processes on loopback, on ports free at the time."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sys
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import aiohttp

LIMIT_S = 10.0


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
        return port


class Rank:
    """One process, its output read as it comes, stdout and stderr as one text."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.lines: list[str] = []
        self._grown = asyncio.Condition()
        self._reading = asyncio.create_task(self._read())

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def text(self) -> str:
        return "\n".join(self.lines)

    async def _read(self) -> None:
        assert self.process.stdout
        async for line in self.process.stdout:
            self.lines.append(line.decode(errors="replace").rstrip("\n"))
            async with self._grown:
                self._grown.notify_all()

    async def says(self, text: str, limit_s: float = LIMIT_S) -> str:
        """The first line with `text` in it, as soon as it is there."""
        try:
            async with asyncio.timeout(limit_s), self._grown:
                await self._grown.wait_for(lambda: any(text in line for line in self.lines))
        except TimeoutError:
            raise AssertionError(f"never said {text!r}:\n{self.text}") from None
        return next(line for line in self.lines if text in line)

    async def ends(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status, negative for a signal; all output has been read by then."""
        async with asyncio.timeout(limit_s):
            status = await self.process.wait()
            await self._reading
        return status

    async def ended(self) -> bool:
        return self.process.returncode is not None

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    async def clear(self) -> None:
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        self._reading.cancel()
        with suppress(asyncio.CancelledError):
            await self._reading


class Set:
    """The ranks of one set and a client of rank 0."""

    def __init__(self, folder: Path) -> None:
        self.script = folder / "script.json"
        self.http_port = free_port()
        self.master_port = free_port()
        self.ranks: list[Rank] = []
        self.client = aiohttp.ClientSession(
            f"http://127.0.0.1:{self.http_port}", timeout=aiohttp.ClientTimeout(total=LIMIT_S)
        )

    def faults(self, **keys: Any) -> None:
        """Replaces the script in one step, so that no rank reads half of it."""
        new = self.script.with_suffix(".new")
        new.write_text(json.dumps({"token_rate": 1000.0} | keys))
        new.rename(self.script)

    async def run(self, *argv: str, environment: dict[str, str] | None = None) -> Rank:
        if not self.script.exists():
            self.faults()
        base = {"PATH": os.environ["PATH"], "TENSORFOLD_STANDIN": str(self.script)}
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "glm_spark.standin",
            *argv,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            limit=1 << 20,
            env=base | (environment or {}),
        )
        rank = Rank(process)
        self.ranks.append(rank)
        return rank

    async def rank(self, number: int, tp: int, *more: str, environment: dict[str, str] | None = None) -> Rank:
        argv = ["serve", "standin", "--tp", str(tp), "--rank", str(number), "--drafter", "none"]
        if tp > 1:
            argv += ["--master", "127.0.0.1", "--master-port", str(self.master_port)]
        if number == 0:
            argv += ["--port", str(self.http_port), "--name", "GLM-5.3-Flash-EXL3"]
        return await self.run(*argv, *more, environment=environment)

    async def begin(self, tp: int = 2, *more: str, **environment: str) -> list[Rank]:
        """All ranks, started; not waited for."""
        return [await self.rank(number, tp, *more, environment=environment) for number in range(tp)]

    async def live(self, tp: int = 2, *more: str, **environment: str) -> list[Rank]:
        """All ranks, with rank 0 answering."""
        ranks = await self.begin(tp, *more, **environment)
        await self.opened(ranks[0])
        return ranks

    async def opened(self, rank: Rank) -> None:
        """The serving line comes just before the bind: the port may be a moment later."""
        await rank.says("serving ")
        async with asyncio.timeout(LIMIT_S):
            while True:
                with suppress(aiohttp.ClientConnectorError):
                    async with self.client.get("/v1/models"):
                        return
                await asyncio.sleep(0.01)

    async def chat(self, **more: Any) -> dict[str, Any]:
        """One plain greedy reply without thinking."""
        async with self.client.post("/v1/chat/completions", json=question(**more)) as reply:
            body: dict[str, Any] = await reply.json()
            return body | {"status": reply.status}

    async def health(self) -> dict[str, Any]:
        async with self.client.get("/health") as reply:
            assert reply.status == 200
            body: dict[str, Any] = await reply.json()
            return body

    async def clear(self) -> None:
        await self.client.close()
        for rank in self.ranks:
            with suppress(ProcessLookupError):
                os.kill(rank.pid, signal.SIGCONT)
            await rank.clear()


def question(**more: Any) -> dict[str, Any]:
    return {
        "model": "GLM-5.3-Flash-EXL3",
        "messages": [{"role": "user", "content": "Say something."}],
        "temperature": 0,
        "chat_template_kwargs": {"enable_thinking": False},
    } | more


async def until(true: Callable[[], Awaitable[bool]], limit_s: float = LIMIT_S) -> None:
    """Asks until it holds: for what can only be seen from outside, by asking."""
    async with asyncio.timeout(limit_s):
        while not await true():  # noqa: ASYNC110  nothing of ours can announce it
            await asyncio.sleep(0.01)
