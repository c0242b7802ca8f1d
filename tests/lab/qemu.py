"""The command line of one virtual Spark. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .host import Arch
from .image import Image
from .topology import Cable, Port, Topology, functions, lan_mac, ports, spark_name

MEMORY_MIB = 640
_KERNEL_WORDS = (
    "quiet loglevel=4 panic=-1 mitigations=off nokaslr random.trust_cpu=on net.ifnames=1 "
    "systemd.show_status=0 systemd.journald.forward_to_console=0"
)


@dataclass(frozen=True)
class Place:
    """Where the files of one run lie. All paths are short: a Unix socket's may have 107 characters."""

    directory: Path

    def of(self, spark: int, name: str) -> Path:
        return self.directory / f"{spark}.{name}"

    def plug(self, port: Port) -> Path:
        return self.directory / f"plug{port.spark}.{port.index}"


def cable_id(port: Port) -> str:
    """The netdev that is the wire at this end: setting its link off loses frames silently."""
    return f"cable{port.index}"


def _port_arguments(port: Port, cable: Cable | None, place: Place) -> list[str]:
    """Two functions and, when cabled, the wire on one hub: a QSFP plug with two PCIe functions behind it."""
    arguments = []
    if cable is not None:
        here, there = place.plug(port), place.plug(cable.other(port))
        wire = f"dgram,id={cable_id(port)},local.type=unix,local.path={here},remote.type=unix,remote.path={there}"
        arguments += ["-netdev", wire]
        arguments += ["-netdev", f"hubport,id=up{port.index},hubid={port.index},netdev={cable_id(port)}"]
    for function in functions(port.spark):
        if function.port == port:
            nic = function.qemu_id
            arguments += ["-netdev", f"hubport,id=hub-{nic},hubid={port.index}"]
            device = f"virtio-net-pci,id={nic},netdev=hub-{nic},mac={function.mac},host_mtu=9000"
            arguments += ["-device", f"{device},speed=200000,duplex=full,romfile="]
    return arguments


def _disk_arguments(name: str, file: Path, options: str) -> list[str]:
    return ["-drive", f"if=none,id={name},file={file},{options}", "-device", f"virtio-blk-pci,drive={name}"]


def arguments(
    topology: Topology,
    spark: int,
    arch: Arch,
    image: Image,
    place: Place,
    kernel_words: Sequence[str],
    snapshot: str | None = None,
) -> list[str]:
    """QEMU's argv. With `snapshot` the machine goes on from that saved state instead of booting.

    A saved state fits only a machine with the same devices in the same order: change nothing here by test.
    """
    machine, cpu, console = {
        Arch.AMD64: ("q35,usb=off,vmport=off", "max", "ttyS0"),
        Arch.ARM64: ("virt,gic-version=3", "cortex-a72", "ttyAMA0"),
    }[arch]
    words = [f"console={console}", _KERNEL_WORDS, *kernel_words]
    lan = f"local.type=unix,local.path={place.of(spark, 'lan')},remote.type=unix"
    argv = [
        *(arch.qemu, "-nodefaults", "-no-user-config", "-display", "none", "-name", spark_name(spark)),
        *("-M", machine, "-cpu", cpu, "-smp", "1", "-m", str(MEMORY_MIB)),
        *("-accel", "tcg,thread=multi,tb-size=256", "-msg", "timestamp=on"),
        *("-kernel", str(image.kernel), "-initrd", str(image.initrd), "-append", " ".join(words)),
        *_disk_arguments("root", image.root, "format=raw,readonly=on,file.locking=off"),
        *_disk_arguments("disk", place.of(spark, "qcow2"), "format=qcow2,cache=writeback,discard=unmap"),
        *("-qmp", f"unix:{place.of(spark, 'qmp')},server=on,wait=off"),
        *("-chardev", f"socket,id=agent,path={place.of(spark, 'agent')},server=on,wait=off"),
        *("-device", "virtio-serial-pci"),
        *("-device", "virtserialport,chardev=agent,name=org.qemu.guest_agent.0"),
        "-chardev",
        f"socket,id=console,path={place.of(spark, 'console')},server=on,wait=off,"
        f"logfile={place.of(spark, 'console.log')},logappend=on",
        *("-serial", "chardev:console"),
        *("-object", "rng-random,id=rng,filename=/dev/urandom", "-device", "virtio-rng-pci,rng=rng"),
        *("-netdev", f"dgram,id=lan,{lan},remote.path={place.directory / f'lan{spark}'}"),
        *("-device", f"virtio-net-pci,id=nic-lan,netdev=lan,mac={lan_mac(spark)},romfile="),
    ]
    for port in ports(spark):
        argv += _port_arguments(port, topology.cable_at(port), place)
    if snapshot is not None:
        argv += ["-loadvm", snapshot]
    return argv
