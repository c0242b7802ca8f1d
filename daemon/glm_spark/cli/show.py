"""The set at one glance: a pure function from its status to what a terminal shows."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import tzinfo

from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from glm_spark.cli import tell
from glm_spark.cli.wording import degraded, duration, moment, printable, tokens
from glm_spark.finding import Finding, Severity
from glm_spark.status import LinkStatus, NodeStatus, RailStatus, Status

_GOOD, _BUSY, _BAD, _UNSURE = "bold green", "bold yellow", "bold red", "bold magenta"
_STYLES = {"live": _GOOD, "failed": _BAD, "unknown": _UNSURE, "recovering": _BAD}
_RANKS = {
    "none": "no rank",
    "loading": "loading",
    "ready": "ready",
    "stopping": "stopping",
    "ended": "ended",
    "unknown": "unknown",
}
# A glance: the whole of it, tracebacks and all, is in the journal and in --json.
_LONGEST_REASON, _LONGEST_FOUND = 600, 200
_STARTING = ("preparing", "loading", "verifying")


def render(status: Status, now: float, zone: tzinfo | None = None) -> RenderableType:
    """`now` in UNIX seconds; `zone` is the local one when None."""
    blocks: list[RenderableType] = [_headline(status, now, zone)]
    blocks += _reason(status)
    blocks += _load(status, now)
    blocks += [_title("Sparks"), _indented(_sparks(status, now))]
    if status.links:
        blocks += [_title("Cable"), _indented(_cable(status.links))]
    if status.ready:
        blocks += [_title("Engine"), *(_indented(Text(line)) for line in _engine(status))]
    blocks += _less(status)
    blocks += _found(status)
    return Group(*blocks)


def _headline(status: Status, now: float, zone: tzinfo | None) -> RenderableType:
    state = "LIVE" if status.ready and status.state == "live" else status.state
    if status.state == "live" and not status.ready:
        state = "not ready"
    style = _STYLES.get(status.state, _BUSY) if state != "not ready" else _BAD
    line = Text(printable(state), style)
    if status.state == "unknown":
        line.append(f": {printable(status.node)} answers and has not heard from the leader", "not bold default")
    else:
        line.append(f" for {duration(now - status.since)}, since {moment(status.since, zone)}", "not bold default")
    where = status.api.url + _whose(status)
    api = f"{status.api.model} at {where}" if status.ready else f"{status.api.model}: no requests now"
    set_line = f"set {status.cluster}, generation {status.generation}, glm-spark {status.version} on {status.node}"
    return Group(line, Text(printable(api), "bold" if status.ready else ""), Text(printable(set_line), "dim"))


def _whose(status: Status) -> str:
    """A loopback address means the leader's, and a worker answers too."""
    leader = next((node.name for node in status.nodes if node.role == "leader"), "")
    loopback = "//127." in status.api.url or "//[::1]" in status.api.url
    return f" on {leader}" if status.role == "worker" and loopback and leader else ""


def _reason(status: Status) -> Iterator[RenderableType]:
    if status.reason is None or (status.ready and status.state == "live"):
        return
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    grid.add_row(Text("why", tell.STYLES[status.reason.severity]), Text(tell.said(status.reason, _LONGEST_REASON)))
    if status.reason.fix:
        grid.add_row(Text("next", "bold"), Text(tell.next_step(status.reason)))
    yield Text("")
    yield grid


def _load(status: Status, now: float) -> Iterator[RenderableType]:
    """The phase of a start with its time, and whom it waits for."""
    if status.state not in _STARTING and status.state != "waiting":
        return
    parts = []
    if status.engine.phase and status.state in _STARTING:
        parts.append(status.engine.phase + _since(status.engine.phase_since, now))
    late = [node.name for node in status.nodes if _is_late(node, status)]
    at_rest = status.reason is not None and status.reason.severity is Severity.NOTE  # stopped by its owner
    if late and not at_rest and len(late) < len(status.nodes):
        parts.append(f"waits for {', '.join(late)}")
    if status.engine.estimate_gib is not None and status.state in _STARTING:
        parts.append(f"needs {status.engine.estimate_gib:.1f} GiB a Spark")
    if parts:
        yield Text("")
        yield Text(printable("; ".join(parts)), "bold")


def _is_late(node: NodeStatus, status: Status) -> bool:
    if node.session != "up" and node.name != status.node:
        return True
    return status.state in _STARTING and node.rank_state not in ("ready", "none")


def _since(since: float | None, now: float) -> str:
    return f" for {duration(now - since)}" if since is not None else ""


def _sparks(status: Status, now: float) -> RenderableType:
    grid = Table.grid(padding=(0, 2, 0, 0))
    for _ in range(5):
        grid.add_column(overflow="fold")
    for node in sorted(status.nodes, key=lambda node: node.rank):
        grid.add_row(
            Text(f"rank {node.rank}"),
            Text(printable(node.name), "bold"),
            _session(node, status),
            _rank(node, now),
            _memory(node),
        )
    return grid


