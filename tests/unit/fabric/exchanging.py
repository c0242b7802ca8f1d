"""A stand-in for `glm_spark.fabric.rdma`: speaks its lines; what it does follows its device's name.

Arguments as there. `...fails` breaks when it runs, `...waits` runs until it is stopped, `...silent` says nothing,
`...ends` is gone at once, `...babbles` says something else.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any


def say(**what: Any) -> None:
    print(json.dumps(what), flush=True)


def heard(word: str) -> Any:
    line = sys.stdin.readline()
    told = json.loads(line) if line else {}
    if word not in told:
        raise SystemExit(0)
    return told[word]


def main(device: str, gid_index: str, role: str) -> None:
    if device.endswith("ends"):
        sys.exit("no such device")
    if device.endswith("silent"):
        time.sleep(60)
    if device.endswith("babbles"):
        print("hello", flush=True)
    say(end={"qpn": 17, "psn": int(gid_index), "gid": "::ffff:c0a8:6401", "mtu": 4096})
    other = heard("end")
    say(joined=True)
    heard("run")
    measured = {"step": "small", "received": other["psn"], "round_trip": None, "wrote_bytes": 0, "wrote_seconds": 0.0}
    if device.endswith("fails"):
        fault = {"step": "small", "text": "transport retries exhausted", "status": 12, "vendor_error": 129, "errno": 0}
        say(fault=fault, result=measured)
    elif device.endswith("waits"):
        heard("stop")
        fault = {"step": "small", "text": "stopped", "status": 0, "vendor_error": 0, "errno": 0}
        say(fault=fault, result=measured)
    else:
        figures = {"round_trip": 3e-6 if role == "connect" else None, "wrote_bytes": 1 << 20, "wrote_seconds": 1e-4}
        say(result={**measured, **figures, "step": "done"})
    heard("stop")


if __name__ == "__main__":
    main(*sys.argv[1:])
