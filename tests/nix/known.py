"""Every setting of the daemon's model: the names and kinds that the module checks, and the table of docs/options.md."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic.fields import FieldInfo

from glm_spark.config.tree import table, tables

_KINDS: dict[Any, str] = {
    str: "string",
    bool: "boolean",
    int: "integer",
    float: "number",
    tuple: "array",
    dict: "table",
}


class Setting(NamedTuple):
    """A key of config.toml by its dotted path."""

    path: str
    field: FieldInfo
    kind: str


def settings() -> Iterator[Setting]:
    """In the order of the file, without those of [[node]], which the module writes itself."""
    for where, section in tables():
        if where == "node":
            continue
        for name, field in section.model_fields.items():
            if table(field) is None:
                path = f"{where}.{name}" if where else name
                yield Setting(path, field, " or ".join(sorted(_kinds(field.annotation))))


def _kinds(annotation: Any) -> set[str]:
    origin = get_origin(annotation)
    if origin is Annotated:
        return _kinds(get_args(annotation)[0])
    if origin is Literal:
        return {_KINDS[type(one)] for one in get_args(annotation)}
    if origin in (Union, types.UnionType):
        return set().union(*(_kinds(part) for part in get_args(annotation)))
    return {_KINDS[origin or annotation]}
