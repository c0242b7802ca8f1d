"""The engine's settings. The defaults are those of the MiaAI recipe v1.10 for TensorFold v0.6.0."""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from glm_spark.config.keys import (
    GiB,
    Line,
    MountPath,
    OptionalMountPath,
    Port,
    Seconds,
    Section,
    Share,
    key,
)

NATIVE_CONTEXT = 1_048_576  # tokens; GLM-5.3-Flash's native window

_WORD = r"^\S+$"
_WORD_FORM = "text in quotes, not empty and without spaces"

# The bound stands inside the union, so that "auto" is not measured against it.
GiBOrAuto = Annotated[GiB, Field(ge=0, le=128)] | Literal["auto"]


class Spill(Section):
    gib: GiB = key(
        0.0, why="size of the spill tier for cached prompts; 0: off", unit="GiB", agree=True, ge=0, le=1_000_000
    )
    directory: OptionalMountPath = key("", why="where the spill tier lies; needed when gib is above 0")
    highwater: Share = key(0.70, why="share of the pool that starts spilling", agree=True, gt=0, le=1)
    min_tokens: int = key(
        8192, why="shorter prompts are not spilled", unit="tokens", agree=True, ge=0, le=NATIVE_CONTEXT
    )
    min_free_gib: GiB = key(50.0, why="disk left free", unit="GiB", agree=True, ge=0, le=1_000_000)
    flush_seconds: Seconds = key(
        60.0,
        why="rank 0 may take this long to flush at a stop",
        unit="s",
        agree=True,
        variable="TF_SPILL_FLUSH_S",
        ge=0,
        le=3600,
    )


def _tune(default: Any, variable: str, why: str, unit: str = "", **bounds: Any) -> Any:
    return key(default, why=why, unit=unit, agree=True, variable=variable, **bounds)


class Tuning(Section):
    """What the recipe sets through TF_GLM_*, TF_ROCE_* and TENSORFOLD_*; "auto" depends on the number of Sparks."""

    kv: Literal["fp8", "bf16"] = _tune("fp8", "TF_GLM_KV", "precision of the KV cache; bf16 halves what fits")
    dense: Literal["q4", "fp8", "bf16"] = _tune(
        "q4", "TF_GLM_DENSE", "the weights outside the experts; fp8 and bf16 are slower and larger"
    )
    mtp: Literal["auto", "0", "1"] = _tune(
        "auto", "TF_GLM_MTP", "load the checkpoint's own drafting head; auto: only where it drafts"
    )
    comm: Literal["auto", "roce", "nccl"] = _tune(
        "auto",
        "TF_GLM_COMM",
        "small all-gathers as RDMA writes or over NCCL; auto: roce with two Sparks, nccl with three or over sockets",
    )
    copy_drafts: bool = _tune(True, "TF_GLM_COPY_DRAFTS", "draft what followed the same words earlier")
    copy_max: int = _tune(15, "TF_GLM_COPY_MAX", "longest copied draft of a round", "tokens", ge=0, le=64)
    copy_reply_match: int = _tune(
        16, "TF_GLM_COPY_REPLY_MATCH", "copy from the reply itself only after so long a match", "tokens", ge=0, le=1024
    )
    dflash_policy: str = _tune(
        "fnc7:0.3", "TF_GLM_DFLASH_POLICY", "when a chain of DFlash2's drafts ends", pattern=_WORD, form=_WORD_FORM
    )
    hc_split: bool = _tune(
        True, "TF_GLM_HC_SPLIT", "split prompt chunks between the Sparks; false when NCCL error 2 returns, and slower"
    )
    prefill_overlap: int = _tune(
        2, "TF_GLM_PREFILL_OVERLAP", "how far the split's exchanges overlap with work; 0: not", ge=0, le=2
    )
    kda_chunked: bool = _tune(True, "TF_GLM_KDA_CHUNKED", "faster prompt kernel, close to the serial one's arithmetic")
    wide_graphs: int = _tune(
        16, "TF_GLM_WIDE_GRAPHS", "verify windows up to this run as CUDA graphs; 0: off", "rows", ge=0, le=64
    )
    multi_lone: bool = _tune(
        False, "TF_GLM_MULTI_LONE", "one-stream graphs for a lone request; evicts other conversations' kept prompts"
    )
    multi_window: Annotated[int, Field(ge=16, le=64, multiple_of=8)] | Literal["auto"] = _tune(
        "auto",
        "TF_GLM_MULTI_WINDOW",
        "all requests' verify windows of a round together; auto: 32, or 64 above 4 requests",
        "rows",
        form='a whole number of rows from 16 to 64 in steps of 8, or "auto",',
    )
    multi_prefill: bool = _tune(True, "TF_GLM_MULTI_PREFILL", "fill waiting prompts together")
    cache_entries: int = _tune(
        32, "TF_GLM_CACHE_ENTRIES", "prompt states kept for reuse, about 45 MiB each", ge=0, le=4096
    )
    cache_gib: GiBOrAuto = _tune(
        "auto", "TF_GLM_CACHE_GIB", "most that kept prompts may take; auto: 12.5, or 32 with three Sparks", "GiB"
    )
    stream_smooth: bool = _tune(True, "TF_GLM_STREAM_SMOOTH", "stream tokens at a steady pace")
    stream_smooth_ms: int = _tune(400, "TF_GLM_STREAM_SMOOTH_MS", "text appears that much later", "ms", ge=0, le=60_000)
    fill_budget_ms: int = _tune(
        200,
        "TF_GLM_FILL_BUDGET_MS",
        "a prompt fills in slices of this while others decode; 0: whole",
        "ms",
        ge=0,
        le=60_000,
    )
    fill_drafts: bool = _tune(True, "TF_GLM_FILL_DRAFTS", "the others go on drafting meanwhile")
    l2_prefetch: bool = _tune(True, "TF_GLM_L2PF", "fetch the next kernels' weights into L2 during all-gathers")
    exl3_loads: Literal["nc", "0"] = _tune(
        "nc", "TF_GLM_EXL3_LOADS", "how the expert kernel loads weights; 0: TensorFold's own way"
    )
    shared_prefix: bool = _tune(True, "TF_GLM_SHARED_PREFIX", "conversations with one system prompt share its state")
    nucleus_union: bool = _tune(
        True, "TENSORFOLD_NUCLEUS_UNION", "sample from all ranks' candidates together; false is several times slower"
    )
    roce_max_kb: Annotated[int, Field(ge=1, le=65536)] | Literal["auto"] = _tune(
        "auto", "TF_ROCE_MAX_KB", "largest all-gather over RoCE; auto: 512, or 16 a row of a wider window", "KiB"
    )
    roce_wait_seconds: int = _tune(
        300, "TF_ROCE_WAIT_S", "an all-gather over RoCE fails after waiting so long for a peer", "s", ge=1, le=3600
    )
    memory_reserve_gib: GiBOrAuto = _tune(
        "auto",
        "TENSORFOLD_MEMORY_RESERVE_GIB",
        "left free of what is available; auto: 14.5, +0.95 a request past 4, +0.04 a window row past 32",
        "GiB",
    )


