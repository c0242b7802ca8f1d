"""The shared secret: the credential before the file, long enough, and for its owner alone."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from glm_spark.config import token
from glm_spark.config.model import Config

SECRET = "s" * 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"  {SECRET}\n")
    path.chmod(0o600)
    return path


@pytest.fixture
def config(loaded: Any, path: Path) -> Config:
    result: Config = loaded(f'[cluster]\ntoken_file = "{path}"')
    return result


def code(config: Config, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(token.TokenFault) as caught:
        token.read(config, environ or {}, "spark-1")
    finding = caught.value.finding
    assert finding.node == "spark-1"
    assert SECRET not in str(finding)
    assert finding.fix
    return finding.code


def test_the_file_is_read_without_the_space_around_the_secret(config: Config) -> None:
    assert token.read(config, {}) == SECRET.encode()


def test_a_stricter_mode_is_fine(config: Config, path: Path) -> None:
    path.chmod(0o400)
    assert token.read(config, {}) == SECRET.encode()


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o610])
def test_a_token_others_could_read_or_change_is_refused(config: Config, path: Path, mode: int) -> None:
    path.chmod(mode)
    assert code(config) == "token.readable-by-others"


def test_a_token_of_another_user_is_refused(config: Config, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if os.geteuid() == 0:
        os.chown(path, 12345, -1)
    else:  # only root can give a file away: the daemon is taken for another user's instead
        other = os.geteuid() + 1
        monkeypatch.setattr(os, "geteuid", lambda: other)
    assert code(config) == "token.wrong-owner"


def test_31_bytes_are_too_few_and_32_enough(config: Config, path: Path) -> None:
    path.write_text("x" * 31 + " \n")
    assert code(config) == "token.too-short"
    path.write_text("x" * 32 + "\n")
    assert token.read(config, {}) == b"x" * 32


def test_an_endless_token_is_refused(config: Config, path: Path) -> None:
    path.write_text("x" * 5000)
    assert code(config) == "token.too-long"


def test_a_missing_token_names_the_command_that_makes_one(config: Config, path: Path) -> None:
    path.unlink()
    with pytest.raises(token.TokenFault) as caught:
        token.read(config, {})
    assert caught.value.finding.code == "token.missing"
    assert f"glm-spark token new --output {path}" in caught.value.finding.fix


def test_a_directory_or_a_pipe_is_no_token(config: Config, path: Path) -> None:
    path.unlink()
    path.mkdir()
    assert code(config) == "token.unreadable"
    path.rmdir()
    os.mkfifo(path)
    assert code(config) == "token.unreadable"


def test_the_credential_wins_and_its_mode_is_systemds_affair(config: Config, tmp_path: Path) -> None:
    credentials = tmp_path / "credentials"
    credentials.mkdir()
    environ = {"CREDENTIALS_DIRECTORY": str(credentials)}
    assert token.read(config, environ) == SECRET.encode()  # none of that name: the file
    given = credentials / "glm-spark-token"
    given.write_text("c" * 32)
    given.chmod(0o644)
    assert token.read(config, environ) == b"c" * 32
    given.write_text("short")
    assert code(config, environ) == "token.too-short"


def test_a_new_token_is_long_and_never_the_same(config: Config, path: Path) -> None:
    one, other = token.new(), token.new()
    assert one != other
    path.write_text(one + "\n")
    assert token.read(config, {}) == one.encode()
