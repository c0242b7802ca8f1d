"""What a hand-over that was broken off notes for the next try: the recipe, proven from the pin."""

from __future__ import annotations

import contextlib
from pathlib import Path

from glm_spark.handover.chain import Recipe
from glm_spark.weights.remembered import write_lasting

_NAME = "recipe.json"


def remember(notes: Path, recipe: Recipe) -> None:
    """Raises OSError."""
    write_lasting(notes / _NAME, recipe.model_dump_json().encode())


def recall(notes: Path, pin: str) -> Recipe | None:
    """The recipe of this pin, where one was noted."""
    with contextlib.suppress(OSError, ValueError):
        recipe = Recipe.model_validate_json((notes / _NAME).read_bytes())
        return recipe if recipe.pin == pin else None
    return None
