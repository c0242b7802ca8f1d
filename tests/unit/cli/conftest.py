"""A daemon to ask: a real server on a real unix socket that answers what the test says."""

from __future__ import annotations

import json
import socketserver
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest


class Daemon:
    """Answers each target with the next of its replies, the last one for ever. `asked` has what came in."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.replies: dict[str, list[tuple[int, Any]]] = {}
        self.asked: list[str] = []

    def will(self, target: str, *replies: tuple[int, Any]) -> None:
        """`target` is "GET /v1/status"; a body that is bytes is sent as it is."""
        self.replies[target] = list(replies)

    def answer(self, target: str) -> tuple[int, bytes]:
        self.asked.append(target)
        queue = self.replies.get(target)
        if not queue:
            return 404, b'{"error": {"message": "There is no such thing here."}}'
        status, body = queue.pop(0) if len(queue) > 1 else queue[0]
        return status, body if isinstance(body, bytes) else json.dumps(body).encode()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    told = Daemon(tmp_path / "control.sock")

    class Handler(BaseHTTPRequestHandler):
        def _reply(self) -> None:
            status, body = told.answer(f"{self.command} {self.path}")
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = _reply

        def address_string(self) -> str:
            return "local"

        def log_message(self, format: str, *args: Any) -> None:
            pass

    with socketserver.ThreadingUnixStreamServer(str(told.path), Handler) as server:
        server.daemon_threads = True
        serving = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        serving.start()
        yield told
        server.shutdown()
        serving.join()
