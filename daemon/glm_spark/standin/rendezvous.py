"""The store on the master port: who is there, what they were started with, who has come how far.

Rank 0 holds it for the life of the set (`Hub`); the others keep one connection to it (`Spoke`). As with
TensorFold's own, there is no authentication, the bind is a wildcard, any start order works, and a rank that
comes after the set has formed is never taken in.
"""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Protocol

from glm_spark.standin.failures import DistNetworkError, store_lost
from glm_spark.standin.link import JSON, PADS, Link, Lost

RETRY_S = 0.05


class Store(Protocol):
    """What the start-up phases need of either side. `hello` and the world's hellos are plain JSON tables."""

    async def join(self, hello: dict[str, Any], limit_s: float) -> list[dict[str, Any]]: ...
    def arrive(self, place: str, value: Any = None) -> None: ...
    def told(self, place: str) -> Mapping[int, Any]: ...
    def absent(self, place: str) -> list[int]: ...
    async def changed(self) -> None: ...


async def for_ever() -> None:
    """What a rank does in a collective whose peer is gone."""
    await asyncio.Event().wait()


def listener(port: int) -> socket.socket:
    """The wildcard bind, IPv6 and IPv4 where the kernel has both. Raises DistNetworkError, as PyTorch's store."""
    dual = socket.has_dualstack_ipv6()
    with suppress(OSError):
        if dual:
            return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    try:
        return socket.create_server(("", port))
    except OSError as error:
        name = errno.errorcode.get(error.errno or 0, "?")
        raise DistNetworkError(
            "The server socket has failed to listen on any local network address. "
            f"port: {port}, useIpv6: {str(dual).lower()}, code: -{error.errno}, name: {name}, "
            f"message: {os.strerror(error.errno or 0).lower()}"
        ) from None


class Hub:
    """Rank 0's side."""

    def __init__(self, tp: int, port: int) -> None:
        self.tp = tp
        self.port = port
        self.links: dict[int, Link] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self.lost: dict[int, float] = {}  # rank -> monotonic second its connection ended
        self.returned: dict[int, float] = {}  # rank -> monotonic second it knocked again, never to pair
        self.on_pads: Callable[[bytes], None] = lambda pads: None
        self._arrived: dict[str, dict[int, Any]] = {}
        self._news = asyncio.Event()
        self._server: asyncio.Server | None = None

    async def join(self, hello: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
        self.hellos[0] = hello
        if self.tp > 1:
            self._server = await asyncio.start_server(self._serve, sock=listener(self.port))
        try:
            async with asyncio.timeout(limit_s):
                while len(self.hellos) < self.tp:
                    await self.changed()
        except TimeoutError:
            missing = self.tp - len(self.hellos)
            raise DistNetworkError(
                f"Timed out after {limit_s:.0f} seconds waiting for clients. "
                f"{len(self.hellos)}/{self.tp} clients joined ({missing} missing)."
            ) from None
        world = [self.hellos[rank] for rank in range(self.tp)]
        self._tell({"t": "world", "hellos": world})
        return world

    def arrive(self, place: str, value: Any = None, rank: int = 0) -> None:
        """This rank, or the one given, is at `place` and tells all ranks `value` there."""
        self._arrived.setdefault(place, {})[rank] = value
        self._tell({"t": "at", "place": place, "rank": rank, "value": value})
        self._news.set()

    def told(self, place: str) -> Mapping[int, Any]:
        return self._arrived.get(place, {})

    def absent(self, place: str) -> list[int]:
        return [rank for rank in range(self.tp) if rank not in self._arrived.get(place, ())]

    async def changed(self) -> None:
        await self._news.wait()
        self._news.clear()

    def _tell(self, message: dict[str, Any]) -> None:
        for link in self.links.values():
            link.send_json(message)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(reader, writer)
        try:
            hello = await link.receive_json()
            rank = hello.get("rank")
            if hello.get("t") != "hello" or not isinstance(rank, int) or not 0 < rank < self.tp:
                raise Lost(f"not a hello: {hello}")
            if rank in self.hellos:
                self.returned[rank] = time.monotonic()
                link.send_json({"t": "old id"})
                await link.receive()
                return
            self.links[rank] = link
            self.hellos[rank] = hello
            self._news.set()
            await self._listen(rank, link)
        except Lost:
            pass  # a port scanner, or a rank that ended: nobody here is told, as with the real store
        finally:
            link.close()

    async def _listen(self, rank: int, link: Link) -> None:
        try:
            while True:
                kind, payload = await link.receive()
                if kind == PADS:
                    self.on_pads(payload)
                elif kind == JSON:
                    message = json.loads(payload)
                    self.arrive(str(message["place"]), message.get("value"), rank)
        finally:
            self._forget(rank)

    def _forget(self, rank: int) -> None:
        if len(self.hellos) < self.tp:  # before the set has formed a rank may come again
            del self.hellos[rank], self.links[rank]
        else:
            self.lost[rank] = time.monotonic()
        self._news.set()


class Spoke:
    """The side of every other rank."""

    def __init__(self, tp: int, rank: int, master: str, port: int) -> None:
        self.tp = tp
        self.rank = rank
        self.master = master
        self.port = port
        self.link: Link | None = None
        self._arrived: dict[str, dict[int, Any]] = {}

    async def connect(self, limit_s: float) -> Link:
        """Retries until rank 0 listens. Raises DistNetworkError after `limit_s`."""
        try:
            async with asyncio.timeout(limit_s):
                while True:
                    with suppress(OSError):
                        reader, writer = await asyncio.open_connection(self.master, self.port)
                        self.link = Link(reader, writer)
                        return self.link
                    await asyncio.sleep(RETRY_S)
        except TimeoutError:
            raise DistNetworkError(
                f"The client socket has timed out after {limit_s * 1000:.0f}ms while trying to connect to "
                f"({self.master}, {self.port})."
            ) from None

    async def join(self, hello: dict[str, Any], limit_s: float) -> list[dict[str, Any]]:
        link = self.link or await self.connect(limit_s)
        link.send_json({"t": "hello", **hello})
        while True:
            try:
                message = await link.receive_json()
            except Lost:
                store_lost()
            if message["t"] == "world":
                hellos: list[dict[str, Any]] = message["hellos"]
                return hellos

    def arrive(self, place: str, value: Any = None) -> None:
        assert self.link is not None
        self.link.send_json({"place": place, "value": value})

    def told(self, place: str) -> Mapping[int, Any]:
        return self._arrived.get(place, {})

    def absent(self, place: str) -> list[int]:
        return [rank for rank in range(self.tp) if rank not in self._arrived.get(place, ())]

    async def changed(self) -> None:
        """Waits for the next arrival. Raises DistNetworkError when rank 0 is gone."""
        assert self.link is not None
        try:
            message = await self.link.receive_json()
        except Lost:
            store_lost()
        if message.get("t") == "at":
            self._arrived.setdefault(message["place"], {})[message["rank"]] = message["value"]
