"""The demo as a person meets it: in a terminal, by its verbs, and gone afterwards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pty
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

from tests.demo import record
from tests.enclosure import ROOT
from tests.sparks import alive, until
from tests.sparks.processes import pids

_DEMO = [sys.executable, "-m", "tests.demo"]


class Terminal:
    """A demo in a terminal of its own, which shows what a person sees and passes on what he types."""

    def __init__(self, *arguments: str, note: Path) -> None:
        self.env = {**os.environ, "PYTHONPATH": str(ROOT), record.PLACE: str(note), "NO_COLOR": "1"}
        # The demo is to make its own enclosure, as outside of the tests.
        self.env.pop("SPARKS_ENCLOSURE", None)
        self.shown = ""
        self.pid, self._terminal = pty.fork()
        if self.pid == 0:
            os.chdir(ROOT)
            os.execvpe(_DEMO[0], [*_DEMO, *arguments], self.env)
        os.set_blocking(self._terminal, False)

    def look(self) -> str:
        with contextlib.suppress(BlockingIOError, OSError):
            while chunk := os.read(self._terminal, 65536):
                self.shown += chunk.decode(errors="replace")
        return self.shown

    async def wait_shown(self, text: str, timeout: float = 60.0, since: int = 0) -> int:
        """Waits for a text on the screen; where it ends."""
        try:
            await until(lambda: text in self.look()[since:], timeout, f"{text!r} on the screen")
        except AssertionError as error:
            raise AssertionError(f"{error}; the screen ends:\n{self.shown[-3000:]}") from None
        return self.shown.index(text, since) + len(text)

    def type(self, keys: bytes) -> None:
        os.write(self._terminal, keys)

    async def exit_status(self, timeout: float = 30.0) -> int:
        ended: list[int] = []

        def seen() -> bool:
            self.look()
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                ended.append(os.waitstatus_to_exitcode(status))
            return bool(ended)

        await until(seen, timeout, "the end of the demo")
        self.look()
        return ended[0]

    async def verb(self, *words: str) -> tuple[int, str]:
        """A verb typed in another terminal: exit status and output."""
        process = await asyncio.create_subprocess_exec(
            *_DEMO, *words, cwd=ROOT, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        output = (await process.communicate())[0].decode()
        assert process.returncode is not None
        return process.returncode, output

    def close(self) -> None:
        with contextlib.suppress(ProcessLookupError, ChildProcessError):
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        os.close(self._terminal)


@asynccontextmanager
async def _demo(note: Path, *arguments: str) -> AsyncIterator[Terminal]:
    """A demo; whatever ended it, no process of it may be left afterwards."""
    before = set(pids())
    terminal = Terminal(*arguments, note=note)
    try:
        yield terminal
    finally:
        terminal.close()
    await until(lambda: not [pid for pid in pids() if pid not in before and alive(pid)], 5, "the end of all of it")


async def test_it_goes_live_answers_and_ends_by_itself_with_once(tmp_path: Path) -> None:
    async with _demo(tmp_path / "demo.json", "--once", "--sparks", "3") as terminal:
        assert await terminal.exit_status(90) == 0
        for text in (
            "GLM-5.3-Flash-EXL3 is now LIVE! on port 8888",
            "tensorfold",
            "rank 2  spark-3",
            "everything the demo made is gone",
        ):
            assert text in terminal.shown
    assert os.listdir(tmp_path) == []


async def test_ctrl_c_during_the_load_leaves_nothing(tmp_path: Path) -> None:
    async with _demo(tmp_path / "demo.json") as terminal:
        await terminal.wait_shown("loading")
        terminal.type(b"\x03")
        assert await terminal.exit_status() == 0
        assert "everything the demo made is gone" in terminal.shown
    assert os.listdir(tmp_path) == []


async def test_kill_9_leaves_no_process(tmp_path: Path) -> None:
    async with _demo(tmp_path / "demo.json") as terminal:
        await terminal.wait_shown("loading")
        os.kill(terminal.pid, signal.SIGKILL)
    assert record.running(tmp_path / "demo.json") is None


async def test_its_verbs_break_the_set_and_the_set_mends_itself(tmp_path: Path) -> None:
    async with _demo(tmp_path / "demo.json") as terminal:
        seen = await terminal.wait_shown("What happens shows here")
        status, answer = await terminal.verb("ask", "What is a lease?")
        assert (status, bool(answer.strip())) == (0, True)
        status, said = await terminal.verb("kill-rank", "2")
        assert status == 0
        assert "killed the rank of spark-2" in said
        await terminal.wait_shown("spark-1: live", since=await terminal.wait_shown("loading", since=seen))
        # Back before anybody acts on a lost carrier.
        assert (await terminal.verb("cut"))[1] == "the cable between spark-1 and spark-2 is cut\n"
        assert (await terminal.verb("plug"))[1] == "the cable between spark-1 and spark-2 is back\n"
        status, said = await terminal.verb("status", "2")
        assert "on spark-2" in said
        assert (await terminal.verb("kill-rank", "7"))[0] == 2
        terminal.type(b"\x03")
        assert await terminal.exit_status() == 0
    assert os.listdir(tmp_path) == []
    assert (await terminal.verb("status"))[0] == 1
