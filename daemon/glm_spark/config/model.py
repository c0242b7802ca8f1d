"""Every setting with its default, its bounds, when a change takes effect and whether the Sparks must agree on it.

The engine's defaults are those of the MiaAI recipe v1.10 for TensorFold v0.6.0 on two and three Sparks.
"""

from __future__ import annotations

import ipaddress
import re
from enum import StrEnum
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, field_validator, model_validator

NATIVE_CONTEXT = 1_048_576  # tokens; GLM-5.3-Flash's native window


class Effect(StrEnum):
    """When a changed key takes effect."""

    LIVE = "live"  # on reload
    NEXT_START = "next start of the set"  # `glm-spark restart`, or the next recovery
    RESTART = "restart"  # of this Spark's daemon


def key(
    default: Any = ...,
    *,
    why: str,
    unit: str = "",
    effect: Effect = Effect.NEXT_START,
    agree: bool = False,
    **bounds: Any,
) -> Any:
    """A setting. `agree` marks what the Sparks compare in their hello."""
    return Field(
        default, description=why, json_schema_extra={"unit": unit, "effect": effect.value, "agree": agree}, **bounds
    )


class Section(BaseModel):
    """A table of config.toml; unknown keys are faults and values are not coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    @model_validator(mode="before")
    @classmethod
    def _arrays(cls, value: Any) -> Any:
        """TOML has arrays where a frozen model has tuples."""
        if not isinstance(value, dict):
            return value
        return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}


def _lenient_float(value: Any) -> Any:
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


Seconds = Annotated[float, BeforeValidator(_lenient_float)]
GiB = Annotated[float, BeforeValidator(_lenient_float)]
Port = Annotated[int, Field(ge=1, le=65535)]


def _address(value: str) -> str:
    """An IPv4 address in dotted form, or "" for none."""
    if value == "":
        return value
    try:
        return str(ipaddress.IPv4Address(value))
    except ValueError:
        raise ValueError("an IPv4 address such as 192.168.100.2 is wanted") from None


class Cluster(Section):
    name: str = key(
        "glm",
        why="names this set on every rank and in every session",
        effect=Effect.RESTART,
        agree=True,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$",
    )
    token_file: str = key(
        "/etc/glm-spark/token",
        why="the secret all Sparks share; the systemd credential glm-spark-token wins",
        effect=Effect.RESTART,
        min_length=1,
    )


class Node(Section):
    name: str = key(
        why="the Spark's host name", effect=Effect.RESTART, agree=True, pattern=r"^[A-Za-z0-9]([A-Za-z0-9.-]{0,62})$"
    )
    address: str = key(
        "",
        why="its address on the cable, as the leader reaches it; needed for every worker",
        effect=Effect.RESTART,
        agree=True,
    )
    lan_address: str = key(
        "",
        why="three Sparks: NCCL's bootstrap runs over the LAN; default: the address on the default-route netdev",
        effect=Effect.RESTART,
        agree=True,
    )

    _addresses = field_validator("address", "lan_address")(_address)


class Fabric(Section):
    transport: Literal["roce", "socket"] = key(
        "roce", why="roce: RDMA over the cable; socket: NCCL over TCP, about half the speed", agree=True
    )
    netdevs: tuple[str, ...] = key(
        (),
        why="only these netdevs (shell patterns) count as the cable; empty: every "
        "netdev with a RoCE device, or with socket every one but the default route's",
    )
    mtu: int = key(9000, why="the MTU wanted on both ends", unit="bytes", ge=1280, le=65535)
    allow_link_local: bool = key(False, why="169.254.x.x addresses change at reboots; true accepts them")
    hold_seconds: Seconds = key(
        5.0, why="a lost carrier stops the ranks only after this long", unit="s", effect=Effect.LIVE, ge=0, le=600
    )


class Control(Section):
    port: Port = key(8899, why="the control API and the session between Sparks", effect=Effect.RESTART)


class Api(Section):
    host: str = key(
        "127.0.0.1",
        why="where the endpoint listens; wider than loopback needs keys_file or open",
        effect=Effect.RESTART,
    )
    port: Port = key(8888, why="the OpenAI-compatible endpoint", effect=Effect.RESTART)
    open: bool = key(False, why="true serves a network without keys; said at every start", effect=Effect.RESTART)
    keys_file: str = key("", why="one API key a line, mode 0600, re-read on change", effect=Effect.RESTART)
    allowed_hosts: tuple[str, ...] = key(
        (), why="further names clients may use in Host and Origin when open", effect=Effect.LIVE
    )
    max_body_mib: int = key(
        96, why="larger request bodies are refused", unit="MiB", effect=Effect.RESTART, ge=1, le=1024
    )
    max_requests: int = key(64, why="requests in flight; one more is answered 429", effect=Effect.LIVE, ge=1, le=4096)

    @field_validator("host")
    @classmethod
    def _host(cls, value: str) -> str:
        try:
            return str(ipaddress.ip_address(value))
        except ValueError:
            raise ValueError("an IP address such as 127.0.0.1 or 0.0.0.0 is wanted") from None


class Metrics(Section):
    listen: str = key(
        "",
        why="ADDRESS:PORT that serves /metrics without the token; empty: nowhere",
        effect=Effect.RESTART,
        pattern=r"^$|^\S+:\d{1,5}$",
    )


class Model(Section):
    name: str = key("GLM-5.3-Flash-EXL3", why="the name clients ask for", agree=True, min_length=1, max_length=200)
    alias: tuple[str, ...] = key((), why="further names that clients may ask for", agree=True)
    repository: str = key(
        "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold",
        why="the checkpoint",
        agree=True,
        pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$",
    )
    revision: str = key(
        "078455ffe6472f9a52fbc1139f58b9db2881b25c",
        why="the checkpoint's pinned revision",
        agree=True,
        pattern=r"^[0-9a-f]{40}$",
    )
    cache: str = key("/var/lib/glm-spark/huggingface", why="the Hugging Face cache that holds the weights")
    path: str = key("", why="a snapshot directory to serve as it is, instead of the cache's")
    drafter: Literal["mtp", "dflash2"] = key(
        "mtp", why="mtp: the checkpoint's own head; dflash2: faster, non-commercial licence", agree=True
    )
    drafter_repository: str = key(
        "incoai/GLM-5.3-Flash-DFlash2",
        why="the DFlash2 drafter",
        agree=True,
        pattern=r"^[A-Za-z0-9._-]+/[A-Za-z0-9._-]+$",
    )
    drafter_revision: str = key(
        "bf582e4eacc1810f76656d1811693ff6c6737d2a", why="its pinned revision", agree=True, pattern=r"^[0-9a-f]{40}$"
    )
    drafter_path: str = key("", why="a drafter directory to use as it is")
    accept_noncommercial: bool = key(False, why="true accepts DFlash2's licence, CC BY-NC-ND 4.0", agree=True)


class Spill(Section):
    gib: GiB = key(0.0, why="size of the spill tier for cached prompts; 0: off", unit="GiB", agree=True, ge=0)
    directory: str = key("", why="where the spill tier lies")
    highwater: float = key(0.70, why="share of the pool that starts spilling", agree=True, gt=0, le=1)
    min_tokens: int = key(8192, why="shorter prompts are not spilled", unit="tokens", agree=True, ge=0)
    min_free_gib: GiB = key(50.0, why="disk left free", unit="GiB", agree=True, ge=0)
    flush_seconds: Seconds = key(
        60.0, why="rank 0 may take this long to flush at a stop", unit="s", agree=True, ge=0, le=3600
    )


class Tuning(Section):
    """What the recipe sets through TF_GLM_*, TF_ROCE_* and TENSORFOLD_*; "auto" depends on the number of Sparks."""

    kv: Literal["fp8", "bf16"] = key("fp8", why="precision of the KV cache (TF_GLM_KV)", agree=True)
    dense: str = key("q4", why="TF_GLM_DENSE", agree=True)
    copy_drafts: bool = key(True, why="TF_GLM_COPY_DRAFTS", agree=True)
    copy_max: int = key(15, why="TF_GLM_COPY_MAX", agree=True, ge=0)
    copy_reply_match: int = key(16, why="TF_GLM_COPY_REPLY_MATCH", agree=True, ge=0)
    dflash_policy: str = key("fnc7:0.3", why="TF_GLM_DFLASH_POLICY", agree=True)
    hc_split: bool = key(True, why="TF_GLM_HC_SPLIT", agree=True)
    prefill_overlap: int = key(2, why="TF_GLM_PREFILL_OVERLAP", agree=True, ge=0)
    kda_chunked: bool = key(True, why="TF_GLM_KDA_CHUNKED", agree=True)
    wide_graphs: int = key(16, why="TF_GLM_WIDE_GRAPHS", agree=True, ge=0)
    multi_lone: bool = key(False, why="TF_GLM_MULTI_LONE", agree=True)
    multi_window: int | Literal["auto"] = key(
        "auto", why="TF_GLM_MULTI_WINDOW; auto: 32, or 64 above 4 requests", unit="rows", agree=True
    )
    multi_prefill: bool = key(True, why="TF_GLM_MULTI_PREFILL", agree=True)
    cache_entries: int = key(32, why="TF_GLM_CACHE_ENTRIES", agree=True, ge=0)
    cache_gib: GiB | Literal["auto"] = key(
        "auto", why="TF_GLM_CACHE_GIB; auto: 12.5, or 32 with three Sparks", unit="GiB", agree=True
    )
    stream_smooth: bool = key(True, why="TF_GLM_STREAM_SMOOTH", agree=True)
    stream_smooth_ms: int = key(400, why="TF_GLM_STREAM_SMOOTH_MS", unit="ms", agree=True, ge=0)
    fill_budget_ms: int = key(200, why="TF_GLM_FILL_BUDGET_MS", unit="ms", agree=True, ge=0)
    fill_drafts: bool = key(True, why="TF_GLM_FILL_DRAFTS", agree=True)
    l2_prefetch: bool = key(True, why="TF_GLM_L2PF", agree=True)
    exl3_loads: str = key("nc", why="TF_GLM_EXL3_LOADS", agree=True)
    shared_prefix: bool = key(True, why="TF_GLM_SHARED_PREFIX", agree=True)
    nucleus_union: bool = key(True, why="TENSORFOLD_NUCLEUS_UNION", agree=True)
    roce_max_kb: int | Literal["auto"] = key(
        "auto", why="TF_ROCE_MAX_KB; auto: 512, or 1024 with a 64-row window", unit="KiB", agree=True
    )
    roce_wait_seconds: int = key(300, why="TF_ROCE_WAIT_S", unit="s", agree=True, ge=1)
    memory_reserve_gib: GiB | Literal["auto"] = key(
        "auto",
        why="TENSORFOLD_MEMORY_RESERVE_GIB; auto: 14.5, +0.95 a request past 4, +0.04 a window row past 32",
        unit="GiB",
        agree=True,
    )


_ENGINE_VARIABLE = re.compile(r"^(TENSORFOLD|TF_GLM|TF_ROCE)_[A-Z0-9_]+$")


class Engine(Section):
    runtime: Literal["podman", "docker", "process"] = key("podman", why="how a rank is run")
    command: tuple[str, ...] = key(
        ("tensorfold",), why='what stands before "serve"; with runtime = "process" it is run as it is', min_length=1
    )
    image: str = key(
        "ghcr.io/miaai-lab/glm-5.3-flash-exl3-2x-dgx-sparks-tensorfold@sha256:"
        "bc34d7d63f978cf601f42863b284bc95a567c50c10e9adb0866a635be568bf5f",
        why="the container image, pinned by digest",
        agree=True,
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
        why="longest reply when a request names none (4096 cuts answers)",
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
    thinking_budget: int = key(0, why="longest thought; 0: no limit", unit="tokens", agree=True, ge=0)
    reasoning_effort: Literal["", "low", "medium", "high", "xhigh"] = key(
        "", why="empty: the engine's default", agree=True
    )
    vision: bool = key(False, why="accept pictures", agree=True)
    vision_urls: bool = key(False, why="fetch pictures by URL; needs vision", agree=True)
    max_queued: int = key(
        0, why="requests that may wait in the engine; 0: no limit (TF_GLM_MAX_QUEUED)", agree=True, ge=0
    )
    kernel_cache: str = key("/var/cache/glm-spark/kernels", why="compiled kernels, a folder an image")
    spill: Spill = Field(default=Spill(), description="cached prompts on disk")
    tuning: Tuning = Field(default=Tuning(), description="the recipe's settings of the engine")
    environment: dict[str, str] = key(
        {}, why="further TENSORFOLD_*, TF_GLM_*, TF_ROCE_* values, for all ranks", agree=True
    )

    @field_validator("environment")
    @classmethod
    def _environment(cls, value: dict[str, str]) -> dict[str, str]:
        for name in value:
            if not _ENGINE_VARIABLE.match(name):
                raise ValueError(f"{name}: only TENSORFOLD_*, TF_GLM_* and TF_ROCE_* names are passed on")
        return value

    @model_validator(mode="after")
    def _vision(self) -> Engine:
        if self.vision_urls and not self.vision:
            raise ValueError("vision_urls = true needs vision = true")
        return self


class Memory(Section):
    want_available_gib: GiB = key(
        110.0,
        why="less before a start is a warning; refused only below what the engine says it needs",
        unit="GiB",
        effect=Effect.LIVE,
        ge=0,
    )


class Timeouts(Section):
    silence_seconds: Seconds = key(
        600.0, why="no progress for so long ends a load", unit="s", effect=Effect.LIVE, agree=True, ge=1
    )
    suspect_seconds: Seconds = key(
        2.0, why="no beat for so long withdraws readiness", unit="s", effect=Effect.RESTART, agree=True, ge=0.2
    )
    lease_seconds: Seconds = key(
        15.0, why="no beat for so long ends the ranks", unit="s", effect=Effect.RESTART, agree=True, ge=1
    )
    answer_seconds: Seconds = key(
        120.0, why="the first reply after a load must come within", unit="s", effect=Effect.LIVE, ge=1
    )

    @model_validator(mode="after")
    def _order(self) -> Timeouts:
        if self.lease_seconds <= self.suspect_seconds:
            raise ValueError("lease_seconds must be longer than suspect_seconds")
        return self


class Stop(Section):
    drain_seconds: Seconds = key(
        30.0,
        why="running requests may go on for so long after a stop is asked",
        unit="s",
        effect=Effect.LIVE,
        ge=0,
        le=3600,
    )
    kill_seconds: Seconds = key(
        10.0, why="a rank that was asked to end is killed after so long", unit="s", effect=Effect.LIVE, ge=0.1, le=600
    )


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = key(
        "info", why="what reaches the journal", effect=Effect.LIVE
    )
    engine_lines: bool = key(True, why="pass the engine's own lines on", effect=Effect.LIVE)


class Config(Section):
    """The whole file. Ranks follow the order of `node`; the first is the leader."""

    cluster: Cluster = Field(default=Cluster())
    node: tuple[Node, ...] = Field(min_length=2, max_length=3)
    fabric: Fabric = Field(default=Fabric())
    control: Control = Field(default=Control())
    api: Api = Field(default=Api())
    metrics: Metrics = Field(default=Metrics())
    model: Model = Field(default=Model())
    engine: Engine = Field(default=Engine())
    memory: Memory = Field(default=Memory())
    timeouts: Timeouts = Field(default=Timeouts())
    stop: Stop = Field(default=Stop())
    log: Log = Field(default=Log())

    @property
    def leader(self) -> Node:
        return self.node[0]

    @property
    def size(self) -> int:
        """How many Sparks, which is the engine's --tp."""
        return len(self.node)

    def rank_of(self, name: str) -> int:
        """The rank of a Spark by its name in the file; KeyError when it is not there."""
        for rank, node in enumerate(self.node):
            if node.name == name:
                return rank
        raise KeyError(name)

    @property
    def parallel(self) -> int:
        if self.engine.parallel != "auto":
            return self.engine.parallel
        if self.model.drafter == "mtp":
            return 1
        return 8 if self.size == 3 else 4

    @property
    def multi_window(self) -> int:
        """Rows of the engine's batch window: 32, or 64 past four requests."""
        window = self.engine.tuning.multi_window
        return window if window != "auto" else (64 if self.parallel > 4 else 32)

    @property
    def roce_max_kb(self) -> int:
        limit = self.engine.tuning.roce_max_kb
        return limit if limit != "auto" else (1024 if self.multi_window >= 64 else 512)

    @property
    def cache_gib(self) -> float:
        size = self.engine.tuning.cache_gib
        return size if size != "auto" else (32.0 if self.size == 3 else 12.5)

    @property
    def memory_reserve_gib(self) -> float:
        """GiB the engine leaves free: 14.5, and 19.6 (rounded) at 8 requests with a 64-row window."""
        reserve = self.engine.tuning.memory_reserve_gib
        if reserve != "auto":
            return reserve
        grown = 14.5 + 0.95 * max(0, self.parallel - 4) + 0.04 * max(0, self.multi_window - 32)
        return round(grown, 1)

    @model_validator(mode="after")
    def _rules(self) -> Config:
        faults = [*self._node_faults(), *self._licence_faults(), *self._port_faults()]
        if faults:
            # pydantic reports one text a validator; the loader splits it at the separator again.
            raise ValueError("\x1f".join(faults))
        return self

    def _node_faults(self) -> list[str]:
        faults = []
        for attribute in ("name", "address", "lan_address"):
            seen: dict[str, int] = {}
            for index, node in enumerate(self.node):
                value = getattr(node, attribute)
                if value and value in seen:
                    faults.append(
                        f"node[{index}].{attribute}: {value!r} is also node[{seen[value]}]'s; each Spark needs its own"
                    )
                seen.setdefault(value, index)
        for index, node in enumerate(self.node[1:], start=1):
            if not node.address:
                faults.append(f"node[{index}].address: missing; give {node.name}'s address on the cable")
        return faults

    def _licence_faults(self) -> list[str]:
        faults = []
        if self.model.drafter == "dflash2" and not self.model.accept_noncommercial:
            faults.append(
                "model.drafter: dflash2 is licensed CC BY-NC-ND 4.0 (non-commercial); set "
                'model.accept_noncommercial = true to accept that, or use drafter = "mtp"'
            )
        if self.model.drafter == "mtp" and self.parallel > 1:
            faults.append(
                f"engine.parallel: {self.parallel} needs the DFlash2 drafter; with drafter = "
                '"mtp" use parallel = 1 or "auto"'
            )
        return faults

    def _port_faults(self) -> list[str]:
        ports = {
            "control.port": self.control.port,
            "api.port": self.api.port,
            "engine.http_port": self.engine.http_port,
            "engine.master_port": self.engine.master_port,
        }
        faults = []
        names = list(ports)
        for i, name in enumerate(names):
            for other in names[:i]:
                if ports[name] == ports[other]:
                    faults.append(f"{name}: {ports[name]} is also {other}; give each its own port")
        loopback = ipaddress.ip_address(self.api.host).is_loopback
        if not loopback and not self.api.keys_file and not self.api.open:
            faults.append(
                f"api.host: {self.api.host} is reachable from a network; set api.keys_file, or api.open "
                "= true to serve it without keys"
            )
        return faults
