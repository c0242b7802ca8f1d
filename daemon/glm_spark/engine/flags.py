"""TensorFold v0.6.0's flags as the pinned image takes them: the judge of a command line where the image's own parser
cannot be asked. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal

Kind = Literal["text", "whole", "number", "switch"] | tuple[str, ...]

_SERVE: Mapping[str, Kind] = {
    **dict.fromkeys(("--host", "--name", "--alias", "--master", "--parallel", "--drafter", "--snapshot-dir"), "text"),
    **dict.fromkeys(("--port", "--master-port", "--context", "--max-tokens", "--thinking-budget"), "whole"),
    **dict.fromkeys(("--spill-min-tokens", "--top-k", "--mtp-drafts", "--checkpoint-slots"), "whole"),
    **dict.fromkeys(("--spill-gib", "--spill-highwater", "--spill-min-free-gib"), "number"),
    **dict.fromkeys(("--temperature", "--top-p", "--min-p", "--prompt-cache-gib"), "number"),
    **dict.fromkeys(("--thinking", "--no-thinking", "--vision", "--vision-urls"), "switch"),
    **dict.fromkeys(("--no-drafts", "--no-update-check"), "switch"),
    "--tp": ("1", "2", "3", "4"),
    "--rank": ("0", "1", "2", "3"),
    "--reasoning-effort": ("low", "medium", "high", "xhigh"),
    "--kv-dtype": ("bf16", "int8", "int4"),
    "--backend": ("auto", "mlx", "cuda"),
}


def faults(words: Sequence[str]) -> list[str]:
    """What the engine would reject in `serve MODEL [flags]`, one text each; none when it is fine."""
    if words[:1] != ("serve",) and list(words[:1]) != ["serve"]:
        return [f"{words[0] if words else 'nothing'}: serve is wanted first"]
    return list(_faults(words[1:]))


def _faults(words: Sequence[str]) -> Iterator[str]:
    models = 0
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if not word.startswith("--"):
            models += 1
            continue
        name, given, value = word.partition("=")
        kind = _SERVE.get(name)
        if kind is None:
            yield f"{name}: the engine has no such flag"
        elif kind == "switch":
            if given:
                yield f"{name} takes no value"
        else:
            if not given:
                if not rest or rest[0].startswith("--"):
                    yield f"{name} needs a value"
                    continue
                value = rest.pop(0)
            yield from _value_fault(name, kind, value)
    if models != 1:
        yield f"{models} models are named, one is wanted"


def _value_fault(name: str, kind: Kind, value: str) -> Iterator[str]:
    if isinstance(kind, tuple):
        if value not in kind:
            yield f"{name} is one of {', '.join(kind)}, not {value}"
    elif kind == "whole":
        if not value.removeprefix("-").isdecimal():
            yield f"{name} is a whole number, not {value}"
    elif kind == "number":
        try:
            float(value)
        except ValueError:
            yield f"{name} is a number, not {value}"
