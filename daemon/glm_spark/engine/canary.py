"""The proof that a set is ready: one real answer through all ranks. Neither question nor answer is ever logged."""

from __future__ import annotations

import json
from typing import Any

import aiohttp

from glm_spark.engine import answers
from glm_spark.finding import Finding, Severity

QUESTION = "Name three colours of the rainbow."
ANSWER_TOKENS = 16
FEWEST_KINDS = 2  # an answer of at most so many distinct characters ...
COLLAPSED_LENGTH = 8  # ... and at least so long comes from weights that are wrong ("!!!!!!!!")
MOST_BYTES = 1024 * 1024


def content_fault(text: str) -> str | None:
    """Pure: what is wrong with an answer, None when it can be a model's. White space does not count."""
    solid = "".join(text.split())
    if not solid:
        return "the answer is empty"
    kinds = len(set(solid))
    if len(solid) >= COLLAPSED_LENGTH and kinds <= FEWEST_KINDS:
        return f"the answer is {len(solid)} characters of only {kinds} kind{'s' if kinds > 1 else ''}"
    return None


def question(model: str, tokens: int = ANSWER_TOKENS) -> dict[str, Any]:
    """Pure: the request. Greedy and without thinking, so that a few tokens are an answer.

    TensorFold v0.6.0 takes the switch in chat_template_kwargs (its server/request_options.py).
    """
    return {
        "model": model,
        "messages": [{"role": "user", "content": QUESTION}],
        "max_tokens": tokens,
        "temperature": 0,
        "stream": False,
        "chat_template_kwargs": {"enable_thinking": False},
    }


def answer_in(body: bytes) -> str:
    """Pure: the text of a chat completion. ValueError when the body is not one."""
    try:
        message = json.loads(body)["choices"][0]["message"]
        content = message.get("content")
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        raise ValueError("no chat completion") from error
    return content if isinstance(content, str) else ""


async def models_ready(session: aiohttp.ClientSession, base_url: str, model: str, timeout: float = 2.0) -> bool:
    """Whether /v1/models lists the model. The engine's port is closed until it is ready, so "refused" means no."""
    url = f"{base_url.rstrip('/')}/v1/models"
    try:
        async with session.get(url, timeout=aiohttp.ClientTimeout(total=timeout)) as reply:
            if reply.status != 200:
                return False
            listed = json.loads(await answers.body(reply, MOST_BYTES))["data"]
            return any(entry["id"] == model for entry in listed)
    except (TimeoutError, aiohttp.ClientError, ValueError, KeyError, TypeError):
        return False


async def ask(
    session: aiohttp.ClientSession,
    base_url: str,
    model: str,
    timeout: float,
    *,
    tokens: int = ANSWER_TOKENS,
    node: str = "",
) -> str | Finding:
    """One question to rank 0, `timeout` seconds in all: the answer's text, or why there is none.

    Whether the text is a model's is `content_fault`'s to say.
    """
    url = f"{base_url.rstrip('/')}/v1/chat/completions"
    try:
        limit = aiohttp.ClientTimeout(total=timeout)
        async with session.post(url, json=question(model, tokens), timeout=limit) as reply:
            body = await answers.body(reply, MOST_BYTES)
            if reply.status != 200:
                return refused(node, reply.status)
            return answer_in(body)
    except TimeoutError:
        return no_answer(node, f"no answer within {timeout:g} s")
    except (aiohttp.ClientError, ValueError) as error:
        return no_answer(node, str(error) or type(error).__name__)


def refused(node: str, status: int) -> Finding:
    """429 is a full queue and says nothing against the ranks."""
    busy = status == 429
    return Finding(
        code="engine.canary-busy" if busy else "engine.canary-refused",
        severity=Severity.UNKNOWN if busy else Severity.ERROR,
        node=node,
        subject="the question to the model",
        measured=f"status {status}",
        wanted="an answer",
        fix="Ask again when fewer requests run." if busy else "Look at rank 0's lines in the journal.",
    )


def no_answer(node: str, measured: str) -> Finding:
    return Finding(
        code="engine.canary-unanswered",
        severity=Severity.ERROR,
        node=node,
        subject="the question to the model",
        measured=measured[:500],
        wanted="an answer through all ranks",
        fix="Look at all ranks' lines in the journal: each must be alive and past its load.",
    )


def content_finding(node: str, fault: str) -> Finding:
    """The finding for what `content_fault` says."""
    return Finding(
        code="engine.answer-collapsed",
        severity=Severity.ERROR,
        node=node,
        subject="the model's answer",
        measured=fault,
        wanted="a sentence",
        fix="The weights are wrong or damaged: verify the checkpoint on every Spark.",
    )
