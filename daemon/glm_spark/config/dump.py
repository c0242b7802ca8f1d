"""The effective configuration: what `config --print` and `config --json` show."""

from __future__ import annotations

from typing import Any

from glm_spark.config import toml
from glm_spark.config.model import Config
from glm_spark.config.tree import leaves, resolved


def effective(config: Config) -> dict[str, Any]:
    """Every setting by its dotted path, with "auto" resolved; JSON-able. The file names secrets, it holds none."""
    return {leaf.path: _plain(resolved(config, leaf)) for leaf in leaves(config)}


def dump(config: Config) -> str:
    """The effective configuration as a file that loads to the same settings."""
    lines: list[str] = []
    open_table = ""
    for path, value in effective(config).items():
        where, _, name = path.rpartition(".")
        if where != open_table:
            open_table = where
            lines += ["", "[[node]]" if where.startswith("node[") else f"[{where}]"]
        lines.append(f"{name} = {toml.value(value)}")
    return "\n".join(lines[1:]) + "\n"


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
