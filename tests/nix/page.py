"""docs/options.md: the module's options, then every key of `settings`."""

from __future__ import annotations

from typing import Any

from glm_spark.config import toml
from glm_spark.config.keys import Effect
from glm_spark.config.words import extra, wanted
from tests.nix.evaluate import value
from tests.nix.known import Setting, settings

_HEAD = """\
# Options

Written from the options themselves with `.venv/bin/python -m tests.nix.generated`; a test fails when it is not
current. How to use them: [install-nixos.md](install-nixos.md).
"""

_SETTINGS = """\
## Every key of `services.glm-spark.settings`

The same keys as in config.toml on a system without Nix. "Agrees" marks what all Sparks must have alike: a difference
is reported with both values, and the set goes live when they agree. When a change takes effect:

- live: at once, on reload;
- next start: with `glm-spark restart`, or whenever the set starts next;
- restart: when this Spark's daemon starts next. `nixos-rebuild switch` does not start it anew for a setting:
  `systemctl restart glm-spark`.

| key | takes | default | unit | takes effect | agrees | what for |
|---|---|---|---|---|---|---|
"""

_WHEN = {Effect.LIVE: "live", Effect.NEXT_START: "next start", Effect.RESTART: "restart"}


def page() -> str:
    options = "\n".join(_option(option) for option in value('import (here + "/options.nix")'))
    return f"{_HEAD}\n{options}\n{_SETTINGS}" + "".join(_row(setting) for setting in settings())


def _option(option: dict[str, Any]) -> str:
    lines = [f"## `{option['name']}`", "", " ".join(option["description"].split()), "", f"- type: {option['type']}"]
    lines += [f"- {name}: `{option[name]}`" for name in ("default", "example") if name in option]
    return "\n".join(lines) + "\n"


def _row(setting: Setting) -> str:
    known = extra(setting.field)
    cells = [
        f"`{setting.path}`",
        wanted(setting.field),
        f"`{toml.value(setting.field.default)}`",
        str(known["unit"]),
        _WHEN[Effect(str(known["effect"]))],
        "yes" if known["agree"] else "",
        str(setting.field.description),
    ]
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |\n"
