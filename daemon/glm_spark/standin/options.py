"""TensorFold v0.6.0's command line as the pinned GLM image takes it."""

from __future__ import annotations

import argparse
from dataclasses import dataclass

from glm_spark.standin.failures import Refusal

VERSION = "0.6.0"
NATIVE_CONTEXT = 1_048_576
MOST_PARALLEL = 8
VERBS = ("serve", "info")


@dataclass(frozen=True)
class ServeOptions:
    """One rank's flags, as parsed; `parallel` is still the text given."""

    model: str
    tp: int
    rank: int
    master: str
    master_port: int
    host: str
    port: int
    name: str
    alias: tuple[str, ...]
    context: int
    max_tokens: int
    parallel: str
    drafter: str
    thinking: bool
    vision: bool
    vision_urls: bool
    kv_dtype: str
    spill_gib: float

    @property
    def served_name(self) -> str:
        return self.name or self.model.rstrip("/").rsplit("/", 1)[-1]

    @property
    def slots(self) -> int:
        """How many requests decode together: `auto` is 1 on CUDA."""
        return 1 if self.parallel == "auto" else int(self.parallel)


def build_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tensorfold")
    parser.add_argument("--version", action="version", version=f"tensorfold {VERSION}")
    verbs = parser.add_subparsers(dest="verb", required=True)
    info = verbs.add_parser("info")
    info.add_argument("model")
    serve = verbs.add_parser("serve")
    serve.add_argument("model")
    serve.add_argument("--tp", type=int, default=1, choices=range(1, 5))
    serve.add_argument("--rank", type=int, default=0, choices=range(4))
    serve.add_argument("--master", default="")
    serve.add_argument("--master-port", type=int, default=29551)
    serve.add_argument("--host", default="127.0.0.1")
    serve.add_argument("--port", type=int, default=8080)
    serve.add_argument("--name", default="")
    serve.add_argument("--alias", action="append", default=[])
    serve.add_argument("--context", type=int, default=0)
    serve.add_argument("--max-tokens", type=int, default=4096)
    serve.add_argument("--parallel", default="auto")
    serve.add_argument("--drafter", default="auto")
    serve.add_argument("--thinking", dest="thinking", action="store_true", default=True)
    serve.add_argument("--no-thinking", dest="thinking", action="store_false")
    serve.add_argument("--thinking-budget", type=int, default=0)
    serve.add_argument("--reasoning-effort", choices=("low", "medium", "high", "xhigh"))
    serve.add_argument("--vision", action="store_true")
    serve.add_argument("--vision-urls", action="store_true")
    serve.add_argument("--kv-dtype", default="bf16", choices=("bf16", "int8", "int4"))
    serve.add_argument("--backend", choices=("auto", "mlx", "cuda"), default="auto")
    serve.add_argument("--no-update-check", action="store_true")
    serve.add_argument("--no-drafts", action="store_true")
    for name in ("--temperature", "--top-p", "--min-p", "--prompt-cache-gib"):
        serve.add_argument(name, type=float)
    for name in ("--top-k", "--mtp-drafts", "--checkpoint-slots"):
        serve.add_argument(name, type=int)
    serve.add_argument("--spill-gib", type=float, default=0.0)
    serve.add_argument("--snapshot-dir", default="")
    serve.add_argument("--spill-highwater", type=float, default=0.70)
    serve.add_argument("--spill-min-tokens", type=int, default=8192)
    serve.add_argument("--spill-min-free-gib", type=float, default=50.0)
    return parser


def with_verb(argv: list[str]) -> list[str]:
    """`tensorfold DIR ...` means `tensorfold serve DIR ...`."""
    if argv and not argv[0].startswith("-") and argv[0] not in VERBS:
        return ["serve", *argv]
    return argv


def serve_options(found: argparse.Namespace) -> ServeOptions:
    """The parsed flags with a type each; unused ones (budgets, spill tuning) are dropped."""
    return ServeOptions(
        model=found.model,
        tp=found.tp,
        rank=found.rank,
        master=found.master,
        master_port=found.master_port,
        host=found.host,
        port=found.port,
        name=found.name,
        alias=tuple(found.alias),
        context=found.context,
        max_tokens=found.max_tokens,
        parallel=found.parallel,
        drafter=found.drafter,
        thinking=found.thinking,
        vision=found.vision,
        vision_urls=found.vision_urls,
        kv_dtype=found.kv_dtype,
        spill_gib=found.spill_gib,
    )


def refuse_unusable(options: ServeOptions) -> None:
    """What argparse lets through and the engine refuses a moment later.

    Raises Refusal (one stderr line, exit status 1).
    """
    if not 0 <= options.context <= NATIVE_CONTEXT:
        raise Refusal(f"--context: 0 to {NATIVE_CONTEXT} (the native window), not {options.context}")
    parallel = options.parallel
    if parallel != "auto" and not (parallel.isdecimal() and 1 <= int(parallel) <= MOST_PARALLEL):
        raise Refusal(f"--parallel: 1 to {MOST_PARALLEL} requests at once for GLM-5.3-Flash, not {parallel}")
    if options.rank >= options.tp:
        raise Refusal(f"--rank {options.rank} of --tp {options.tp}: ranks are 0 to {options.tp - 1}")
    if options.tp > 1 and not options.master:
        raise Refusal(f"--tp {options.tp} needs --master, the address of rank 0")
    if options.vision_urls and not options.vision:
        raise Refusal("--vision-urls needs --vision")
    if options.slots > 1 and options.drafter == "none":
        raise Refusal(f"--parallel {parallel} needs the DFlash2 drafter: give --drafter DIR, or --parallel 1")
