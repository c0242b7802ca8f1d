"""Every setting with its default, its bounds, when a change takes effect and whether the Sparks must agree on it.

The engine's defaults are those of the MiaAI recipe v1.10 for TensorFold v0.6.0 on two and three Sparks.
"""

from __future__ import annotations

import ipaddress
from typing import Annotated, Literal

from pydantic import Field, ValidationInfo, field_validator, model_validator

from glm_spark.config import rules
from glm_spark.config.engine import NATIVE_CONTEXT, Engine, Spill, Tuning
from glm_spark.config.keys import (
    REPOSITORY,
    REPOSITORY_FORM,
    REVISION,
    REVISION_FORM,
    SERVED_NAME,
    SERVED_NAME_FORM,
    AbsolutePath,
    Address,
    Effect,
    GiB,
    Line,
    MountPath,
    NetdevPattern,
    OptionalMountPath,
    OptionalPath,
    Port,
    Seconds,
    Section,
    key,
)
from glm_spark.config.weights import Weights

__all__ = [
    "NATIVE_CONTEXT",
    "Api",
    "Cluster",
    "Config",
    "Control",
    "Effect",
    "Engine",
    "Fabric",
    "GiB",
    "Gpu",
    "Hook",
    "Log",
    "Memory",
    "Metrics",
    "Model",
    "Node",
    "Port",
    "Seconds",
    "Section",
    "Spill",
    "Stop",
    "Timeouts",
    "Tuning",
    "Weights",
    "key",
]


class Cluster(Section):
    name: str = key(
        "glm",
        why="names this set on every rank and in every session",
        effect=Effect.RESTART,
        agree=True,
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,31}$",
        form="1 to 32 letters, digits, dots, - or _, the first a letter or a digit",
    )
    token_file: AbsolutePath = key(
        "/etc/glm-spark/token",
        why="the secret all Sparks share; the systemd credential glm-spark-token wins",
        effect=Effect.RESTART,
        private=True,
    )


class Node(Section):
    name: str = key(
        why="the Spark's host name",
        effect=Effect.RESTART,
        agree=True,
        pattern=r"^[A-Za-z0-9](?:[A-Za-z0-9.-]{0,61}[A-Za-z0-9])?$",
        form="a host name of 1 to 63 letters, digits, dots and -",
    )
    address: Address = key(
        "",
        why="its address on the cable, as the leader reaches it; needed for every worker",
        effect=Effect.RESTART,
        agree=True,
    )
    lan_address: Address = key(
        "",
        why="three Sparks: NCCL's bootstrap runs over the LAN; default: the address on the default-route netdev",
        effect=Effect.RESTART,
        agree=True,
    )


class Fabric(Section):
    transport: Literal["roce", "socket"] = key(
        "roce", why="roce: RDMA over the cable; socket: NCCL over TCP, about half the speed", agree=True
    )
    netdevs: tuple[NetdevPattern, ...] = key(
        (),
        why="only these netdevs (shell patterns) count as the cable; empty: every "
        "netdev with a RoCE device, or with socket every one but the default route's",
    )
    mtu: int = key(9000, why="the MTU wanted on both ends", unit="bytes", ge=1280, le=65535)
    allow_link_local: bool = key(False, why="169.254.x.x addresses change at reboots; true accepts them")
    nccl_channels: int = key(
        4,
        why="NCCL's channels, most and least; its own choice is slower",
        agree=True,
        variable="NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS",
        ge=1,
        le=32,
    )
    hold_seconds: Seconds = key(
        5.0, why="a lost carrier stops the ranks only after this long", unit="s", effect=Effect.LIVE, ge=0, le=600
    )


class Control(Section):
    port: Port = key(8899, why="the control API and the session between Sparks", effect=Effect.RESTART, agree=True)


class Api(Section):
    host: str = key(
        "127.0.0.1",
        why="where the endpoint listens; wider than loopback needs keys_file or open",
        effect=Effect.RESTART,
    )
    port: Port = key(8888, why="the OpenAI-compatible endpoint", effect=Effect.RESTART)
    open: bool = key(False, why="true serves a network without keys; said at every start", effect=Effect.RESTART)
    keys_file: OptionalPath = key(
        "", why="one API key a line, mode 0600, re-read on change", effect=Effect.RESTART, private=True
    )
    allowed_hosts: tuple[Line, ...] = key(
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
        form="ADDRESS:PORT such as 192.168.1.5:9099, or empty",
    )

    @field_validator("listen")
    @classmethod
    def _listen(cls, value: str) -> str:
        if value == "":
            return value
        host, _, port = value.rpartition(":")
        try:
            ipaddress.ip_address(host.removeprefix("[").removesuffix("]"))
            if not (port.isascii() and port.isdigit() and 1 <= int(port[:6]) <= 65535):
                raise ValueError
        except ValueError:
            raise ValueError("ADDRESS:PORT such as 192.168.1.5:9099 is wanted, or empty") from None
        return value


