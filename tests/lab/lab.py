"""A topology of virtual Sparks that runs: the machines, the LAN, the cables between them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from . import host, image, qemu
from .lan import Lan
from .rundir import RunDirectory
from .spark import Spark
from .topology import Cable, Port, Topology, ports

T = TypeVar("T")


class Lab:
    """Machines are switched on by `boot` or by a restored snapshot; `close` ends all and removes the run's files.

    A cable is whole, pulled (no carrier at both ends) or lossy (carrier, but frames vanish).
    """

    def __init__(self, topology: Topology, arch: host.Arch | None = None, *, podman: bool = False) -> None:
        self.topology = topology
        self.arch = arch or host.arch()
        self.image = image.ensure(self.arch, podman=podman)
        self._directory = RunDirectory()
        self.place = qemu.Place(self._directory.path)
        self._lan = Lan(self.place.directory, topology.sparks)
        self._pulled: set[Cable] = set()
        self.sparks: dict[int, Spark] = {
            number: Spark(topology, number, self.arch, self.image, self.place) for number in topology.sparks
        }

    def __getitem__(self, number: int) -> Spark:
        return self.sparks[number]

    def together(self, act: Callable[[Spark], T], sparks: Iterable[Spark] | None = None) -> list[T]:
        """Do the same on several Sparks at once; results in their order, the first error raised after all ended."""
        chosen = list(self.sparks.values() if sparks is None else sparks)
        with ThreadPoolExecutor(len(chosen) or 1) as pool:
            return list(pool.map(act, chosen))

    # --- power

    def boot(self) -> None:
        """Cold-boot every Spark on a new, empty disk."""
        for spark in self.sparks.values():
            shutil.copyfile(self.image.disk, spark.disk)
        self.start(None)
        self.together(lambda spark: spark.await_up())

    def start(self, snapshot: str | None) -> None:
        """Switch on every Spark, from its disk or from a snapshot in it; all go on at the same moment."""
        self._pulled.clear()
        self.together(lambda spark: spark.start(snapshot))
        if snapshot is None:
            self.show_carriers()
        for spark in self.sparks.values():
            spark.release()

    def off(self) -> None:
        for spark in self.sparks.values():
            spark.kill()

    def kill(self, spark: Spark) -> None:
        """The Spark loses its power; the ports that its cables lead to lose their carrier."""
        spark.kill()
        self.show_carriers()

    def power_on(self, spark: Spark) -> None:
        """A cold boot from the disk as it is. Returns once it is up."""
        spark.start()
        self.show_carriers()
        spark.release()
        spark.await_up()

    def power_cycle(self, spark: Spark) -> None:
        self.kill(spark)
        self.power_on(spark)

    def close(self) -> None:
        self.off()
        self._lan.close()
        self._directory.remove()

    # --- cables

    def cable(self, one: int = 1, other: int = 2) -> Cable:
        return self.topology.cable_between(one, other)

    def pull(self, cable: Cable) -> None:
        self._pulled.add(cable)
        self.show_carriers()

    def plug(self, cable: Cable) -> None:
        self._pulled.discard(cable)
        self.show_carriers()

    def lose(self, cable: Cable) -> None:
        """Frames vanish both ways, silently; every interface still shows its carrier."""
        self._set_wire(cable, up=False)

    def regain(self, cable: Cable) -> None:
        self._set_wire(cable, up=True)

    def _set_wire(self, cable: Cable, *, up: bool) -> None:
        for port in cable.ends:
            if self.sparks[port.spark].powered:
                self.sparks[port.spark].qmp.command("set_link", name=qemu.cable_id(port), up=up)

    def _lit(self, port: Port) -> bool:
        cable = self.topology.cable_at(port)
        return cable is not None and cable not in self._pulled and self.sparks[cable.other(port).spark].powered

    def show_carriers(self) -> None:
        """Every port of a running Spark has a carrier when its cable is in and the other end has power."""
        for spark in self.sparks.values():
            if spark.powered:
                for port in ports(spark.number):
                    spark.set_carrier(port, self._lit(port))
