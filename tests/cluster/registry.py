"""`python registry.py FOLDER PORT`: serves what `podman push ... dir:FOLDER` wrote, as a registry on loopback."""

from __future__ import annotations

import hashlib
import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

OCI = "application/vnd.oci.image.manifest.v1+json"


class Registry(BaseHTTPRequestHandler):
    folder: Path

    def do_GET(self) -> None:
        name = self.path.rpartition("/")[2]
        if self.path == "/v2/":
            self._answer(b"{}", "application/json")
        elif "/manifests/" in self.path:
            body = (self.folder / "manifest.json").read_bytes()
            digest = f"sha256:{hashlib.sha256(body).hexdigest()}"
            self._answer(body if name == digest else None, json.loads(body).get("mediaType", OCI), digest)
        else:
            file = self.folder / name.removeprefix("sha256:")
            self._answer(file.read_bytes() if file.is_file() else None, "application/octet-stream")

    do_HEAD = do_GET

    def _answer(self, body: bytes | None, kind: str, digest: str = "") -> None:
        self.send_response(200 if body is not None else 404)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body or b"")))
        if digest:
            self.send_header("Docker-Content-Digest", digest)
        self.end_headers()
        if body is not None and self.command == "GET":
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


if __name__ == "__main__":
    Registry.folder = Path(sys.argv[1])
    ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Registry).serve_forever()
