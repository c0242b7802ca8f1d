"""What the stand-in's replies are made of: short sentences, one word a token.

Which word of its class stands at a place is decided by the last rank's byte together with the prompt and the
place, so a reply reads as language and every word of it needs that rank.
"""

from __future__ import annotations

from zlib import crc32

_NOUNS = "rail cable spark token rank packet window kernel ledger lantern harbor engine signal garden mirror bridge"
_ADJECTIVES = "quiet narrow bright patient even second warm distant paired steady hidden early plain swift calm whole"
CLASSES: tuple[tuple[str, ...], ...] = tuple(
    tuple(words.split())
    for words in (
        "the a each every one this that some any another our your no its their my",
        _ADJECTIVES,
        _NOUNS,
        "carries meets follows holds crosses joins answers counts lifts guides finds keeps marks reads sends turns",
        "the a each every one this that some any another our your no its their my",
        _ADJECTIVES,
        _NOUNS,
        "under over beside before after through across toward within behind along near past against inside around",
        "the a each every one this that some any another our your no its their my",
        _NOUNS,
    )
)


def word(seed: int, position: int, pad: int) -> str:
    """The token at `position` of a reply, with its leading space or final stop; pad is 0 to 255."""
    place = position % len(CLASSES)
    text = CLASSES[place][(pad ^ (pad >> 4) ^ seed ^ position) & 15]
    if place == 0:
        return f"{' ' if position else ''}{text.capitalize()}"
    return f" {text}." if place == len(CLASSES) - 1 else f" {text}"


def seed_of(prompt: str, salt: int) -> int:
    return (salt << 32) | crc32(prompt.encode())


def tokenize(text: str) -> list[int]:
    """Four bytes a token; the leading 1 keeps zero bytes and short tails apart."""
    raw = text.encode()
    return [int.from_bytes(b"\x01" + raw[at : at + 4], "big") for at in range(0, len(raw), 4)]


def detokenize(tokens: list[int]) -> str:
    """The text of ids that `tokenize` gave. Raises ValueError for any other id."""
    pieces = []
    for token in tokens:
        raw = token.to_bytes(5, "big").lstrip(b"\0") if 0 < token < 1 << 40 else b""
        if raw[:1] != b"\x01":
            raise ValueError(f"unknown token {token}")
        pieces.append(raw[1:])
    return b"".join(pieces).decode(errors="replace")
