"""What a setting is: its default, its bounds in plain words, its unit, when a change takes effect, who must agree."""

from __future__ import annotations

import fnmatch
import ipaddress
import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, JsonValue, model_validator


class Effect(StrEnum):
    """When a changed key takes effect."""

    LIVE = "live"  # on reload
    NEXT_START = "next start of the set"  # `glm-spark restart`, or the next recovery
    RESTART = "restart"  # of this Spark's daemon


def key(
    default: Any = ...,
    *,
    why: str,
    unit: str = "",
    effect: Effect = Effect.NEXT_START,
    agree: bool = False,
    form: str = "",
    variable: str = "",
    private: bool = False,
    **bounds: Any,
) -> Any:
    """A setting.

    `agree` marks what the Sparks compare in their hello. `form` says in words what a pattern wants. `variable`
    is the engine's environment variable that the setting becomes. `private` values are not repeated in messages,
    because a secret may have been put there by mistake.
    """
    extra: dict[str, JsonValue] = {
        "unit": unit,
        "effect": effect.value,
        "agree": agree,
        "form": form,
        "variable": variable,
        "private": private,
    }
    return Field(default, description=why, json_schema_extra=extra, **bounds)


class Section(BaseModel):
    """A table of config.toml; unknown keys are faults and values are not coerced."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _arrays(cls, value: Any) -> Any:
        """TOML has arrays where a frozen model has tuples."""
        if not isinstance(value, dict):
            return value
        return {name: tuple(item) if isinstance(item, list) else item for name, item in value.items()}


def _lenient_float(value: Any) -> Any:
    """A whole number where a fraction is allowed; one too large for a float stays as it is and is refused."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**53:
        return float(value)
    return value


def _one_line(value: str) -> str:
    if not value.isprintable():
        raise ValueError("it holds a control character; one line of plain text is wanted")
    return value


def _address(value: str) -> str:
    """An IPv4 address in dotted form, or "" for none."""
    if value == "":
        return value
    try:
        address = ipaddress.IPv4Address(value)
    except ValueError:
        raise ValueError("an IPv4 address such as 192.168.100.2 is wanted") from None
    if address.is_unspecified or address.is_multicast or address == ipaddress.IPv4Address("255.255.255.255"):
        raise ValueError("the address of one host is wanted, such as 192.168.100.2")
    return str(address)


def _absolute(value: str) -> str:
    _one_line(value)
    if value.startswith("~"):
        raise ValueError("an absolute path is wanted; ~ is not expanded, write the directory out")
    if not value.startswith("/"):
        raise ValueError("an absolute path is wanted, one that starts with /")
    if ".." in value.split("/"):
        raise ValueError("a path without .. is wanted")
    return value


def _absolute_or_empty(value: str) -> str:
    return value if value == "" else _absolute(value)


def _mountable(value: str) -> str:
    _absolute(value)
    if re.search(r"[:,]", value):
        raise ValueError("a path without : and , is wanted, because it is mounted into a container")
    return value


def _mountable_or_empty(value: str) -> str:
    return value if value == "" else _mountable(value)


def _glob(value: str) -> str:
    """A shell pattern for netdev names: *, ? and [...] with the bracket closed."""
    if not re.fullmatch(r"[A-Za-z0-9_.:*?!\[\]-]{1,64}", value):
        raise ValueError("a netdev's name or a shell pattern such as enp1s0f* is wanted")
    # fnmatch takes an open bracket for itself and then matches nothing, silently.
    if re.search(r"[\[\]]", re.sub(r"\[!?\]?[^\[\]]+\]", "", value)):
        raise ValueError("the pattern has a bracket that is not closed")
    re.compile(fnmatch.translate(value))
    return value


Seconds = Annotated[float, BeforeValidator(_lenient_float)]
GiB = Annotated[float, BeforeValidator(_lenient_float)]
Share = Annotated[float, BeforeValidator(_lenient_float)]
Port = Annotated[int, Field(ge=1, le=65535)]
Line = Annotated[str, AfterValidator(_one_line)]
Address = Annotated[str, AfterValidator(_address)]
AbsolutePath = Annotated[str, AfterValidator(_absolute)]
OptionalPath = Annotated[str, AfterValidator(_absolute_or_empty)]
MountPath = Annotated[str, AfterValidator(_mountable)]
OptionalMountPath = Annotated[str, AfterValidator(_mountable_or_empty)]
NetdevPattern = Annotated[str, AfterValidator(_glob)]

REPOSITORY = r"^[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*$"
REPOSITORY_FORM = "a repository as OWNER/NAME, in quotes"
REVISION = r"^[0-9a-f]{40}$"
REVISION_FORM = "a commit as 40 hexadecimal digits, in quotes"
# Names become arguments of the engine: one that starts with "-" would be read as a flag.
SERVED_NAME = r"^[^\s-][^\s]*$"
SERVED_NAME_FORM = "a name of 1 to 200 characters without spaces that does not start with -"
