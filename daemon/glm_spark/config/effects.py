"""What differs between two configurations, and when each change takes effect."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from glm_spark.config.keys import Effect
from glm_spark.config.model import Config
from glm_spark.config.tree import leaves
from glm_spark.config.words import extra


@dataclass(frozen=True, slots=True)
class Change:
    """One key whose value differs. `old` or `new` is None where one of the two has no such entry."""

    key: str
    effect: Effect
    old: Any
    new: Any

    def __str__(self) -> str:
        when = {
            Effect.LIVE: "at once",
            Effect.NEXT_START: "at the next start of the set (glm-spark restart)",
            Effect.RESTART: "when this daemon restarts (systemctl restart glm-spark)",
        }
        return f"{self.key}: takes effect {when[self.effect]}"


@dataclass(frozen=True, slots=True)
class Changes:
    """All changes of one reload, in the order of the file."""

    all: tuple[Change, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.all)

    def of(self, effect: Effect) -> tuple[Change, ...]:
        return tuple(change for change in self.all if change.effect is effect)

    @property
    def live(self) -> tuple[Change, ...]:
        return self.of(Effect.LIVE)

    @property
    def next_start(self) -> tuple[Change, ...]:
        return self.of(Effect.NEXT_START)

    @property
    def restart(self) -> tuple[Change, ...]:
        return self.of(Effect.RESTART)

    @property
    def effect(self) -> Effect | None:
        """What all of them together need: the most that any one needs, None for no change."""
        for effect in (Effect.RESTART, Effect.NEXT_START, Effect.LIVE):
            if self.of(effect):
                return effect
        return None


def changes(old: Config, new: Config) -> Changes:
    """Every key whose value in the file differs, with when it takes effect. Pure."""
    before = {leaf.path: leaf for leaf in leaves(old)}
    after = {leaf.path: leaf for leaf in leaves(new)}
    found = []
    for path in [*before, *(path for path in after if path not in before)]:
        one, other = before.get(path), after.get(path)
        if one is not None and other is not None and one.value == other.value:
            continue
        field = (one or other).field  # type: ignore[union-attr]  # the path came from one of the two
        effect = Effect(str(extra(field)["effect"]))
        found.append(Change(path, effect, one.value if one else None, other.value if other else None))
    return Changes(tuple(found))
