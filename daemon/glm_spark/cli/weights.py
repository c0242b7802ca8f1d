"""glm-spark weights: what is served and where it is; fetched, verified, handed to the workers, tidied up."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from glm_spark.cli import exits, tell
from glm_spark.cli.ask import LONG_SECONDS, Unanswered, ask, socket_path
from glm_spark.cli.status import read
from glm_spark.cli.terminal import complain, console, show
from glm_spark.cli.wording import printable
from glm_spark.config import directories
from glm_spark.config.load import ConfigFault
from glm_spark.finding import Finding, Severity
from glm_spark.weights import pins
from glm_spark.weights.faults import Fault, amount
from glm_spark.weights.words import in_words

if TYPE_CHECKING:
    from glm_spark.config.model import Config
    from glm_spark.status import NodeStatus, Status
    from glm_spark.weights.job import Word
    from glm_spark.weights.look import Look
    from glm_spark.weights.steward import Steward

_POLL_SECONDS = 0.5
_LINE_SECONDS = 10.0  # between two lines of progress where there is no terminal


def main(arguments: argparse.Namespace) -> int:
    kinds: dict[str, Callable[[argparse.Namespace], int]] = {
        "status": _status,
        "fetch": _fetch,
        "verify": _verify,
        "sync": _sync,
        "gc": _tidy,
    }
    try:
        return kinds[arguments.kind](arguments)
    except ConfigFault as fault:
        if arguments.json:
            print(json.dumps({"file": str(arguments.config), "faults": list(fault.faults)}))
        complain(str(fault))
        return exits.BAD_CONFIGURATION
    except Unanswered as fault:
        if arguments.json:
            print(json.dumps({"error": str(fault)}))
        complain(str(fault))
        return exits.UNKNOWN
    except Fault as trouble:
        return _told(arguments, [trouble.finding])


# -- this Spark --------------------------------------------------------------------------------------------------


def _steward(arguments: argparse.Namespace) -> tuple[Config, Steward]:
    """This Spark's weights without its daemon. Raises ConfigFault."""
    from glm_spark.cli.here import entry
    from glm_spark.weights.steward import Steward

    config, me = entry(arguments)
    state = directories.state(os.environ)
    return config, Steward(me, state, b"", lambda: config, dict, lambda: None)


def _looks(config: Config, steward: Steward) -> tuple[Look, ...]:
    from dataclasses import replace

    from glm_spark.weights.look import look

    return look(replace(steward.store, derive=True), pins.wanted(config))


def _status(arguments: argparse.Namespace) -> int:
    from glm_spark.weights.look import told

    config, steward = _steward(arguments)
    looks = _looks(config, steward)
    found = list(told(steward.node, looks))
    nodes = _nodes(arguments)
    others = [node for node in nodes if node.name != steward.node]
    if arguments.json:
        rows = [_row(one) for one in looks]
        image = pins.image(config)
        body = {
            "node": steward.node,
            "pins": rows,
            "image": image.model_dump() if image else None,
            "findings": [finding.model_dump(mode="json") for finding in found],
            "nodes": {node.name: node.weights.model_dump(mode="json") for node in others if node.weights},
            "handover": {node.name: node.handover.model_dump(mode="json") for node in nodes if node.handover},
        }
        print(json.dumps(body))
        return exits.of(found)
    for one in looks:
        print(printable(_line(one)))
    image = pins.image(config)
    if image:
        print(printable(f"image       {image.reference}" + (f"  about {image.size_gb:g} GB" if image.size_gb else "")))
    for node in others:
        if node.weights is not None and node.weights.phase != "idle":
            print(printable(f"{node.name}: {in_words(node.weights)}"))
    for node in nodes:
        if node.handover is not None:
            print(printable(f"{node.name}: the image: {in_words(node.handover)}"))
    if found:
        show(tell.findings(found))
    return exits.of(found)


def _row(one: Look) -> dict[str, Any]:
    from glm_spark.weights.look import How

    sizes = {how.value: sum(file.entry.size for file in one.of(how)) for how in How}
    manifest = one.manifest
    return {
        **one.pin.model_dump(exclude={"tree"}),
        "complete": one.complete,
        "files": len(manifest.files) if manifest else None,
        "bytes": manifest.size if manifest else None,
        "tree": manifest.tree() if manifest else None,
        **{f"{name}_bytes": size for name, size in sizes.items()},
    }


def _line(one: Look) -> str:
    pin = one.pin
    if pin.path:
        return f"{pin.kind:<10}  {pin.path}  served as it is"
    head = f"{pin.kind:<10}  {pin.name}  {pin.licence}"
    if one.manifest is None:
        return f"{head}  not here"
    state = "complete and verified" if one.complete else "all here, not verified" if one.present else "not complete"
    return f"{head}  {state}: {amount(one.manifest.size)} in {len(one.manifest.files)} files"


def _nodes(arguments: argparse.Namespace) -> tuple[NodeStatus, ...]:
    """What the running daemon knows of the Sparks; nothing without one."""
    try:
        return _asked(arguments).nodes
    except Unanswered:
        return ()


def _asked(arguments: argparse.Namespace) -> Status:
    return read(ask(socket_path(arguments.socket), "GET", "/v1/status").body)


def _fetch(arguments: argparse.Namespace) -> int:
    config, steward = _steward(arguments)
    if steward.node != config.leader.name:
        from glm_spark.weights.faults import finding

        leader, text = config.leader.name, "this Spark is a worker: it gets its weights over the cable"
        found = finding(steward.node, "worker", "glm-spark weights fetch", text, "the leader", _ON.format(leader))
        return _told(arguments, [found])
    return _run(arguments, config, steward, "fetch")


