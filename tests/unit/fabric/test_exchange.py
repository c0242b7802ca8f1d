"""An exchange over a rail, led from one place: real child processes that speak as the RDMA program does."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from glm_spark.fabric import exchange
from glm_spark.fabric.exchange import Answer, Exchanges, Order
from glm_spark.fabric.links import find
from glm_spark.fabric.proving import Partner, prove
from glm_spark.fabric.verdict import RailProof
from tests.unit.fabric.sparks import Twin, config, inventory, port

PROGRAM = (sys.executable, str(Path(__file__).with_name("exchanging.py")))


class Pair:
    """Two Sparks with both twins cabled; `devices` names those of the second Spark, which decides what they do."""

    def __init__(self, *devices: str) -> None:
        far = [replace(twin, prefix="") for twin in port(0, (100, 101), 2)]
        self.inventories = {
            "spark-1": inventory(*port(0, (100, 101), 1), Twin(1, False, carrier=False)),
            "spark-2": inventory(*far),
        }
        renamed = [
            one.model_copy(update={"name": name})
            for one, name in zip(self.inventories["spark-2"].devices, devices, strict=False)
        ]
        self.inventories["spark-2"] = self.inventories["spark-2"].model_copy(update={"devices": tuple(renamed)})
        self.exchanges = {
            name: Exchanges(name, config, lambda own=own: own, PROGRAM)  # type: ignore[misc]
            for name, own in self.inventories.items()
        }

    async def prove(self) -> tuple[RailProof, ...]:
        partners = {name: Partner(one.obey, self.inventories[name]) for name, one in self.exchanges.items()}
        return await prove(find(config(), self.inventories).links, partners)


def running(pattern: str) -> bool:
    return subprocess.run(["pgrep", "-f", pattern], capture_output=True).returncode == 0


async def until(running_or_not: bool, pattern: str) -> None:
    async with asyncio.timeout(10):
        while running(pattern) is not running_or_not:  # noqa: ASYNC110 - a process tells nobody
            await asyncio.sleep(0.01)


@pytest.fixture
async def no_child_left() -> AsyncIterator[None]:
    yield
    assert not running(PROGRAM[1]), "an exchange's program outlived it"


async def test_sound_rails_are_fine_in_the_agreed_order(no_child_left: None) -> None:
    proofs = await Pair("rocep1s0f0", "roceP2p1s0f0").prove()
    assert [proof.rail[0] for proof in proofs] == ["192.168.100.1", "192.168.101.1"]
    assert [proof.verdict for proof in proofs] == ["fine", "fine"]
    assert proofs[0].round_trip == 3e-6
    assert proofs[0].gbps[0] == pytest.approx(83.9, abs=0.1)


async def test_each_end_uses_the_gid_index_that_its_rank_would_and_learns_the_other_ends() -> None:
    pair = Pair("rocep1s0f0", "roceP2p1s0f0-fails")
    broken = (await pair.prove())[1]
    assert broken.verdict == "broken"
    assert broken.finding is not None
    assert "vendor_err 0x81" in broken.finding.measured


async def test_one_end_that_fails_ends_the_other_at_once(no_child_left: None) -> None:
    pair = Pair("rocep1s0f0-fails", "roceP2p1s0f0")
    near = pair.inventories["spark-1"]
    waiting = near.devices[0].model_copy(update={"name": "rocep1s0f0-waits"})
    pair.inventories["spark-1"] = near.model_copy(update={"devices": (waiting, *near.devices[1:])})
    pair.exchanges["spark-1"] = Exchanges("spark-1", config, lambda: pair.inventories["spark-1"], PROGRAM)
    async with asyncio.timeout(10):
        first = (await pair.prove())[0]
    assert first.verdict == "broken"


@pytest.mark.parametrize("how", ["ends", "babbles"])
async def test_a_program_that_fails_itself_says_nothing_about_the_rail(no_child_left: None, how: str) -> None:
    proof = (await Pair(f"rocep1s0f0-{how}", "roceP2p1s0f0").prove())[0]
    assert proof.verdict == "unknown"
    assert proof.finding is not None
    assert (proof.finding.code, proof.finding.node) == ("fabric.rdma-untested", "spark-2")


async def test_a_call_that_never_returns_is_ended_and_told(
    no_child_left: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exchange, "STEP_SECONDS", 0.5)
    async with asyncio.timeout(10):
        proof = (await Pair("rocep1s0f0-silent", "roceP2p1s0f0").prove())[0]
    assert proof.verdict == "unknown"
    assert proof.finding is not None
    assert "no answer within 0.5 s at step open" in proof.finding.measured


async def test_a_spark_that_does_not_answer_leaves_the_rail_unknown(no_child_left: None) -> None:
    pair = Pair("rocep1s0f0", "roceP2p1s0f0")

    async def never(_order: Order) -> Answer:
        raise TimeoutError

    partners = {
        "spark-1": Partner(pair.exchanges["spark-1"].obey, pair.inventories["spark-1"]),
        "spark-2": Partner(never, pair.inventories["spark-2"]),
    }
    proofs = await prove(find(config(), pair.inventories).links, partners)
    assert [proof.verdict for proof in proofs] == ["unknown", "unknown"]


async def test_a_leader_that_is_cancelled_leaves_nothing_running(no_child_left: None) -> None:
    pair = Pair("rocep1s0f0-waits", "roceP2p1s0f0")
    proving = asyncio.create_task(pair.prove())
    await until(True, "rocep1s0f0-waits")
    proving.cancel()
    await asyncio.wait([proving])
    await until(False, PROGRAM[1])


async def test_an_address_that_is_not_this_sparks_starts_nothing() -> None:
    at = Pair("rocep1s0f0", "roceP2p1s0f0").exchanges["spark-2"]
    answer = await at.obey(Order(step="open", own="10.0.0.1", peer="192.168.100.1", role="listen"))
    assert answer.finding is not None
    assert answer.finding.code == "fabric.rail-not-here"


def test_an_order_carries_nothing_but_addresses_and_numbers() -> None:
    for own in ("spark-2", "/dev/null", "192.168.100.2; reboot", "fe80::1"):
        with pytest.raises(ValueError, match="own"):
            Order(step="open", own=own, peer="192.168.100.1", role="listen")
