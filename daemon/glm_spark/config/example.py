"""config.toml.example, made from the settings themselves so that it cannot fall behind them."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator

from pydantic.fields import FieldInfo

from glm_spark.config import toml
from glm_spark.config.keys import Effect, Section
from glm_spark.config.model import Config
from glm_spark.config.tree import table
from glm_spark.config.words import choices, extra

_WIDTH = 110

_HEAD = """\
# glm-spark: one file for all Sparks, the same on each. It lies at /etc/glm-spark/config.toml.
# Only the names of the Sparks and the workers' addresses must be given. Every other line shows a default;
# take away its # to change it. `glm-spark config` judges the file, `glm-spark config --print` shows what is in effect.
# In parentheses: the unit, and when a change takes effect if that is not the next start of the set.
"""

_NODES = """\
# The Sparks in rank order; the first is the leader and serves the endpoint. A third [[node]] makes it three.
# A Spark finds its own entry by its host name. An address is the one on the cable, as the leader reaches it.
# With three Sparks NCCL's bootstrap runs over the LAN: lan_address names each Spark's address there, by default
# the one on the netdev that has the default route.
[[node]]
name = "spark-1"
#lan_address = "10.0.0.11"

[[node]]
name = "spark-2"
address = "192.168.100.2"
#lan_address = "10.0.0.12"
"""

_WHEN = {Effect.LIVE: "changes live", Effect.RESTART: "daemon's restart", Effect.NEXT_START: ""}


def example() -> str:
    """The text of config.toml.example: every setting with its default, its unit and one line of why."""
    return "\n".join([_HEAD, _NODES, *_tables(Config, "")]).rstrip("\n") + "\n"


def _tables(section: type[Section], path: str) -> Iterator[str]:
    for name, field in section.model_fields.items():
        inner = table(field)
        if inner is None or name == "node":
            continue
        here = f"{path}.{name}" if path else name
        yield "\n".join([f"# {field.description}", f"[{here}]", *_settings(inner)]) + "\n"
        yield from _tables(inner, here)


def _settings(section: type[Section]) -> Iterator[str]:
    for name, field in section.model_fields.items():
        if table(field) is None:
            yield from textwrap.wrap(_why(field), _WIDTH, initial_indent="# ", subsequent_indent="# ")
            yield f"#{name} = {toml.value(field.default)}"


def _why(field: FieldInfo) -> str:
    known = extra(field)
    values = [f'"{choice}"' if choice else '""' for choice in choices(field)]
    notes = [
        str(known["unit"]),
        " | ".join(values),
        str(known["variable"]),
        _WHEN[Effect(str(known["effect"]))],
    ]
    noted = "; ".join(note for note in notes if note)
    return f"{field.description} ({noted})" if noted else str(field.description)