_ON = "On {0}: glm-spark weights fetch, then glm-spark weights sync."


def _verify(arguments: argparse.Namespace) -> int:
    config, steward = _steward(arguments)
    return _run(arguments, config, steward, "verify", again=arguments.again)


def _run(arguments: argparse.Namespace, config: Config, steward: Steward, verb: str, *, again: bool = False) -> int:
    """A transfer's process followed to its end, then how everything is."""
    from glm_spark.weights import process
    from glm_spark.weights.look import told

    _want_own_state(steward)
    job = steward.job(verb, pins.wanted(config), again=again).model_copy(update={"derive": verb == "verify"})
    with _Progress(arguments) as progress:
        found = list(asyncio.run(process.run(job, progress.take)))
    looks = _looks(config, steward)
    found = found or list(told(steward.node, looks))
    if not arguments.json and not found:
        for one in looks:
            print(printable(_line(one)))
    return _told(arguments, found)


def _want_own_state(steward: Steward) -> None:
    """What another user writes here, the daemon could neither read nor renew. Raises Fault."""
    from glm_spark.weights.faults import not_owned

    for place in (steward.store.state, steward.store.state.parent):
        with contextlib.suppress(OSError):
            owner = place.stat().st_uid
            if owner != os.geteuid():
                raise not_owned(steward.node, str(place), owner)
            return


class _Progress:
    """A bar for a person, a line now and then for a log, nothing for a program."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        from glm_spark.weights.steward import Pacer

        self._quiet = arguments.json
        self._pacer = Pacer()
        self._spinner = None if self._quiet or not sys.stderr.isatty() else console(sys.stderr).status("looking")
        self._said = time.monotonic()

    def __enter__(self) -> _Progress:
        if self._spinner is not None:
            self._spinner.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._spinner is not None:
            self._spinner.stop()

    def take(self, word: Word) -> None:
        from glm_spark.status import WeightsStatus

        if self._quiet or word.ended or word.phase == "idle":
            return
        rate = self._pacer.rate(word.phase, word.done, time.monotonic())
        self.say(in_words(WeightsStatus(phase=word.phase, done=word.done, total=word.total, rate=rate)), word)

    def say(self, text: str, word: Word | None = None) -> None:
        if self._spinner is not None:
            self._spinner.update(f"{_bar(word.done, word.total)} {text}" if word is not None and word.total else text)
        elif not self._quiet and time.monotonic() - self._said > _LINE_SECONDS:
            self._said = time.monotonic()
            print(printable(text), file=sys.stderr, flush=True)


def _bar(done: int, total: int, width: int = 24) -> str:
    full = min(width, done * width // max(1, total))
    return "━" * full + "╌" * (width - full)


# -- all Sparks --------------------------------------------------------------------------------------------------


def _sync(arguments: argparse.Namespace) -> int:
    """Asks the leader's daemon, then follows until no Spark is at it any more."""
    answer = ask(socket_path(arguments.socket), "POST", "/v1/sync", LONG_SECONDS)
    if answer.status == 409:
        return _told(arguments, [Finding.model_validate(item) for item in answer.body.get("findings", [])])
    with _Progress(arguments) as progress:
        time.sleep(_POLL_SECONDS * 2)  # the workers hear of it with the next beat
        while busy := _busy(status := _asked(arguments)):
            progress.say(printable("; ".join(busy)))
            time.sleep(_POLL_SECONDS)
    found = [node.weights.finding for node in status.nodes if node.weights and node.weights.finding]
    unheard = [node.name for node in status.nodes if node.weights is None or node.weights.phase != "complete"]
    if not arguments.json:
        for node in status.nodes:
            if node.weights is not None:
                print(printable(f"{node.name}: {in_words(node.weights)}"))
    code = _told(arguments, found)
    if code == exits.FINE and unheard:
        complain(f"not known to be complete: {', '.join(unheard)}; see glm-spark status")
        return exits.UNKNOWN
    return code


def _busy(status: Status) -> list[str]:
    return [
        f"{node.name} {in_words(node.weights)}"
        for node in status.nodes
        if node.weights is not None and node.weights.phase not in ("idle", "complete", "failed")
    ]


# -- tidying -----------------------------------------------------------------------------------------------------


def _tidy(arguments: argparse.Namespace) -> int:
    from glm_spark.weights import tidy

    config, steward = _steward(arguments)
    found = (*tidy.spare(steward.store, pins.wanted(config)), *tidy.of_image(steward.store))
    size = sum(one.size for one in found)
    if arguments.json:
        rows = [{"path": one.path, "bytes": one.size, "why": one.why} for one in found]
        print(json.dumps({"removed": arguments.yes, "spare": rows, "bytes": size}))
    else:
        for one in found:
            print(printable(f"{amount(one.size):>10}  {one.path}  {one.why}"))
    if arguments.yes:
        freed = tidy.remove(steward.node, found)
        if not arguments.json:
            print(f"{amount(freed)} freed.")
    elif not arguments.json:
        print(f"{amount(size)} can go: glm-spark weights gc --yes removes it." if found else "Nothing can go.")
    return exits.FINE


def _told(arguments: argparse.Namespace, found: Iterable[Finding]) -> int:
    listed = list(found)
    if arguments.json:
        print(json.dumps({"findings": [finding.model_dump(mode="json") for finding in listed]}))
    elif listed:
        show(tell.findings(listed), sys.stderr if any(one.severity is Severity.ERROR for one in listed) else None)
    return exits.of(listed)
