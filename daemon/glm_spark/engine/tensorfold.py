"""What TensorFold v0.6.0 is told: every rank's command line and environment, from the configuration and the rails.

Flags and their order follow `tensorfold serve` and the MiaAI recipe v1.10 (start.sh, scripts/nodes.sh). Nothing here
touches the world: device names and GID indexes come in as this Spark's own rails.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from glm_spark.config.engine import variables
from glm_spark.config.model import Config
from glm_spark.engine.paths import seen_by_engine
from glm_spark.engine.spec import LocalRail, RankSpec, Variant


def model_directory(config: Config) -> str:
    """The snapshot directory of the checkpoint on this Spark."""
    model = config.model
    return model.path or snapshot(model.cache, model.repository, model.revision)


def drafter_directory(config: Config) -> str:
    """The snapshot directory of the DFlash2 drafter on this Spark, "" where the checkpoint's own head drafts."""
    model = config.model
    if model.drafter == "mtp":
        return ""
    return model.drafter_path or snapshot(model.cache, model.drafter_repository, model.drafter_revision)


def drafter_argument(config: Config) -> str:
    """The value of --drafter: "none" for the checkpoint's own MTP head, else the drafter's directory on this Spark."""
    return drafter_directory(config) or "none"


def snapshot(cache: str, repository: str, revision: str) -> str:
    """Where a Hugging Face cache holds one revision of a repository."""
    return f"{cache.rstrip('/')}/hub/models--{repository.replace('/', '--')}/snapshots/{revision}"


def rank_spec(
    config: Config,
    me: str,
    generation: int,
    rails: tuple[LocalRail, ...],
    master: str,
    bootstrap_netdev: str,
    variant: Variant,
) -> RankSpec:
    """One rank, ready to be started.

    `me` is this Spark's name in the file (KeyError when it is not there). `rails` are its rails toward all peers in
    the order that all ranks agreed on. `master` is rank 0's address: for a worker the leader's on that worker's link,
    for rank 0 its own (two Sparks: on the cable, three: on the LAN). `bootstrap_netdev` carries NCCL's bootstrap with
    three Sparks; with two it is the first rail's netdev.
    """
    rank = config.rank_of(me)
    return RankSpec(
        cluster=config.cluster.name,
        node=me,
        rank=rank,
        generation=generation,
        argv=arguments(config, rank, master, variant),
        environment=environment(config, rails, bootstrap_netdev, variant),
    )


def arguments(config: Config, rank: int, master: str, variant: Variant) -> tuple[str, ...]:
    """The rank's argv. With a container runtime everything from "serve" on runs in the image."""
    engine = config.engine
    argv = [*engine.command, "serve", seen_by_engine(config, model_directory(config))]
    argv += ["--tp", str(config.size), "--rank", str(rank)]
    argv += ["--master", master, "--master-port", str(engine.master_port)]
    if rank == 0:
        argv += ["--name", config.model.name, "--host", "127.0.0.1", "--port", str(engine.http_port)]
        for alias in config.model.alias:
            argv += ["--alias", alias]
    drafter = drafter_directory(config)
    argv += ["--drafter", seen_by_engine(config, drafter) if drafter else "none"]
    context = engine.context if variant.context is None else variant.context
    argv += ["--context", str(context), "--parallel", str(config.parallel), "--max-tokens", str(engine.max_tokens)]
    return (*argv, *_thinking(config), *_vision(config), *_spill(config))


def _thinking(config: Config) -> Iterable[str]:
    engine = config.engine
    yield "--thinking" if engine.thinking else "--no-thinking"
    if engine.thinking_budget:
        yield from ("--thinking-budget", str(engine.thinking_budget))
    if engine.reasoning_effort:
        yield from ("--reasoning-effort", engine.reasoning_effort)


def _vision(config: Config) -> Iterable[str]:
    if config.engine.vision:
        yield "--vision"
    if config.engine.vision_urls:
        yield "--vision-urls"


