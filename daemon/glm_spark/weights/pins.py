"""What this set is pinned to: pins.toml, and what the configuration puts in its place. Pure but for the one file."""

from __future__ import annotations

import functools
from importlib import resources
from typing import Literal

import tomli
from pydantic import BaseModel, ConfigDict, Field

from glm_spark.config.keys import REPOSITORY, REVISION
from glm_spark.config.model import Config

Kind = Literal["checkpoint", "drafter", "image"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Pin(_Frozen):
    """One revision of a repository that this set needs.

    `tree` is the git tree that its list of files must come to, "" where nobody pinned it. `path` is a directory
    that is served as it is instead; nothing is fetched into it. `size_gb` is None for what pins.toml does not know.
    """

    kind: Kind
    repository: str = Field(pattern=REPOSITORY)
    revision: str = Field(pattern=REVISION)
    tree: str = Field(default="", pattern=r"^([0-9a-f]{40})?$")
    size_gb: float | None = None
    licence: str = "as the repository says"
    noncommercial: bool = False
    path: str = ""

    @property
    def name(self) -> str:
        """Repository and the revision's first digits, as people read it."""
        return f"{self.repository}@{self.revision[:12]}"


class Image(_Frozen):
    """The engine's container image. `digest` is "" for an image of the owner's own."""

    reference: str
    digest: str = ""
    size_gb: float | None = None


class _Repository(_Frozen):
    repository: str
    revision: str
    tree: str
    size_gb: float
    licence: str
    noncommercial: bool


class _Image(_Frozen):
    name: str
    digest: str
    size_gb: float


class _File(_Frozen):
    checkpoint: _Repository
    drafter: _Repository
    image: _Image


@functools.cache
def pinned() -> _File:
    """pins.toml as it was shipped."""
    return _File.model_validate(tomli.loads(resources.files(__package__).joinpath("pins.toml").read_text("utf-8")))


def wanted(config: Config) -> tuple[Pin, ...]:
    """What a start needs: the checkpoint, and the drafter only where the configuration drafts with it."""
    model = config.model
    pins = [_pin("checkpoint", pinned().checkpoint, model.repository, model.revision, model.path)]
    if model.drafter != "mtp":
        drafter = pinned().drafter
        pins.append(_pin("drafter", drafter, model.drafter_repository, model.drafter_revision, model.drafter_path))
    return tuple(pins)


def _pin(kind: Kind, shipped: _Repository, repository: str, revision: str, path: str) -> Pin:
    if (repository, revision) == (shipped.repository, shipped.revision):
        return Pin(kind=kind, path=path, **shipped.model_dump())
    # The shipped licence is kept for another revision of the same repository: it was accepted under that name.
    known = shipped if repository == shipped.repository else None
    return Pin(
        kind=kind,
        repository=repository,
        revision=revision,
        path=path,
        licence=known.licence if known else "as the repository says",
        noncommercial=known.noncommercial if known else False,
    )


def image(config: Config) -> Image | None:
    """The image that ranks run in; None where they run as processes."""
    if config.engine.runtime == "process":
        return None
    reference = config.engine.image
    name, _, digest = reference.partition("@")
    shipped = pinned().image
    size = shipped.size_gb if (name, digest) == (shipped.name, shipped.digest) else None
    return Image(reference=reference, digest=digest, size_gb=size)
