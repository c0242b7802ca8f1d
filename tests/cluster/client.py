"""A client program that asks all the time and expects what every one of its requests is promised: an answer."""

from __future__ import annotations

import asyncio
from collections import Counter

import aiohttp

from tests.cluster.observer import FRONT, Observer

PAUSE_SECONDS = 0.3
# Hangs that the canary's patience in these tests lets pass, a stop's drain, and the end of a deaf rank.
ANSWER_SECONDS = 20.0
QUESTION = {
    "model": "GLM-5.3-Flash-EXL3",
    "messages": [{"role": "user", "content": "Are you there?"}],
    "max_tokens": 8,
    "chat_template_kwargs": {"enable_thinking": False},
}


class Client:
    """`answers` counts HTTP statuses, and "gone" where nobody listened or the leader's daemon ended meanwhile."""

    def __init__(self, observer: Observer) -> None:
        self.answers: Counter[str] = Counter()
        self._observer = observer

    async def run(self) -> None:
        spark = self._observer.cluster.leader.spark
        while True:
            began = self._observer.time
            asking = asyncio.create_task(self._ask(spark.session(None)))
            try:
                while not asking.done():
                    await asyncio.wait({asking}, timeout=0.2)
                    # While the leader's daemon itself is gone or stands still, nobody is there to answer.
                    began = max(began, self._observer.absent)
                    if self._observer.time - began > ANSWER_SECONDS:
                        self._observer.violations.append(f"a request has no answer after {ANSWER_SECONDS:g} s")
                        return
                self.answers[asking.result()] += 1
            finally:
                asking.cancel()
                await asyncio.gather(asking, return_exceptions=True)
            await asyncio.sleep(PAUSE_SECONDS)

    async def _ask(self, session: aiohttp.ClientSession) -> str:
        url = f"http://127.0.0.1:{FRONT}/v1/chat/completions"
        try:
            async with session, session.post(url, json=QUESTION) as response:
                body = await response.json()
                if response.status != 200 and not body["error"]["message"]:
                    self._observer.violations.append(f"status {response.status} without a word: {body}")
                return str(response.status)
        except (aiohttp.ClientError, OSError):
            return "gone"
