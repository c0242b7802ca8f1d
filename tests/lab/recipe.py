"""How the lab's image is made: the Debian root, the daemon's dependencies, the kernel, the two file systems."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from pathlib import Path

from . import host, kernel, topology

SUITE = "bookworm"
GUEST_PYTHON = "3.11"
DISK_GIB = 2
_HERE = Path(__file__).parent
GUEST = _HERE / "guest"
_SITE = f"usr/local/lib/python{GUEST_PYTHON}/dist-packages"
CODE = "/opt/glm-spark"

_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "udev", "kmod", "procps", "util-linux", "util-linux-extra", "passwd"),
    *("iproute2", "iputils-ping", "ethtool", "nftables", "curl", "ca-certificates", "qemu-guest-agent"),
    *("python3", "python3-pyverbs", "ibverbs-providers", "ibverbs-utils", "rdma-core", "rdmacm-utils", "perftest"),
)
_PODMAN = ("podman", "crun", "catatonit", "fuse-overlayfs", "iptables", "netavark", "aardvark-dns")
# no index has a wheel of these; all are pure Python
_SOURCE_ONLY = ("sdnotify",)
_MASKED = (
    *("apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer", "e2scrub_all.timer", "fstrim.timer"),
    *("e2scrub_reap.service", "getty@tty1.service", "systemd-timesyncd.service", "systemd-pstore.service"),
    *("systemd-binfmt.service", "proc-sys-fs-binfmt_misc.automount", "proc-sys-fs-binfmt_misc.mount"),
    *("dev-hugepages.mount", "systemd-update-utmp.service", "nftables.service"),
)


def with_podman() -> bool:
    """LAB_PODMAN=1 adds podman to the image (about 100 MB more)."""
    return os.environ.get("LAB_PODMAN") == "1"


def dependencies() -> list[str]:
    """The daemon's own list, so that the lab tests with what the package asks for."""
    project = tomllib.loads((host.REPOSITORY / "daemon/pyproject.toml").read_text())["project"]
    return sorted(project["dependencies"])


def build(target: Path, guest: host.Arch) -> None:
    """Build into `target` (absolute); an interrupted build leaves only TARGET.partial behind."""
    start = time.monotonic()

    def step(text: str) -> None:
        print(f"lab image: {time.monotonic() - start:6.1f} s  {text}", flush=True)

    host.enable_foreign_binaries(guest)
    work = target.with_suffix(".partial")
    shutil.rmtree(work, ignore_errors=True)
    rootfs, package = work / "rootfs", work / "kernel"
    package.mkdir(parents=True)
    _bootstrap(rootfs, package, guest)
    step("Debian root and kernel package")
    _install_dependencies(rootfs, work, guest)
    step("the daemon's Python dependencies")
    _furnish(rootfs)
    version = _unpack_kernel(package)
    kernel.install_modules(package, rootfs, version)
    busybox = rootfs / "bin/busybox"
    kernel.build_initrd(rootfs, version, GUEST / "init", busybox, work / "initrd.gz", work / "initrd")
    shutil.copy(next(package.glob("boot/vmlinuz-*")), work / "vmlinuz")
    step(f"modules and initrd of {version}")
    _make_file_systems(rootfs, work)
    for scratch in (rootfs, package, work / "initrd", work / "wheels"):
        shutil.rmtree(scratch)
    work.rename(target)
    step(f"done: {target}")


def debian_sources() -> list[Path]:
    """The host's own apt sources that carry the guest's suite."""
    found = []
    for path in [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*"))]:
        if path.is_file() and re.search(rf"(?m)^(Suites:.*|deb .*)\b(?<!-){SUITE}\b", path.read_text()):
            found.append(path)
    if not found:
        raise RuntimeError(f"lab: no apt source of this machine carries Debian {SUITE}; the image needs one")
    return found


def _bootstrap(rootfs: Path, package: Path, guest: host.Arch) -> None:
    packages = [*_PACKAGES, "busybox-static", *(_PODMAN if with_podman() else ())]
    fetch_kernel = (
        f'export APT_CONFIG="$MMDEBSTRAP_APT_CONFIG"; cd {package} && apt-get -qq download '
        f"$(apt-cache depends linux-image-6.12-{guest} | sed -n 's/.*Depends: \\(linux-image-[0-9]\\)/\\1/p')"
    )
    excluded = ("doc", "man", "locale", "info", "lintian", "bash-completion")
    command = [
        *("mmdebstrap", "--mode=root", "--variant=minbase", f"--arch={guest}"),
        f"--include={','.join(packages)}",
        '--aptopt=APT::Install-Recommends "0"',
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in excluded),
        f"--customize-hook={fetch_kernel}",
        *(SUITE, str(rootfs), *map(str, debian_sources())),
    ]
    log = rootfs.with_name("mmdebstrap.log")
    with log.open("wb") as sink:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=sink, stderr=sink).returncode
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-20:])
        raise RuntimeError(f"lab: mmdebstrap ended with {status}:\n{tail}")


