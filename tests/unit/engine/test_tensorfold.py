"""Every rank is started exactly as the recipe starts it, and every setting arrives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from pydantic import BaseModel

from glm_spark.config.model import Config
from glm_spark.engine import tensorfold
from glm_spark.engine.paths import seen_by_engine
from glm_spark.engine.spec import LocalRail, RankSpec, Variant
from glm_spark.engine.tensorfold import rank_spec, reached_settings

MODEL = (
    "/var/lib/glm-spark/huggingface/hub/models--Mia-AiLab--GLM-5.3-Flash-EXL3-4bpw-TensorFold/"
    "snapshots/078455ffe6472f9a52fbc1139f58b9db2881b25c"
)
DRAFTER = (
    "/var/lib/glm-spark/huggingface/hub/models--incoai--GLM-5.3-Flash-DFlash2/"
    "snapshots/bf582e4eacc1810f76656d1811693ff6c6737d2a"
)
SHARED = {
    "HF_HUB_OFFLINE": "1",
    "TF_GLM_MTP": "auto",
    "TF_GLM_KV": "fp8",
    "TF_GLM_DENSE": "q4",
    "TF_GLM_COPY_DRAFTS": "1",
    "TF_GLM_COPY_MAX": "15",
    "TF_GLM_DFLASH_POLICY": "fnc7:0.3",
    "TF_GLM_HC_SPLIT": "1",
    "TF_GLM_PREFILL_OVERLAP": "2",
    "TF_GLM_KDA_CHUNKED": "1",
    "TF_GLM_WIDE_GRAPHS": "16",
    "TF_GLM_COPY_REPLY_MATCH": "16",
    "TF_GLM_MULTI_LONE": "0",
    "TF_GLM_CACHE_ENTRIES": "32",
    "TF_GLM_MULTI_PREFILL": "1",
    "TF_GLM_STREAM_SMOOTH": "1",
    "TF_GLM_STREAM_SMOOTH_MS": "400",
    "TF_GLM_FILL_BUDGET_MS": "200",
    "TF_GLM_FILL_DRAFTS": "1",
    "TF_GLM_L2PF": "1",
    "TF_GLM_EXL3_LOADS": "nc",
    "TF_GLM_SHARED_PREFIX": "1",
    "TF_ROCE_WAIT_S": "300",
    "TENSORFOLD_NUCLEUS_UNION": "1",
    "TENSORFOLD_NO_UPDATE_CHECK": "1",
    "NCCL_MIN_NCHANNELS": "4",
    "NCCL_MAX_NCHANNELS": "4",
    "NCCL_DEBUG": "INFO",
    "NCCL_DEBUG_SUBSYS": "INIT,NET",
    "TORCH_EXTENSIONS_DIR": "/var/cache/glm-spark/kernels",
}
FOUR = {"TF_GLM_MULTI_WINDOW": "32", "TF_ROCE_MAX_KB": "512", "TENSORFOLD_MEMORY_RESERVE_GIB": "14.5"}
EIGHT = {"TF_GLM_MULTI_WINDOW": "64", "TF_ROCE_MAX_KB": "1024", "TENSORFOLD_MEMORY_RESERVE_GIB": "19.6"}
TRIANGLE = {"NCCL_CROSS_NIC": "1", "NCCL_P2P_DISABLE": "1", "NCCL_SHM_DISABLE": "1"}


def config(sparks: int = 2, transport: str = "roce", drafter: str = "mtp", **tables: dict[str, Any]) -> Config:
    nodes = [
        {"name": "spark-1"},
        *({"name": f"spark-{n}", "address": f"192.168.10{n}.2"} for n in (2, 3)[: sparks - 1]),
    ]
    told: dict[str, Any] = {
        "node": nodes,
        "fabric": {"transport": transport},
        "model": {"drafter": drafter, "accept_noncommercial": drafter == "dflash2", **tables.pop("model", {})},
        "engine": {"runtime": "process", **tables.pop("engine", {})},
        **tables,
    }
    return Config.model_validate(told)


def rail(peer: str, number: int, device: str | None, gid_index: int | None) -> LocalRail:
    return LocalRail(
        peer=peer,
        netdev=f"enp1s0f{number}np{number}",
        address=f"192.168.10{number}.1",
        peer_address=f"192.168.10{number}.2",
        mtu=9000,
        device=device,
        gid_index=gid_index,
    )


PAIR = (rail("spark-2", 0, "rocep1s0f0", 3), rail("spark-2", 1, "roceP2p1s0f0", 3))
PAIR_TCP = (rail("spark-2", 0, None, None), rail("spark-2", 1, None, None))
THREE = (
    rail("spark-2", 0, "rocep1s0f0", 3),
    rail("spark-2", 1, "roceP2p1s0f0", 3),
    rail("spark-3", 0, "rocep1s0f1", 3),
)


def spec(made: Config, me: str, rails: tuple[LocalRail, ...], variant: Variant | None = None) -> RankSpec:
    return rank_spec(made, me, 5, rails, "192.168.100.1", "enP7s7", variant or Variant())


def test_two_sparks_over_roce_with_the_models_own_head() -> None:
    made = spec(config(), "spark-1", PAIR)
    assert made.argv == (
        *("tensorfold", "serve", MODEL, "--tp", "2", "--rank", "0"),
        *("--master", "192.168.100.1", "--master-port", "29551"),
        *("--name", "GLM-5.3-Flash-EXL3", "--host", "127.0.0.1", "--port", "8889"),
        *("--drafter", "none", "--context", "1048576", "--parallel", "1", "--max-tokens", "32768"),
        *("--thinking", "--vision"),
    )
    assert made.environment == {
        **SHARED,
        **FOUR,
        "TF_GLM_COMM": "roce",
        "TF_GLM_CACHE_GIB": "12.5",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_IB_HCA": "rocep1s0f0,roceP2p1s0f0",
        "NCCL_IB_GID_INDEX": "3",
    }
    assert (made.cluster, made.node, made.rank, made.generation) == ("glm", "spark-1", 0, 5)


def test_a_worker_with_the_drafter_is_told_nothing_of_http() -> None:
    made = spec(config(drafter="dflash2"), "spark-2", PAIR)
    assert made.argv == (
        *("tensorfold", "serve", MODEL, "--tp", "2", "--rank", "1"),
        *("--master", "192.168.100.1", "--master-port", "29551"),
        *("--drafter", DRAFTER, "--context", "1048576", "--parallel", "4", "--max-tokens", "32768"),
        *("--thinking", "--vision"),
    )
    assert made.environment["TF_GLM_MULTI_WINDOW"] == "32"


def test_two_sparks_over_tcp_name_no_device_and_no_gid() -> None:
    made = spec(config(transport="socket"), "spark-1", PAIR_TCP)
    assert made.environment == {
        **SHARED,
        **FOUR,
        "TF_GLM_COMM": "nccl",
        "TF_GLM_CACHE_GIB": "12.5",
        "NCCL_SOCKET_IFNAME": "enp1s0f0np0",
        "NCCL_IB_DISABLE": "1",
    }


def test_three_sparks_over_roce_with_the_drafter() -> None:
    made = spec(config(3, drafter="dflash2"), "spark-1", THREE)
    assert made.argv[made.argv.index("--parallel") + 1] == "8"
    assert made.argv[made.argv.index("--tp") + 1] == "3"
    devices = "rocep1s0f0,roceP2p1s0f0,rocep1s0f1"
    assert made.environment == {
        **SHARED,
        **EIGHT,
        **TRIANGLE,
        "TF_GLM_COMM": "nccl",
        "TF_GLM_CACHE_GIB": "32",
        "NCCL_SOCKET_IFNAME": "enP7s7",
        "NCCL_IB_HCA": devices,
        "NCCL_IB_GID_INDEX": "3",
        "NCCL_IB_SUBNET_AWARE_ROUTING": "1",
        "TF_ROCE_HCA": devices,
    }


def test_three_sparks_over_tcp_with_the_models_own_head() -> None:
    made = spec(config(3, "socket"), "spark-3", PAIR_TCP)
    assert made.argv[made.argv.index("--rank") + 1] == "2"
    assert made.environment == {
        **SHARED,
        **FOUR,
        **TRIANGLE,
        "TF_GLM_COMM": "nccl",
        "TF_GLM_CACHE_GIB": "32",
        "NCCL_SOCKET_IFNAME": "enP7s7",
        "NCCL_IB_DISABLE": "1",
    }


@pytest.mark.parametrize("indexes", [(3, 4), (3, None), (None, None)])
def test_a_gid_index_that_is_not_right_for_every_device_is_left_out(indexes: tuple[int | None, ...]) -> None:
    rails = tuple(rail("spark-2", n, f"roce{n}", index) for n, index in enumerate(indexes))
    assert "NCCL_IB_GID_INDEX" not in spec(config(), "spark-1", rails).environment


def test_a_device_toward_two_peers_is_named_once() -> None:
    rails = (rail("spark-2", 0, "rocep1s0f0", 3), rail("spark-3", 0, "rocep1s0f0", 3))
    assert spec(config(3), "spark-1", rails).environment["NCCL_IB_HCA"] == "rocep1s0f0"


def test_an_empty_variable_is_never_passed_on() -> None:
    made = config(engine={"environment": {"TF_GLM_MORE": "1"}})
    for rails, sparks in itertools.product(((), PAIR_TCP, PAIR), (2, 3)):
        told = rank_spec(config(sparks), "spark-1", 1, rails, "10.0.0.1", "", Variant()).environment
        assert "" not in told.values()
    assert spec(made, "spark-1", PAIR).environment["TF_GLM_MORE"] == "1"


def test_the_free_table_has_the_last_word() -> None:
    made = config(engine={"environment": {"TENSORFOLD_NO_UPDATE_CHECK": "0"}})
    assert spec(made, "spark-1", PAIR).environment["TENSORFOLD_NO_UPDATE_CHECK"] == "0"


def test_a_variant_changes_the_window_and_the_split_on_every_rank_alike() -> None:
    variant = Variant(context=524288, gentle=True)
    for me in ("spark-1", "spark-2"):
        made = spec(config(), me, PAIR, variant)
        assert made.argv[made.argv.index("--context") + 1] == "524288"
        assert (made.environment["TF_GLM_HC_SPLIT"], made.environment["TF_GLM_PREFILL_OVERLAP"]) == ("0", "0")


def test_the_ranks_agree_on_all_that_is_not_their_own() -> None:
    """The engine compares these and refuses to start when they differ."""
    other = tuple(one.model_copy(update={"device": "rocep1s0f1", "gid_index": 4}) for one in PAIR)
    first, second = (spec(config(), me, rails).environment for me, rails in (("spark-1", PAIR), ("spark-2", other)))
    own = {"NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_GID_INDEX"}
    assert {k: v for k, v in first.items() if k not in own} == {k: v for k, v in second.items() if k not in own}


# One other value for each setting, and what must be set beside it for the value to count.
OTHER: dict[str, tuple[Any, dict[str, Any]]] = {
    "fabric.transport": ("socket", {}),
    "model.name": ("other", {}),
    "model.alias": (["second"], {}),
    "model.repository": ("a/b", {}),
    "model.revision": ("0" * 40, {}),
    "model.cache": ("/hf", {}),
    "model.path": ("/weights", {}),
    "model.drafter": ("dflash2", {"model.accept_noncommercial": True}),
    "model.drafter_repository": ("a/b", {"model.drafter": "dflash2", "model.accept_noncommercial": True}),
    "model.drafter_revision": ("0" * 40, {"model.drafter": "dflash2", "model.accept_noncommercial": True}),
    "model.drafter_path": ("/d", {"model.drafter": "dflash2", "model.accept_noncommercial": True}),
    "engine.command": (["/opt/tensorfold"], {}),
    "engine.http_port": (9999, {}),
    "engine.master_port": (9999, {}),
    "engine.context": (65536, {}),
    "engine.max_tokens": (100, {}),
    "engine.parallel": (2, {"model.drafter": "dflash2", "model.accept_noncommercial": True}),
    "engine.thinking": (False, {}),
    "engine.thinking_budget": (5, {}),
    "engine.reasoning_effort": ("low", {}),
    "engine.vision": (False, {}),
    "engine.vision_urls": (True, {"engine.vision": True}),
    "engine.max_queued": (3, {}),
    "engine.kernel_cache": ("/kernels", {}),
    "engine.environment": ({"TF_GLM_X": "1"}, {}),
    "engine.spill.gib": (10.0, {"engine.spill.directory": "/spill"}),
    "engine.spill.directory": ("/s", {"engine.spill.gib": 10.0, "engine.spill.directory": "/spill"}),
    "engine.spill.highwater": (0.5, {"engine.spill.gib": 10.0, "engine.spill.directory": "/spill"}),
    "engine.spill.min_tokens": (1, {"engine.spill.gib": 10.0, "engine.spill.directory": "/spill"}),
    "engine.spill.min_free_gib": (1.0, {"engine.spill.gib": 10.0, "engine.spill.directory": "/spill"}),
    "engine.spill.flush_seconds": (1.0, {"engine.spill.gib": 10.0, "engine.spill.directory": "/spill"}),
    "engine.tuning.kv": ("bf16", {}),
    "engine.tuning.dense": ("fp8", {}),
    "engine.tuning.dflash_policy": ("fc5:0.3", {}),
    "engine.tuning.exl3_loads": ("0", {}),
    "engine.tuning.mtp": ("1", {}),
    "engine.tuning.comm": ("nccl", {}),
    "engine.tuning.hc_split": (False, {"engine.tuning.prefill_overlap": 0}),
    "engine.tuning.prefill_overlap": (1, {}),
    "engine.tuning.multi_window": (48, {}),
    "engine.tuning.cache_gib": (9.0, {}),
    "engine.tuning.roce_max_kb": (256, {}),
    "engine.tuning.memory_reserve_gib": (20.0, {}),
}
# These reach the daemon itself, not the rank.
NOT_THE_RANK = {
    "model.accept_noncommercial",
    *(path for path, where in reached_settings.items() if where in ("the runtime", "the container runtimes")),
}


def leaves(section: type[BaseModel], prefix: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= leaves(field.annotation, f"{prefix}{name}.")
        else:
            found[f"{prefix}{name}"] = field.default
    return found


def all_settings() -> dict[str, Any]:
    models = {name: Config.model_fields[name].annotation for name in ("model", "engine")}
    found: dict[str, Any] = {"fabric.transport": "roce", "fabric.nccl_channels": 4}
    for name, section in models.items():
        assert isinstance(section, type)
        found |= leaves(section, f"{name}.")
    return found


def told(changes: dict[str, Any]) -> RankSpec:
    tree: dict[str, Any] = {"engine": {"runtime": "process"}}
    for path, value in changes.items():
        *tables, key = path.split(".")
        place = tree
        for table in tables:
            place = place.setdefault(table, {})
        place[key] = value
    made = Config.model_validate(
        {"node": [{"name": "spark-1"}, {"name": "spark-2", "address": "192.168.100.2"}], **tree}
    )
    return spec(made, "spark-1", PAIR)


def test_every_setting_of_the_model_is_accounted_for() -> None:
    assert set(reached_settings) == set(all_settings())


@pytest.mark.parametrize("path", sorted(set(all_settings()) - NOT_THE_RANK))
def test_a_changed_setting_reaches_the_rank(path: str) -> None:
    default = all_settings()[path]
    value, beside = OTHER.get(path, (not default if isinstance(default, bool) else default, {}))
    if path not in OTHER and not isinstance(default, bool):
        value = default + 1
    before, after = told(beside), told({**beside, path: value})
    assert (before.argv, before.environment) != (after.argv, after.environment)
    names = [name.strip() for name in reached_settings[path].split(",")]
    seen = (*before.argv, *before.environment, *after.argv, *after.environment)
    assert any(name in seen for name in names) or names[0] in ("MODEL", "argv", "the variables themselves")


def test_a_container_sees_its_own_paths() -> None:
    made = config(drafter="dflash2", engine={"runtime": "podman"})
    assert seen_by_engine(made, MODEL) == MODEL.replace("/var/lib/glm-spark/huggingface", "/root/.cache/huggingface")
    argv = spec(made, "spark-1", PAIR).argv
    assert argv[2].startswith("/root/.cache/huggingface/hub/")
    assert argv[argv.index("--drafter") + 1].startswith("/root/.cache/huggingface/hub/")
    assert "TORCH_EXTENSIONS_DIR" not in spec(made, "spark-1", PAIR).environment
    elsewhere = config(engine={"runtime": "docker"}, model={"path": "/data/model/"})
    assert spec(elsewhere, "spark-1", PAIR).argv[2] == "/model"
    assert tensorfold.model_directory(elsewhere) == "/data/model/"


def test_the_drafter_is_none_or_a_directory() -> None:
    assert tensorfold.drafter_argument(config()) == "none"
    assert tensorfold.drafter_argument(config(drafter="dflash2")) == DRAFTER
