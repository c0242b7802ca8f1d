"""Proves every rail by an RDMA exchange between its two ends, each told what to do over its session.

The links are proved side by side, the rails of a link one after the other: both twins of a port share a cable.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from glm_spark.engine.spec import Link
from glm_spark.fabric.exchange import Answer, Order, Role, Step
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.verdict import Ends, RailProof, verdict
from glm_spark.finding import Finding, Severity

Obey = Callable[[Order], Awaitable[Answer]]  # raises TimeoutError where no answer comes


@dataclass(frozen=True, slots=True)
class Partner:
    """A Spark that takes part, with what it last said of its devices."""

    obey: Obey
    inventory: Inventory | None


async def prove(links: tuple[Link, ...], partners: Mapping[str, Partner]) -> tuple[RailProof, ...]:
    """What each rail turned out to be, in the order of `links`. Takes about a second a rail, at most half a minute."""
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(_prove_link(link, partners), name=f"proof of {link.a} - {link.b}") for link in links]
    return tuple(proof for task in tasks for proof in task.result())


async def _prove_link(link: Link, partners: Mapping[str, Partner]) -> list[RailProof]:
    return [await _prove_rail(link, rail, partners) for rail in link.rails]


async def _prove_rail(link: Link, rail: tuple[str, str], partners: Mapping[str, Partner]) -> RailProof:
    ends = Ends(link.a, link.b, rail, *(partners[name].inventory for name in (link.a, link.b)))
    exchange = _Exchange(partners[link.a].obey, partners[link.b].obey, ends)
    a, b = await exchange.run()
    return verdict(ends, a, b)


class _Exchange:
    """One rail. The second of its Sparks listens, the first connects."""

    def __init__(self, a: Obey, b: Obey, ends: Ends) -> None:
        self._a = a
        self._b = b
        self._ends = ends

    async def run(self) -> tuple[Answer, Answer]:
        """Each end's last answer. The children are ended whatever happens, the caller's cancelling included."""
        try:
            a, b = await self._both("open")
            if a.end is None or b.end is None:
                return a, b
            joined = await self._both("join", a, b)
            if _over(joined[0]) or _over(joined[1]):
                return joined
            return await self._race()
        finally:
            await asyncio.shield(self._both("end"))

    async def _race(self) -> tuple[Answer, Answer]:
        """Both run. When one fails the other is asked how far it came instead of being waited for."""
        running = [
            asyncio.create_task(self._tell(0, "run"), name="connecting end"),
            asyncio.create_task(self._tell(1, "run"), name="listening end"),
        ]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            for index, task in enumerate(running):
                if task.done() and (task.result().failed or task.result().finding):
                    await self._tell(1 - index, "end")
            return await running[0], await running[1]
        finally:
            for task in running:
                task.cancel()
            await asyncio.wait(running)

    async def _both(self, step: Step, a: Answer | None = None, b: Answer | None = None) -> tuple[Answer, Answer]:
        first, second = await asyncio.gather(self._tell(0, step, b), self._tell(1, step, a))
        return first, second

    async def _tell(self, index: int, step: Step, other: Answer | None = None) -> Answer:
        obey = (self._a, self._b)[index]
        role: Role = "listen" if index else "connect"
        own, peer = self._ends.rail[index], self._ends.rail[1 - index]
        try:
            return await obey(Order(step=step, own=own, peer=peer, role=role, end=other.end if other else None))
        except TimeoutError:
            return Answer(finding=self._silent((self._ends.a, self._ends.b)[index], step))

    def _silent(self, node: str, step: Step) -> Finding:
        return Finding(
            code="fabric.rdma-untested",
            severity=Severity.UNKNOWN,
            node=node,
            subject=f"RDMA exchange {self._ends.named}",
            measured=f"{node} did not answer at step {step}",
            wanted="an exchange of messages over verbs",
            fix=f"See journalctl -u glm-spark on {node}.",
        )


def _over(answer: Answer) -> bool:
    return answer.failed is not None or answer.finding is not None
