"""What one look tells, what is remembered, what may go, and what is pinned."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest

from glm_spark.config.load import judge
from glm_spark.config.model import Config
from glm_spark.status import WeightsStatus
from glm_spark.weights import layout, lists, pins, secret, tidy
from glm_spark.weights.faults import Fault
from glm_spark.weights.look import How, Look, look, told
from glm_spark.weights.sender import Pace
from glm_spark.weights.steward import Pacer
from glm_spark.weights.words import in_words
from tests.unit.weights.repositories import LEADER, PIN, Place, blob_file, done, fill, listed, some_files

FILES = some_files({"model.safetensors": 3000, "sub/vocab.json": 100})


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path, LEADER)
    fill(made.cache, FILES)
    lists.keep(LEADER, made.state, PIN, listed(FILES))
    return made


def seen(place: Place, **more: Any) -> Look:
    (one,) = look(place.job("verify", **more).store, place.pins)
    return one


def hows(one: Look) -> dict[str, How]:
    return {file.entry.path: file.how for file in one.files}


def test_content_is_read_once_and_again_only_when_it_may_have_changed(place: Place) -> None:
    assert set(hows(seen(place)).values()) == {How.UNPROVEN}
    assert done(place.job("verify")).findings == ()
    assert seen(place).complete
    model = blob_file(place.cache, "model.safetensors", FILES["model.safetensors"])
    os.utime(model)
    assert hows(seen(place))["model.safetensors"] is How.UNPROVEN
    done(place.job("verify"))
    assert seen(place).complete
    model.write_bytes(b"x" * 3000)
    assert hows(seen(place))["model.safetensors"] is How.UNPROVEN
    done(place.job("verify"))
    assert hows(seen(place))["model.safetensors"] is How.WRONG
    (found,) = told(LEADER, [seen(place)])
    assert found.code == "weights.wrong"
    assert "model.safetensors" in found.measured


def test_a_file_of_the_same_size_in_its_place_is_read_anew(place: Place) -> None:
    done(place.job("verify"))
    model = blob_file(place.cache, "model.safetensors", FILES["model.safetensors"])
    times = model.stat()
    other = model.with_name("other")
    other.write_bytes(b"y" * 3000)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, model)
    assert hows(seen(place))["model.safetensors"] is How.UNPROVEN


def test_missing_and_truncated_files_are_told_apart(place: Place) -> None:
    blob_file(place.cache, "sub/vocab.json", FILES["sub/vocab.json"]).unlink()
    os.truncate(blob_file(place.cache, "model.safetensors", FILES["model.safetensors"]), 10)
    assert hows(seen(place)) == {
        "config.json": How.UNPROVEN,
        "model.safetensors": How.WRONG,
        "sub/vocab.json": How.MISSING,
    }
    assert {found.code for found in told(LEADER, [seen(place)])} == {
        "weights.missing",
        "weights.wrong",
        "weights.unproven",
    }


def test_a_link_is_followed_into_configured_roots_only(place: Place, tmp_path: Path) -> None:
    model = blob_file(place.cache, "model.safetensors", FILES["model.safetensors"])
    elsewhere = tmp_path / "other-disk"
    elsewhere.mkdir()
    os.rename(model, elsewhere / "m")
    model.symlink_to(elsewhere / "m")
    assert hows(seen(place))["model.safetensors"] is How.OUTSIDE
    (found,) = [found for found in told(LEADER, [seen(place)]) if found.code == "weights.outside"]
    assert "weights.roots" in found.fix
    assert done(place.job("verify", roots=(str(elsewhere),))).findings == ()
    assert seen(place, roots=(str(elsewhere),)).complete


def test_a_root_s_neighbour_of_the_same_beginning_is_outside(place: Place, tmp_path: Path) -> None:
    near = Path(f"{place.cache}-2")
    near.mkdir()
    model = blob_file(place.cache, "model.safetensors", FILES["model.safetensors"])
    os.rename(model, near / "m")
    model.symlink_to(near / "m")
    assert hows(seen(place))["model.safetensors"] is How.OUTSIDE


def test_a_directory_that_is_served_as_it_is_only_has_to_be_there(tmp_path: Path) -> None:
    pin = PIN.model_copy(update={"path": str(tmp_path / "model")})
    place = Place(tmp_path, LEADER, (pin,))
    assert [found.code for found in told(LEADER, [seen(place)])] == ["weights.path"]
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    assert seen(place).complete
    assert not place.cache.exists()


def test_200_files_are_looked_at_in_a_moment(tmp_path: Path) -> None:
    place = Place(tmp_path, LEADER)
    files = some_files({f"model-{n:03}.safetensors": 100 for n in range(199)})
    fill(place.cache, files)
    lists.keep(LEADER, place.state, PIN, listed(files))
    done(place.job("verify"))
    began = time.process_time()
    assert seen(place).complete
    assert time.process_time() - began < 1.0


# -- tidying -------------------------------------------------------------------------------------------------------


def test_only_what_no_pin_needs_goes(place: Place, tmp_path: Path) -> None:
    older = PIN.model_copy(update={"revision": "12" * 20})
    folder = fill(place.cache, {"old.safetensors": b"old" * 100}, older)
    kept_file = folder / "blobs" / "a-note-of-the-owner"
    kept_file.write_text("mine")
    (folder / "blobs" / ("9" * 64 + layout.PART)).write_bytes(b"unfinished")
    outside = tmp_path / "precious"
    outside.write_text("precious")
    (folder / "snapshots" / older.revision / "link-out").symlink_to(outside)
    found = tidy.spare(place.job("verify").store, place.pins)
    names = {Path(one.path).name for one in found}
    assert names == {older.revision, "9" * 64 + layout.PART, blob_file(tmp_path, "old.safetensors", b"old" * 100).name}
    tidy.remove(LEADER, found)
    assert not (folder / "snapshots" / older.revision).exists()
    assert kept_file.read_text() == "mine"
    assert outside.read_text() == "precious"
    assert done(place.job("verify")).findings == ()
    assert seen(place).complete
    assert tidy.spare(place.job("verify").store, place.pins) == ()


def test_without_a_list_nothing_goes(tmp_path: Path) -> None:
    place = Place(tmp_path, LEADER)
    fill(place.cache, FILES)
    assert tidy.spare(place.job("verify").store, place.pins) == ()


# -- pins ----------------------------------------------------------------------------------------------------------


def config(**tables: Any) -> Config:
    nodes = [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}]
    made, faults = judge({"node": nodes, **tables})
    assert made is not None, faults
    return made


def test_mtp_never_asks_for_the_drafter() -> None:
    assert [pin.kind for pin in pins.wanted(config())] == ["checkpoint"]
    both = pins.wanted(config(model={"drafter": "dflash2", "accept_noncommercial": True}))
    assert [pin.kind for pin in both] == ["checkpoint", "drafter"]
    assert both[1].noncommercial


def test_the_defaults_of_the_configuration_are_the_pins() -> None:
    shipped = pins.pinned()
    (checkpoint,) = pins.wanted(config())
    assert (checkpoint.repository, checkpoint.revision) == (shipped.checkpoint.repository, shipped.checkpoint.revision)
    assert checkpoint.size_gb == 176
    image = pins.image(config())
    assert image is not None
    assert (image.digest, image.size_gb) == (shipped.image.digest, 25)
    assert pins.image(config(engine={"runtime": "process"})) is None


def test_the_configuration_overrides_a_pin() -> None:
    (pin,) = pins.wanted(config(model={"repository": "me/mine", "revision": "ef" * 20}))
    assert (pin.repository, pin.revision, pin.size_gb, pin.tree) == ("me/mine", "ef" * 20, None, "")


# -- small parts ---------------------------------------------------------------------------------------------------


def test_the_hub_s_token_is_read_and_a_bad_one_named(tmp_path: Path) -> None:
    file = tmp_path / "hf"
    file.write_text("hf_secret\n")
    file.chmod(0o600)
    with_file = config(weights={"token_file": str(file)})
    assert secret.read(with_file, {}, LEADER) == "hf_secret"
    assert secret.read(config(), {}, LEADER) == ""
    (tmp_path / secret.CREDENTIAL).write_text("hf_credential")
    assert secret.read(with_file, {"CREDENTIALS_DIRECTORY": str(tmp_path)}, LEADER) == "hf_credential"
    file.chmod(0o644)
    with pytest.raises(Fault, match="0644") as refused:
        secret.read(with_file, {}, LEADER)
    assert "hf_secret" not in str(refused.value)
    file.unlink()
    with pytest.raises(Fault, match="No such file"):
        secret.read(with_file, {}, LEADER)


def test_a_pace_books_what_is_sent() -> None:
    now = [0.0]
    pace = Pace(1000, lambda: now[0])
    assert pace.pause(500) == 0.0
    assert pace.pause(500) == 0.5
    now[0] = 10.0
    assert pace.pause(500) == 0.0
    assert Pace(0).pause(1 << 40) == 0.0


def test_a_rate_is_of_the_last_seconds_and_of_one_phase() -> None:
    pacer = Pacer()
    assert pacer.rate("receiving", 0, 0.0) is None
    assert pacer.rate("receiving", 1000, 1.0) == 1000
    assert pacer.rate("verifying", 5, 1.5) is None


def test_progress_in_words() -> None:
    status = WeightsStatus(phase="receiving", done=88_000_000_000, total=176_000_000_000, rate=2e9)
    assert in_words(status) == "receiving 88.0 GB of 176.0 GB, 2.0 GB/s, 44 s left"
    assert in_words(WeightsStatus(phase="waiting")) == "waiting"
