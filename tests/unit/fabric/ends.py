"""Both ends of a path probe as programs, to be run in a network namespace each.

respond ADDRESS PORT KEY            prints the addresses that are answered on; ends with standard input
ask NETDEV SOURCE PEER PORT MTU KEY prints what the probe found
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import asdict

from glm_spark.fabric.probe import Responder, probe


async def respond(addresses: str, port: str, key: str) -> None:
    wanted = {address: netdev for address, _, netdev in (one.partition("@") for one in addresses.split(","))}
    async with Responder(wanted, int(port), key.encode()) as responder:
        print(json.dumps(responder.bound), flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def ask(netdev: str, source: str, peer: str, port: str, mtu: str, key: str) -> None:
    found = await probe(netdev, source, peer, int(port), int(mtu), key.encode(), attempts=2, timeout=0.2)
    print(json.dumps(asdict(found)))


if __name__ == "__main__":
    mode, *arguments = sys.argv[1:]
    asyncio.run(respond(*arguments) if mode == "respond" else ask(*arguments))