ServedName = Annotated[Line, Field(pattern=SERVED_NAME, max_length=200)]


class Model(Section):
    name: ServedName = key("GLM-5.3-Flash-EXL3", why="the name clients ask for", agree=True, form=SERVED_NAME_FORM)
    alias: tuple[ServedName, ...] = key(
        (),
        why="further names that clients may ask for",
        agree=True,
        form="a list of names without spaces that do not start with -",
    )
    repository: str = key(
        "Mia-AiLab/GLM-5.3-Flash-EXL3-4bpw-TensorFold",
        why="the checkpoint",
        agree=True,
        pattern=REPOSITORY,
        form=REPOSITORY_FORM,
    )
    revision: str = key(
        "078455ffe6472f9a52fbc1139f58b9db2881b25c",
        why="the checkpoint's pinned revision",
        agree=True,
        pattern=REVISION,
        form=REVISION_FORM,
    )
    cache: MountPath = key("/var/lib/glm-spark/huggingface", why="the Hugging Face cache that holds the weights")
    path: OptionalMountPath = key("", why="a snapshot directory to serve as it is, instead of the cache's")
    drafter: Literal["mtp", "dflash2"] = key(
        "mtp", why="mtp: the checkpoint's own head; dflash2: faster, non-commercial licence", agree=True
    )
    drafter_repository: str = key(
        "incoai/GLM-5.3-Flash-DFlash2",
        why="the DFlash2 drafter",
        agree=True,
        pattern=REPOSITORY,
        form=REPOSITORY_FORM,
    )
    drafter_revision: str = key(
        "bf582e4eacc1810f76656d1811693ff6c6737d2a",
        why="its pinned revision",
        agree=True,
        pattern=REVISION,
        form=REVISION_FORM,
    )
    drafter_path: OptionalMountPath = key("", why="a drafter directory to use as it is")
    accept_noncommercial: bool = key(False, why="true accepts DFlash2's licence, CC BY-NC-ND 4.0", agree=True)


class Memory(Section):
    want_available_gib: GiB = key(
        110.0,
        why="less before a start is a warning; refused only below what the engine says it needs",
        unit="GiB",
        effect=Effect.LIVE,
        ge=0,
        le=128,
    )
    floor_gib: GiB = key(
        2.0,
        why="less available under a running set ends all ranks before the Spark freezes; 7 is left at rest; 0: never",
        unit="GiB",
        effect=Effect.LIVE,
        ge=0,
        le=32,
    )


class Gpu(Section):
    clock_limit_mhz: int = key(
        0,
        why="upper limit of the GPU's clock, set at each start; 0: left alone. The published figures: 2200",
        unit="MHz",
        ge=0,
        le=10_000,
    )


class Timeouts(Section):
    silence_seconds: Seconds = key(
        600.0, why="no progress for so long ends a load", unit="s", effect=Effect.LIVE, agree=True, ge=1, le=86_400
    )
    suspect_seconds: Seconds = key(
        2.0, why="no beat for so long withdraws readiness", unit="s", effect=Effect.RESTART, agree=True, ge=0.2, le=600
    )
    lease_seconds: Seconds = key(
        15.0, why="no beat for so long ends the ranks", unit="s", effect=Effect.RESTART, agree=True, ge=1, le=3600
    )
    answer_seconds: Seconds = key(
        120.0,
        why="the first reply after a load must come within",
        unit="s",
        effect=Effect.LIVE,
        agree=True,
        ge=1,
        le=86_400,
    )


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


class Canary(Section):
    """How a serving engine is watched. TensorFold gives up on a lost peer by itself after TF_ROCE_WAIT_S (300 s)."""

    interval_seconds: Seconds = key(
        60.0, why="an idle engine is asked a small question this often", unit="s", effect=Effect.LIVE, ge=1, le=86400
    )
    answer_seconds: Seconds = key(
        30.0,
        why="no answer to it for so long, while nothing else runs: the engine hangs",
        unit="s",
        effect=Effect.LIVE,
        ge=1,
        le=3600,
    )
    decode_seconds: Seconds = key(
        330.0, why="no token of a reply for so long: the engine hangs", unit="s", effect=Effect.LIVE, ge=1, le=86400
    )
    prefill_seconds: Seconds = key(
        1800.0,
        why="a prompt may be read for so long (a million tokens take 16 minutes)",
        unit="s",
        effect=Effect.LIVE,
        ge=1,
        le=86400,
    )


