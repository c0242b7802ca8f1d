"""Walking the settings: which tables and keys there are, and what a Config holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args, get_origin

from pydantic.fields import FieldInfo

from glm_spark.config.keys import Section
from glm_spark.config.model import Config, Node


class Leaf(NamedTuple):
    """A setting of a Config: its dotted path, what is known of it, its value."""

    path: str
    field: FieldInfo
    value: Any


def table(field: FieldInfo) -> type[Section] | None:
    """The section a field is a table of; the entry's, where it is a list of tables; None for a setting."""
    annotation = field.annotation
    if get_origin(annotation) is tuple:
        annotation = get_args(annotation)[0]
    return annotation if isinstance(annotation, type) and issubclass(annotation, Section) else None


def tables(section: type[Section] = Config, path: str = "") -> Iterator[tuple[str, type[Section]]]:
    """Every table of the file with its dotted path, outer before inner; [[node]] is "node", the file itself ""."""
    yield path, section
    for name, field in section.model_fields.items():
        inner = table(field)
        if inner is not None:
            yield from tables(inner, f"{path}.{name}" if path else name)


def header(path: str) -> str:
    """A table as it is written in the file."""
    return f"[[{path}]]" if path == "node" else f"[{path}]"


def leaves(config: Config) -> Iterator[Leaf]:
    """Every setting of a Config, in the order of the file."""
    yield from _leaves(config, "")


def _leaves(section: Section, path: str) -> Iterator[Leaf]:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        here = f"{path}.{name}" if path else name
        if isinstance(value, Section):
            yield from _leaves(value, here)
        elif isinstance(value, tuple) and table(field) is Node:
            for index, entry in enumerate(value):
                yield from _leaves(entry, f"{here}[{index}]")
        else:
            yield Leaf(here, field, value)


def resolved(config: Config, leaf: Leaf) -> Any:
    """A leaf's value with "auto" replaced by what this set of Sparks gets."""
    derived = {
        "engine.parallel": config.parallel,
        "engine.tuning.multi_window": config.multi_window,
        "engine.tuning.roce_max_kb": config.roce_max_kb,
        "engine.tuning.cache_gib": config.cache_gib,
        "engine.tuning.memory_reserve_gib": config.memory_reserve_gib,
        "engine.tuning.comm": config.comm,
    }
    return derived.get(leaf.path, leaf.value)
