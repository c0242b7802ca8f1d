"""The Sparks compare what must agree, and say which key differs, here and there."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glm_spark.config import agreement
from glm_spark.finding import Severity


def test_settings_survive_the_wire(loaded: Any) -> None:
    settings = agreement.settings(loaded('[model]\nalias = ["glm"]\n[engine]\nenvironment = { TF_GLM_X = "1" }'))
    assert json.loads(json.dumps(settings)) == settings
    assert settings["model.alias"] == ["glm"]
    assert settings["node[1].address"] == "192.168.100.2"
    assert settings["engine.environment"] == {"TF_GLM_X": "1"}


def test_defaults_are_compared_as_what_they_come_to(loaded: Any) -> None:
    default = agreement.settings(loaded(""))
    spelt_out = agreement.settings(loaded('[engine]\nparallel = 1\n[engine.tuning]\ncache_gib = 12.5\ncomm = "roce"'))
    assert default["engine.parallel"] == 1
    assert agreement.differences(default, spelt_out, "spark-1", "spark-2") == []


def test_what_each_spark_has_for_itself_is_not_compared(loaded: Any) -> None:
    mine = agreement.settings(loaded(""))
    theirs = agreement.settings(
        loaded(
            '[cluster]\ntoken_file = "/elsewhere"\n[model]\ncache = "/mnt/hf"\npath = "/mnt/model"\n'
            '[engine]\nruntime = "docker"\nkernel_cache = "/k"\ncommand = ["x"]\n[log]\nlevel = "debug"\n'
            "[memory]\nwant_available_gib = 90\n[api]\nport = 80"
        )
    )
    assert agreement.differences(mine, theirs, "spark-1", "spark-2") == []


def test_a_difference_names_the_key_and_both_values(loaded: Any) -> None:
    mine = agreement.settings(loaded(""))
    theirs = agreement.settings(loaded("[engine]\ncontext = 524288\n[timeouts]\nlease_seconds = 20"))
    found = agreement.differences(mine, theirs, "spark-1", "spark-2")
    assert [(finding.code, finding.node, finding.subject, finding.severity) for finding in found] == [
        ("cluster.setting-differs", "spark-2", "engine.context", Severity.ERROR),
        ("cluster.setting-differs", "spark-2", "timeouts.lease_seconds", Severity.ERROR),
    ]
    assert "524288 on spark-2" in found[0].measured
    assert "1048576 as on spark-1" in found[0].wanted
    assert "spark-2" in found[0].fix


def test_a_setting_that_one_side_does_not_know_is_listed(loaded: Any) -> None:
    mine = agreement.settings(loaded(""))
    theirs = {**mine, "engine.fresh": 3}
    del theirs["engine.context"]
    found = agreement.differences(mine, theirs, "spark-1", "spark-2")
    assert [finding.subject for finding in found] == ["engine.context", "engine.fresh"]
    assert "1048576 on spark-1, not known on spark-2" in found[0].measured
    assert "3 on spark-2, not known on spark-1" in found[1].measured
    assert all("same version" in finding.fix for finding in found)


def test_a_third_spark_in_one_file_only_is_no_question_of_versions(loaded: Any) -> None:
    mine = agreement.settings(loaded('[[node]]\nname = "spark-3"\naddress = "192.168.101.3"'))
    theirs = agreement.settings(loaded(""))
    found = {finding.subject: finding for finding in agreement.differences(mine, theirs, "spark-1", "spark-2")}
    assert "no such entry on spark-2" in found["node[2].name"].measured
    assert "version" not in found["node[2].name"].fix


def test_whole_numbers_and_fractions_are_one_but_truth_is_none() -> None:
    assert agreement.differences({"a": 600}, {"a": 600.0}, "x", "y") == []
    assert len(agreement.differences({"a": True}, {"a": 1}, "x", "y")) == 1


_json = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(), inner, max_size=3)),
    max_leaves=6,
)


# How long a busy machine takes to draw an example says nothing about the code.
@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.text(max_size=500), _json, max_size=80))
def test_whatever_a_peer_sends_the_answer_is_bounded_findings(theirs: dict[str, Any]) -> None:
    found = agreement.differences({"engine.context": 1}, theirs, "spark-1", "x" * 100)
    assert len(found) <= 51
    assert all(str(finding).isprintable() for finding in found)
