"""The Hub's token: read where it is needed, handed over a pipe, never told."""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.weights.faults import Fault, fault

CREDENTIAL = "glm-spark-hf-token"
_LONGEST = 4096


def read(config: Config, environ: Mapping[str, str], node: str) -> str:
    """The token without white space; "" where none is set. Raises Fault for a file that must not be used."""
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if directory and os.path.lexists(Path(directory, CREDENTIAL)):
        return _read(node, str(Path(directory, CREDENTIAL)), private=False)
    return _read(node, config.weights.token_file, private=True) if config.weights.token_file else ""


def _read(node: str, path: str, *, private: bool) -> str:
    def refused(measured: str, wanted: str, fix: str) -> Fault:
        return fault(node, "token", f"weights.token_file {path}", measured, wanted, fix)

    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        fix = "Put a read token of the Hub there (mode 0600), or take weights.token_file out."
        raise refused(error.strerror or "cannot be opened", "a readable file", fix) from None
    with open(handle, "rb") as file:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise refused("not a regular file", "a file that holds the token", "Name a plain file.")
        if private and status.st_mode & 0o077:
            mode = f"mode {stat.S_IMODE(status.st_mode):04o}, open to others than its owner"
            raise refused(mode, "mode 0600", f"Run chmod 600 {path}.")
        raw = file.read(_LONGEST + 1)
    text = raw.decode("ascii", errors="replace").strip()
    if not text or len(raw) > _LONGEST or not text.isprintable() or " " in text or "�" in text:
        raise refused("holds no token", "one token and nothing else", "Put a read token of the Hub into it.")
    return text
