"""What the lab needs of the machine it runs on: paths, the guest's architecture, programs, root for a build."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from enum import StrEnum
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
CACHE = REPOSITORY / ".cache" / "lab"

# program -> Debian package
_PROGRAMS = {
    "qemu-img": "qemu-utils",
    "mmdebstrap": "mmdebstrap",
    "mkfs.ext4": "e2fsprogs",
    "cpio": "cpio",
    "depmod": "kmod",
    "setpriv": "util-linux",
}


class Arch(StrEnum):
    AMD64 = "amd64"
    ARM64 = "arm64"

    @property
    def qemu(self) -> str:
        return {"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}[self]

    @property
    def foreign(self) -> bool:
        return platform.machine() != {"amd64": "x86_64", "arm64": "aarch64"}[self]


def arch() -> Arch:
    """LAB_ARCH, else amd64: the guests of the suite are x86 even on another machine."""
    return Arch(os.environ.get("LAB_ARCH", "amd64"))


def _which(program: str) -> str | None:
    return shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")


def as_root(command: list[str]) -> list[str]:
    return command if os.geteuid() == 0 else ["sudo", "-n", *command]


def missing_packages(guest: Arch) -> list[str]:
    programs = dict(_PROGRAMS)
    programs[guest.qemu] = {"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}[guest]
    if guest.foreign:
        # mmdebstrap asks arch-test whether the guest's programs run
        programs |= {"update-binfmts": "binfmt-support", "arch-test": "arch-test"}
        programs["qemu-aarch64-static" if guest is Arch.ARM64 else "qemu-x86_64-static"] = "qemu-user-static"
    return sorted({package for program, package in programs.items() if _which(program) is None})


def set_up(guest: Arch) -> None:
    """Install what is missing (apt, as root); nothing is asked of the network when nothing is missing."""
    packages = missing_packages(guest)
    if not packages:
        return
    print(f"lab: installing {' '.join(packages)}", flush=True)
    apt = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=300"]
    subprocess.run(as_root([*apt, "update"]), check=True)
    install = [*apt, "install", "-y", "--no-install-recommends", *packages]
    subprocess.run(as_root(install), check=True, stdout=subprocess.DEVNULL)


def enable_foreign_binaries(guest: Arch) -> None:
    """Let the kernel run the guest's programs through qemu-user; only an image build needs it."""
    if not guest.foreign:
        return
    if not Path("/proc/sys/fs/binfmt_misc/status").exists():
        subprocess.run(["mount", "-t", "binfmt_misc", "none", "/proc/sys/fs/binfmt_misc"], check=True)
    emulator = "qemu-aarch64" if guest is Arch.ARM64 else "qemu-x86_64"
    subprocess.run(["update-binfmts", "--enable", emulator], check=True)
