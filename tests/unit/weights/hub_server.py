"""A server that answers as the Hub does: the list of a revision's files, files in git, files in LFS behind a redirect.

`python -m tests.unit.weights.hub_server PORT DIRECTORY` serves DIRECTORY/OWNER/NAME as every revision.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from glm_spark.weights.manifest import Entry, pointer_id
from tests.unit.weights.repositories import digest, sha256


@dataclass
class Behaviour:
    """What goes wrong. `cut_after` bytes of a stored file a connection breaks, `cuts` times; `rate` in bytes a second;
    `refuse` is (status, X-Error-Code) for everything; `wrong` are stored files whose content is another one."""

    token: str = ""
    cut_after: int | None = None
    cuts: int = 0
    rate: float | None = None
    refuse: tuple[int, str] | None = None
    wrong: frozenset[str] = frozenset()
    resumes: bool = True


@dataclass
class Hub:
    """`with Hub({"someone/a-model": files}) as hub: hub.endpoint`. `sent` counts bytes of stored files."""

    repositories: dict[str, dict[str, bytes]]
    port: int = 0
    behaviour: Behaviour = field(default_factory=Behaviour)
    requests: list[tuple[str, str, str]] = field(default_factory=list)  # method, target, Authorization
    sent: int = 0

    def __enter__(self) -> Hub:
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", self.port), _handler(self))
        self._server.daemon_threads = True
        self.port = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def take_cut(self) -> int | None:
        """After how many bytes this answer breaks off, None when it does not."""
        with self._lock:
            if self.behaviour.cut_after is None or self.behaviour.cuts <= 0:
                return None
            self.behaviour.cuts -= 1
            return self.behaviour.cut_after

    def count(self, size: int) -> None:
        with self._lock:
            self.sent += size

    def stored(self, name: str) -> bytes | None:
        for files in self.repositories.values():
            for path, body in files.items():
                if sha256(body) == name:
                    return bytes(len(body)) if path in self.behaviour.wrong else body
        return None


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: Any) -> None:
            """Quiet."""

        def do_GET(self) -> None:
            self._route()

        def do_HEAD(self) -> None:
            self._route()

        def _route(self) -> None:
            authorization = self.headers.get("Authorization", "")
            hub.requests.append((self.command, self.path, authorization))
            target = urlsplit(self.path)
            if target.path.startswith("/store/"):
                self._store(target.path.removeprefix("/store/"))
                return
            if hub.behaviour.refuse is not None:
                self._refuse(*hub.behaviour.refuse)
                return
            if hub.behaviour.token and authorization != f"Bearer {hub.behaviour.token}":
                self._refuse(401, "GatedRepo" if not authorization else "")
                return
            parts = target.path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                files = hub.repositories.get("/".join(parts[2:4]))
                self._tree(files) if files is not None else self._refuse(404, "RepoNotFound")
                return
            files = hub.repositories.get("/".join(parts[:2])) or {}
            path = "/".join(parts[4:])
            self._file(path, files[path], parts[3]) if path in files else self._refuse(404, "EntryNotFound")

        def _refuse(self, status: int, code: str) -> None:
            self._say(status, {"X-Error-Code": code} if code else {}, b"no")

        def _tree(self, files: dict[str, bytes]) -> None:
            rows: list[dict[str, Any]] = []
            for folder in sorted({str(Path(path).parent) for path in files} - {"."}):
                rows.append({"type": "directory", "path": folder, "oid": "0" * 40, "size": 0})
            for path, body in files.items():
                name = digest(path, body)
                row: dict[str, Any] = {"type": "file", "path": path, "size": len(body), "oid": name}
                if len(name) == 64:
                    row["oid"] = pointer_id(Entry(path=path, size=len(body), digest=name))
                    row["lfs"] = {"oid": name, "size": len(body), "pointerSize": 134}
                rows.append(row)
            self._say(200, {"Content-Type": "application/json"}, json.dumps(rows).encode())

        def _file(self, path: str, body: bytes, revision: str) -> None:
            name = digest(path, body)
            told = {"X-Repo-Commit": revision}
            if len(name) == 64:
                told |= {"X-Linked-Etag": f'"{name}"', "X-Linked-Size": str(len(body))}
                # Another host, as the Hub's store is: what is for the Hub must not be told there.
                self._say(302, told | {"Location": f"http://localhost:{hub.port}/store/{name}?signature=x"}, b"")
            else:
                self._body(body, told | {"ETag": f'"{name}"'})

        def _store(self, name: str) -> None:
            body = hub.stored(name)
            if body is None:
                self._refuse(404, "")
            else:
                self._body(body, {"ETag": f'"{name}"'})

        def _body(self, body: bytes, told: dict[str, str]) -> None:
            first = 0
            asked = self.headers.get("Range", "")
            if asked.startswith("bytes=") and hub.behaviour.resumes:
                first = int(asked.removeprefix("bytes=").split("-")[0])
                told |= {"Content-Range": f"bytes {first}-{len(body) - 1}/{len(body)}"}
            self._say(206 if first else 200, told, body[first:])

        def _say(self, status: int, told: dict[str, str], body: bytes) -> None:
            self.send_response(status)
            for name, value in told.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command == "HEAD":
                return
            cut = hub.take_cut() if len(body) > (hub.behaviour.cut_after or 0) else None
            for at in range(0, len(body) if cut is None else cut, 65536):
                piece = body[at : min(at + 65536, len(body) if cut is None else cut)]
                self.wfile.write(piece)
                hub.count(len(piece))
                if hub.behaviour.rate:
                    time.sleep(len(piece) / hub.behaviour.rate)
            if cut is not None:
                self.wfile.flush()
                self.close_connection = True
                self.connection.close()

        def handle(self) -> None:
            try:
                super().handle()
            except OSError:
                return  # a client that was killed

        def finish(self) -> None:
            try:
                super().finish()
            except (OSError, ValueError):
                return

    return Handler


def main(port: int, directory: Path) -> None:
    repositories = {
        f"{owner.name}/{name.name}": {
            str(file.relative_to(name)): file.read_bytes() for file in name.rglob("*") if file.is_file()
        }
        for owner in directory.iterdir()
        for name in owner.iterdir()
    }
    with Hub(repositories, port=port):
        print("up", flush=True)
        threading.Event().wait()


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
