"""What every Spark has, whichever its role: identity, inventory, the post with its rank, how a rank is specified."""

from __future__ import annotations

import functools
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
from glm_spark.engine import processes, tensorfold
from glm_spark.engine.rank import Rank
from glm_spark.engine.runtime import Runtime
from glm_spark.engine.spec import Link, RankSpec, Variant
from glm_spark.fabric import links
from glm_spark.fabric.exchange import Exchanges
from glm_spark.fabric.inventory import Inventory
from glm_spark.fabric.watch import Watcher
from glm_spark.finding import Finding, Severity
from glm_spark.handover.taking import Taking
from glm_spark.host import estimate, memory, page_cache
from glm_spark.host.settling import settled
from glm_spark.preflight import runner
from glm_spark.preflight.checks.memory import driver_wants
from glm_spark.preflight.context import Context, Moment
from glm_spark.service import provisions
from glm_spark.service.on_disk import OnDisk
from glm_spark.service.outfit import Outfit
from glm_spark.status import WeightsStatus
from glm_spark.weights.steward import Steward

BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_LEVELS = {
    Severity.NOTE: logging.INFO,
    Severity.UNKNOWN: logging.INFO,
    Severity.WARNING: logging.WARNING,
    Severity.ERROR: logging.ERROR,
}
GIVE_BACK_SECONDS = 20.0  # a few thousand files are told in well under one; a disk that hangs is not waited for
READING_SECONDS = 10.0  # a netlink dump takes milliseconds; one that takes this long does not come back


@dataclass(frozen=True, slots=True)
class Place:
    """Where this daemon lives."""

    me: str
    state: Path
    runtime: Path
    file: Path  # its configuration


