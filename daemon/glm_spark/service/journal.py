"""Log lines for journald: its native socket with fields where that is there, prefixed stdout otherwise, never both.

The native protocol is systemd's own: datagrams of NAME=value lines, or NAME, a 64-bit length and the bytes when the
value has a line break.
"""

from __future__ import annotations

import logging
import os
import socket
import struct
import sys
from collections.abc import Mapping

SOCKET = "/run/systemd/journal/socket"
MAX_LINE = 4000  # characters; the journal would take more, a person would not
_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
_FIELDS = {"node": "GLM_SPARK_NODE", "rank": "GLM_SPARK_RANK", "generation": "GLM_SPARK_GENERATION",
           "code": "GLM_SPARK_CODE"}  # fmt: skip


def clean(text: str) -> str:
    """One printable line: control characters are replaced, a long one is cut."""
    line = "".join(character if character.isprintable() else " " for character in text.strip())
    return line if len(line) <= MAX_LINE else line[: MAX_LINE - 1] + "…"


def encode(fields: Mapping[str, str]) -> bytes:
    """Fields in the journal's native form."""
    parts = []
    for name, value in fields.items():
        raw = value.encode(errors="replace")
        if b"\n" in raw:
            parts.append(name.encode() + b"\n" + struct.pack("<Q", len(raw)) + raw + b"\n")
        else:
            parts.append(name.encode() + b"=" + raw + b"\n")
    return b"".join(parts)


class JournalHandler(logging.Handler):
    """Sends a record with its fields; a journal that takes nothing more loses the line, never the daemon."""

    def __init__(self, path: str, node: str) -> None:
        super().__init__()
        self._node = node
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self._socket.connect(path)

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            "MESSAGE": clean(record.getMessage()),
            "PRIORITY": str(_PRIORITY.get(record.levelno, 6)),
            "SYSLOG_IDENTIFIER": "glm-spark",
        }
        for attribute, field in _FIELDS.items():
            value = getattr(record, attribute, self._node if attribute == "node" else None)
            if value is not None:
                fields[field] = str(value)
        if record.exc_info:
            fields["GLM_SPARK_TRACE"] = logging.Formatter().formatException(record.exc_info)
            fields["MESSAGE"] += f": {record.exc_info[1]!r}"
        try:
            self._socket.send(encode(fields))
        except OSError:
            return


class StreamFormatter(logging.Formatter):
    """`<6>text`: sd-daemon's severity prefix on a pipe, none for a person's terminal."""

    def __init__(self, prefixed: bool) -> None:
        super().__init__()
        self._prefixed = prefixed

    def format(self, record: logging.LogRecord) -> str:
        priority = f"<{_PRIORITY.get(record.levelno, 6)}>" if self._prefixed else ""
        line = priority + clean(record.getMessage())
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def to_journal(environ: Mapping[str, str]) -> bool:
    """Whether stderr is the journal's own stream, as systemd says in JOURNAL_STREAM (device:inode)."""
    stream = environ.get("JOURNAL_STREAM", "")
    try:
        stat = os.fstat(sys.stderr.fileno())
    except (OSError, ValueError):
        return False
    return stream == f"{stat.st_dev}:{stat.st_ino}" and os.path.exists(SOCKET)


def set_up(node: str, level: str) -> None:
    """Installs the one handler. Call again to change the node or the level."""
    root = logging.getLogger()
    for former in root.handlers[:]:
        root.removeHandler(former)
    handler: logging.Handler
    if to_journal(os.environ):
        handler = JournalHandler(SOCKET, node)
    else:
        handler = logging.StreamHandler(sys.stdout)
        handler.setFormatter(StreamFormatter(prefixed=not sys.stdout.isatty()))
    root.addHandler(handler)
    root.setLevel(level.upper())
    # A line a request would bury what matters; the front and the control API say what is wrong themselves.
    logging.getLogger("aiohttp.access").setLevel(logging.WARNING)