def _found(status: Status) -> Iterator[RenderableType]:
    """What the Sparks found that is said nowhere else on the page."""
    found = dict.fromkeys(finding for node in status.nodes for finding in node.findings)
    rest = [finding for finding in found if not _said_above(finding, status)]
    if rest:
        yield _title("Found")
        yield _indented(tell.findings(rest, _LONGEST_FOUND))


def _said_above(finding: Finding, status: Status) -> bool:
    return finding == status.reason or finding.code in status.degraded


def _session(node: NodeStatus, status: Status) -> Text:
    if node.role == "leader" and node.name == status.node:
        return Text("leader")
    if node.role == "leader":
        text = {"up": "leader", "down": "leader, no session", "unknown": "leader, unheard"}[node.session]
    else:
        text = {"up": "connected", "down": "no session", "unknown": "unknown"}[node.session]
    return Text(text, {"up": "", "down": _BAD, "unknown": _UNSURE}[node.session])


def _rank(node: NodeStatus, now: float) -> Text:
    text = _RANKS[node.rank_state]
    if node.rank_state == "loading" and node.phase:
        text = f"{node.phase}{_since(node.phase_since, now)}"
    if node.pid is not None and node.rank_state in ("ready", "stopping"):
        text += f", pid {node.pid}"
    style = {"ready": "green", "loading": "yellow", "unknown": _UNSURE, "ended": _BAD}.get(node.rank_state, "")
    return Text(printable(text), style)


def _memory(node: NodeStatus) -> Text:
    if node.memory is None:
        return Text("memory unknown", "dim")
    return Text(f"{node.memory.available_gib:.1f} of {node.memory.total_gib:.1f} GiB free")


def _cable(links: tuple[LinkStatus, ...]) -> RenderableType:
    """Each link with its rails below it, in lines of their own so that a narrow terminal folds them evenly."""
    rails = [rail for link in links for rail in link.rails]
    widest = max((len(_ends(rail)) for rail in rails), default=0)
    longest = max((len(rail.state) for rail in rails), default=0)
    told = []
    for link in links:
        good = sum(rail.state == "ok" for rail in link.rails)
        count = _rails(good) if good == len(link.rails) else f"{good} of {_rails(len(link.rails))}"
        told.append(Text(printable(f"{link.a} - {link.b}"), "bold").append(f"  {count}, {_carrier(link)}", "not bold"))
        for rail in link.rails:
            line = Text(
                f"{rail.state:{max(longest, 4)}}", {"ok": "green", "down": _BAD, "unknown": _UNSURE}[rail.state]
            )
            line.append(printable(f"  {_ends(rail):{widest}}  {_addresses(rail)}  {_mtu(rail)}".rstrip()), "default")
            told.append(line)
    return Group(*told)


def _rails(count: int) -> str:
    return "1 rail" if count == 1 else f"{count} rails"


def _carrier(link: LinkStatus) -> str:
    return "RoCE" if any(rail.a.device and rail.b.device for rail in link.rails) else "TCP"


def _ends(rail: RailStatus) -> str:
    return f"{rail.a.netdev or '?'} - {rail.b.netdev or '?'}"


def _addresses(rail: RailStatus) -> str:
    return printable(f"{rail.a.address} - {rail.b.address}")


def _mtu(rail: RailStatus) -> str:
    if rail.a.mtu == rail.b.mtu:
        return f"MTU {rail.a.mtu}" if rail.a.mtu is not None else ""
    return f"MTU {rail.a.mtu or '?'}/{rail.b.mtu or '?'}"


def _engine(status: Status) -> Iterator[str]:
    engine = status.engine
    rate = f"{engine.tokens_per_second:.1f} tokens/s" if engine.tokens_per_second is not None else "tokens/s unknown"
    busy = ""
    if engine.streams is not None:
        running = engine.streams.get("decoding", 0) + engine.streams.get("prefilling", 0)
        busy = f", {running} of {engine.parallel} requests running"
    yield f"{rate}{busy}"
    window = engine.served_context or engine.context
    asked = f" ({tokens(engine.context)} asked)" if engine.context and window != engine.context else ""
    yield f"window {tokens(window)} tokens{asked}, replies up to {tokens(status.api.max_tokens)}"
    if engine.pool_tokens is not None and engine.pool_free_tokens is not None:
        yield f"{tokens(engine.pool_free_tokens)} of {tokens(engine.pool_tokens)} tokens of cache free"


def _less(status: Status) -> Iterator[RenderableType]:
    if not status.degraded:
        return
    found = [finding for node in status.nodes for finding in node.findings]
    yield Text("")
    yield Text("Less than it could be", _BUSY)
    for code in status.degraded:
        yield _indented(Text(degraded(code, found)))


def _title(text: str) -> RenderableType:
    return Group(Text(""), Text(text, "bold"))


def _indented(inner: RenderableType) -> RenderableType:
    return Padding(inner, (0, 0, 0, 2), expand=False)
