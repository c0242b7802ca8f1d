"""The bodies the endpoint answers with by itself, in the forms that OpenAI clients read."""

from __future__ import annotations

import json

from aiohttp import web

from glm_spark.api.source import Readiness

# The engine's own form of a fault inside a stream (TensorFold v0.6.0 serve), which clients already understand.
_STREAM_END = b"data: [DONE]\n\n"


def why(model: str, readiness: Readiness) -> str:
    """One sentence for a person: what is not ready, in which state, and the finding that says why."""
    text = f"{model} is not ready: {readiness.state} ({readiness.code})"
    return f"{text}. {readiness.reason}" if readiness.reason is not None else f"{text}."


def error(
    status: int,
    kind: str,
    code: str,
    message: str,
    *,
    retry_after: int | None = None,
    headers: dict[str, str] | None = None,
) -> web.Response:
    """An error in OpenAI's form; `retry_after` in seconds."""
    extra = dict(headers or {})
    if retry_after is not None:
        extra["Retry-After"] = str(retry_after)
    body = {"error": {"type": kind, "code": code, "message": message}}
    return web.Response(status=status, body=json.dumps(body).encode(), content_type="application/json", headers=extra)


def not_ready(model: str, readiness: Readiness) -> web.Response:
    """503 at once. Suspicion passes within seconds, a load takes minutes: hence two values of Retry-After."""
    wait = 2 if readiness.state == "live" else 15
    return error(503, "not_ready", readiness.code, why(model, readiness), retry_after=wait)


def ready(readiness: Readiness) -> web.Response:
    """/readyz: 200 only when live; state and code, nothing else."""
    body = {"state": readiness.state, "code": readiness.code}
    return web.Response(
        status=200 if readiness.live else 503, body=json.dumps(body).encode(), content_type="application/json"
    )


def healthy() -> web.Response:
    """/healthz: this answer is the proof that the loop turns."""
    return web.Response(body=b'{"ok": true}', content_type="application/json")


def stream_fault(message: str) -> bytes:
    """The end of a server-sent stream that could not be finished."""
    body = {"error": {"message": message, "type": "server_error"}}
    return b"data: " + json.dumps(body).encode() + b"\n\n" + _STREAM_END
