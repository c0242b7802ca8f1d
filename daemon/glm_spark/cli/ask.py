"""Questions to the running daemon over control.sock. http.client, because it starts in a tenth of aiohttp's time."""

from __future__ import annotations

import errno
import http.client
import json
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from glm_spark.config import directories

SOCKET_NAME = "control.sock"
ANSWER_SECONDS = 10.0
LONG_SECONDS = 120.0  # check, plan and restart look at every Spark first
_LARGEST_ANSWER = 64 << 20  # bytes


class Unanswered(Exception):
    """It could not be found out; str() says why and what to do."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    body: Any


class _Connection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: Path, seconds: float) -> None:
        super().__init__("localhost", timeout=seconds)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def socket_path(given: Path | None) -> Path:
    """--socket, else control.sock in the runtime directory."""
    return given or directories.runtime(os.environ) / SOCKET_NAME


def ask(path: Path, method: str, target: str, seconds: float = ANSWER_SECONDS) -> Answer:
    """One request and its JSON. Raises Unanswered; statuses other than 200, 202 and 409 are among that."""
    connection = _Connection(path, seconds)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        raw = response.read(_LARGEST_ANSWER)
    except TimeoutError:
        raise Unanswered(
            f"the daemon did not answer on {path} within {seconds:g} s; see journalctl -u glm-spark"
        ) from None
    except OSError as error:
        raise Unanswered(_unreachable(path, error)) from None
    except http.client.HTTPException as error:
        raise Unanswered(f"what answers on {path} is not glm-spark: {type(error).__name__}") from None
    finally:
        connection.close()
    return _answer(path, response.status, raw)


def _answer(path: Path, status: int, raw: bytes) -> Answer:
    try:
        body = json.loads(raw)
    except ValueError:
        raise Unanswered(f"what answers on {path} is not glm-spark: it sent no JSON (HTTP {status})") from None
    if status in (200, 202, 409):
        return Answer(status, body)
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    if status == 404:
        raise Unanswered("this daemon is of another version; restart it: systemctl restart glm-spark")
    raise Unanswered(f"the daemon refused: {message or f'HTTP {status}'}")


def _unreachable(path: Path, error: OSError) -> str:
    if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ECONNREFUSED):
        return (
            f"no daemon answers on {path}: it is not running on this Spark. Start it: systemctl start glm-spark; "
            "why it ended: journalctl -u glm-spark"
        )
    if error.errno in (errno.EACCES, errno.EPERM):
        return f"no permission to use {path}; run this as root or as a member of group glm-spark"
    return f"{path}: {error.strerror or error}; is the daemon ending? See journalctl -u glm-spark"
