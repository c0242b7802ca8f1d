"""The engine's own output: one line an event, prefixed and flushed."""

from __future__ import annotations

import os


def nccl(text: str) -> str:
    """A line of NCCL's own log."""
    return f"{os.uname().nodename}:{os.getpid()}:{os.getpid()} [0] NCCL {text}"


def say(text: str) -> None:
    print(f"[tensorfold] {text}", flush=True)


BANNER = """
==========
== CUDA ==
==========

CUDA Version 13.0.2

Container image Copyright (c) 2016-2026, NVIDIA CORPORATION & AFFILIATES. All rights reserved.
(a stand-in: no image, no CUDA and no model are here)
"""
EXPERIMENTAL = "EXL3 support is experimental: speed and memory use may change between releases"
