"""The shared config file of the harness is TOML that says what was asked for."""

from __future__ import annotations

import tomllib
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from glm_spark.config.model import Config
from tests.sparks import settings
from tests.sparks.layout import describe

_values = st.one_of(
    st.booleans(),
    st.integers(-(2**40), 2**40),
    st.text(st.characters(min_codepoint=32, max_codepoint=0xD7FF, blacklist_characters="\x7f")),
    st.lists(st.integers(0, 9), max_size=3),
)
_keys = st.text(st.characters(min_codepoint=33, max_codepoint=0x7E), min_size=1, max_size=6)
_tables = st.recursive(
    st.dictionaries(_keys, _values, max_size=3),
    lambda inner: st.dictionaries(
        _keys,
        st.one_of(_values, inner, st.lists(st.dictionaries(_keys, _values), min_size=1, max_size=2)),
        max_size=3,
    ),
    max_leaves=6,
)


@given(_tables)
def test_what_is_written_is_read_back(table: dict[str, object]) -> None:
    assert tomllib.loads(settings.text(table)) == table


def test_the_daemon_accepts_the_file_for_two_and_three_sparks() -> None:
    for count in (2, 3):
        written = settings.text(settings.defaults(describe(count), Path("/srv/x")))
        config = Config.model_validate(tomllib.loads(written))
        assert config.size == count
        assert config.node[1].address == "192.168.100.2"
        assert config.engine.runtime == "process"


def test_changes_are_merged_table_by_table() -> None:
    base = {"engine": {"a": 1, "b": [1, 2]}, "api": {"port": 1}}
    changes = {"engine": {"b": [3], "a": None}, "stop": {"x": 1}}
    assert settings.merged(base, changes) == {"engine": {"b": [3]}, "api": {"port": 1}, "stop": {"x": 1}}
    assert base["engine"] == {"a": 1, "b": [1, 2]}
