"""config.toml -> one frozen Config, or every fault of the file in one message."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any

import tomli
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from glm_spark.config import rules
from glm_spark.config.keys import Section
from glm_spark.config.model import Config
from glm_spark.config.rules import Fault
from glm_spark.config.spelling import meant
from glm_spark.config.tree import header, table
from glm_spark.config.words import clean, extra, shown, wanted

LARGEST_FILE = 1 << 20  # bytes
_MOST_NODES = 3


class ConfigFault(Exception):
    """The file cannot be used. `faults` has one line a fault; str() is all of them as one message."""

    def __init__(self, faults: tuple[str, ...], source: str = "") -> None:
        super().__init__(faults, source)
        self.faults = faults
        self.source = source

    def __str__(self) -> str:
        before = f"{self.source}: " if self.source else ""
        if len(self.faults) == 1:
            return f"{before}{self.faults[0]}"
        return "\n  ".join([f"{before}{len(self.faults)} faults", *self.faults])


def load(path: Path | str) -> Config:
    """The Config in the file at `path`. Raises ConfigFault; the values of unknown keys are never in its message."""
    source = str(path)
    try:
        data = tomli.loads(_text(source))
    except RecursionError:
        raise ConfigFault(("nested too deeply to be a configuration",), source) from None
    except ValueError as error:
        raise ConfigFault((f"not TOML: {clean(str(error), 200)}",), source) from None
    config, faults = judge(data)
    if config is None:
        raise ConfigFault(tuple(str(fault) for fault in faults), source)
    return config


def _text(source: str) -> str:
    """The file's text. A device or a pipe is not waited for."""
    try:
        handle = os.open(source, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        raise ConfigFault((_unopened(error),), source) from None
    except ValueError:  # a NUL in the path
        raise ConfigFault(("not a usable path",), clean(source)) from None
    try:
        kind = os.fstat(handle).st_mode
        if stat.S_ISDIR(kind):
            raise ConfigFault(("is a directory; give the path of the file in it",), source)
        if not stat.S_ISREG(kind):
            raise ConfigFault(("is not a regular file",), source)
        raw = _all(handle)
    except OSError as error:
        raise ConfigFault((f"cannot be read: {error.strerror}",), source) from None
    finally:
        os.close(handle)
    if len(raw) > LARGEST_FILE:
        raise ConfigFault(("larger than 1 MiB, which no configuration is",), source)
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigFault((f"not UTF-8 text: line {line} has a byte that is not; save it as UTF-8",), source) from None


def _all(handle: int) -> bytes:
    """The file up to one byte more than is allowed."""
    raw = b""
    while len(raw) <= LARGEST_FILE and (piece := os.read(handle, LARGEST_FILE + 1 - len(raw))):
        raw += piece
    return raw


def _unopened(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "no such file; write one (config.toml.example shows every key) or name another with --config"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "no permission to read it; run this as root or as a member of group glm-spark"
    return f"cannot be opened: {error.strerror}"


def judge(data: dict[str, Any]) -> tuple[Config | None, list[Fault]]:
    """A Config, or None with every fault in the order of the keys. Pure.

    What is at fault gives way to its default, so that the rules are still asked about the rest; a rule that was
    concluded from a key at fault is left out.
    """
    faults: list[Fault] = []
    suspects: set[str] = set()
    left = _known(data, Config, "", faults, suspects)
    _seat(left, faults)
    config = None
    while config is None:
        try:
            config = Config.model_validate(left, context=rules.LATER)
        except ValidationError as error:
            before = len(faults)
            for detail in error.errors(include_url=False, include_context=False):
                _set_aside(left, detail, faults)
            if len(faults) == before:  # else this would go on for ever
                raise AssertionError(f"a fault that belongs to no key: {error}") from None
    suspects.update(re.sub(r"(?<=\w)\[\d+\]$", "", fault.path) for fault in faults)
    suspects.update(fault.path for fault in faults)
    for fault in rules.faults(config):
        known_bad = suspects.intersection((fault.path, *fault.involves))
        if not known_bad and not ("node" in suspects and fault.path.startswith("node")):
            faults.append(fault)
    return (None if faults else config), _once(faults)


def _once(faults: list[Fault]) -> list[Fault]:
    return list({str(fault): fault for fault in faults}.values())


def _known(
    data: dict[str, Any], section: type[Section], path: str, faults: list[Fault], suspects: set[str]
) -> dict[str, Any]:
    """`data` without the keys that do not exist and without what stands where a table should."""
    left: dict[str, Any] = {}
    for name, value in data.items():
        here = f"{path}.{clean(name, 40)}" if path else clean(name, 40)
        field = section.model_fields.get(name)
        if field is None:
            advice, target = meant(name, re.sub(r"\[\d+\]", "", path), section)
            faults.append(Fault(here, f"no such key; {advice}"))
            suspects.add(target.replace("node.", f"{path}.", 1) if path.startswith("node[") else target)
            continue
        inner = table(field)
        if inner is None:
            left[name] = value
        elif name == "node":
            left[name] = _entries(value, inner, faults, suspects)
        elif isinstance(value, dict):
            left[name] = _known(value, inner, here, faults, suspects)
        else:
            faults.append(Fault(here, f"is a table; write {header(here)} on a line of its own and its keys below"))
    return left


def _entries(value: Any, inner: type[Section], faults: list[Fault], suspects: set[str]) -> list[Any]:
    if isinstance(value, dict):
        faults.append(Fault("node", "written as [node]; write [[node]], with two brackets, once for each Spark"))
        return []
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        faults.append(Fault("node", "write [[node]] on a line of its own, once for each Spark, with its keys below"))
        return []
    return [_known(entry, inner, f"node[{index}]", faults, suspects) for index, entry in enumerate(value)]


def _seat(left: dict[str, Any], faults: list[Fault]) -> None:
    """Judges the number of Sparks, and leaves as many entries as the rest can be judged with."""
    entries: list[dict[str, Any]] = left.setdefault("node", [])
    if not any(fault.path == "node" for fault in faults) and not 2 <= len(entries) <= _MOST_NODES:
        count = {0: "no Spark is", 1: "one Spark is"}.get(len(entries), f"{len(entries)} Sparks are")
        faults.append(Fault("node", f"{count} listed; two or three [[node]] entries are wanted, the leader's first"))
    del entries[_MOST_NODES:]
    while len(entries) < 2:
        entries.append({"name": f"{rules.UNNAMED}{len(entries)}"})


def _set_aside(left: dict[str, Any], detail: ErrorDetails, faults: list[Fault]) -> None:
    """Notes the fault of one key in plain words and takes the key out."""
    section: type[Section] = Config
    holder: Any = left
    path = ""
    steps = list(detail["loc"])
    while steps:
        name = str(steps.pop(0))
        path = f"{path}.{name}" if path else name
        field = section.model_fields[name]
        inner = table(field)
        if inner is None:
            break
        holder, section = holder[name], inner
        if steps and isinstance(steps[0], int):
            index = steps.pop(0)
            path, holder = f"{path}[{index}]", holder[index]
    else:
        return  # pydantic finds a list too short when it has refused one of its entries
    if name not in holder and detail["type"] != "missing":
        return  # a union reports each of its alternatives
    value = holder.pop(name, None)
    if name == "name" and section is not Config and path.startswith("node["):
        holder[name] = f"{rules.UNNAMED}{path[5:6]}"
    if detail["type"] == "missing":
        faults.append(Fault(path, f"missing; {field.description} is wanted"))
        return
    if isinstance(value, list) and steps and isinstance(steps[0], int):
        path, value = f"{path}[{steps[0]}]", value[steps[0]]
    said = "" if extra(field).get("private") else shown(value)
    faults.append(Fault(path, _said(detail, wanted(field)), value=said))


def _said(detail: ErrorDetails, form: str) -> str:
    if detail["type"] == "value_error":
        return detail["msg"].removeprefix("Value error, ")
    return f"{form} is wanted"
