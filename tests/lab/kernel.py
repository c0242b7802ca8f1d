"""The guest kernel's modules: which are wanted, their closure, the small initrd that mounts the root."""

from __future__ import annotations

import gzip
import lzma
import os
import shutil
import subprocess
from collections.abc import Iterable
from pathlib import Path

INITRD_MODULES = ("virtio_pci", "virtio_mmio", "virtio_blk", "virtio_net", "crc32c_generic", "ext4", "overlay")
GUEST_MODULES = (
    *INITRD_MODULES,
    *("virtio_console", "virtio_rng", "virtio_balloon", "qemu_fw_cfg", "button", "evdev", "i6300esb"),
    # rdma_rxe asks the crypto layer for crc32 by name, which no modules.dep shows
    *("crc32_generic", "rdma_rxe", "siw", "ib_uverbs", "ib_umad", "rdma_ucm", "rdma_cm", "ib_cm", "iw_cm"),
    *("af_packet", "inet_diag", "tcp_diag", "udp_diag", "unix_diag", "dummy", "veth", "bridge", "macvlan", "tun"),
    *(
        "8021q",
        "netdevsim",
        "sch_netem",
        "sch_tbf",
        "sch_ingress",
        "cls_u32",
        "cls_matchall",
        "act_mirred",
        "act_police",
    ),
    *("nf_tables", "nft_compat", "nft_ct", "nft_reject", "nft_reject_inet", "nft_limit", "nft_log", "nft_masq"),
    *("nft_nat", "nft_chain_nat", "nft_fib_inet", "nf_conntrack", "nf_conntrack_netlink", "nf_log_syslog"),
    *("ip_tables", "iptable_filter", "iptable_nat", "xt_conntrack", "xt_addrtype", "xt_comment", "xt_mark"),
    *("xt_MASQUERADE", "xt_multiport", "xt_limit", "xt_LOG", "xt_nat", "br_netfilter"),
    *("fuse", "autofs4", "configfs", "loop", "squashfs", "binfmt_misc", "nls_ascii", "vfat"),
)


def _plain(path: str) -> str:
    """A module's name from its file: rdma-rxe.ko.xz and rdma_rxe are the same module."""
    return Path(path).name.split(".")[0].replace("-", "_")


def closure(modules_dep: str, wanted: Iterable[str]) -> list[str]:
    """The wanted modules and all they need, as paths from modules.dep, each after what it needs.

    Names that the kernel has built in (or does not have) are left out.
    """
    needs = {}
    for line in modules_dep.splitlines():
        path, _, rest = line.partition(":")
        needs[path] = rest.split()
    by_name = {_plain(path): path for path in needs}
    order: dict[str, None] = {}

    def add(path: str) -> None:
        # modules.dep lists the furthest need last
        for need in reversed(needs[path]):
            if need not in order:
                add(need)
        order.setdefault(path)

    for name in wanted:
        found = by_name.get(name.replace("-", "_"))
        if found is not None:
            add(found)
    return list(order)


def install_modules(tree: Path, rootfs: Path, version: str) -> None:
    """Copy the closure of GUEST_MODULES from the unpacked kernel package into the root and index it there."""
    source, target = tree / "lib/modules" / version, rootfs / "lib/modules" / version
    subprocess.run(["depmod", "-b", tree, version], check=True)
    for path in closure((source / "modules.dep").read_text(), GUEST_MODULES):
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / path, target / path)
    for name in ("modules.order", "modules.builtin", "modules.builtin.modinfo"):
        shutil.copy(source / name, target)
    subprocess.run(["depmod", "-b", rootfs, version], check=True)


def build_initrd(rootfs: Path, version: str, init: Path, busybox: Path, target: Path, scratch: Path) -> None:
    """A gzipped cpio with busybox, the guest's init script and the modules that the root file system needs."""
    for name in ("bin", "proc", "sys", "dev", "image", "disk", "root", "modules"):
        (scratch / name).mkdir(parents=True)
    shutil.copy(busybox, scratch / "bin/busybox")
    (scratch / "bin/sh").symlink_to("busybox")
    shutil.copy(init, scratch / "init")
    (scratch / "init").chmod(0o755)
    source = rootfs / "lib/modules" / version
    names = []
    for path in closure((source / "modules.dep").read_text(), INITRD_MODULES):
        content = (source / path).read_bytes()
        # busybox's insmod reads plain modules only
        content = lzma.decompress(content) if path.endswith(".xz") else content
        name = Path(path).name.removesuffix(".xz")
        (scratch / "modules" / name).write_bytes(content)
        names.append(name)
    (scratch / "modules/order").write_text("\n".join(names) + "\n")
    files = "\n".join(sorted(str(p.relative_to(scratch)) for p in scratch.rglob("*")))
    archive = subprocess.run(
        ["cpio", "-o", "-H", "newc", "-R", "0:0", "--quiet"],
        cwd=scratch,
        input=os.fsencode(files),
        stdout=subprocess.PIPE,
        check=True,
    )
    target.write_bytes(gzip.compress(archive.stdout, 1))
