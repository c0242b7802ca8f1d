"""Which image of podman's store is the pinned one, where podman itself cannot know: it was handed over, not pulled."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from glm_spark.config import directories
from glm_spark.handover.chain import Recipe
from glm_spark.weights.remembered import write_lasting


def below(state: Path) -> Path:
    """The records' folder in the daemon's state directory, which only its user may write."""
    return state / "images"


def here() -> Path:
    """That of this process's own daemon."""
    return below(directories.state(os.environ))


def keep(place: Path, recipe: Recipe) -> None:
    """Keeps for good that a pin is the image with this configuration, and what proves it. Raises OSError."""
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    write_lasting(place / f"{recipe.pin}.json", recipe.model_dump_json().encode())


def known(place: Path, pin: str) -> Recipe | None:
    """What was kept for a pin's 64 digits; one that cannot be read counts as none."""
    with contextlib.suppress(OSError, ValueError):
        recipe = Recipe.model_validate_json((place / f"{pin}.json").read_bytes())
        return recipe if recipe.pin == pin else None
    return None
