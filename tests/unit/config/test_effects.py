"""A changed file: which key takes effect when."""

from __future__ import annotations

from typing import Any

from glm_spark.config.effects import changes
from glm_spark.config.keys import Effect


def test_an_equal_file_changes_nothing(loaded: Any) -> None:
    found = changes(loaded(""), loaded("[api]\nport = 8888"))
    assert not found
    assert found.effect is None


def test_each_key_has_its_own_time(loaded: Any) -> None:
    found = changes(
        loaded(""),
        loaded('[log]\nlevel = "debug"\n[engine]\ncontext = 4096\n[api]\nport = 80\n[stop]\ndrain_seconds = 5'),
    )
    assert [change.key for change in found.live] == ["stop.drain_seconds", "log.level"]
    assert [change.key for change in found.next_start] == ["engine.context"]
    assert [change.key for change in found.restart] == ["api.port"]
    assert found.effect is Effect.RESTART
    (context,) = found.next_start
    assert (context.old, context.new) == (1048576, 4096)
    assert "glm-spark restart" in str(context)


def test_a_spark_more_is_a_change_of_every_key_of_its_entry(loaded: Any) -> None:
    three = loaded('[[node]]\nname = "spark-3"\naddress = "192.168.101.3"')
    found = changes(loaded(""), three)
    assert [(change.key, change.old) for change in found.restart] == [
        ("node[2].name", None),
        ("node[2].address", None),
        ("node[2].lan_address", None),
    ]
    assert [change.new for change in changes(three, loaded("")).all] == [None, None, None]
