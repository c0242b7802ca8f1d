"""What is written out: the effective configuration, the example file, the daemon's directories."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import tomli
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from glm_spark.config import directories, toml
from glm_spark.config.agreement import settings
from glm_spark.config.dump import dump, effective
from glm_spark.config.example import example
from glm_spark.config.load import load
from glm_spark.config.tree import leaves

EXAMPLE = Path(__file__).parents[3] / "config.toml.example"


def test_the_example_is_what_the_settings_make_it() -> None:
    """Renew it: .venv/bin/python -c "from glm_spark.config.example import example; print(example(), end='')"."""
    assert EXAMPLE.read_text() == example()


def test_the_example_works_as_it_is_and_changes_nothing_when_every_line_is_taken_in(write: Any) -> None:
    config = load(EXAMPLE)
    assert [node.name for node in config.node] == ["spark-1", "spark-2"]
    everything = re.sub(r"(?m)^#(\w+ = )", r"\1", EXAMPLE.read_text())
    everything = re.sub(r"(?m)^lan_address.*$", "", everything)
    assert load(write(everything)) == config


def test_the_example_has_every_setting(loaded: Any) -> None:
    text = EXAMPLE.read_text()
    for leaf in leaves(loaded("")):
        assert re.search(rf"(?m)^#?{leaf.path.rpartition('.')[2]} = ", text), leaf.path


def test_the_effective_configuration_loads_to_the_same_settings(loaded: Any, write: Any) -> None:
    config = loaded('[model]\nalias = ["a"]\n[engine]\nenvironment = { TF_GLM_X = "1 \\" \\\\ é" }\nparallel = "auto"')
    text = dump(config)
    again = load(write(text))
    assert settings(again) == settings(config)
    assert effective(again) == effective(config)
    assert "auto" not in {tomli.loads(text)["engine"]["parallel"], tomli.loads(text)["engine"]["tuning"]["cache_gib"]}


# How long a busy machine takes to draw an example says nothing about the code.
@hypothesis_settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_any_text_can_be_written_as_toml(text: str) -> None:
    assert tomli.loads(f"a = {toml.value(text)}") == {"a": text}


def test_directories_are_systemds_or_the_usual_ones() -> None:
    assert directories.runtime({}) == Path("/run/glm-spark")
    assert directories.state({"STATE_DIRECTORY": ""}) == Path("/var/lib/glm-spark")
    assert directories.cache({"CACHE_DIRECTORY": "/var/cache/a:/var/cache/b"}) == Path("/var/cache/a")