OPTIONS_FORM = 'a list such as ["--name=value"], each entry one option with its value,'
# What a rank's life depends on: its name and marks, who reads its output, who ends and removes it.
_OWNED_OPTIONS = frozenset(
    [
        "--name",
        "--label",
        "--label-file",
        "--detach",
        "--interactive",
        "--tty",
        "--init",
        "--rm",
        "--restart",
        "--replace",
        "--log-driver",
        "--log-opt",
        "--sdnotify",
        "--pull",
        "--cidfile",
        "--pidfile",
        "--detach-keys",
        "--attach",
        "--sig-proxy",
        "--network",
        "--net",
        "--help",
        "--read-only",
    ]
)

_ENGINE_VARIABLE = re.compile(r"(TENSORFOLD|TF_GLM|TF_ROCE)_[A-Z0-9_]+")
# Derived on each Spark from its own end of the cable; one value for all ranks would be wrong on most of them.
_OWN_TO_A_SPARK = frozenset({"TF_ROCE_HCA"})


def variables() -> dict[str, str]:
    """The engine's variables that have a setting of their own, with that setting's path."""
    found = {"TF_GLM_MAX_QUEUED": "engine.max_queued"}
    for prefix, section in (("engine.tuning", Tuning), ("engine.spill", Spill)):
        for name, field in section.model_fields.items():
            extra = field.json_schema_extra
            if isinstance(extra, dict) and extra["variable"]:
                found[str(extra["variable"])] = f"{prefix}.{name}"
    return found


