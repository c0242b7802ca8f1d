"""A setting and a value in plain words, for messages and for the example file."""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic.fields import FieldInfo

_UNITS = {"s": "seconds", "ms": "milliseconds"}


def extra(field: FieldInfo) -> dict[str, Any]:
    """What `key` noted about a setting; empty for a table."""
    return field.json_schema_extra if isinstance(field.json_schema_extra, dict) else {}


def wanted(field: FieldInfo) -> str:
    """What a setting takes: "a whole number from 1 to 65535", "text in quotes"."""
    return str(extra(field).get("form") or "") or _phrase(field.annotation, field.metadata, str(extra(field)["unit"]))


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The words a setting takes, where it takes nothing else; else none."""
    values = get_args(field.annotation) if get_origin(field.annotation) is Literal else ()
    return tuple(str(value) for value in values)


def _phrase(annotation: Any, metadata: Iterable[Any], unit: str) -> str:
    origin = get_origin(annotation)
    if origin is Annotated:
        inner, *more = get_args(annotation)
        return _phrase(inner, [*more, *metadata], unit)
    if origin is Literal:
        return _either([f'"{value}"' for value in get_args(annotation)])
    if origin in (Union, types.UnionType):
        return _either([_phrase(part, (), unit) for part in get_args(annotation)])
    if origin is tuple:
        return "a list of texts, each in quotes,"
    if origin is dict:
        return "a table of names and texts"
    if annotation is bool:
        return "true or false"
    if annotation in (int, float):
        number = "a whole number" if annotation is int else "a number"
        return f"{number}{f' of {_UNITS.get(unit, unit)}' if unit else ''}{_range(metadata)}"
    return "text in quotes"


def _either(parts: list[str]) -> str:
    return parts[0] if len(parts) == 1 else f"{', '.join(parts[:-1])} or {parts[-1]}"


def _range(metadata: Iterable[Any]) -> str:
    bounds: dict[str, Any] = {}
    for item in metadata:
        # FieldInfo and annotated-types bounds both carry them as attributes, a FieldInfo in its own metadata.
        for bound in [item, *getattr(item, "metadata", ())]:
            for name in ("ge", "gt", "le", "lt"):
                if getattr(bound, name, None) is not None:
                    bounds[name] = getattr(bound, name)
    low = f"from {bounds['ge']}" if "ge" in bounds else f"above {bounds['gt']}" if "gt" in bounds else ""
    high = f"to {bounds['le']}" if "le" in bounds else f"below {bounds['lt']}" if "lt" in bounds else ""
    return "".join(f" {part}" for part in (low, high) if part)


def shown(value: Any) -> str:
    """A value as it stands in the file, short and without control characters; nothing for a table or a list."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value) if value.bit_length() <= 64 else "a very large number"
    if isinstance(value, str):
        return f'"{clean(value)}"'
    if isinstance(value, dict | list | tuple):
        return ""
    return clean(str(value))


def clean(text: str, limit: int = 60) -> str:
    """One printable line of at most `limit` characters."""
    line = "".join(letter if letter.isprintable() else "?" for letter in text[: limit + 1])
    return line if len(line) <= limit else f"{line[:limit]}..."
