"""Which headers go through, each way. Pure."""

from __future__ import annotations

from multidict import CIMultiDict, CIMultiDictProxy

# RFC 9110 section 7.6.1: these speak of one connection, not of the message.
_HOP_BY_HOP = frozenset(
    {
        "connection",
        "keep-alive",
        "proxy-authenticate",
        "proxy-authorization",
        "proxy-connection",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    }
)
# Keys end here; Host and framing are set anew; without Accept-Encoding nothing is compressed; Origin and Cookie
# were judged here and mean nothing to the engine.
_NOT_FOR_ENGINE = _HOP_BY_HOP | {
    "authorization",
    "x-api-key",
    "host",
    "content-length",
    "expect",
    "accept-encoding",
    "origin",
    "cookie",
}


def _named_by_connection(headers: CIMultiDictProxy[str]) -> frozenset[str]:
    named = (name.strip().lower() for value in headers.getall("Connection", ()) for name in value.split(","))
    return frozenset(named)


def for_engine(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """A client's headers as the engine gets them."""
    dropped = _NOT_FOR_ENGINE | _named_by_connection(headers)
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in dropped)


def for_client(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    """The engine's headers as a client gets them. Its CORS headers stay out: they would let any page read replies."""
    dropped = _HOP_BY_HOP | _named_by_connection(headers)
    return CIMultiDict(
        (name, value)
        for name, value in headers.items()
        if name.lower() not in dropped and not name.lower().startswith("access-control-")
    )
