"""The codes and words of the product, read from its source."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from glm_spark.config.model import Config

ROOT = Path(__file__).resolve().parents[3]
PRODUCT = ROOT / "daemon" / "glm_spark"
_CODE = re.compile(r"[a-z]+\.[a-z0-9]+(-[a-z0-9]+)*")
_BEGINNINGS = frozenset({"set.breaker"})  # what a code is compared with, not one itself
_FILE = re.compile(r".+\.(toml|sock|json|lock|safetensors|index|log)")


@cache
def trees() -> tuple[ast.Module, ...]:
    """Every module of the daemon; the stand-in engine speaks with another's words."""
    paths = sorted(path for path in PRODUCT.rglob("*.py") if "standin" not in path.parts)
    return tuple(ast.parse(path.read_text(encoding="utf-8")) for path in paths)


@cache
def texts() -> frozenset[str]:
    """Every piece of text in the daemon's source; of an f-string the pieces between its braces."""
    nodes = (node for tree in trees() for node in ast.walk(tree))
    return frozenset(node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))


def settings() -> frozenset[str]:
    """The dotted path of every setting and of every table."""
    return frozenset(_paths(Config, ""))


def _paths(section: type, prefix: str) -> Iterator[str]:
    for name, field in section.model_fields.items():  # type: ignore[attr-defined]
        path = f"{prefix}{name}"
        yield path
        inner = [field.annotation, *getattr(field.annotation, "__args__", ())]
        for kind in inner:
            if isinstance(kind, type) and hasattr(kind, "model_fields"):
                yield from _paths(kind, f"{path}.")


@cache
def codes() -> frozenset[str]:
    """Every code a finding or a line of the journal can have."""
    composed = frozenset(code for tree in trees() for code in _composed(tree))
    given = frozenset(code for tree in trees() for code in _given(tree))
    families = {code.partition(".")[0] for code in given | composed}
    alike = frozenset(
        text
        for text in texts()
        if _CODE.fullmatch(text) and not _FILE.fullmatch(text) and text.partition(".")[0] in families
    )
    return (alike - settings() - _BEGINNINGS) | composed


def _given(tree: ast.Module) -> Iterator[str]:
    """Texts that stand where a code is wanted: code="..." and {"code": "..."}."""
    for node in ast.walk(tree):
        places: list[ast.expr | None] = []
        if isinstance(node, ast.Call):
            places = [word.value for word in node.keywords if word.arg == "code"]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            places = [value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "code"]
        for place in places:
            if isinstance(place, ast.Constant) and _CODE.fullmatch(str(place.value)):
                yield str(place.value)


def _composed(tree: ast.Module) -> Iterator[str]:
    """code=f"token.{code}" in a function that is called with the second half."""
    functions = (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))
    for function in functions:
        heads = [
            word.value.values[0].value
            for node in ast.walk(function)
            if isinstance(node, ast.Call)
            for word in node.keywords
            if word.arg == "code"
            and isinstance(word.value, ast.JoinedStr)
            and isinstance(word.value.values[0], ast.Constant)
            and isinstance(word.value.values[0].value, str)
        ]
        calls = [
            node
            for node in ast.walk(tree)
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == function.name
        ]
        for head in heads:
            for call in calls:
                first = call.args[0] if call.args else None
                if isinstance(first, ast.Constant) and isinstance(first.value, str):
                    yield head + first.value
