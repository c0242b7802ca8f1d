"""Rules that join several keys of one file. Pure: a Config in, faults out."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from glm_spark.config.model import Config

# Stands for a name that is itself at fault while the rules run over the rest of the file.
UNNAMED = "unnamed--"
# The validation context under which a Config is built without its rules.
LATER = "rules later"


@dataclass(frozen=True, slots=True)
class Fault:
    """One fault at one key. `involves` names further keys it was concluded from: when one of them is at fault
    itself, this fault only follows from that one. `value` is the key's, in words, where it may be shown."""

    path: str
    text: str
    involves: tuple[str, ...] = ()
    value: str = ""

    def __str__(self) -> str:
        return f"{self.path} = {self.value}: {self.text}" if self.value else f"{self.path}: {self.text}"


def faults(config: Config) -> list[Fault]:
    return [
        *_nodes(config),
        *_addresses(config),
        *_drafter(config),
        *_engine(config),
        *_model(config),
        *_ports(config),
        *_api(config),
        *_timeouts(config),
    ]


def _nodes(config: Config) -> list[Fault]:
    """Each Spark has its own name and its own addresses; host names are compared as a resolver does."""
    found = []
    for attribute in ("name", "address", "lan_address"):
        seen: dict[str, int] = {}
        for index, node in enumerate(config.node):
            value = str(getattr(node, attribute)).lower()
            short = value.split(".")[0] if attribute == "name" else value
            if value and short in seen:
                first = f"node[{seen[short]}].{attribute}"
                text = f'"{getattr(node, attribute)}" is also {first}; each Spark needs its own'
                found.append(Fault(f"node[{index}].{attribute}", text, (first,)))
            seen.setdefault(short, index)
    return found


def _addresses(config: Config) -> list[Fault]:
    found = []
    for index, node in enumerate(config.node):
        path = f"node[{index}].address"
        if index and not node.address:
            whose = "its" if node.name.startswith(UNNAMED) else f"{node.name}'s"
            found.append(Fault(path, f"missing; give {whose} address on the cable, as the leader reaches it"))
        if node.address and ipaddress.ip_address(node.address).is_link_local and not config.fabric.allow_link_local:
            text = (
                f"{node.address} is link-local and changes at every reboot; give the port a fixed address, or set "
                "fabric.allow_link_local = true"
            )
            found.append(Fault(path, text, ("fabric.allow_link_local",)))
    return found


def _drafter(config: Config) -> list[Fault]:
    """The recipe: DFlash2 needs its licence accepted, and more than one request at a time needs DFlash2."""
    found = []
    if config.model.drafter == "dflash2" and not config.model.accept_noncommercial:
        text = (
            "dflash2 is licensed CC BY-NC-ND 4.0 (non-commercial); set model.accept_noncommercial = true to accept "
            'that, or use drafter = "mtp"'
        )
        found.append(Fault("model.drafter", text, ("model.accept_noncommercial",)))
    if config.model.drafter == "mtp" and config.parallel > 1:
        text = f'{config.parallel} needs the DFlash2 drafter; with model.drafter = "mtp" use parallel = 1 or "auto"'
        found.append(Fault("engine.parallel", text, ("model.drafter",)))
    return found


def _engine(config: Config) -> list[Fault]:
    found = []
    engine = config.engine
    if engine.vision_urls and not engine.vision:
        found.append(Fault("engine.vision_urls", "true needs engine.vision = true", ("engine.vision",)))
    if engine.tuning.prefill_overlap and not engine.tuning.hc_split:
        text = f"{engine.tuning.prefill_overlap} needs engine.tuning.hc_split = true; without the split set it to 0"
        found.append(Fault("engine.tuning.prefill_overlap", text, ("engine.tuning.hc_split",)))
    if engine.spill.gib > 0 and not engine.spill.directory:
        text = "missing; engine.spill.gib is above 0, so say where the spill tier lies"
        found.append(Fault("engine.spill.directory", text, ("engine.spill.gib",)))
    if engine.tuning.comm == "roce" and config.fabric.transport == "socket":
        text = 'roce cannot be used with fabric.transport = "socket"; use "auto"'
        found.append(Fault("engine.tuning.comm", text, ("fabric.transport",)))
    return found


def _model(config: Config) -> list[Fault]:
    found = []
    names = [config.model.name]
    for index, alias in enumerate(config.model.alias):
        if alias in names:
            text = f'"{alias}" is listed twice or is model.name itself; give each name once'
            found.append(Fault(f"model.alias[{index}]", text, ("model.name", "model.alias")))
        names.append(alias)
    return found


def _ports(config: Config) -> list[Fault]:
    ports = {
        "control.port": config.control.port,
        "weights.port": config.weights.port,
        "api.port": config.api.port,
        "engine.http_port": config.engine.http_port,
        "engine.master_port": config.engine.master_port,
    }
    if config.metrics.listen:
        ports["metrics.listen"] = int(config.metrics.listen.rpartition(":")[2])
    found = []
    names = list(ports)
    for index, name in enumerate(names):
        other = next((other for other in names[:index] if ports[other] == ports[name]), None)
        if other:
            found.append(Fault(name, f"{ports[name]} is also {other}; give each its own port", (other,)))
    return found


def _api(config: Config) -> list[Fault]:
    api = config.api
    if ipaddress.ip_address(api.host).is_loopback or api.keys_file or api.open:
        return []
    text = f"{api.host} is reachable from a network; set api.keys_file, or api.open = true to serve it without keys"
    return [Fault("api.host", text, ("api.keys_file", "api.open"))]


def _timeouts(config: Config) -> list[Fault]:
    timeouts = config.timeouts
    if timeouts.lease_seconds > timeouts.suspect_seconds:
        return []
    text = f"{timeouts.lease_seconds:g} must be longer than timeouts.suspect_seconds = {timeouts.suspect_seconds:g}"
    return [Fault("timeouts.lease_seconds", text, ("timeouts.suspect_seconds",))]
