"""The NVIDIA driver on this Spark: kernel module, userspace, CDI specification, clock limit.

All from files but the clock, which only nvidia-smi can set. NVML's memory figures and clock queries answer "Not
Supported" on a GB10: that is normal and nothing is concluded from it.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm_spark.engine.command import Answer, Unanswered, ask
from glm_spark.engine.container import tool_environment

MODULE = Path("/sys/module/nvidia/version")
# Where NixOS, Ubuntu (DGX OS) and other distributions have the driver's libraries.
LIBRARIES = (
    Path("/run/opengl-driver/lib"),
    Path("/usr/lib/aarch64-linux-gnu"),
    Path("/usr/lib/x86_64-linux-gnu"),
    Path("/usr/lib64"),
    Path("/usr/lib"),
)
CDI = (Path("/etc/cdi"), Path("/var/run/cdi"))
NVML = "libnvidia-ml.so.1"
SMI_SECONDS = 20.0  # without persistence mode the driver is brought up first
_VERSION = re.compile(r"\.so\.(\d{3,4}(?:\.\d+){1,2})$")
_KIND = re.compile(r"""["']?kind["']?\s*:\s*["']?nvidia\.com/gpu["']?""")
_ALL = re.compile(r"""["']?name["']?\s*:\s*["']?all["']?\s*(?:,|$|\})""", re.MULTILINE)
_HOST_PATH = re.compile(r"""["']?hostPath["']?\s*:\s*["']?([^"',\s]+)""")


@dataclass(frozen=True, slots=True)
class Specification:
    """A CDI specification for NVIDIA GPUs. `absent`: files of this Spark that it names and that are not there.
    `versions`: those of the driver in its libraries' names."""

    path: str
    has_all: bool
    versions: frozenset[str] = frozenset()
    absent: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Driver:
    """Versions, "" where there is none. `specifications` only those for nvidia.com/gpu."""

    kernel: str = ""
    userspace: str = ""
    library: str = ""  # where the userspace's version was read
    specifications: tuple[Specification, ...] = ()


def read(module: Path = MODULE, libraries: Sequence[Path] = LIBRARIES, cdi: Sequence[Path] = CDI) -> Driver:
    """Reads files only; may block on a broken disk."""
    kernel = ""
    with suppress(OSError):
        kernel = module.read_text().strip()
    userspace, library = "", ""
    for directory in libraries:
        with suppress(OSError):
            path = (directory / NVML).resolve(strict=True)
            if found := _VERSION.search(path.name):
                userspace, library = found[1], str(path)
                break
    return Driver(kernel, userspace, library, tuple(_specifications(cdi)))


def _specifications(directories: Iterable[Path]) -> Iterator[Specification]:
    for directory in directories:
        with suppress(OSError):
            for path in sorted(directory.iterdir()):
                if path.suffix in (".yaml", ".yml", ".json"):
                    with suppress(OSError, UnicodeDecodeError):
                        text = path.read_text()
                        if _KIND.search(text):
                            yield specification(str(path), text)


def specification(path: str, text: str) -> Specification:
    """A CDI file's text, YAML or JSON as nvidia-ctk writes them: what is looked at stands on lines of its own."""
    if text.lstrip().startswith("{"):
        with suppress(ValueError):
            text = json.dumps(json.loads(text), indent=1)
    files = dict.fromkeys(_HOST_PATH.findall(text))
    versions = {found[1] for file in files if (found := _VERSION.search(file))}
    absent = tuple(file for file in files if not os.path.lexists(file))
    return Specification(path, bool(_ALL.search(text)), frozenset(versions), absent)


def capped(answer: Answer, mhz: int) -> str:
    """Pure: "" when nvidia-smi set the limit, else why not. It exits 0 in some refusals too."""
    said = f"{answer.output}\n{answer.errors}"
    if re.search(r"not supported|insufficient permissions|unable to|failed|error", said, re.IGNORECASE):
        return answer.last_words if answer.errors.strip() else said.strip().splitlines()[0][:500]
    if answer.code != 0:
        return answer.last_words
    if (found := re.search(r"gpuClkMax[^0-9]{1,3}(\d+)", said)) and int(found[1]) > mhz:
        return f"nvidia-smi set {found[1]} MHz"
    return ""


def faster(answer: Answer, mhz: int) -> int | None:
    """Pure: the clock in MHz of a GPU that runs above the limit; None when none does or none can say."""
    clocks = [int(word) for word in re.findall(r"^\s*(\d{2,5})\b", answer.output, re.MULTILINE)]
    above = [clock for clock in clocks if clock > mhz + 15]  # clocks go in steps of 15 MHz
    return max(above, default=None)


async def cap(mhz: int) -> str:
    """Sets the upper limit of the GPU's clock and reads back; "" when it holds, else why not, in words."""
    environment = tool_environment(os.environ)
    try:
        trouble = capped(await ask(("nvidia-smi", f"--lock-gpu-clocks=0,{mhz}"), SMI_SECONDS, environment), mhz)
        if trouble:
            return trouble
        query = ("nvidia-smi", "--query-gpu=clocks.current.graphics", "--format=csv,noheader,nounits")
        clock = faster(await ask(query, SMI_SECONDS, environment), mhz)
    except Unanswered as silence:
        return str(silence)
    return f"the GPU runs at {clock} MHz all the same" if clock is not None else ""
