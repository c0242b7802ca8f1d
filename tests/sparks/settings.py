"""The one config file that all Sparks of a test share. Pure but for `write_json`."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tests.enclosure import ROOT
from tests.sparks.layout import Layout

STANDIN = ROOT / ".venv/bin/glm-spark-standin"
DAEMON = ROOT / ".venv/bin/glm-spark"
TOKEN, SCRIPT, CHECKPOINT = "token", "standin.json", "GLM-5.3-Flash-EXL3"


def defaults(layout: Layout, directory: Path) -> dict[str, Any]:
    """Settings under which the stand-in engine runs as plain processes over TCP.

    `directory` holds what the Sparks share: the token, the stand-in's script, a checkpoint's folder."""
    nodes: list[dict[str, Any]] = []
    for spark in layout.sparks:
        node: dict[str, Any] = {"name": spark.name}
        if spark.number > 1:
            node["address"] = layout.address(spark.number, 1)
        if spark.lan.address is not None and len(layout.sparks) > 2:
            node["lan_address"] = str(spark.lan.address.ip)
        nodes.append(node)
    return {
        "cluster": {"name": "glm", "token_file": str(directory / TOKEN)},
        "node": nodes,
        "fabric": {"transport": "socket"},
        "control": {"port": 8899},
        "api": {"host": "127.0.0.1", "port": 8888},
        "engine": {
            "runtime": "process",
            "command": [str(STANDIN)],
            "http_port": 8889,
            "master_port": 29551,
            "kernel_cache": str(directory / "kernels"),
            "environment": {"TENSORFOLD_STANDIN": str(directory / SCRIPT)},
        },
        "model": {"path": str(directory / CHECKPOINT)},
    }


def merged(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`changes` over `base`, table by table; a list replaces a list, None removes a key."""
    result = dict(base)
    for key, value in changes.items():
        old = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(old, Mapping):
            result[key] = merged(old, value)
        else:
            result[key] = value
    return result


def text(tables: Mapping[str, Any]) -> str:
    """TOML of nested tables, lists of tables and plain values."""
    return "\n".join(_table(tables, ())) + "\n"


def _table(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    for key, value in table.items():
        if not isinstance(value, Mapping) and not _is_tables(value):
            # Strings, numbers, booleans and flat lists are written the same way in JSON.
            yield f"{_key(key)} = {json.dumps(value)}"
    for key, value in table.items():
        name = ".".join(map(_key, (*path, key)))
        if isinstance(value, Mapping):
            yield f"\n[{name}]"
            yield from _table(value, (*path, key))
        elif _is_tables(value):
            for row in value:
                yield f"\n[[{name}]]"
                yield from _table(row, (*path, key))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(row, Mapping) for row in value)


def _key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() and key.isascii() else json.dumps(key)


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """In one step, so that a reader never sees half of it."""
    new = path.with_name(path.name + ".new")
    new.write_text(json.dumps(value))
    os.replace(new, path)