def _install_dependencies(rootfs: Path, work: Path, guest: host.Arch) -> None:
    wheels = work / "wheels"
    wheels.mkdir()
    pip = [sys.executable, "-m", "pip", "-qq", "--disable-pip-version-check"]
    quiet = {**os.environ, "PIP_ROOT_USER_ACTION": "ignore"}
    subprocess.run([*pip, "wheel", "--no-deps", "-w", wheels, *_SOURCE_ONLY], check=True, env=quiet)
    machine = {"amd64": "x86_64", "arm64": "aarch64"}[guest]
    platforms = [f"--platform=manylinux{tag}_{machine}" for tag in ("2014", "_2_17", "_2_28")]
    target = [*platforms, f"--python-version={GUEST_PYTHON}", "--implementation=cp", "--only-binary=:all:"]
    where = ["--target", str(rootfs / _SITE), f"--find-links={wheels}", "--no-compile"]
    subprocess.run([*pip, "install", *where, *target, *dependencies()], check=True, env=quiet)
    # the root is read-only: what is not compiled here would be compiled at every import, ten times slower
    compiler = ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash"]
    chroot = ["chroot", str(rootfs), *compiler, f"/{_SITE}"]
    subprocess.run(chroot, check=True, stdout=subprocess.DEVNULL)


def _furnish(rootfs: Path) -> None:
    ignore = shutil.ignore_patterns("init")
    shutil.copytree(GUEST, rootfs, dirs_exist_ok=True, symlinks=True, ignore=ignore)
    for name, text in topology.link_files().items():
        (rootfs / "etc/systemd/network" / name).write_text(text)
    (rootfs / _SITE / "glm-spark-code.pth").write_text(CODE + "\n")
    (rootfs / "etc/machine-id").write_text("")
    (rootfs / "etc/hostname").unlink(missing_ok=True)
    (rootfs / "var/log/journal").mkdir(exist_ok=True)
    units = rootfs / "etc/systemd/system"
    for unit in _MASKED:
        (units / unit).unlink(missing_ok=True)
        (units / unit).symlink_to("/dev/null")
    (units / "default.target").symlink_to("/lib/systemd/system/multi-user.target")
    wants = units / "multi-user.target.wants"
    wants.mkdir(exist_ok=True)
    (wants / "lab-setup.service").symlink_to("../lab-setup.service")
    for command in (
        ["passwd", "-q", "-d", "root"],
        ["useradd", "--system", "--user-group", "--shell", "/usr/sbin/nologin", "--no-create-home", "glm-spark"],
    ):
        subprocess.run(["chroot", str(rootfs), *command], check=True)


def _unpack_kernel(package: Path) -> str:
    archive = next(package.glob("linux-image-*.deb"))
    subprocess.run(["dpkg", "-x", archive, package], check=True)
    return next(package.glob("boot/vmlinuz-*")).name.removeprefix("vmlinuz-")


def _make_file_systems(rootfs: Path, work: Path) -> None:
    used = int(subprocess.run(["du", "-sm", rootfs], check=True, capture_output=True).stdout.split()[0])
    root = work / "root.ext4"
    with root.open("wb") as file:
        file.truncate((used * 5 // 4 + 60) << 20)
    subprocess.run(["mkfs.ext4", "-q", "-O", "^has_journal", "-m", "0", "-d", rootfs, root], check=True)
    raw = work / "disk.raw"
    with raw.open("wb") as file:
        file.truncate(DISK_GIB << 30)
    # no lazy initialisation: a guest that has just booted must be idle
    subprocess.run(["mkfs.ext4", "-q", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0", raw], check=True)
    subprocess.run(["qemu-img", "convert", "-O", "qcow2", raw, work / "disk.qcow2"], check=True)
    raw.unlink()
