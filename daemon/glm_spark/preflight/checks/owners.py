"""Which program configures the cable's netdevs: NetworkManager, systemd-networkd, or both."""

from __future__ import annotations

import configparser
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from glm_spark.fabric.inventory import NetDev
from glm_spark.fabric.selection import fabric_netdevs, interfaces
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

NM_DEVICES = Path("/run/NetworkManager/devices")  # one file an interface index, since NetworkManager 1.6
NM_PROFILES = (
    Path("/run/NetworkManager/system-connections"),
    Path("/etc/NetworkManager/system-connections"),
    Path("/usr/lib/NetworkManager/system-connections"),
)
NETWORKD_LINKS = Path("/run/systemd/netif/links")
_OWNED = ("configuring", "configured", "pending", "failed", "degraded")


@dataclass(frozen=True, slots=True)
class Profile:
    """A NetworkManager connection; `method` is ipv4.method, "" where the file cannot be read."""

    uuid: str
    name: str = ""
    method: str = ""


def run(context: Context) -> Iterator[Finding]:
    if context.inventory is None:
        return
    for netdev in fabric_netdevs(context.config, context.inventory):
        profile, networkd = managed(netdev.index), networkd_file(netdev.index)
        if profile is not None and networkd is not None:
            yield _two(context, netdev, profile, networkd)
        elif profile is not None and profile.method in ("auto", "link-local", "shared"):
            yield _picks_itself(context, netdev, profile)


def managed(index: int) -> Profile | None:
    """The profile by which NetworkManager has this netdev, None when it leaves it alone."""
    state = _keyfile(NM_DEVICES / str(index))
    if state is None or state.get("device", "managed", fallback="") not in ("true", "1"):
        return None
    uuid = state.get("device", "connection-uuid", fallback="")
    return _profile(uuid) if uuid else None


def _profile(uuid: str) -> Profile:
    for folder in NM_PROFILES:
        try:
            files = sorted(folder.glob("*.nmconnection"))
        except OSError:
            continue
        for path in files:
            told = _keyfile(path)
            if told is not None and told.get("connection", "uuid", fallback="") == uuid:
                name = told.get("connection", "id", fallback="")
                return Profile(uuid, name, told.get("ipv4", "method", fallback="auto"))
    return Profile(uuid)


def networkd_file(index: int) -> str | None:
    """The file by which systemd-networkd configures this netdev, None when it leaves it alone."""
    try:
        text = (NETWORKD_LINKS / str(index)).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    told = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    return told.get("NETWORK_FILE", "") if told.get("ADMIN_STATE") in _OWNED else None


def _keyfile(path: Path) -> configparser.ConfigParser | None:
    parser = configparser.ConfigParser(interpolation=None, strict=False, delimiters=("=",), comment_prefixes=("#",))
    try:
        parser.read_string(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, configparser.Error):
        return None
    return parser


def _two(context: Context, netdev: NetDev, profile: Profile, networkd: str) -> Finding:
    file = f" ({networkd})" if networkd else ""
    return context.finding(
        "fabric.two-owners",
        Severity.WARNING,
        netdev.name,
        measured=f"both NetworkManager (connection {_named(profile)}) and systemd-networkd{file} configure it",
        wanted="one program that configures a netdev: what the other sets goes at a reboot or a plugged cable",
        fix=f"Leave it to systemd-networkd: nmcli device set {netdev.name} managed no, and make it last in "
        f"/etc/NetworkManager/conf.d ([keyfile] unmanaged-devices=interface-name:{netdev.name}).",
    )


def _picks_itself(context: Context, netdev: NetDev, profile: Profile) -> Finding:
    """NetworkManager asks for an address (its stock profile does), and nobody on the cable gives one."""
    sound = any(interfaces(netdev, context.config.fabric.allow_link_local))
    told = f"NetworkManager's connection {_named(profile)} has ipv4.method {profile.method}"
    has = f"; the address {', '.join(netdev.addresses)} is not in it" if sound else "; nobody on the cable gives one"
    return context.finding(
        "fabric.networkmanager-auto",
        Severity.WARNING,
        netdev.name,
        measured=told + has,
        wanted="ipv4.method manual with a fixed address",
        fix=f"nmcli connection modify {_named(profile)} ipv4.method manual ipv4.addresses ADDRESS/24 "
        f"802-3-ethernet.mtu {context.config.fabric.mtu}, then nmcli connection up {_named(profile)}.",
    )


def _named(profile: Profile) -> str:
    return f'"{profile.name}"' if profile.name else profile.uuid


CHECK = Check(
    id="owners",
    measures="NetworkManager's and systemd-networkd's state files for the cable's netdevs",
    wants="one owner a netdev, with a fixed address",
    advice="Leave each netdev to one program.",
    run=run,
)
