"""Was the kernel or the driver changed without a reboot?

NixOS keeps the generation that booted beside the one that is switched to; Ubuntu, and so DGX OS, notes the packages
that want a reboot. What is loaded against what is installed of NVIDIA's driver is the check `gpu`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

BOOTED, CURRENT = Path("/run/booted-system"), Path("/run/current-system")
WANTED_BY = Path("/run/reboot-required.pkgs")
_OURS = re.compile(r"linux-(image|base|modules|nvidia)|nvidia|rdma|mlnx|mlx", re.IGNORECASE)
_STORE = re.compile(r"/nix/store/[a-z0-9]{32}-([^/]+)")


@dataclass(frozen=True, slots=True)
class Generation:
    """Where a NixOS generation's kernel and its modules, the drivers among them, lead; "" for what is not there."""

    kernel: str
    modules: str


def run(context: Context) -> Iterator[Finding]:
    yield from judge(context, generation(BOOTED), generation(CURRENT))
    yield from noted(context, packages(WANTED_BY))


def generation(system: Path) -> Generation:
    return Generation(_leads_to(system / "kernel"), _leads_to(system / "kernel-modules"))


def _leads_to(link: Path) -> str:
    with suppress(OSError):
        return str(link.resolve(strict=True))
    return ""


def packages(file: Path) -> tuple[str, ...]:
    """The packages of the kernel, the GPU's driver and RDMA that a reboot is wanted for, each once."""
    with suppress(OSError, UnicodeDecodeError):
        return tuple(dict.fromkeys(line.strip() for line in file.read_text().splitlines() if _OURS.search(line)))
    return ()


def judge(context: Context, booted: Generation, current: Generation) -> Iterator[Finding]:
    """Pure. Not NixOS, or only half of it there to see: nothing to say."""
    if not all((booted.kernel, booted.modules, current.kernel, current.modules)) or booted == current:
        return
    old, new = _name(booted.kernel), _name(current.kernel)
    if booted.kernel == current.kernel:
        measured = f"the kernel {new} runs with the modules of the generation that booted, not with those switched to"
    elif old == new:
        measured = f"another build of {new} runs than the one switched to"
    else:
        measured = f"{old} runs, {new} was switched to"
    yield _wanted(context, measured)


def noted(context: Context, wanting: tuple[str, ...]) -> Iterator[Finding]:
    """Pure."""
    if wanting:
        yield _wanted(context, f"a reboot is wanted by {', '.join(wanting[:5])} ({WANTED_BY})")


def _name(path: str) -> str:
    """linux-6.17.1 of /nix/store/HASH-linux-6.17.1/Image."""
    found = _STORE.match(path)
    return found[1] if found else path


def _wanted(context: Context, measured: str) -> Finding:
    return context.finding(
        "host.reboot-needed",
        Severity.WARNING,
        "kernel and drivers",
        measured=measured,
        wanted="the kernel and the drivers that are installed",
        fix=f"Reboot {context.me}; the set is down meanwhile.",
    )


CHECK = Check(
    id="reboot",
    measures="/run/booted-system against /run/current-system (NixOS), /run/reboot-required.pkgs (DGX OS)",
    wants="the kernel and the drivers that are installed are the ones that run",
    advice="Reboot after an update of the kernel or a driver.",
    run=run,
)
