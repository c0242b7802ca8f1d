"""Whatever the engine writes, it comes out as lines a journal can hold, in order and bounded."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from glm_spark.engine.lines import LINE_BYTES, Splitter, Tail, follow


def split(*pieces: bytes) -> list[str]:
    splitter = Splitter()
    return [line for piece in pieces for line in splitter.feed(piece)] + splitter.finish()


def test_lines_come_out_as_they_were_written_however_they_arrive() -> None:
    assert split(b"one\ntw", b"o\r", b"\nthree") == ["one", "two", "three"]


def test_a_progress_bar_leaves_its_last_state() -> None:
    assert split(b" 10%\r 20%\r", b" 100%\n", b"done\n") == [" 100%", "done"]
    assert split(b"99%\r", b"\r\n") == ["99%"]


def test_a_line_without_an_end_is_not_lost() -> None:
    assert split(b"Segmentation fault") == ["Segmentation fault"]


def test_binary_noise_and_colours_are_cleaned() -> None:
    assert split(b"\x1b[1;32mok\x1b[0m \x00\x01\xff\xfe bad\n") == ["ok ? bad"]
    assert split("größer 模型\n".encode()) == ["größer 模型"]


def test_a_line_of_many_megabytes_is_cut_and_says_so() -> None:
    splitter = Splitter()
    for _ in range(64):
        assert splitter.feed(b"x" * 65536) == []
    (line,) = splitter.feed(b"\n")
    assert line == "x" * LINE_BYTES + f" [... {64 * 65536 - LINE_BYTES} more bytes]"
    assert splitter.feed(b"next\n") == ["next"]


@given(st.lists(st.binary(max_size=200), max_size=20))
def test_any_bytes_give_the_same_lines_in_any_pieces(pieces: list[bytes]) -> None:
    whole = b"".join(pieces)
    assert split(*pieces) == split(whole) == split(*(whole[i : i + 1] for i in range(len(whole))))
    assert all("\n" not in line and "\r" not in line and "\x00" not in line for line in split(whole))


def test_the_tail_keeps_the_newest_and_cuts_the_long() -> None:
    tail = Tail(3)
    for line in ("a", "b", "c", "d" * 400):
        tail.add(line)
    assert tail.last(2, 300) == ("c", "d" * 299 + "…")
    assert tail.last(9, 300)[0] == "b"
    assert tail.last(0, 300) == ()


async def test_a_stream_is_followed_to_its_end() -> None:
    reader = asyncio.StreamReader()
    reader.feed_data(b"one\n\ntwo\nthr")
    reader.feed_eof()
    assert [line async for line in follow(reader)] == ["one", "two", "thr"]
