"""What a person may have meant by a key that does not exist."""

from __future__ import annotations

import difflib

from glm_spark.config.engine import variables
from glm_spark.config.keys import Section
from glm_spark.config.model import Config
from glm_spark.config.tree import header, table, tables


def meant(name: str, path: str, section: type[Section]) -> tuple[str, str]:
    """Advice about the unknown key `name` in the table at `path`, and the dotted path it points to ("" for none).

    `path` has no indexes ("node", not "node[1]"). The key's value plays no part: it may be a secret.
    """
    owned = variables()
    if name in owned:
        return f"the setting for it is {owned[name]}", owned[name]
    if path and name in Config.model_fields:
        return f"it is a table of its own; write {header(name)} on a line of its own", name
    elsewhere = [where for where, other in tables() if name in other.model_fields and where != path]
    if elsewhere:
        places = [header(where) for where in elsewhere]
        return f"it belongs in {' or '.join(places)}", _join(elsewhere[0], name) if len(elsewhere) == 1 else ""
    folded = name.lower().replace("-", "_")
    near = difflib.get_close_matches(folded, list(section.model_fields), n=1, cutoff=0.6)
    if near:
        return f"did you mean {_written(near[0], section)}?", _join(path, near[0])
    keys = {key: where for where, other in reversed(list(tables())) for key in other.model_fields}
    near = difflib.get_close_matches(folded, list(keys), n=1, cutoff=0.75)
    if near:
        where = keys[near[0]]
        written = f"{near[0]} in {header(where)}" if where else header(near[0])
        return f"did you mean {written}?", _join(where, near[0])
    return "leave it out; config.toml.example lists every key", ""


def _written(name: str, section: type[Section]) -> str:
    return header(name) if table(section.model_fields[name]) is not None else name


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
