"""Which Host and Origin a request may name. Pure.

A Spark has a browser, and a page from anywhere may send requests to 127.0.0.1 or, by DNS rebinding, to this
endpoint under a name of its own. Rebinding needs a name, so IP literals pass as Host. They do not pass as Origin:
a page can be served from any address.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable
from urllib.parse import urlsplit

_LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def own_names(names: Iterable[str]) -> frozenset[str]:
    """Every spelling of a Spark's host names: as given, short, and as mDNS announces them; lower case."""
    spelt: set[str] = set()
    for name in names:
        full = name.lower().rstrip(".")
        short = full.partition(".")[0]
        spelt |= {full, short, f"{full}.local", f"{short}.local"}
    return frozenset(spelt - {"", ".local"})


def _host_name(authority: str) -> str | None:
    """The host of "host", "host:port" or "[v6]:port", lower case; None when it is none of these."""
    try:
        parts = urlsplit(f"//{authority}")
        parts.port  # noqa: B018  (raises ValueError for a port that is none)
    except ValueError:
        return None
    if parts.username is not None or parts.path or parts.query or parts.fragment or not parts.hostname:
        return None
    return parts.hostname.rstrip(".")


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def foreign_host(host: str, allowed: frozenset[str]) -> bool:
    """True when a Host header names somebody else. `allowed` are lower-case names."""
    name = _host_name(host)
    if name is None:
        return True
    return not (_is_address(name) or name in _LOOPBACK_NAMES or name in allowed)


def foreign_origin(origin: str, host: str, allowed: frozenset[str]) -> bool:
    """True when a page that is not this Spark's, nor the client machine's own, nor an allowed one sent the request."""
    scheme, mark, authority = origin.partition("://")
    if not mark or scheme not in ("http", "https"):
        return True  # "null": a sandboxed page or a file
    name = _host_name(authority)
    if name is None:
        return True
    return not (name in _LOOPBACK_NAMES or name in allowed or name == _host_name(host))