def _spill(config: Config) -> Iterable[str]:
    """The optional tier of cached prompts on disk; nothing at all when it is off."""
    spill = config.engine.spill
    if not spill.gib:
        return
    yield from ("--spill-gib", _number(spill.gib))
    if spill.directory:
        yield from ("--snapshot-dir", seen_by_engine(config, spill.directory))
    yield from ("--spill-highwater", _number(spill.highwater), "--spill-min-tokens", str(spill.min_tokens))
    yield from ("--spill-min-free-gib", _number(spill.min_free_gib))


def environment(
    config: Config, rails: tuple[LocalRail, ...], bootstrap_netdev: str, variant: Variant
) -> dict[str, str]:
    """All the rank is told through variables: the same on every rank, then this Spark's own, then the free table.

    A variable without a value is left out: an empty NCCL_IB_GID_INDEX means index 0, which is never right here.
    """
    told = {
        "HF_HUB_OFFLINE": "1",
        **_shared(config, variant),
        **_nccl(config, rails, bootstrap_netdev),
        **_own_paths(config),
        **config.engine.environment,
    }
    return {name: value for name, value in told.items() if value != ""}


def _shared(config: Config, variant: Variant) -> dict[str, str]:
    """The recipe's switches: the ranks compare them and refuse to start when they differ."""
    tuning, engine = config.engine.tuning, config.engine
    told = {
        "TF_GLM_MTP": tuning.mtp,
        "TF_GLM_KV": tuning.kv,
        "TF_GLM_DENSE": tuning.dense,
        "TF_GLM_COMM": config.comm,
        "TF_GLM_COPY_DRAFTS": _switch(tuning.copy_drafts),
        "TF_GLM_COPY_MAX": str(tuning.copy_max),
        "TF_GLM_DFLASH_POLICY": tuning.dflash_policy,
        "TF_GLM_HC_SPLIT": _switch(tuning.hc_split and not variant.gentle),
        "TF_GLM_PREFILL_OVERLAP": str(0 if variant.gentle else tuning.prefill_overlap),
        "TF_GLM_KDA_CHUNKED": _switch(tuning.kda_chunked),
        "TF_GLM_WIDE_GRAPHS": str(tuning.wide_graphs),
        "TF_GLM_COPY_REPLY_MATCH": str(tuning.copy_reply_match),
        "TF_GLM_MULTI_LONE": _switch(tuning.multi_lone),
        "TF_GLM_MULTI_WINDOW": str(config.multi_window),
        "TF_GLM_CACHE_ENTRIES": str(tuning.cache_entries),
        "TF_GLM_MULTI_PREFILL": _switch(tuning.multi_prefill),
        "TF_GLM_STREAM_SMOOTH": _switch(tuning.stream_smooth),
        "TF_GLM_STREAM_SMOOTH_MS": str(tuning.stream_smooth_ms),
        "TF_GLM_FILL_BUDGET_MS": str(tuning.fill_budget_ms),
        "TF_GLM_FILL_DRAFTS": _switch(tuning.fill_drafts),
        "TF_GLM_L2PF": _switch(tuning.l2_prefetch),
        "TF_GLM_EXL3_LOADS": tuning.exl3_loads,
        "TF_GLM_SHARED_PREFIX": _switch(tuning.shared_prefix),
        "TF_GLM_CACHE_GIB": _number(config.cache_gib),
        "TF_ROCE_MAX_KB": str(config.roce_max_kb),
        "TF_ROCE_WAIT_S": str(tuning.roce_wait_seconds),
        "TENSORFOLD_MEMORY_RESERVE_GIB": _number(config.memory_reserve_gib),
        "TENSORFOLD_NUCLEUS_UNION": _switch(tuning.nucleus_union),
        "TENSORFOLD_NO_UPDATE_CHECK": "1",
    }
    if engine.max_queued:  # 0 would refuse every request past the lanes: the engine's "no limit" is the unset variable
        told["TF_GLM_MAX_QUEUED"] = str(engine.max_queued)
    if engine.spill.gib:
        told["TF_SPILL_FLUSH_S"] = _number(engine.spill.flush_seconds)
    return told


