"""Fetching with the Hub's own client from a server that answers as the Hub does."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from glm_spark.weights import lists
from glm_spark.weights.job import Word
from glm_spark.weights.pins import Pin
from tests.unit.weights.hub_server import Behaviour, Hub
from tests.unit.weights.repositories import (
    LEADER,
    PIN,
    REPOSITORY,
    Child,
    Place,
    content,
    hub,
    listed,
    sha256,
    some_files,
)

FILES = some_files({"model-1.safetensors": 9_000_000, "model-2.safetensors": 4_194_304, "sub/notes.txt": 1000})
SIZE = sum(map(len, FILES.values()))
Fetch = Callable[..., Word]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path, LEADER)


def fetch(place: Place, server: Hub, token: str = "", **more: object) -> Word:
    return Child(place.job("fetch", hub=hub(server.endpoint, token), **more)).wait()


def test_a_repository_is_fetched_whole_and_lies_as_the_hub_s_client_would_put_it(place: Place) -> None:
    with Hub({REPOSITORY: FILES}) as server:
        assert fetch(place, server).findings == ()
    assert content(place.cache) == FILES
    blob = lists.snapshot(str(place.cache), PIN) / "model-1.safetensors"
    assert blob.is_symlink()
    assert blob.resolve().name == sha256(FILES["model-1.safetensors"])
    assert lists.kept(place.state, PIN) == listed(FILES)
    assert not [file for file in place.cache.rglob("*") if ".glm-" in file.name]


def test_what_is_complete_needs_no_network(place: Place) -> None:
    with Hub({REPOSITORY: FILES}) as server:
        fetch(place, server)
    gone = Child(place.job("fetch", hub=hub("http://127.0.0.1:9"))).wait()
    assert gone.findings == ()


def test_only_the_file_that_lacks_is_fetched(place: Place) -> None:
    with Hub({REPOSITORY: FILES}) as server:
        fetch(place, server)
        (lists.snapshot(str(place.cache), PIN) / "model-2.safetensors").resolve().unlink()
        server.sent = 0
        fetch(place, server)
        assert content(place.cache) == FILES
        assert server.sent < 4_300_000


def test_a_stream_that_breaks_is_taken_up_where_it_broke(place: Place) -> None:
    with Hub({REPOSITORY: FILES}, behaviour=Behaviour(cut_after=2_000_000, cuts=3)) as server:
        assert fetch(place, server).findings == ()
        assert server.sent < SIZE + 3 * 262_144 + 10_000  # at most a piece of the client's a break
    assert content(place.cache) == FILES


def test_a_server_that_does_not_resume_costs_bytes_and_nothing_else(place: Place) -> None:
    with Hub({REPOSITORY: FILES}, behaviour=Behaviour(cut_after=2_000_000, cuts=2, resumes=False)) as server:
        assert fetch(place, server).findings == ()
    assert content(place.cache) == FILES


def test_a_fetch_that_is_killed_resumes(place: Place) -> None:
    with Hub({REPOSITORY: FILES}, behaviour=Behaviour(rate=6_000_000)) as server:
        killed = Child(place.job("fetch", hub=hub(server.endpoint)))
        while killed.last.moved < 5_500_000:
            assert killed.process.poll() is None
        noted = killed.last.done
        killed.kill()
        server.behaviour.rate = None
        server.sent = 0
        assert fetch(place, server).findings == ()
        assert noted > 0
        # A piece that was on its way to the killed one still counts here.
        assert server.sent <= SIZE - noted + 256 * 1024
    assert content(place.cache) == FILES


def test_the_token_goes_to_the_hub_and_to_nobody_else(place: Place) -> None:
    with Hub({REPOSITORY: FILES}, behaviour=Behaviour(token="hf_secret")) as server:
        child = Child(place.job("fetch", hub=hub(server.endpoint, "hf_secret")))
        argv = Path(f"/proc/{child.process.pid}/cmdline").read_bytes()
        environ = Path(f"/proc/{child.process.pid}/environ").read_bytes()
        assert b"hf_secret" not in argv + environ
        assert child.wait().findings == ()
        stored = [row for row in server.requests if row[1].startswith("/store/")]
        assert stored
        assert all(authorization == "" for _, _, authorization in stored)
        assert any(authorization == "Bearer hf_secret" for _, _, authorization in server.requests)
        assert all("hf_secret" not in word.model_dump_json() for word in child.words)


@pytest.mark.parametrize(
    ("refuse", "token", "code", "says"),
    [
        ((401, ""), "", "weights.hub-401", "make a read token there and put it into weights.token_file"),
        ((401, ""), "hf_old", "weights.hub-401", "Make a new read token"),
        ((403, "GatedRepo"), "", "weights.hub-401", "accept its terms"),
        ((403, "GatedRepo"), "hf_x", "weights.hub-403", "accept its terms"),
        ((404, "RepoNotFound"), "", "weights.hub-404", "model.repository"),
        ((404, "RevisionNotFound"), "", "weights.hub-404", "model.revision"),
    ],
)
def test_each_refusal_says_what_to_do(place: Place, refuse: tuple[int, str], token: str, code: str, says: str) -> None:
    with Hub({REPOSITORY: FILES}, behaviour=Behaviour(refuse=refuse)) as server:
        (found,) = fetch(place, server, token).findings
    assert (found.code, found.node) == (code, LEADER)
    assert says in found.fix
    assert PIN.name in found.subject


def test_a_hub_that_cannot_be_reached_is_said(place: Place) -> None:
    (found,) = Child(place.job("fetch", hub=hub("http://127.0.0.1:9"))).wait().findings
    assert found.code == "weights.hub-unreachable"
    assert "copy the Hugging Face cache" in found.fix


def test_content_that_is_not_the_pinned_one_never_gets_its_name(place: Place) -> None:
    behaviour = Behaviour(wrong=frozenset({"model-1.safetensors"}))
    with Hub({REPOSITORY: FILES}, behaviour=behaviour) as server:
        (found,) = fetch(place, server).findings
    assert found.code == "weights.hub-content"
    assert not (lists.snapshot(str(place.cache), PIN) / "model-1.safetensors").exists()


def test_a_full_disk_is_said_before_anything_is_fetched(place: Place) -> None:
    with Hub({REPOSITORY: FILES}) as server:
        (found,) = fetch(place, server, keep_free=1 << 60).findings
        assert found.code == "weights.no-room"
        assert server.sent < 10_000


def test_a_full_but_complete_disk_is_enough(place: Place) -> None:
    with Hub({REPOSITORY: FILES}) as server:
        fetch(place, server)
        (lists.snapshot(str(place.cache), PIN) / "config.json").unlink()
        assert fetch(place, server, keep_free=1 << 60).findings == ()


def test_a_licence_that_was_not_accepted_is_not_fetched(tmp_path: Path) -> None:
    drafter = Pin(kind="drafter", repository=REPOSITORY, revision="cd" * 20, noncommercial=True, licence="CC BY-NC")
    place = Place(tmp_path, LEADER, (drafter,))
    with Hub({REPOSITORY: FILES}) as server:
        (found,) = fetch(place, server).findings
        assert found.code == "weights.licence"
        assert server.requests == []
        assert fetch(place, server, accept_noncommercial=True).findings == ()
