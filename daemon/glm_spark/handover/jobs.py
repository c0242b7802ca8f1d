"""What a hand-over's process is told, on either side; and whether an image can be handed over at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from glm_spark.config.model import Config
from glm_spark.engine import container, images
from glm_spark.handover import place, record
from glm_spark.weights.job import Door, ImageJob, Job

_GIB = 1 << 30


def may(config: Config) -> bool:
    """Whether the image may go over the cable: allowed, pinned, and in a store that keeps what proves it."""
    engine = config.engine
    return engine.hand_over and engine.runtime == "podman" and bool(images.pinned(engine.image))


def job(
    verb: Literal["receive", "send", "export"],
    node: str,
    state: Path,
    config: Config,
    door: Door | None = None,
    refusal: str = "",
) -> Job:
    """`state` is the daemon's state directory. An image without a pin has no name that anything could be asked by."""
    engine, cache = config.engine, config.model.cache
    digest = images.pinned(engine.image).removeprefix("sha256:") or "0" * 64
    return Job(
        verb=verb,
        node=node,
        cache=str(place.top(cache)),
        state=str(place.state(state / "weights")),
        pins=(place.pin_of(digest),),
        keep_free=int(config.weights.keep_free_gib * _GIB),
        door=door,
        image=ImageJob(
            digest=digest,
            reference=engine.image,
            cache=cache,
            images=str(record.below(state)),
            tool=container.tool(config),
            environment=container.tool_environment(os.environ),
            silence=config.timeouts.silence_seconds,
            refusal=refusal,
        ),
    )