class Station:
    """`config` is the file as last read; what a change takes effect on is decided by its reader."""

    def __init__(
        self, config: Config, place: Place, token: bytes, runtime: Runtime, on_change: Callable[[], None]
    ) -> None:
        self.config = config
        self.on_disk = OnDisk(place.file, place.me)
        self.place = place
        self.token = token
        self.instance_id = uuid.uuid4().hex
        self.boot_id = BOOT_ID.read_text().strip()
        self._runtime = runtime
        self._on_change = on_change
        self._hello: tuple[Config, Hello] | None = None
        peers = [node.address for node in config.node if node.address and node.name != place.me]
        self.watcher = Watcher(peers, self._inventory_changed, node=place.me, on_findings=self._reading_changed)
        self.on_inventory: list[Callable[[Inventory], None]] = []
        self.on_rank: list[Callable[[], None]] = []
        self.estimates = estimate.Estimates(place.state / "estimates.json")
        self.take_over: Callable[[Config], None] = lambda _config: None  # of a changed file, what can be
        self.peers: Callable[[], Mapping[str, Inventory]] = dict  # the leader knows the others' inventories
        self.exchanges = Exchanges(place.me, lambda: self.config, lambda: self.watcher.inventory)
        self.heard: Callable[[str], bool] = lambda _address: False  # whether a peer's path probe came in of late
        self.steward = Steward(
            place.me, place.state, token, lambda: self.config, self.fabric_addresses, self._weights_changed
        )
        self.taking = Taking(place.me, place.state, self.steward, lambda: self.config, self._taking_changed)
        other = None if place.me == config.leader.name else self.taking
        self.outfit = Outfit(place.me, lambda: self.config, self._outfit_changed, other)
        provide = functools.partial(provisions.before_start, self.steward)
        trade = Trade(self._before_start, self.specify, self._recruit, runtime, provide)
        self.post = Post(place.me, config.cluster.name, trade, GenerationFile(place.state / "generation"), on_change)

    def leaving_seconds(self, drain: bool) -> float:
        """How long a stop of the set may take: running requests, the ranks' own time, a spill tier's flush."""
        stop, spill = self.config.stop, self.config.engine.spill
        return (stop.drain_seconds if drain else 0) + 2 * stop.kill_seconds + (spill.flush_seconds if spill.gib else 0)

    def self(self) -> Self:
        provide = functools.partial(provisions.on_demand, self.steward)
        inventory = lambda: self.watcher.inventory  # noqa: E731
        exchange = self.exchanges.obey
        return Self(self.opening, self.hello, inventory, memory.read, self.check, provide, exchange)

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

    async def _before_start(self, goal: Goal) -> tuple[Finding, ...]:
        """Makes this Spark ready for a rank, checks it, and has the engine judge the rank's command line."""
        done = await self.outfit.ready()
        found = (*done, *self.outfit.fetched(await self.preflight("start", goal.links, goal.variant)))
        if any(finding.severity is Severity.ERROR for finding in found):
            return found
        fault = await self.outfit.judge(await self.specify(goal))
        self.post.image = self.outfit.content
        return found if fault is None else (*found, fault)

    def _weights_changed(self) -> None:
        self.post.weights = self.steward.status
        self._on_change()

    def _taking_changed(self) -> None:
        self.hand_over(self.taking.status)

    def hand_over(self, status: WeightsStatus | None) -> None:
        """How far the image is on its way from this Spark or to it."""
        self.post.handover = status
        self._on_change()

    def _outfit_changed(self) -> None:
        self.post.outfit = self.outfit.findings
        self.post.nudge()

    async def check(self, rails: tuple[Link, ...] = ()) -> tuple[Finding, ...]:
        """What a person asks for, maybe beside a running set: the checks, and the file as it is on disk now."""
        read = await self.on_disk.read()
        found = await self.preflight("check", rails)
        return (read, *found) if isinstance(read, Finding) else found

    async def preflight(
        self, moment: Moment = "check", rails: tuple[Link, ...] = (), variant: Variant | None = None
    ) -> tuple[Finding, ...]:
        needed = await self._needed(variant or Variant())
        if moment == "start":
            await self._make_room(needed)
        context = Context(
            config=self.config,
            me=self.place.me,
            moment=moment,
            inventory=await self._fresh_inventory(),
            token=self.token,
            peers=self.peers(),
            links=rails,
            reader=self.watcher.findings,
            heard=self.heard,
            estimate_gib=needed,
        )
        return await runner.run(context)

    async def _needed(self, variant: Variant) -> float | None:
        """GiB that the engine said it needs at its last such start here."""
        try:
            return self.estimates.of(await processes.aside(lambda: estimate.identity(self.config, variant), 5.0))
        except TimeoutError:
            return None

    async def _make_room(self, needed: float | None) -> None:
        """Before a start: memory that an ended rank still gives back, and what the page cache keeps of the weights."""
        config, log = self.config, logging.getLogger(__name__)
        if needed is not None:
            waited = await settled(needed + config.memory_reserve_gib, memory.look)
            if waited > 1.0:
                log.info("waited %.0f s for memory that is being given back", waited)
        now, wanted = memory.look(), driver_wants(config, needed)
        if now is None or now.free >= wanted or now.available < wanted:
            return
        folders = [
            folder for folder in (tensorfold.model_directory(config), tensorfold.drafter_directory(config)) if folder
        ]
        try:
            told = await processes.aside(lambda: page_cache.give_back(folders), GIVE_BACK_SECONDS)
        except OSError as error:  # TimeoutError is one
            log.warning("the weights' page cache is not given back: %s", error or f"no answer in {GIVE_BACK_SECONDS} s")
            return
        after = memory.look()
        log.info(
            "only %.1f GiB were free: gave back the page cache of %.1f GiB of weights, %.1f GiB are free now",
            now.free, told / (1 << 30), after.free if after else now.free,
        )  # fmt: skip

    async def specify(self, goal: Goal) -> RankSpec:
        """The rank of a goal on this Spark as it is now; NotReady when the agreed rails do not fit it."""
        inventory = await self._fresh_inventory()
        if inventory is None:
            raise NotReady(*self.watcher.findings or (self.watcher.late(READING_SECONDS),))
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
        self.outfit.starting()
        log = logging.getLogger("glm_spark.engine.output")

        def on_line(rank: int, line: str, severity: Severity) -> None:
            if self.config.log.engine_lines:
                extra = {"rank": rank, "generation": spec.generation}
                log.log(_LEVELS[severity], "rank %d: %s", rank, line, extra=extra)

        return Rank(spec, self._runtime, self.config.stop, self._rank_changed, on_line)

    def _rank_changed(self) -> None:
        self.post.nudge()
        for listener in self.on_rank:
            listener()

    async def _fresh_inventory(self) -> Inventory | None:
        """A new reading; None, with the watcher's findings, when the kernel does not answer."""
        try:
            return await self.watcher.fresh(READING_SECONDS)
        except TimeoutError:
            return None

    def _reading_changed(self, findings: tuple[Finding, ...]) -> None:
        for finding in findings:
            logging.getLogger(__name__).warning("%s", finding, extra={"code": finding.code})
        self.post.reading = findings
        self._on_change()

    def _inventory_changed(self, inventory: Inventory) -> None:
        for listener in self.on_inventory:
            listener(inventory)
        self._on_change()
