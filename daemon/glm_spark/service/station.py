"""What every Spark has, whichever its role: identity, inventory, the post with its rank, how a rank is specified."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from glm_spark import __version__
from glm_spark.cluster import protocol
from glm_spark.cluster.generation import GenerationFile
from glm_spark.cluster.post import NotReady, Post, Trade
from glm_spark.cluster.protocol import Goal, Hello, Opening
from glm_spark.cluster.worker import Self
from glm_spark.config import agreement
from glm_spark.config.model import Config
from glm_spark.engine import tensorfold
from glm_spark.engine.rank import Rank
from glm_spark.engine.runtime import Runtime
from glm_spark.engine.spec import Link, RankSpec
from glm_spark.fabric import links
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.watch import Watcher
from glm_spark.finding import Finding, Severity
from glm_spark.preflight import runner
from glm_spark.preflight.context import Context, Moment
from glm_spark.service import memory

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LEVELS = {
    Severity.NOTE: logging.INFO,
    Severity.UNKNOWN: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}
READING_SECONDS = 5.0  # a netlink dump takes milliseconds; one that takes this long does not come back


@dataclass(frozen=True, slots=True)
class Place:
    """Where this daemon lives."""

    me: str
    state: Path
    runtime: Path


class Station:
    """`config` is the file as last read; what a change takes effect on is decided by its reader."""

    def __init__(
        self, config: Config, place: Place, token: bytes, runtime: Runtime, on_change: Callable[[], None]
    ) -> None:
        self.config = config
        self.place = place
        self.token = token
        self.instance_id = uuid.uuid4().hex
        self.boot_id = BOOT_ID.read_text().strip()
        self._runtime = runtime
        self._on_change = on_change
        self._hello: tuple[Config, Hello] | None = None
        peers = [node.address for node in config.node if node.address and node.name != place.me]
        self.watcher = Watcher(peers, self._inventory_changed, node=place.me)
        self.on_inventory: list[Callable[[Inventory], None]] = []
        self.peers: Callable[[], Mapping[str, Inventory]] = dict  # the leader knows the others' inventories
        trade = Trade(lambda goal: self.preflight("start", goal.links), self.specify, self._recruit, runtime)
        self.post = Post(place.me, config.cluster.name, trade, GenerationFile(place.state / "generation"), on_change)

    def self(self) -> Self:
        return Self(self.opening, self.hello, lambda: self.watcher.inventory, memory.read, self.preflight)

    def opening(self) -> Opening:
        return Opening(
            protocol=protocol.PROTOCOL,
            cluster=self.config.cluster.name,
            node=self.place.me,
            boot_id=self.boot_id,
            instance_id=self.instance_id,
            nonce=protocol.nonce(),
        )

    def hello(self) -> Hello:
        """Made once a configuration: comparing settings is done at every step of the course."""
        if self._hello is None or self._hello[0] is not self.config:
            settings = agreement.settings(self.config)
            self._hello = (self.config, Hello(version=__version__, generation=0, settings=settings))
        generation = self.post.report.generation
        if self._hello[1].generation != generation:
            self._hello = (self.config, self._hello[1].model_copy(update={"generation": generation}))
        return self._hello[1]

    def fabric_addresses(self) -> dict[str, str]:
        """This Spark's addresses on the cable as last read, each with its netdev."""
        inventory = self.watcher.inventory
        if inventory is None:
            return {}
        netdevs = links.fabric_netdevs(self.config, inventory)
        return {text.partition("/")[0]: netdev.name for netdev in netdevs for text in netdev.addresses}

    async def preflight(self, moment: Moment = "check", rails: tuple[Link, ...] = ()) -> tuple[Finding, ...]:
        context = Context(
            config=self.config,
            me=self.place.me,
            moment=moment,
            inventory=await self._fresh_inventory(),
            token=self.token,
            peers=self.peers(),
            links=rails,
            reader=self.watcher.findings,
        )
        return await runner.run(context)

    async def specify(self, goal: Goal) -> RankSpec:
        """The rank of a goal on this Spark as it is now; NotReady when the agreed rails do not fit it."""
        inventory = await self._fresh_inventory()
        if inventory is None:
            raise NotReady(*self.watcher.findings)
        me, config = self.place.me, self.config
        rails, findings = links.local_rails(config, me, inventory, goal.links)
        errors = [finding for finding in findings if finding.severity is Severity.ERROR]
        if errors:
            raise NotReady(*errors)
        try:
            master = links.master_address(config, me, goal.links, inventory)
            bootstrap = links.bootstrap_netdev(config, me, inventory, rails)
        except links.Unresolved as unresolved:
            raise NotReady(unresolved.finding) from None
        return tensorfold.rank_spec(config, me, goal.generation, rails, master, bootstrap, goal.variant)

    def _recruit(self, spec: RankSpec) -> Rank:
        log = logging.getLogger("glm_spark.engine.output")

        def on_line(rank: int, line: str, severity: Severity) -> None:
            if self.config.log.engine_lines:
                extra = {"rank": rank, "generation": spec.generation}
                log.log(_LEVELS[severity], "rank %d: %s", rank, line, extra=extra)

        return Rank(spec, self._runtime, self.config.stop, self.post.nudge, on_line)

    async def _fresh_inventory(self) -> Inventory | None:
        """A new reading; None, with the watcher's findings, when the kernel does not answer."""
        try:
            return await self.watcher.fresh(READING_SECONDS)
        except TimeoutError:
            return None

    def _inventory_changed(self, inventory: Inventory) -> None:
        for listener in self.on_inventory:
            listener(inventory)
        self._on_change()
