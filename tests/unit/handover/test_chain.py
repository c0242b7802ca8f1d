"""What a pin proves of an image, and that each link of the chain is looked at."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from glm_spark.handover import chain, record
from glm_spark.handover.chain import Recipe, Unproven, follow
from glm_spark.handover.store import machine
from tests.unit.handover.stores import Image, make, sha256, some_layers

LAYERS = some_layers(100, 200, 300)


def of(image: Image) -> Callable[[str], bytes]:
    return lambda digest: image.documents[digest]


@pytest.mark.parametrize("docker", [False, True])
@pytest.mark.parametrize("pin", ["index", "manifest", "config"])
def test_a_pin_names_every_byte_whichever_document_it_is_of(pin: str, docker: bool) -> None:
    image = make(LAYERS, docker=docker)
    recipe = follow(getattr(image, pin), machine(), of(image))
    assert (recipe.config, recipe.layers) == (image.config, image.diff_ids)
    assert set(recipe.documents) <= set(image.documents)
    if pin != "config":
        assert recipe.docker is docker


def test_a_layer_may_be_there_twice() -> None:
    image = make((LAYERS[0], LAYERS[1], LAYERS[0]))
    recipe = follow(image.manifest, machine(), of(image))
    assert recipe.layers == image.diff_ids
    assert len(recipe.contents) == 3


@pytest.mark.parametrize("pin", ["index", "manifest", "config"])
@given(st.data())
def test_one_byte_of_any_document_is_noticed(pin: str, data: st.DataObject) -> None:
    image = make(LAYERS)
    needed = follow(getattr(image, pin), machine(), of(image)).documents
    digest = data.draw(st.sampled_from(sorted(needed)))
    body = bytearray(image.documents[digest])
    body[data.draw(st.integers(0, len(body) - 1))] ^= 1 << data.draw(st.integers(0, 7))
    told = {**image.documents, digest: bytes(body)}
    with pytest.raises(Unproven, match="is not the content"):
        follow(getattr(image, pin), machine(), lambda asked: told[asked])


def test_another_images_documents_do_not_do() -> None:
    image, other = make(LAYERS), make(some_layers(100, 200, 300, seed=2))
    told = [*other.documents.values()]
    for body in told:
        with pytest.raises(Unproven, match="is not the content"):
            follow(image.manifest, machine(), lambda _asked, body=body: body)  # type: ignore[misc]


def test_an_image_for_another_machine_is_refused() -> None:
    other = make(LAYERS, arch="riscv64")
    with pytest.raises(Unproven, match="the index has nothing for"):
        follow(other.index, machine(), of(other))
    for pin in (other.manifest, other.config):
        with pytest.raises(Unproven, match="an image for linux/riscv64"):
            follow(pin, machine(), of(other))


def test_a_manifest_with_other_layers_than_its_configuration_is_refused() -> None:
    image = make(LAYERS, diff_ids=[sha256(layer) for layer in LAYERS[:2]])
    with pytest.raises(Unproven, match="3 layers, its configuration 2"):
        follow(image.manifest, machine(), of(image))


_SHAPES: list[object] = [
    [],
    {},
    {"manifests": {}},
    {"manifests": [1, {"platform": 1}]},
    {"manifests": [{"platform": {"os": "linux", "architecture": machine()}}]},
    {"config": {}, "layers": []},
    {"config": {"digest": "md5:1"}, "layers": []},
    {"config": 1, "layers": []},
    {"rootfs": {}},
    {"rootfs": {"diff_ids": []}},
    {"rootfs": {"diff_ids": ["sha256:../../etc"]}},
    {"rootfs": {"diff_ids": [f"sha256:{'a' * 64}"] * (chain.MOST_LAYERS + 1)}},
]


@pytest.mark.parametrize("told", _SHAPES)
def test_a_document_of_another_shape_is_refused(told: object) -> None:
    body = json.dumps(told).encode()
    with pytest.raises(Unproven):
        follow(sha256(body), machine(), lambda _asked: body)


@pytest.mark.parametrize("body", [b"", b"\xff", b"{", b" " * (chain.LARGEST_DOCUMENT + 1)])
def test_what_is_no_document_is_refused(body: bytes) -> None:
    with pytest.raises(Unproven):
        follow(sha256(body), machine(), lambda _asked: body)


@pytest.mark.parametrize("docker", [False, True])
def test_our_own_manifest_names_the_same_contents_unpacked(docker: bool) -> None:
    image = make(LAYERS, docker=docker)
    recipe = follow(image.manifest, machine(), of(image))
    sizes = {sha256(layer): len(layer) for layer in LAYERS} | {image.config: len(image.documents[image.config])}
    told = json.loads(recipe.manifest(sizes))
    assert [(row["digest"], row["size"]) for row in told["layers"]] == [(f"sha256:{sha256(b)}", len(b)) for b in LAYERS]
    assert told["config"]["digest"] == f"sha256:{image.config}"
    family = "application/vnd.docker." if docker else "application/vnd.oci."
    assert all(row["mediaType"].startswith(family) for row in (told, told["config"], *told["layers"]))


def test_a_record_is_that_of_its_pin_or_none(tmp_path: Path) -> None:
    image = make(LAYERS)
    recipe = follow(image.index, machine(), of(image))
    record.keep(tmp_path / "images", recipe)
    assert record.known(tmp_path / "images", image.index) == recipe
    assert record.known(tmp_path / "images", image.manifest) is None
    file = tmp_path / "images" / f"{image.index}.json"
    file.rename(tmp_path / "images" / f"{image.manifest}.json")
    assert record.known(tmp_path / "images", image.manifest) is None
    file.write_text("{")
    assert record.known(tmp_path / "images", image.index) is None
    assert Recipe.model_validate_json(recipe.model_dump_json()) == recipe
