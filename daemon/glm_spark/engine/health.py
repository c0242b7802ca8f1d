"""Rank 0's /health: what the engine says of itself, and what can be told from it.

`ok` is the constant true even in a hung engine; the only sign of a stall is `iteration_s`, the age of the current
step (TensorFold v0.6.0).
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import aiohttp
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from glm_spark.engine import answers
from glm_spark.finding import Finding, Severity

MOST_BYTES = 256 * 1024


def _streams(value: Any) -> Any:
    """Only the counts: other versions put lists and texts beside them."""
    if not isinstance(value, dict):
        return None
    return {str(name): count for name, count in value.items() if type(count) is int}


Count = Annotated[int, Field(ge=0)]


class EngineHealth(BaseModel):
    """One reading. Totals count since the engine's start; `streams` and the pool exist with parallel above 1 only."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    busy: bool = False
    requests_running: Count = 0
    requests_total: Count = 0
    prompt_tokens_total: Count = 0
    completion_tokens_total: Count = 0  # tokens of running requests included
    prefill_seconds_total: float = 0.0
    decode_seconds_total: float = 0.0
    cached_tokens_total: Count = 0
    rounds_total: Count = 0
    drafted_total: Count = 0
    accepted_total: Count = 0
    streams: Annotated[dict[str, int] | None, BeforeValidator(_streams)] = None
    pool_tokens: Count | None = None
    pool_free_tokens: Count | None = None
    kept_prompts: Count | None = None
    iteration_s: float = 0.0  # 0.0 between steps
    kept_bytes: Count | None = None
    kept_bytes_cap: Count | None = None
    context_length: Count | None = None


def parse(body: str | bytes) -> EngineHealth:
    """The body of /health. ValueError when it is not what an engine says."""
    answer = json.loads(body)
    if not isinstance(answer, dict) or "ok" not in answer:
        raise ValueError("no /health of an engine: a JSON object with `ok` is wanted")
    return EngineHealth.model_validate(answer)


async def poll(
    session: aiohttp.ClientSession, base_url: str, timeout: float, *, node: str = ""
) -> EngineHealth | Finding:
    """Ask /health once, `timeout` seconds in all; a Finding says why there is no answer."""
    url = f"{base_url.rstrip('/')}/health"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=timeout)) as reply:
            body = await answers.body(reply, MOST_BYTES)
            if reply.status != 200:
                return unanswered(node, url, f"status {reply.status}")
            return parse(body)
    except TimeoutError:
        return unanswered(node, url, f"no answer within {timeout:g} s")
    except aiohttp.ClientError as error:
        return unanswered(node, url, str(error) or type(error).__name__)
    except (ValidationError, ValueError) as error:
        return unanswered(node, url, f"not an engine's answer ({str(error).splitlines()[0]})")


def unanswered(node: str, url: str, measured: str) -> Finding:
    """Nothing is concluded from silence: the engine may be loading, busy or dead."""
    return Finding(
        code="engine.health-unknown",
        severity=Severity.UNKNOWN,
        node=node,
        subject=url[:300],
        measured=measured[:500],
        wanted="the engine's health",
        fix="Look at rank 0's lines in the journal.",
    )


def tokens_per_second(earlier: EngineHealth, earlier_s: float, later: EngineHealth, later_s: float) -> float | None:
    """Tokens written between two readings taken at these times (one clock, seconds); None when it cannot be told.

    A total that went back means that another engine answered the second time.
    """
    gained = later.completion_tokens_total - earlier.completion_tokens_total
    passed = later_s - earlier_s
    if gained < 0 or passed <= 0:
        return None
    return gained / passed
