"""What the Sparks of one set must agree on, compared as values."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from glm_spark.config import toml
from glm_spark.config.model import Config
from glm_spark.config.tree import leaves, resolved
from glm_spark.config.words import clean, extra
from glm_spark.finding import Finding, Severity

CODE = "cluster.setting-differs"
_LONGEST = 200  # characters of a value in a Finding
_MOST = 50  # findings; a peer's hello could list any number of keys


def settings(config: Config) -> dict[str, Any]:
    """Every setting that must agree, by its dotted path, with "auto" resolved; JSON-able, equal after a round trip.

    What each Spark has for itself is not in it: paths, the token's source, log level, runtime, memory.
    """
    agreed = {leaf.path: resolved(config, leaf) for leaf in leaves(config) if extra(leaf.field).get("agree")}
    return {path: list(value) if isinstance(value, tuple) else value for path, value in agreed.items()}


def differences(mine: Mapping[str, Any], theirs: Mapping[str, Any], here: str, there: str) -> list[Finding]:
    """One Finding for each key whose values differ or that only one of the two Sparks knows; none when they agree.

    `mine` are the settings of `here`, `theirs` those that `there` sent; both are names of Sparks.
    """
    keys = [*mine, *(key for key in theirs if key not in mine)]
    different = [key for key in keys if key not in mine or key not in theirs or not _same(mine[key], theirs[key])]
    found = [_finding(key, mine, theirs, here, there) for key in different[:_MOST]]
    if len(different) > _MOST:
        text = f"{len(different) - _MOST} more settings differ"
        found.append(_found(there, "settings", text, "the same", "Put the same config.toml on every Spark"))
    return found


def _finding(key: str, mine: Mapping[str, Any], theirs: Mapping[str, Any], here: str, there: str) -> Finding:
    if key in mine and key in theirs:
        fix = f"Put the same config.toml on both, then run: systemctl reload-or-restart glm-spark on {there}"
        return _found(there, key, f"{_shown(theirs[key])} on {there}", f"{_shown(mine[key])} as on {here}", fix)
    if key.startswith("node["):
        has, lacks = (here, there) if key in mine else (there, here)
        value = _shown(mine[key] if key in mine else theirs[key])
        fix = "Put the same config.toml on both"
        return _found(there, key, f"{value} on {has}, no such entry on {lacks}", "the same Sparks in both files", fix)
    knows, lacks = (here, there) if key in mine else (there, here)
    value = _shown(mine[key] if key in mine else theirs[key])
    fix = f"Run the same version of glm-spark on {here} and {there}"
    return _found(there, key, f"{value} on {knows}, not known on {lacks}", "a setting known to both", fix)


def _found(node: str, subject: str, measured: str, wanted: str, fix: str) -> Finding:
    return Finding(
        code=CODE,
        severity=Severity.ERROR,
        node=clean(node, 60),
        subject=clean(subject, 100),
        measured=measured,
        wanted=wanted,
        fix=f"{fix}.",
    )


def _same(one: Any, other: Any) -> bool:
    """Equal as a configuration means it: 600 is 600.0, but true is not 1."""
    if isinstance(one, bool) or isinstance(other, bool):
        return one is other
    return bool(one == other)


def _shown(value: Any) -> str:
    """A value as TOML. A peer may send what TOML has no word for."""
    return clean(toml.value(value) if value is not None else "nothing", _LONGEST)
