"""The engine's image on this Spark: is it there, is it the pinned one, what is in it."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from glm_spark.config.model import Config
from glm_spark.engine import container, flags
from glm_spark.engine.command import Unanswered, ask
from glm_spark.engine.spec import RankSpec
from glm_spark.finding import Finding, Severity
from glm_spark.handover import record

LOOK_SECONDS = 15.0
PARSE_SECONDS = 30.0  # the parser imports the engine; from a cold disk that takes a while
PATCHES = "tf.patches"  # the recipe labels its image with the hash of its patches
_FOLDER = re.compile(r"[0-9A-Za-z][0-9A-Za-z._-]{0,63}")
_ABSENT = ("no such image", "image not known", "no such object", "unable to find", "did not resolve")


@dataclass(frozen=True, slots=True)
class Image:
    """`content` is the same wherever the layers and what is run in them are the same, whatever store holds them.

    `kernels` is the folder below engine.kernel_cache that belongs to it, `reference` what the runtime is told to run.
    """

    content: str
    kernels: str
    reference: str = ""
    digests: frozenset[str] = frozenset()
    size: int = 0


def read(told: Mapping[str, Any]) -> Image:
    """Pure: one entry of `podman image inspect` or `docker image inspect`. Raises KeyError, TypeError on another shape.

    The Id is no content: it is the digest of the configuration in one kind of store, of the manifest in another. What
    the recipe compares (scripts/nodes.sh) are the layers' digests and how the image is run.
    """
    settings = told.get("Config") or {}
    parts: list[Any] = [told["RootFS"]["Layers"]]
    parts += [settings.get(name) or [] for name in ("Env", "Entrypoint", "Cmd")] + [settings.get("WorkingDir") or ""]
    content = hashlib.sha256(json.dumps(parts, separators=(",", ":")).encode()).hexdigest()
    patches = str((settings.get("Labels") or {}).get(PATCHES, ""))
    named = [str(one).rpartition("@")[2] for one in told.get("RepoDigests") or []]
    digests = {one for one in (*named, str(told.get("Digest") or ""), _identity(told)) if one.startswith("sha256:")}
    return Image(
        content=content,
        kernels=patches if _FOLDER.fullmatch(patches) else content[:12],
        digests=frozenset(digests),
        size=int(told.get("Size") or 0),
    )


def _identity(told: Mapping[str, Any]) -> str:
    """podman writes the Id without its algorithm."""
    text = str(told.get("Id") or "")
    return text if text.startswith("sha256:") else f"sha256:{text}"


def pinned(reference: str) -> str:
    """Pure: the digest that a reference names, "" for an image of one's own (localhost/NAME)."""
    digest = reference.rpartition("@")[2]
    return digest if digest.startswith("sha256:") else ""


async def look(config: Config, node: str) -> Image | Finding:
    """The image as the runtime knows it, or why it cannot be used."""
    engine = config.engine
    wanted = pinned(engine.image)
    image = await _inspect(config, node, engine.image)
    if image is None and wanted and engine.runtime == "podman":
        # One that was handed over has no name that podman could know: its Id is the digest of its configuration,
        # which the pin proves.
        handed = record.known(record.here(), wanted.removeprefix("sha256:"))
        image = await _inspect(config, node, handed.config) if handed is not None else None
        if isinstance(image, Image) and handed is not None:
            return image if f"sha256:{handed.config}" in image.digests else missing(config, node)
    if image is None:
        return missing(config, node)
    if isinstance(image, Finding):
        return image
    if wanted and wanted not in image.digests:
        return _found(
            node,
            "image.digest-differs",
            f"image {engine.image}",
            f"on this Spark it is {', '.join(sorted(image.digests)) or 'without a digest'}",
            wanted,
            f"Run {engine.runtime} pull {engine.image}",
        )
    return image


