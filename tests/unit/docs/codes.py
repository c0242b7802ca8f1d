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
_FILE = re.compile(r".+\.(toml|sock|json|lock|safetensors|index|log|py|nix)")


@cache
def rooms() -> tuple[tuple[ast.Module, ...], ...]:
    """Every module of the daemon, by its folder; the stand-in engine speaks with another's words."""
    folders = sorted({path.parent for path in PRODUCT.rglob("*.py") if "standin" not in path.parts})
    return tuple(
        tuple(ast.parse(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.py"))) for folder in folders
    )


@cache
def trees() -> tuple[ast.Module, ...]:
    return tuple(tree for room in rooms() for tree in room)


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
    """Every code a finding or a line of the journal can have, but for those that `open_families` begin."""
    composed = frozenset(code for room in rooms() for code in _composed(room) if not code.endswith("."))
    given = frozenset(_text(place) for tree in trees() for place in _places(tree))
    families = {code.partition(".")[0] for code in given | composed if _is_code(code)}
    alike = frozenset(text for text in texts() if _is_code(text) and text.partition(".")[0] in families)
    return (alike - settings() - _BEGINNINGS) | composed


@cache
def open_families() -> tuple[str, ...]:
    """What codes begin with whose second half only a running daemon knows."""
    composed = {code for room in rooms() for code in _composed(room)}
    resolved = {code.partition(".")[0] + "." for code in composed if not code.endswith(".")}
    heads = {_text(place) for tree in trees() for place in _places(tree) if isinstance(place, ast.JoinedStr)}
    begun = {head for head in heads - resolved if re.fullmatch(r"[a-z]+\.", head)}
    return tuple(sorted(begun | {code for code in composed if code.endswith(".")}))


def _is_code(text: str) -> bool:
    return _CODE.fullmatch(text) is not None and _FILE.fullmatch(text) is None


def _places(tree: ast.Module) -> Iterator[ast.expr]:
    """Where a code may stand: code="...", {"code": "..."}, and the first arguments of what makes findings."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            yield from (word.value for word in node.keywords if word.arg == "code")
            if re.search(r"find|found|fault|row|sign|note|error|problem|stall", _name(node.func)):
                yield from node.args[:2]
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (value for key, value in pairs if isinstance(key, ast.Constant) and key.value == "code")


def _name(function: ast.expr) -> str:
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")


def _text(place: ast.expr) -> str:
    """A text, or what an f-string begins with; empty for anything else."""
    first = place.values[0] if isinstance(place, ast.JoinedStr) and place.values else place
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else ""


def _composed(room: tuple[ast.Module, ...]) -> Iterator[str]:
    """code=f"token.{code}" in a function: the second half is what its callers pass on, or theirs. Ends with the dot
    where a caller has it from elsewhere."""
    functions = [node for tree in room for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    makers = [(head, function, parameter) for function in functions for head, parameter in _heads(function)]
    for head, maker, parameter in makers:  # grows while it is walked
        names = [argument.arg for argument in maker.args.args]
        if parameter not in names:  # one of a function inside this one, which comes by itself
            continue
        at = names.index(parameter) - (names[0] == "self")
        for function in functions:
            for call in (node for node in ast.walk(function) if isinstance(node, ast.Call)):
                if _name(call.func) != maker.name or len(call.args) <= at:
                    continue
                half = call.args[at]
                if isinstance(half, ast.Name) and half.id in {argument.arg for argument in function.args.args}:
                    if (head, function, half.id) not in makers:
                        makers.append((head, function, half.id))
                else:
                    yield head + _text(half)


def _heads(function: ast.FunctionDef) -> Iterator[tuple[str, str]]:
    """Of each code=f"head{parameter}": head, and the name of the parameter."""
    words = (word for node in ast.walk(function) if isinstance(node, ast.Call) for word in node.keywords)
    for word in words:
        if word.arg == "code" and isinstance(word.value, ast.JoinedStr) and len(word.value.values) == 2:
            second = word.value.values[1]
            if isinstance(second, ast.FormattedValue) and isinstance(second.value, ast.Name):
                yield _text(word.value), second.value.id
