"""The leader's end of a fetch: the list of files and their content from the Hub, with the Hub's own client.

Imported only in a transfer's process, which has set the client's environment before. The client makes the requests,
follows redirects and takes up broken streams; where bytes go, and whether they are right, is decided here, so that a
fetch that was killed resumes like a transfer between Sparks.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterable
from typing import Any, NoReturn, cast
from urllib.parse import urlparse

from huggingface_hub import HfApi, constants, hf_hub_url
from huggingface_hub.errors import GatedRepoError, HfHubHTTPError, RevisionNotFoundError
from huggingface_hub.file_download import get_hf_file_metadata, http_get
from huggingface_hub.utils._headers import build_hf_headers

from glm_spark.engine.container import PROXY_VARIABLES
from glm_spark.weights import faults, lists, manifest
from glm_spark.weights.faults import Fault, fault
from glm_spark.weights.job import Job
from glm_spark.weights.manifest import Entry, Manifest
from glm_spark.weights.partial import CHUNK
from glm_spark.weights.pins import Pin
from glm_spark.weights.shelf import Blob, Shelf

STREAMS = 4
CONNECT_SECONDS = 5.0
TRIES = 8  # in a row without a byte more
_PORTS = {"http": 80, "https": 443}
_PAUSES = (0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 30.0)  # seconds between them
# The client hands on whole pieces: what had come of one when a stream broke is lost. Its own size is 10 MB.
constants.DOWNLOAD_CHUNK_SIZE = 1 << 18
_LOST = cast("tuple[type[Exception], ...]", HfHubHTTPError.__bases__)  # the HTTP library's own errors, and OSError


class Hub:
    """One fetch. Everything raises Fault for what a person has to mend."""

    def __init__(self, job: Job) -> None:
        self._job = job
        self._endpoint = job.hub.endpoint or None
        self._token: str | bool = job.hub.token or False  # never one that lies about in a home directory
        self._api = HfApi(endpoint=self._endpoint, token=self._token)
        self._lock = threading.Lock()
        self.moved = 0

    def listing(self, pin: Pin) -> Manifest:
        """The files of a pinned revision, kept for good."""
        self._licensed(pin)
        self._reach(pin)
        try:
            found = manifest.of(pin.repository, pin.revision, self._entries(pin))
        except HfHubHTTPError as error:
            self._judge(pin, error)
            raise self._unreachable(pin, error) from None
        except _LOST as error:  # the client has tried several times by then
            raise self._unreachable(pin, error) from None
        except ValueError as error:
            raise self._fault(pin, "hub-list", f"its list of files cannot be used: {error}", _AGAIN) from None
        lists.keep(self._job.node, self._job.store.state, pin, found)
        return found

    def _reach(self, pin: Pin) -> None:
        """A Hub that nobody answers for is told at once; the client itself would try for half a minute."""
        if any(os.environ.get(name) for name in PROXY_VARIABLES):
            return
        where = urlparse(self._api.endpoint)
        try:
            with socket.create_connection((where.hostname, where.port or _PORTS[where.scheme]), CONNECT_SECONDS):
                return
        except OSError as error:
            raise self._unreachable(pin, error) from None

    def _licensed(self, pin: Pin) -> None:
        if pin.noncommercial and not self._job.accept_noncommercial:
            fix = 'Set model.accept_noncommercial = true to accept that, or model.drafter = "mtp".'
            raise fault(self._job.node, "licence", pin.name, f"licensed {pin.licence}", "an accepted licence", fix)

    def _entries(self, pin: Pin) -> list[Entry]:
        rows: Iterable[Any] = self._api.list_repo_tree(pin.repository, revision=pin.revision, recursive=True)
        entries = []
        for row in rows:
            if not hasattr(row, "blob_id"):
                continue  # a folder
            digest = row.lfs["sha256"] if row.lfs else row.blob_id
            entries.append(Entry(path=row.path, size=row.size, digest=digest))
        return entries

    def fetch(self, shelf: Shelf) -> None:
        """Brings everything on the shelf, several files at once."""

        def work() -> None:
            try:
                while (blob := shelf.take_blob()) is not None:
                    self._blob(shelf, blob)
            except Fault as trouble:
                shelf.fail(trouble)
            except OSError as error:
                shelf.fail(faults.of_disk(self._job.node, self._job.cache, error))

        threads = [threading.Thread(target=work, name=f"fetch {n}", daemon=True) for n in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if shelf.fault is not None:
            raise shelf.fault

    def _blob(self, shelf: Shelf, blob: Blob) -> None:
        for _ in range(2):
            self._bring(shelf, blob)
            if shelf.finish(blob):
                return
        path = next(entry.path for entry in blob.manifest.files if entry.digest == blob.entry.digest)
        text = f"what came for {path} is not the pinned content, twice"
        raise self._fault(blob.pin, "hub-content", text, "Look at the proxy or mirror in between, then try again.")

    def _bring(self, shelf: Shelf, blob: Blob) -> None:
        """Until all bytes of a blob are there, right or wrong."""
        tries = 0
        while True:
            sink = _Sink(self, shelf, blob)
            if sink.position >= blob.entry.size:
                return
            before = sink.position
            try:
                self._stream(blob, sink)
                return
            except HfHubHTTPError as error:
                self._judge(blob.pin, error)
                last: Exception = error
            except _LOST as error:
                last = error
            tries = 0 if sink.position > before else tries + 1
            if tries >= TRIES:
                raise self._unreachable(blob.pin, last)
            if shelf.fault is not None:
                raise shelf.fault
            time.sleep(_PAUSES[min(tries, len(_PAUSES) - 1)])

    def _stream(self, blob: Blob, sink: _Sink) -> None:
        pin, entry = blob.pin, blob.entry
        url = hf_hub_url(pin.repository, entry.path, revision=pin.revision, endpoint=self._endpoint)
        told = get_hf_file_metadata(url, token=self._token, endpoint=self._endpoint)
        if told.etag != entry.digest or told.size not in (None, entry.size):
            text = f"{entry.path} is another file there than its list says"
            raise self._fault(pin, "hub-content", text, _AGAIN)
        headers = build_hf_headers(token=self._token)
        headers["Accept-Encoding"] = "identity"
        if urlparse(told.location).netloc != urlparse(url).netloc:
            headers.pop("authorization", None)  # the store behind the Hub has its own signed addresses
        http_get(told.location, cast(Any, sink), resume_size=sink.position, headers=headers, expected_size=entry.size)

    # -- what stands in the way --------------------------------------------------------------------------------

    def _judge(self, pin: Pin, error: HfHubHTTPError) -> None:
        """Raises the Fault that a person has to mend; returns where another try may help."""
        response = getattr(error, "response", None)
        status = getattr(response, "status_code", 0)
        page = f"{self._api.endpoint}/{pin.repository}"
        where = "weights.token_file on the leader (or the systemd credential glm-spark-hf-token)"
        if status == 401 or (isinstance(error, GatedRepoError) and not self._token):
            if self._token:
                text = "the Hub does not accept the token (HTTP 401), or there is no such repository"
                self._refuse(pin, "hub-401", text, f"Make a new read token at the Hub and put it into {where}.")
            text = "the Hub wants an account for it (HTTP 401), or there is no such repository"
            fix = f"Open {page} with an account, accept its terms, make a read token there and put it into {where}."
            self._refuse(pin, "hub-401", text, fix)
        if status == 403:
            fix = (
                f"Open {page} with the account that the token belongs to and accept its terms; a fine-grained token "
                "also needs the right to read gated repositories."
            )
            self._refuse(pin, "hub-403", "this token's account is not admitted to it (HTTP 403)", fix)
        if status == 404:
            if isinstance(error, RevisionNotFoundError):
                text, key = f"there is no revision {pin.revision} (HTTP 404)", "revision"
            else:
                text, key = "there is no such repository or file (HTTP 404)", "repository and revision"
            prefix = "model." if pin.kind == "checkpoint" else "model.drafter_"
            fix = f"Correct {key} ({prefix}repository, {prefix}revision), or leave them out for the pinned ones."
            self._refuse(pin, "hub-404", text, fix)
        if 400 <= status < 500 and status not in (408, 416, 429):
            self._refuse(pin, "hub-refused", f"the Hub refused (HTTP {status})", _AGAIN)

    def _refuse(self, pin: Pin, code: str, measured: str, fix: str) -> NoReturn:
        raise self._fault(pin, code, measured, fix)

    def _unreachable(self, pin: Pin, error: Exception | None) -> Fault:
        text = f"the Hub cannot be reached: {type(error).__name__}: {error}".replace("\n", " ")
        if self._token and isinstance(self._token, str):
            text = text.replace(self._token, "***")
        fix = (
            f"See that this Spark reaches {self._api.endpoint}. What was fetched stays. Without a way there, copy the "
            "Hugging Face cache of another machine to model.cache."
        )
        return self._fault(pin, "hub-unreachable", text[:500], fix)

    def _fault(self, pin: Pin, code: str, measured: str, fix: str) -> Fault:
        return fault(self._job.node, code, pin.name, measured, "the pinned files", fix)


_AGAIN = "Try again later: glm-spark weights fetch."


class _Sink:
    """What the client writes a stream to: the blob, from the end of what is there on."""

    def __init__(self, hub: Hub, shelf: Shelf, blob: Blob) -> None:
        self._hub = hub
        self._shelf = shelf
        self._blob = blob
        missing = next(blob.partial.missing(), None)
        self.position = blob.entry.size if missing is None else missing * CHUNK

    def write(self, data: bytes) -> int:
        blob, shelf = self._blob, self._shelf
        if shelf.fault is not None:
            raise shelf.fault
        first = self.position // CHUNK
        try:
            blob.partial.write(self.position, data)
            self.position += len(data)
            last = self.position // CHUNK if self.position < blob.entry.size else (blob.entry.size - 1) // CHUNK + 1
            for index in range(first, last):
                if index not in blob.partial.chunks:
                    blob.partial.note(index)
                    shelf.count(blob.partial.span(index)[1])
        except OSError as error:
            raise shelf.disk(blob, error) from None
        with self._hub._lock:
            self._hub.moved += len(data)
        return len(data)

    def tell(self) -> int:
        return self.position

    def seek(self, offset: int, whence: int = 0) -> int:
        """The client begins anew where a server did not resume."""
        self.position = offset if whence == 0 else self._blob.entry.size
        return self.position

    def truncate(self, size: int | None = None) -> int:
        return self.position if size is None else size

    def flush(self) -> None:
        """Nothing is kept back."""
