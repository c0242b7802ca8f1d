"""The challenge and the seals: who can open a session, and what is refused in one."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.cluster import protocol
from glm_spark.cluster.protocol import Beat, Challenge, Goal, Opening, ProtocolFault, Report, Seal, Unseal

TOKEN = b"0123456789abcdef0123456789abcdef"


def opening(node: str, **changes: object) -> Opening:
    fields: dict[str, object] = {
        "protocol": protocol.PROTOCOL,
        "cluster": "glm",
        "node": node,
        "boot_id": "b",
        "instance_id": "i",
        "nonce": protocol.nonce(),
    }
    return Opening.model_validate({**fields, **changes})


def test_both_sides_with_one_token_prove_themselves() -> None:
    leader, worker = opening("spark-1"), opening("spark-2")
    here, there = Challenge(TOKEN, leader, worker), Challenge(TOKEN, leader, worker)
    assert there.holds("leader", here.proof("leader"))
    assert here.holds("worker", there.proof("worker"))
    assert here.key("leader") == there.key("leader") != here.key("worker")


def test_another_token_proves_nothing() -> None:
    leader, worker = opening("spark-1"), opening("spark-2")
    stranger = Challenge(b"x" * 32, leader, worker)
    assert not Challenge(TOKEN, leader, worker).holds("leader", stranger.proof("leader"))


@pytest.mark.parametrize("field", ["node", "boot_id", "instance_id", "nonce", "cluster"])
def test_a_proof_holds_for_these_two_sides_and_this_session_only(field: str) -> None:
    leader, worker = opening("spark-1"), opening("spark-2")
    other = leader.model_copy(update={field: "f" * 64 if field == "nonce" else "other"})
    proof = Challenge(TOKEN, leader, worker).proof("leader")
    assert not Challenge(TOKEN, other, worker).holds("leader", proof)


def test_a_proof_cannot_be_sent_back_as_the_other_sides() -> None:
    challenge = Challenge(TOKEN, opening("spark-1"), opening("spark-2"))
    assert not challenge.holds("worker", challenge.proof("leader"))


def test_the_token_is_in_no_message() -> None:
    leader, worker = opening("spark-1"), opening("spark-2")
    challenge = Challenge(TOKEN, leader, worker)
    sealed = Seal(challenge.key("leader")).close(protocol.encode(Beat(seq=1, ack=0)))
    for text in (leader.model_dump_json(), challenge.proof("leader").model_dump_json(), sealed.hex()):
        assert TOKEN.decode() not in text
        assert TOKEN.hex() not in text


def test_frames_come_through_in_order() -> None:
    seal, unseal = Seal(b"k"), Unseal(b"k")
    for body in (b"one", b"", b"three"):
        assert unseal.open(seal.close(body)) == body


def test_a_repeated_frame_is_refused() -> None:
    seal, unseal = Seal(b"k"), Unseal(b"k")
    frame = seal.close(b"one")
    unseal.open(frame)
    with pytest.raises(ProtocolFault, match="seen before"):
        unseal.open(frame)


def test_a_frame_out_of_order_is_refused() -> None:
    seal, unseal = Seal(b"k"), Unseal(b"k")
    seal.close(b"lost")
    with pytest.raises(ProtocolFault, match="out of order"):
        unseal.open(seal.close(b"two"))


@given(st.data())
def test_an_altered_frame_is_refused(data: st.DataObject) -> None:
    frame = bytearray(Seal(b"k").close(b"a body"))
    place = data.draw(st.integers(0, len(frame) - 1))
    frame[place] ^= data.draw(st.integers(1, 255))
    with pytest.raises(ProtocolFault):
        Unseal(b"k").open(bytes(frame))


@given(st.binary(max_size=200))
def test_random_bytes_are_refused_with_a_close_code(noise: bytes) -> None:
    for read in (Unseal(b"k").open, protocol.decode, protocol.parse_opening, protocol.parse_proof):
        with pytest.raises(ProtocolFault) as refused:
            read(noise)
        assert 4000 <= refused.value.code < 5000


def test_another_protocol_version_is_named() -> None:
    text = json.dumps({**opening("spark-1").model_dump(), "protocol": 99, "new_field": 1})
    with pytest.raises(ProtocolFault, match="99") as refused:
        protocol.parse_opening(text)
    assert refused.value.code == protocol.PROTOCOL_DIFFERS


def test_a_beat_comes_through_whole() -> None:
    beat = Beat(seq=3, ack=2, goal=Goal(generation=4, phase="run"), report=Report(state="running", generation=4))
    assert protocol.decode(protocol.encode(beat)) == beat


@pytest.mark.parametrize("field", ["argv", "environment", "image", "command", "path"])
def test_no_message_has_a_place_for_what_to_execute(field: str) -> None:
    """A leader's session can ask for ranks; what a rank is comes from each Spark's own file."""
    for model in (Beat, Goal, protocol.Hello, Report):
        assert field not in model.model_fields
    body = json.dumps({"seq": 1, "ack": 0, "goal": {"generation": 1, "phase": "run", field: "x"}}).encode()
    with pytest.raises(ProtocolFault):
        protocol.decode(body)
