"""The recipe's defaults, those that depend on two or three Sparks, and the rules between settings."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from glm_spark.config import engine, tree
from glm_spark.config.keys import Effect
from glm_spark.config.model import Config
from glm_spark.config.words import extra, wanted

NODES = [
    {"name": "spark-1"},
    {"name": "spark-2", "address": "192.168.100.2"},
    {"name": "spark-3", "address": "192.168.101.3"},
]
DFLASH2 = {"drafter": "dflash2", "accept_noncommercial": True}


def sparks(count: int, **tables: Any) -> Config:
    return Config.model_validate({"node": NODES[:count], **tables})


def derived(config: Config) -> tuple[Any, ...]:
    return (
        config.parallel,
        config.multi_window,
        config.roce_max_kb,
        config.cache_gib,
        config.memory_reserve_gib,
        config.comm,
    )


@pytest.mark.parametrize(
    ("count", "tables", "figures"),
    [
        (2, {}, (1, 32, 512, 12.5, 14.5, "roce")),
        (2, {"model": DFLASH2}, (4, 32, 512, 12.5, 14.5, "roce")),
        # MiaAI recipe v1.10: 19.6 GiB are left free at 8 requests with a 64-row window.
        (2, {"model": DFLASH2, "engine": {"parallel": 8}}, (8, 64, 1024, 12.5, 19.6, "roce")),
        (3, {"model": DFLASH2}, (8, 64, 1024, 32.0, 19.6, "nccl")),
        (3, {}, (1, 32, 512, 32.0, 14.5, "nccl")),
        (2, {"fabric": {"transport": "socket"}}, (1, 32, 512, 12.5, 14.5, "nccl")),
        (3, {"engine": {"tuning": {"comm": "roce"}}}, (1, 32, 512, 32.0, 14.5, "roce")),
        # A row of the window is 16 KiB.
        (2, {"engine": {"tuning": {"multi_window": 48}}}, (1, 48, 768, 12.5, 15.1, "roce")),
        (
            2,
            {"engine": {"tuning": {"roce_max_kb": 256, "cache_gib": 3, "memory_reserve_gib": 20}}},
            (1, 32, 256, 3.0, 20.0, "roce"),
        ),
    ],
)
def test_what_depends_on_the_number_of_sparks_and_of_requests(
    count: int, tables: dict[str, Any], figures: tuple[Any, ...]
) -> None:
    assert derived(sparks(count, **tables)) == figures


def test_a_lone_model_is_held_to_the_rules_too() -> None:
    with pytest.raises(ValidationError, match="is also node"):
        Config.model_validate({"node": [NODES[1], NODES[1]]})


def test_dflash2_needs_its_licence_accepted() -> None:
    with pytest.raises(ValidationError, match="accept_noncommercial = true"):
        sparks(2, model={"drafter": "dflash2"})
    assert sparks(2, model=DFLASH2).parallel == 4


def test_roce_all_gathers_need_the_roce_transport() -> None:
    with pytest.raises(ValidationError, match="transport"):
        sparks(2, fabric={"transport": "socket"}, engine={"tuning": {"comm": "roce"}})


def test_an_unsplit_prompt_has_nothing_to_overlap() -> None:
    with pytest.raises(ValidationError, match="prefill_overlap"):
        sparks(2, engine={"tuning": {"hc_split": False}})
    assert sparks(2, engine={"tuning": {"hc_split": False, "prefill_overlap": 0}}).size == 2


def test_a_wider_bind_needs_keys_or_openness() -> None:
    for api in ({"keys_file": "/etc/glm-spark/keys"}, {"open": True}):
        assert sparks(2, api={"host": "0.0.0.0", **api}).api.host == "0.0.0.0"
    assert sparks(2, api={"host": "::1"}).api.host == "::1"


def test_a_configuration_cannot_be_changed_afterwards() -> None:
    config = sparks(2)
    with pytest.raises(ValidationError):
        config.api.port = 1  # type: ignore[misc]


def test_the_settings_of_the_recipe_all_exist() -> None:
    """Every variable that the MiaAI recipe v1.10 exports on all ranks, except those that follow from the cable."""
    recipe = """
        MTP KV DENSE COMM COPY_DRAFTS COPY_MAX DFLASH_POLICY HC_SPLIT PREFILL_OVERLAP KDA_CHUNKED WIDE_GRAPHS
        COPY_REPLY_MATCH MULTI_LONE MULTI_WINDOW CACHE_ENTRIES MULTI_PREFILL STREAM_SMOOTH STREAM_SMOOTH_MS
        FILL_BUDGET_MS FILL_DRAFTS L2PF EXL3_LOADS SHARED_PREFIX CACHE_GIB MAX_QUEUED"""
    wanted_names = {f"TF_GLM_{name}" for name in recipe.split()} | {
        "TF_ROCE_MAX_KB",
        "TF_ROCE_WAIT_S",
        "TENSORFOLD_MEMORY_RESERVE_GIB",
        "TENSORFOLD_NUCLEUS_UNION",
        "TF_SPILL_FLUSH_S",
    }
    assert set(engine.variables()) == wanted_names


def test_every_setting_says_why_it_is_there_and_when_a_change_takes_effect() -> None:
    for leaf in tree.leaves(sparks(3)):
        assert leaf.field.description
        assert Effect(extra(leaf.field)["effect"])
        assert wanted(leaf.field)


def test_every_default_is_accepted_by_its_own_bounds() -> None:
    """pydantic does not check defaults by itself."""
    config = sparks(2)
    assert Config.model_validate(config.model_dump()) == config


def test_further_variables_of_the_engine_are_passed_on() -> None:
    config = sparks(2, engine={"environment": {"TF_GLM_CACHE_SHARE_PCT": "50", "TENSORFOLD_X": "1"}})
    assert config.engine.environment == {"TF_GLM_CACHE_SHARE_PCT": "50", "TENSORFOLD_X": "1"}


@pytest.mark.parametrize("name", ["TF_ROCE_HCA", "TF_GLM_COMM", "LD_PRELOAD", "tf_glm_x", "TF_GLM_X\n"])
def test_variables_that_are_not_the_owners_to_set_are_refused(name: str) -> None:
    with pytest.raises(ValidationError):
        sparks(2, engine={"environment": {name: "1"}})