class Engine(Section):
    runtime: Literal["podman", "docker", "process"] = key("podman", why="how a rank is run")
    command: tuple[Line, ...] = key(
        ("tensorfold",),
        why='what stands before "serve"; with runtime = "process" it is run as it is',
        form='a list such as ["tensorfold"], its first entry a program,',
        min_length=1,
    )
    image: str = key(
        "ghcr.io/miaai-lab/glm-5.3-flash-exl3-2x-dgx-sparks-tensorfold@sha256:"
        "bc34d7d63f978cf601f42863b284bc95a567c50c10e9adb0866a635be568bf5f",
        why="the container image, pinned by digest",
        agree=True,
        pattern=r"^(localhost/[^\s]+|[A-Za-z0-9][^\s]*@sha256:[0-9a-f]{64}|sha256:[0-9a-f]{64})$",
        form="an image pinned by its digest, NAME@sha256: and 64 hexadecimal digits, or localhost/NAME of your own",
    )
    pull: bool = key(False, why="true fetches a missing image, about 25 GB, before a start")
    hand_over: bool = key(
        True, why="a worker that lacks the pinned image and cannot pull it takes it from the leader (podman)"
    )
    runtime_options: tuple[Line, ...] = key(
        (),
        why='options of podman or docker itself, before its verb, such as "--cgroup-manager=cgroupfs"',
        form=OPTIONS_FORM,
    )
    container_options: tuple[Line, ...] = key(
        (),
        why="further options of podman run or docker run; one of the same --ulimit or --cgroups replaces ours",
        form=OPTIONS_FORM,
    )
    gpu_options: tuple[Line, ...] = key(
        (),
        why="how a container is given the GPU; empty: --device=nvidia.com/gpu=all with podman, --gpus=all with docker",
        form=OPTIONS_FORM,
    )
    http_port: Port = key(8889, why="where rank 0 serves on 127.0.0.1", agree=True)
    master_port: Port = key(29551, why="the ranks' rendezvous; unauthenticated: keep it fenced", agree=True)
    context: int = key(
        NATIVE_CONTEXT,
        why="prompt and reply together; 0: the largest that fits",
        unit="tokens",
        agree=True,
        ge=0,
        le=NATIVE_CONTEXT,
    )
    max_tokens: int = key(
        32768,
        why="longest reply when a request names none; 4096 cuts answers",
        unit="tokens",
        agree=True,
        ge=1,
        le=NATIVE_CONTEXT,
    )
    parallel: Annotated[int, Field(ge=1, le=8)] | Literal["auto"] = key(
        "auto",
        why="requests that decode together; auto: 1 with mtp; with dflash2 4, or 8 on three Sparks",
        agree=True,
    )
    thinking: bool = key(True, why="the model thinks before it answers", agree=True)
    thinking_budget: int = key(
        0, why="longest thought; 0: no limit", unit="tokens", agree=True, ge=0, le=NATIVE_CONTEXT
    )
    reasoning_effort: Literal["", "low", "medium", "high", "xhigh"] = key(
        "", why="how hard it thinks; empty: the engine's default", agree=True
    )
    vision: bool = key(True, why="accept pictures; takes about 1.8 GiB on the leader", agree=True)
    vision_urls: bool = key(False, why="fetch pictures by URL; needs vision", agree=True)
    max_queued: int = key(
        0,
        why="requests that may wait in the engine; 0: no limit",
        agree=True,
        variable="TF_GLM_MAX_QUEUED",
        ge=0,
        le=65536,
    )
    kernel_cache: MountPath = key("/var/cache/glm-spark/kernels", why="compiled kernels, a folder an image")
    shm_gib: int = key(16, why="shared memory of a container", unit="GiB", ge=1, le=128)
    environment: dict[str, str] = key(
        {},
        why="further TENSORFOLD_*, TF_GLM_* and TF_ROCE_* values, for all ranks alike",
        agree=True,
        form='names and texts, such as { TF_GLM_EXAMPLE = "1" }',
    )
    spill: Spill = Field(default=Spill(), description="Cached prompts on disk.")
    tuning: Tuning = Field(default=Tuning(), description="The recipe's settings of the engine.")

    @field_validator("command")
    @classmethod
    def _command(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if not all(value):
            raise ValueError("an entry is empty")
        if "/" in value[0] and not value[0].startswith("/"):
            raise ValueError("the program's name or its absolute path is wanted first")
        return value

    @field_validator("runtime_options", "container_options", "gpu_options")
    @classmethod
    def _options(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        """Long options with their value in the same entry, so that none can take the next word for itself."""
        for option in value:
            if not re.fullmatch(r"--[a-z0-9][a-z0-9-]*(=.*)?", option):
                raise ValueError(f"{option[:60]!r}: a long option such as --name=value is wanted, one an entry")
            if option.partition("=")[0] in _OWNED_OPTIONS:
                raise ValueError(f"{option.partition('=')[0]} is set by glm-spark itself; leave it out")
        return value

    @field_validator("environment")
    @classmethod
    def _environment(cls, value: dict[str, str]) -> dict[str, str]:
        """Names the engine knows, each set in one place only. An empty variable is never passed on."""
        owned = variables()
        for name, text in value.items():
            if not _ENGINE_VARIABLE.fullmatch(name):
                raise ValueError(f"{name[:60]!r}: only TENSORFOLD_*, TF_GLM_* and TF_ROCE_* names are passed on")
            if name in owned:
                raise ValueError(f"{name} has a setting of its own, {owned[name]}; set it there")
            if name in _OWN_TO_A_SPARK:
                raise ValueError(f"{name} follows from the cable on each Spark; leave it out")
            if not text or not text.isprintable():
                raise ValueError(f"{name} is empty or holds a control character; give it a value or leave it out")
        return value