class Recovery(Section):
    failures: int = key(
        6,
        why="so many failures within the window leave the set stopped until something changes",
        effect=Effect.LIVE,
        ge=1,
        le=1000,
    )
    window_seconds: Seconds = key(3600.0, why="the window", unit="s", effect=Effect.LIVE, ge=1, le=604800)


class Log(Section):
    level: Literal["debug", "info", "warning", "error"] = key(
        "info", why="what reaches the journal", effect=Effect.LIVE
    )
    engine_lines: bool = key(True, why="pass the engine's own lines on", effect=Effect.LIVE)


class Hook(Section):
    command: tuple[Line, ...] = key(
        (),
        why="program by absolute path and its arguments, run when the set is not-ready, degraded, breaker-open or "
        "cleared; gets the event as JSON on its standard input, nothing of the daemon's environment",
        effect=Effect.LIVE,
        private=True,
    )
    repeat_seconds: Seconds = key(
        3600.0, why="an event that still holds is told again after this; 0: once", unit="s", effect=Effect.LIVE,
        ge=0, le=604_800,
    )  # fmt: skip
    timeout_seconds: Seconds = key(
        10.0, why="the program is killed after this", unit="s", effect=Effect.LIVE, ge=0.1, le=300
    )

    @field_validator("command")
    @classmethod
    def _command(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        if value and not value[0].startswith("/"):
            raise ValueError("the program's absolute path is wanted first, such as /etc/glm-spark/alert")
        return value


class Config(Section):
    """The whole file. Ranks follow the order of `node`; the first is the leader."""

    cluster: Cluster = Field(default=Cluster(), description="The set as a whole.")
    node: tuple[Node, ...] = Field(
        min_length=2, max_length=3, description="The Sparks in rank order; the first is the leader."
    )
    fabric: Fabric = Field(default=Fabric(), description="The cable between the Sparks.")
    control: Control = Field(default=Control(), description="The daemon's own port, on loopback and on the cable.")
    api: Api = Field(default=Api(), description="The endpoint for client programs, on the leader.")
    metrics: Metrics = Field(default=Metrics(), description="Prometheus figures elsewhere than on loopback.")
    model: Model = Field(default=Model(), description="What is served.")
    weights: Weights = Field(default=Weights(), description="How the weights come onto each Spark.")
    engine: Engine = Field(default=Engine(), description="How the ranks are run, and what they are told.")
    memory: Memory = Field(default=Memory(), description="A Spark's unified memory.")
    gpu: Gpu = Field(default=Gpu(), description="A Spark's GPU.")
    timeouts: Timeouts = Field(default=Timeouts(), description="When silence means something.")
    canary: Canary = Field(default=Canary(), description="How a serving engine is watched.")
    recovery: Recovery = Field(default=Recovery(), description="How often a set may fail.")
    stop: Stop = Field(default=Stop(), description="How a stop goes.")
    hook: Hook = Field(default=Hook(), description="A program of yours that hears of trouble, on the leader.")
    log: Log = Field(default=Log(), description="The journal.")

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
        """KiB of the largest all-gather over RoCE: 512, and 1024 with a 64-row window."""
        limit = self.engine.tuning.roce_max_kb
        if limit != "auto":
            return limit
        # A row of the window is 16 KiB of an all-gather.
        return 16 * self.multi_window if self.multi_window > 32 else 512

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

    @property
    def comm(self) -> Literal["roce", "nccl"]:
        """Who carries small all-gathers: RoCE with two Sparks; NCCL with three, as the recipe does, or over sockets."""
        comm = self.engine.tuning.comm
        if comm != "auto":
            return comm
        return "roce" if self.size == 2 and self.fabric.transport == "roce" else "nccl"

    @model_validator(mode="after")
    def _rules(self, info: ValidationInfo) -> Config:
        # The loader asks for the rules itself, to report them together with the faults of single keys.
        if info.context != rules.LATER and (found := rules.faults(self)):
            raise ValueError("\n".join(str(fault) for fault in found))
        return self
