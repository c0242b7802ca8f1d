"""One rank's life: told as it goes, ended when asked whatever state it is in, never ended unnoticed."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

import pytest

from glm_spark.config.model import Stop
from glm_spark.engine import processes
from glm_spark.engine.process import ProcessRuntime
from glm_spark.engine.rank import VIEW_FINDINGS, VIEW_LINES, Facts, Rank, RankView, learn
from glm_spark.engine.spec import RankSpec
from glm_spark.engine.vocabulary import Fault, Phase
from glm_spark.finding import Finding, Severity

Until = Callable[[Callable[[], object]], Awaitable[None]]
SpecOf = Callable[..., RankSpec]

SERVES = (
    "import signal, sys, time\n"
    "signal.signal(signal.SIGTERM, lambda *_: (print('closing', flush=True), sys.exit(0)))\n"
    "print('serving M at http://127.0.0.1:8889/v1 on CUDA, rank 0 of 2 (context: 4096; loaded in 1.5s)', flush=True)\n"
    "while True: time.sleep(1000)\n"
)
DEAF = SERVES.replace("lambda *_: (print('closing', flush=True), sys.exit(0))", "signal.SIG_IGN")
LOADS = "import time; print('loading M: G (g) on CUDA, rank 0 of 2', flush=True); time.sleep(1000)"
FOLLOWS = "import time; print('rank 1 ready in 1.2s, following rank 0', flush=True); time.sleep(1000)"


class Life:
    """A rank that runs beside the test, with all it told."""

    def __init__(self, spec: RankSpec, stop: Stop | None = None) -> None:
        self.changes = 0
        self.lines: list[tuple[int, str, Severity]] = []
        self.rank = Rank(spec, ProcessRuntime(), stop or Stop(), self._changed, lambda *told: self.lines.append(told))

    def _changed(self) -> None:
        self.changes += 1

    @property
    def view(self) -> RankView:
        return self.rank.view

    async def __aenter__(self) -> Life:
        self.task = asyncio.create_task(self.rank.run())
        return self

    async def __aexit__(self, *_: object) -> None:
        self.rank.stop(graceful=False)
        await self.ends()

    async def ends(self) -> RankView:
        async with asyncio.timeout(10):
            await self.task
        return self.view


async def test_a_rank_tells_its_start_and_that_it_serves(rank_of: SpecOf, until: Until) -> None:
    async with Life(rank_of(SERVES, rank=0)) as life:
        await until(lambda: life.view.state == "ready")
        view = life.view
        assert (view.generation, view.rank, view.phase, view.served_context) == (7, 0, "ready", 4096)
        assert view.pid is not None
        assert processes.read(view.pid) is not None
        assert view.phase_since is not None
        assert view.tail[-1].startswith("serving M")
        assert view.findings == ()
        life.rank.stop(graceful=True)
        ended = await life.ends()
        assert (ended.state, ended.pid, ended.exit_text) == ("ended", None, "ended with exit status 0")
        assert ended.tail[-1] == "closing"
        assert ended.findings == ()


async def test_a_serving_rank_0_that_ignores_sigterm_is_killed_in_time(rank_of: SpecOf, until: Until) -> None:
    async with Life(rank_of(DEAF, rank=0), Stop(kill_seconds=0.2)) as life:
        await until(lambda: life.view.state == "ready")
        life.rank.stop(graceful=True)
        assert life.view.state == "stopping"
        assert (await life.ends()).exit_text.startswith("ended by SIGKILL")


async def test_the_spill_tier_has_its_time_to_flush(rank_of: SpecOf, until: Until) -> None:
    program = SERVES.replace("print('closing', flush=True)", "time.sleep(0.6), print('flushed', flush=True)")
    spec = rank_of(program, rank=0, environment={"TF_SPILL_FLUSH_S": "60"})
    async with Life(spec, Stop(kill_seconds=0.1)) as life:
        await until(lambda: life.view.state == "ready")
        life.rank.stop(graceful=True)
        assert (await life.ends()).tail[-1] == "flushed"


@pytest.mark.parametrize(("program", "rank", "state"), [(LOADS, 0, "loading"), (FOLLOWS, 1, "ready")])
async def test_ranks_that_never_heed_sigterm_are_killed_at_once(
    rank_of: SpecOf, until: Until, program: str, rank: int, state: str
) -> None:
    async with Life(rank_of(program, rank=rank), Stop(kill_seconds=600)) as life:
        await until(lambda: life.view.tail and life.view.state == state)
        life.rank.stop(graceful=True)
        ended = await life.ends()
        assert ended.exit_text.startswith("ended by SIGKILL")
        assert ended.findings == ()


async def test_a_second_harsher_stop_wins(rank_of: SpecOf, until: Until) -> None:
    async with Life(rank_of(DEAF, rank=0), Stop(kill_seconds=600)) as life:
        await until(lambda: life.view.state == "ready")
        for graceful in (True, True, False, True, False):
            life.rank.stop(graceful=graceful)
        assert (await life.ends()).state == "ended"
        life.rank.stop(graceful=True)


@pytest.mark.parametrize("moment", ["before", "during"])
async def test_a_stop_before_the_start_has_finished_holds(rank_of: SpecOf, cluster: str, moment: str) -> None:
    life = Life(rank_of(DEAF, rank=0))
    if moment == "before":
        life.rank.stop(graceful=True)
    async with life:
        if moment == "during":
            await asyncio.sleep(0)
            assert life.view.state == "loading"
            life.rank.stop(graceful=True)
        ended = await life.ends()
    assert (ended.state, ended.findings) == ("ended", ())
    assert processes.marked({"GLM_SPARK_CLUSTER": cluster}) == []


async def test_a_rank_that_ends_by_itself_is_a_finding_with_its_last_words(rank_of: SpecOf) -> None:
    program = (
        "import sys\n"
        "print('tensorfold: CUDA startup memory budget cannot fit requested context 9; estimated largest fitting "
        "prompt-plus-reply window: 7 tokens across the ranks.', file=sys.stderr)\n"
        "sys.exit(1)\n"
    )
    async with Life(rank_of(program)) as life:
        view = await life.ends()
    assert [finding.code for finding in view.findings] == ["engine.window-refused", "engine.rank-ended"]
    assert view.window == 7
    ended = view.findings[-1]
    assert (ended.node, ended.severity) == ("spark-2", Severity.ERROR)
    assert "exit status 1" in ended.measured
    assert "window: 7 tokens" in ended.measured
    assert life.lines[0][0] == 1
    assert life.lines[0][2] is Severity.ERROR


async def test_a_killed_rank_is_news_at_once_even_while_its_children_live(rank_of: SpecOf, until: Until) -> None:
    program = "import os, time\nprint('on', flush=True)\nif os.fork() == 0: os.setsid()\ntime.sleep(1000)\n"
    async with Life(rank_of(program)) as life:
        await until(lambda: life.view.tail)
        pid = life.view.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        view = await life.ends()
    assert view.state == "ended"
    assert "SIGKILL" in view.exit_text
    assert [finding.code for finding in view.findings] == ["engine.rank-ended"]


async def test_a_missing_program_ends_the_rank_with_its_finding(rank_of: SpecOf) -> None:
    async with Life(rank_of("").model_copy(update={"argv": ("no-such-engine",)})) as life:
        view = await life.ends()
    assert (view.state, [finding.code for finding in view.findings]) == ("ended", ["engine.program-missing"])


async def test_a_cancelled_rank_leaves_nothing(rank_of: SpecOf, until: Until, cluster: str) -> None:
    life = Life(rank_of(DEAF, rank=0))
    life.task = asyncio.create_task(life.rank.run())
    await until(lambda: life.view.state == "ready")
    life.task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await life.ends()
    assert processes.marked({"GLM_SPARK_CLUSTER": cluster}) == []


async def test_noise_and_endless_lines_are_survived(rank_of: SpecOf) -> None:
    program = (
        "import sys\n"
        "out = sys.stdout.buffer\n"
        "out.write(bytes(range(256)) * 100 + b'\\n' + b'x' * 3_000_000 + b'\\n')\n"
        "for n in range(1000): out.write(b'line %d\\n' % n)\n"
        "out.write(b'10%\\r20%\\rno end')\n"
    )
    async with Life(rank_of(program)) as life:
        view = await life.ends()
    assert len(view.model_dump_json()) < 20_000
    assert len(view.tail) == VIEW_LINES
    assert view.tail[-2:] == ("line 999", "no end")
    assert len(life.rank.lines) == 200
    assert len(life.lines) > 1001


async def test_stacks_can_be_had_before_a_hung_rank_is_killed(rank_of: SpecOf, until: Until) -> None:
    program = "import faulthandler, signal, time\nfaulthandler.register(signal.SIGUSR1)\nprint('on', flush=True)\n"
    async with Life(rank_of(program + "time.sleep(1000)\n")) as life:
        await until(lambda: life.view.tail)
        life.rank.dump()
        await until(lambda: any("most recent call first" in line for line in life.view.tail))


def test_a_phase_said_again_is_no_new_phase() -> None:
    facts = learn(Facts(), Phase("waiting-for-ranks"), 10.0)
    assert learn(facts, Phase("waiting-for-ranks"), 70.0) is facts
    assert learn(facts, Phase("kernels"), 80.0).phase_since == 80.0


def test_the_first_finding_of_a_kind_is_kept_and_their_number_bounded() -> None:
    facts = Facts()
    for number in range(40):
        finding = Finding(code=f"engine.f{number // 2}", severity=Severity.ERROR, node="n", subject=str(number))
        facts = learn(facts, Fault(finding), 1.0)
    assert len(facts.findings) == VIEW_FINDINGS
    assert [finding.subject for finding in facts.findings[:3]] == ["0", "2", "4"]


async def test_what_a_rank_cries_out_while_it_is_stopped_is_no_fault(rank_of: SpecOf, until: Until) -> None:
    program = SERVES.replace("print('closing', flush=True)", "print('NCCL error 6: gone', flush=True)")
    async with Life(rank_of(program, rank=0)) as life:
        await until(lambda: life.view.state == "ready")
        life.rank.stop(graceful=True)
        view = await life.ends()
    assert view.tail[-1] == "NCCL error 6: gone"
    assert view.findings == ()


async def test_a_stop_that_comes_after_the_end_does_not_hide_why_it_ended(rank_of: SpecOf, until: Until) -> None:
    """The leader may stop the set within the moment in which the last words are still being read."""
    life = Life(rank_of("import time; print('on', flush=True); time.sleep(1000)"))
    async with life:
        await until(lambda: life.view.pid and life.view.tail)
        pid = life.view.pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while life.rank._exit is None:  # noqa: ASYNC110 - the moment before it is told
            await asyncio.sleep(0)
        assert life.view.state != "ended"
        life.rank.stop(graceful=True)
        view = await life.ends()
    assert [finding.code for finding in view.findings] == ["engine.rank-ended"]
