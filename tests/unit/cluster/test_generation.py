"""The counter of starts on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm_spark.cluster.generation import GenerationFile


def test_what_was_written_is_read_by_the_next_daemon(tmp_path: Path) -> None:
    GenerationFile(tmp_path / "generation").write(7)
    assert GenerationFile(tmp_path / "generation").read() == 7


@pytest.mark.parametrize("content", [b"", b"\0\0\0\0", b"{", b"[]", b'{"generation": "x"}', b'{"generation": -1}'])
def test_a_file_damaged_by_a_power_cut_counts_as_none(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "generation").write_bytes(content)
    assert GenerationFile(tmp_path / "generation").read() == 0


def test_a_write_that_fails_keeps_the_old_value(tmp_path: Path) -> None:
    file = GenerationFile(tmp_path / "generation")
    file.write(7)
    (tmp_path / "generation.new").mkdir()
    with pytest.raises(OSError, match="directory"):
        file.write(8)
    assert file.read() == 7


def test_nobody_else_may_read_it(tmp_path: Path) -> None:
    GenerationFile(tmp_path / "generation").write(1)
    assert (tmp_path / "generation").stat().st_mode & 0o077 == 0
