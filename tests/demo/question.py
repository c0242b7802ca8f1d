"""Asks the endpoint one question and prints the answer as it streams. Run on a Spark, by path.

`python question.py URL MODEL TEXT`: exit status 0 when an answer came to its end, 1 with the reason when not.
"""

from __future__ import annotations

import http.client
import json
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any


def deltas(lines: Iterator[bytes]) -> Iterator[dict[str, Any]]:
    """The events of a stream, [DONE] left out. RuntimeError for an error event or a stream cut short."""
    for line in lines:
        if not line.startswith(b"data:"):
            continue
        data = line[5:].strip()
        if data == b"[DONE]":
            return
        event = json.loads(data)
        if "error" in event:
            raise RuntimeError(str(event["error"].get("message", event["error"])))
        yield event
    raise RuntimeError("the stream ended without [DONE]")


def pieces(event: dict[str, Any]) -> tuple[str, str]:
    """What one event adds to the thought and to the answer."""
    choices = event.get("choices") or [{}]
    delta = choices[0].get("delta") or {}
    return delta.get("reasoning_content") or "", delta.get("content") or ""


def ask(url: str, model: str, text: str) -> None:
    body = {
        "model": model,
        "stream": True,
        "messages": [{"role": "user", "content": text}],
    }
    request = urllib.request.Request(
        f"{url}/v1/chat/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    grey, plain = ("\x1b[2m", "\x1b[0m") if sys.stdout.isatty() else ("", "")
    thinking = False
    with urllib.request.urlopen(request, timeout=60) as response:
        for event in deltas(response):
            thought, answer = pieces(event)
            if thought:
                print(("" if thinking else grey) + thought, end="", flush=True)
                thinking = True
            if answer:
                print((plain + "\n" if thinking else "") + answer, end="", flush=True)
                thinking = False
    print(plain, flush=True)


def main() -> int:
    url, model, text = sys.argv[1:4]
    try:
        ask(url, model, text)
    except urllib.error.HTTPError as error:
        said = error.read().decode(errors="replace")
        print(f"HTTP {error.code}: {said.strip()}")
        return 1
    except (OSError, RuntimeError, ValueError, http.client.HTTPException) as error:
        print(f"\nno whole answer: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