def _nccl(config: Config, rails: tuple[LocalRail, ...], bootstrap_netdev: str) -> dict[str, str]:
    """This Spark's netdev, devices and GID index, and what the number of Sparks asks of NCCL."""
    pair = config.size == 2
    told = {
        "NCCL_SOCKET_IFNAME": (rails[0].netdev if rails else "") if pair else bootstrap_netdev,
        "NCCL_MIN_NCHANNELS": str(config.fabric.nccl_channels),
        "NCCL_MAX_NCHANNELS": str(config.fabric.nccl_channels),
        # INIT and NET are what shows the transport really in use: NCCL falls back to TCP without a word of warning.
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET",
    }
    if not pair:
        told |= {"NCCL_CROSS_NIC": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}
    if config.fabric.transport == "socket":
        return told | {"NCCL_IB_DISABLE": "1"}
    devices = ",".join(dict.fromkeys(rail.device for rail in rails if rail.device))
    told |= {"NCCL_IB_HCA": devices, "NCCL_IB_GID_INDEX": common_gid_index(rails)}
    if not pair:
        told |= {"NCCL_IB_SUBNET_AWARE_ROUTING": "1", "TF_ROCE_HCA": devices}
    return told


def common_gid_index(rails: tuple[LocalRail, ...]) -> str:
    """The GID index all devices of this Spark share, "" when they differ or one is unknown.

    One variable stands for all devices, so an index that is right for one only would break the others; without it
    NCCL finds each device's RoCE v2 entry by itself.
    """
    indexes = {rail.gid_index for rail in rails}
    index = indexes.pop() if len(indexes) == 1 else None
    return "" if index is None else str(index)


def _own_paths(config: Config) -> dict[str, str]:
    """Where compiled kernels are kept. A container's image names its own folder, which the runtime mounts."""
    if config.engine.runtime != "process":
        return {}
    return {"TORCH_EXTENSIONS_DIR": config.engine.kernel_cache}


def _switch(on: bool) -> str:
    return "1" if on else "0"


def _number(value: float) -> str:
    """GiB, seconds and shares without a needless fraction: 12.5, 32, 0.7."""
    return f"{value:.6g}"


# Where each setting of the tables [model], [engine] and [fabric] that concerns the engine arrives.
reached_settings: Mapping[str, str] = {
    "fabric.transport": "TF_GLM_COMM, NCCL_IB_DISABLE",
    "fabric.nccl_channels": "NCCL_MIN_NCHANNELS, NCCL_MAX_NCHANNELS",
    "model.name": "--name",
    "model.alias": "--alias",
    "model.repository": "MODEL",
    "model.revision": "MODEL",
    "model.cache": "MODEL",
    "model.path": "MODEL",
    "model.drafter": "--drafter",
    "model.drafter_repository": "--drafter",
    "model.drafter_revision": "--drafter",
    "model.drafter_path": "--drafter",
    "model.accept_noncommercial": "the configuration's own rule",
    "engine.runtime": "the runtime",
    "engine.command": "argv",
    "engine.image": "the container runtimes",
    "engine.shm_gib": "the container runtimes",
    "engine.pull": "the container runtimes",
    "engine.hand_over": "the container runtimes",
    "engine.runtime_options": "the container runtimes",
    "engine.container_options": "the container runtimes",
    "engine.gpu_options": "the container runtimes",
    "engine.http_port": "--port",
    "engine.master_port": "--master-port",
    "engine.context": "--context",
    "engine.max_tokens": "--max-tokens",
    "engine.parallel": "--parallel",
    "engine.thinking": "--thinking, --no-thinking",
    "engine.thinking_budget": "--thinking-budget",
    "engine.reasoning_effort": "--reasoning-effort",
    "engine.vision": "--vision",
    "engine.vision_urls": "--vision-urls",
    "engine.kernel_cache": "TORCH_EXTENSIONS_DIR",
    "engine.environment": "the variables themselves",
    "engine.spill.gib": "--spill-gib",
    "engine.spill.directory": "--snapshot-dir",
    "engine.spill.highwater": "--spill-highwater",
    "engine.spill.min_tokens": "--spill-min-tokens",
    "engine.spill.min_free_gib": "--spill-min-free-gib",
    **{path: variable for variable, path in variables().items()},
}
