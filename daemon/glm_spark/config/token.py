"""The secret that all Sparks of a set share: read with its faults as Findings, or made anew."""

from __future__ import annotations

import errno
import os
import secrets
import socket
import stat
from collections.abc import Mapping
from pathlib import Path

from glm_spark.config.model import Config
from glm_spark.finding import Finding, Severity

CREDENTIAL = "glm-spark-token"
SHORTEST = 32  # bytes: as many as HMAC-SHA256 gives
LONGEST = 4096

_MAKE = "glm-spark token new --output {path} on one Spark (move an old file away first), the same file on the others"


class TokenFault(Exception):
    """There is no token that can be used; `finding` says why and what to do."""

    def __init__(self, finding: Finding) -> None:
        super().__init__(str(finding))
        self.finding = finding


def new() -> str:
    """A fresh token of 64 characters (384 random bits)."""
    return secrets.token_urlsafe(48)


def read(config: Config, environ: Mapping[str, str], node: str = "") -> bytes:
    """The token without the white space around it: the systemd credential's if there is one, else token_file's.

    `node` names this Spark in the Finding; its host name otherwise. Raises TokenFault. The mode of a credential
    is systemd's affair and is not judged.
    """
    directory = environ.get("CREDENTIALS_DIRECTORY", "")
    if directory:
        credential = Path(directory, CREDENTIAL)
        if os.path.lexists(credential):
            return _read(credential, node, private=False)
    return _read(Path(config.cluster.token_file), node, private=True)


def _read(path: Path, node: str, *, private: bool) -> bytes:
    node = (node or socket.gethostname())[:64]

    def fault(code: str, measured: str, wanted: str, fix: str) -> TokenFault:
        return TokenFault(
            Finding(
                code=f"token.{code}",
                severity=Severity.ERROR,
                node=node,
                subject=f"token {path}"[:300],
                measured=measured,
                wanted=wanted,
                fix=fix,
            )
        )

    make = f"Run {_MAKE.format(path=path)}."
    try:
        # O_NONBLOCK: a pipe put there by mistake must not stop the daemon.
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR):
            raise fault("missing", "no such file", "a file that holds the shared secret", make) from None
        fix = f"Make it readable for the daemon's user: chown {os.geteuid()} {path}."
        raise fault("unreadable", error.strerror or "cannot be opened", "a readable file", fix) from None
    try:
        status = os.fstat(handle)
        if not stat.S_ISREG(status.st_mode):
            raise fault("unreadable", "not a regular file", "a file that holds the shared secret", make)
        if private and status.st_mode & 0o077:
            mode = f"mode {stat.S_IMODE(status.st_mode):04o}, open to others than its owner"
            raise fault("readable-by-others", mode, "mode 0600", f"Run chmod 600 {path}.")
        if private and status.st_uid not in (0, os.geteuid()):
            owner = f"owned by user id {status.st_uid}"
            raise fault("wrong-owner", owner, "owned by root or the daemon's user", f"Run chown root {path}.")
        content = os.read(handle, LONGEST + 1)
    except OSError as error:
        raise fault("unreadable", error.strerror or "cannot be read", "a readable file", make) from None
    finally:
        os.close(handle)
    token = content.strip()
    if len(content) > LONGEST:
        raise fault("too-long", f"more than {LONGEST} bytes", f"{SHORTEST} to {LONGEST} bytes", make)
    if len(token) < SHORTEST:
        raise fault("too-short", f"{len(token)} bytes", f"at least {SHORTEST} bytes", make)
    return token