async def _inspect(config: Config, node: str, reference: str) -> Image | Finding | None:
    """An image in the runtime's store; None where it is not there."""
    argv = (*container.tool(config), "image", "inspect", reference)
    try:
        told = await ask(argv, LOOK_SECONDS, container.tool_environment(os.environ))
    except Unanswered as silence:
        return silent(config, node, str(silence))
    if told.code != 0:
        if any(word in told.errors.lower() for word in _ABSENT):
            return None
        return silent(config, node, told.last_words)
    try:
        return replace(read(json.loads(told.output)[0]), reference=reference)
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        return silent(config, node, f"an answer that cannot be read: {type(error).__name__}: {error}"[:300])


def missing(config: Config, node: str) -> Finding:
    engine = config.engine
    leader, runtime = config.leader.name, engine.runtime
    measured = f"not in {runtime}'s store on this Spark"
    fix = f"Load it (about 25 GB): sudo {runtime} pull {engine.image}; or set engine.pull = true"
    if not pinned(engine.image):
        fix = f"Build or load it with {runtime} on this Spark"
        if node != leader:
            measured += "; an image without a digest has nothing that would prove a copy from the leader"
            fix += (
                f" (on {leader}: {runtime} save {engine.image} | ssh {node} sudo {runtime} load), or pin it by a digest"
            )
    elif node != leader and engine.hand_over and runtime == "docker":
        measured += f"; docker keeps no manifest that would prove a copy from {leader}"
        fix += '; or set engine.runtime = "podman", which can take it from the leader'
    return _found(node, "image.missing", f"image {engine.image}", measured, "the engine's image", fix)


def silent(config: Config, node: str, words: str) -> Finding:
    runtime = config.engine.runtime
    start = "Start it: sudo systemctl start docker" if "docker daemon" in words.lower() else ""
    return _found(
        node,
        "engine.runtime-silent",
        f"{runtime} on this Spark",
        words,
        f"an answer about the image {config.engine.image}",
        start or f"See what sudo {runtime} image inspect {config.engine.image} says",
    )


def _found(node: str, code: str, subject: str, measured: str, wanted: str, fix: str) -> Finding:
    return Finding(
        code=code,
        severity=Severity.ERROR,
        node=node,
        subject=subject[:300],
        measured=measured[:4000],
        wanted=wanted[:1000],
        fix=f"{fix}."[:2000],
    )


async def arguments_fault(config: Config, spec: RankSpec, image: Image | None = None) -> Finding | None:
    """What the engine will say against the rank's command line, before anything is started or stopped.

    Asked of the image's own parser; where that cannot be had (a process, no python in it, another layout of the
    package), judged by the table of TensorFold v0.6.0's flags.
    """
    words = spec.argv[len(config.engine.command) :]
    if config.engine.runtime != "process":
        found = image or await look(config, spec.node)
        reference = found.reference if isinstance(found, Image) else ""
        argv = container.parse_arguments(config, words, reference)
        try:
            told = await ask(argv, PARSE_SECONDS, container.tool_environment(os.environ))
        except Unanswered:
            told = None
        if told is not None and told.code == 0:
            return None
        if told is not None and told.code == 2:
            return refused(config, spec, told.last_words)
    faults = flags.faults(words)
    return refused(config, spec, "; ".join(faults)) if faults else None


def refused(config: Config, spec: RankSpec, words: str) -> Finding:
    return _found(
        spec.node,
        "engine.arguments-refused",
        f"rank {spec.rank}: the engine rejects its command line",
        words,
        "a command line that it takes",
        "Correct what it names; glm-spark plan shows the whole command line",
    )


def differing(contents: Mapping[str, str]) -> Finding | None:
    """Pure: the Sparks' images compared by content; `contents` is a Spark's name and its image's, "" where unknown.

    The majority, or the first Spark, is taken for right: the finding stands at one that differs from it.
    """
    known = {node: content for node, content in contents.items() if content}
    kinds = list(known.values())
    if len(set(kinds)) < 2:
        return None
    usual = max(dict.fromkeys(kinds), key=kinds.count)
    other = next(node for node, content in known.items() if content != usual)
    told = ", ".join(f"{node} {content[:12]}" for node, content in known.items())
    return _found(
        other,
        "image.content-differs",
        "the engine's image",
        f"its content differs between the Sparks: {told}",
        "the same layers and settings on every Spark",
        "Load the same image on all of them, by its digest",
    )
