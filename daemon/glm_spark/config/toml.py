"""Values written as TOML."""

from __future__ import annotations

import json
from typing import Any


def value(item: Any) -> str:
    """One TOML value on one line: a text, a number, true or false, a list, a table."""
    if isinstance(item, bool):
        return "true" if item else "false"
    if isinstance(item, int | float):
        return repr(item)
    if isinstance(item, list | tuple):
        return f"[{', '.join(value(entry) for entry in item)}]"
    if isinstance(item, dict):
        inside = ", ".join(f"{text(str(name))} = {value(entry)}" for name, entry in item.items())
        return f"{{ {inside} }}" if inside else "{}"
    return text(str(item))


def text(item: str) -> str:
    """A basic string. JSON's escapes are TOML's; DEL, which JSON leaves alone, TOML wants escaped."""
    return json.dumps(item, ensure_ascii=False).replace("\x7f", "\\u007f")
