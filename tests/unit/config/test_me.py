"""A Spark finds its own entry by its host name, short or full, or is told which it is."""

from __future__ import annotations

from typing import Any

import pytest

from glm_spark.config.load import ConfigFault
from glm_spark.config.me import find_me


@pytest.mark.parametrize("host", ["spark-2", "spark-2.lan", "SPARK-2", "spark-2.home.example"])
def test_the_host_name_finds_the_entry(loaded: Any, host: str) -> None:
    assert find_me(loaded(""), None, host) == "spark-2"


def test_an_entry_with_a_domain_is_found_by_the_short_name(write: Any) -> None:
    from glm_spark.config.load import load

    text = "[[node]]\nname='a.lan'\n[[node]]\nname='b.lan'\naddress='10.0.0.2'\n"
    config = load(write(text))
    assert find_me(config, None, "b") == "b.lan"
    assert find_me(config, None, "b.lan") == "b.lan"
    with pytest.raises(ConfigFault):
        find_me(config, None, "b.other")


def test_the_override_wins(loaded: Any) -> None:
    assert find_me(loaded(""), "spark-1", "spark-2") == "spark-1"


def test_a_host_that_is_not_listed_is_told_who_is(loaded: Any) -> None:
    with pytest.raises(ConfigFault) as caught:
        find_me(loaded(""), None, "laptop")
    assert str(caught.value) == (
        "node: this host, laptop, is not among the Sparks listed: spark-1, spark-2; "
        "name it in a [[node]] entry, or say which it is with --node"
    )
    with pytest.raises(ConfigFault, match="--node spark-9 is not among the Sparks listed: spark-1, spark-2"):
        find_me(loaded(""), "spark-9", "spark-1")


@pytest.mark.parametrize("host", ["", "localhost", "spark", "spark-22"])
def test_no_other_host_is_taken_for_one_of_them(loaded: Any, host: str) -> None:
    with pytest.raises(ConfigFault):
        find_me(loaded(""), None, host)
