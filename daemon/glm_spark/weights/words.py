"""How far weights are, for people. Pure."""

from __future__ import annotations

from glm_spark.status import WeightsStatus
from glm_spark.weights.faults import amount


def in_words(status: WeightsStatus) -> str:
    """`receiving 12.3 GB of 176.0 GB, 1.8 GB/s, 91 s left`."""
    text: str = status.phase
    if status.total:
        text += f" {amount(status.done)} of {amount(status.total)}"
    if status.rate:
        text += f", {amount(status.rate)}/s"
        left = status.seconds_left
        if left is not None and status.total:
            text += f", {left:.0f} s left" if left < 120 else f", {left / 60:.0f} min left"
    return text
