"""The JSON of rank 0's replies, as TensorFold v0.6.0 shapes it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from glm_spark.standin.rounds import POOL_TOKENS, Request, Scheduler

Json = dict[str, Any]
BUCKETS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)


def models(names: Sequence[str]) -> Json:
    data = [{"id": name, "object": "model", "owned_by": "tensorfold"} for name in names]
    return {"object": "list", "data": data}


def health(scheduler: Scheduler) -> Json:
    """Always `ok`: the constant true of the real engine, hung and broken included."""
    count = scheduler.counters
    body: Json = {
        "ok": True,
        "backend": "tensorfold",
        "busy": bool(scheduler.running),
        "requests_running": len(scheduler.running),
        "requests_total": count.requests,
        "prompt_tokens_total": count.prompt_tokens,
        "completion_tokens_total": count.completion_tokens,
        "prefill_seconds_total": round(count.prefill_s, 3),
        "decode_seconds_total": round(count.decode_s, 3),
        "cached_tokens_total": 0,
        "rounds_total": count.rounds,
        "drafted_total": 0,
        "accepted_total": 0,
    }
    if scheduler.slots > 1:
        prefilling = sum(not one.first for one in scheduler.running)
        body["streams"] = {
            "decoding": len(scheduler.running) - prefilling,
            "prefilling": prefilling,
            "max": scheduler.slots,
            "filling": 0,
            "paused": 0,
        }
        body |= {"pool_tokens": POOL_TOKENS, "pool_free_tokens": pool_free(scheduler), "kept_prompts": 0}
    body["iteration_s"] = round(scheduler.iteration_s, 3)
    return body | {"kept_bytes": 0, "kept_bytes_cap": 0, "context_length": scheduler.context}


def pool_free(scheduler: Scheduler) -> int:
    return POOL_TOKENS - sum(one.prompt_tokens + one.position for one in scheduler.running)


def histogram(name: str, seconds: Sequence[float]) -> list[str]:
    lines = [f"# TYPE {name} histogram"]
    lines += [f'{name}_bucket{{le="{most}"}} {sum(one <= most for one in seconds)}' for most in BUCKETS]
    lines.append(f'{name}_bucket{{le="+Inf"}} {len(seconds)}')
    return [*lines, f"{name}_sum {sum(seconds):.6f}", f"{name}_count {len(seconds)}"]


def metrics(scheduler: Scheduler) -> str:
    """The Prometheus text of /metrics."""
    count = scheduler.counters
    state = health(scheduler)
    used = 1 - pool_free(scheduler) / POOL_TOKENS
    lines = [
        f"tensorfold:requests_running {len(scheduler.running)}",
        f"tensorfold:requests_waiting {len(scheduler.waiting)}",
        f"tensorfold:prompt_tokens_total {count.prompt_tokens}",
        f"tensorfold:generation_tokens_total {count.completion_tokens}",
        f"tensorfold:kv_cache_usage_ratio {used:.6f}",
        "tensorfold:mtp_drafted_total 0",
        "tensorfold:mtp_accepted_total 0",
        *histogram("tensorfold:request_latency_seconds", count.latencies),
        *histogram("tensorfold:time_to_first_token_seconds", count.first_tokens),
    ]
    for name in (
        "requests_total",
        "completion_tokens_total",
        "cached_tokens_total",
        "rounds_total",
        "prefill_seconds_total",
        "decode_seconds_total",
        "context_length",
        "pool_tokens",
        "pool_free_tokens",
        "kept_prompts",
    ):
        if name in state:
            lines.append(f"tensorfold_health:{name} {state[name]}")
    for stream, number in state.get("streams", {}).items():
        line = "streams_max" if stream == "max" else f'streams{{state="{stream}"}}'
        lines.append(f"tensorfold_health:{line} {number}")
    return "\n".join(lines) + "\n"


def usage(request: Request) -> Json:
    return {
        "prompt_tokens": request.prompt_tokens,
        "completion_tokens": request.position,
        "total_tokens": request.prompt_tokens + request.position,
        "prompt_tokens_details": {"cached_tokens": 0},
    }


def own_figures(request: Request) -> Json:
    return {
        "prefill_s": round(request.first - request.arrived, 4),
        "decode_s": round(request.ended - request.first, 4),
        "cached": 0,
        "rounds": request.rounds,
    }


def chat(model: str, ident: str, request: Request, thought: str, answer: str, why: str) -> Json:
    message = {"role": "assistant", "content": answer}
    if thought:
        message["reasoning_content"] = thought
    return {
        "id": ident,
        "object": "chat.completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": why}],
        "usage": usage(request),
        "tensorfold": own_figures(request),
    }


def completion(model: str, ident: str, request: Request, thought: str, answer: str, why: str) -> Json:
    return {
        "id": ident,
        "object": "text_completion",
        "created": int(time.time()),
        "model": model,
        "choices": [{"index": 0, "text": thought + answer, "finish_reason": why}],
        "usage": usage(request),
    }


def response(model: str, ident: str, request: Request, thought: str, answer: str, why: str) -> Json:
    """/v1/responses; the reasoning is left out."""
    content = [{"type": "output_text", "text": answer, "annotations": []}]
    return {
        "id": ident,
        "object": "response",
        "created_at": int(time.time()),
        "model": model,
        "status": "completed" if why == "stop" else "incomplete",
        "output": [{"type": "message", "role": "assistant", "status": "completed", "content": content}],
        "usage": {"input_tokens": request.prompt_tokens, "output_tokens": request.position},
    }


def message(model: str, ident: str, request: Request, thought: str, answer: str, why: str) -> Json:
    """/v1/messages; the reasoning is left out."""
    return {
        "id": ident,
        "type": "message",
        "role": "assistant",
        "model": model,
        "content": [{"type": "text", "text": answer}],
        "stop_reason": "end_turn" if why == "stop" else "max_tokens",
        "usage": {"input_tokens": request.prompt_tokens, "output_tokens": request.position},
    }


def error(text: str, kind: str, code: str | None = None) -> Json:
    body: Json = {"message": text, "type": kind}
    return {"error": body | ({"code": code} if code else {})}
