"""Memory registration, PCIe links, firewalls and owners of the cable: each fault named with what to do."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from glm_spark.fabric.firewall import Filters
from glm_spark.fabric.inventory import Inventory, Pcie
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.checks import firewall, owners, pcie, registration, roce
from glm_spark.preflight.context import Context
from tests.unit.fabric.sparks import Twin, config, inventory, port

RECORDED = Path(__file__).parent.parent / "fabric" / "recorded"
MIB = 1 << 20


@pytest.fixture
def at() -> Context:
    own = inventory(*port(0, (100, 101), 1), Twin(1, False, carrier=False))
    return Context(config=config(), me="spark-1", inventory=own)


def one(findings: Any) -> Finding:
    found: list[Finding] = list(findings)
    assert len(found) == 1, found
    assert found[0].fix
    return found[0]


def changed(at: Context, **netdev: Any) -> Context:
    """The first netdev of the cable with other values."""
    assert at.inventory is not None
    netdevs = tuple(
        each.model_copy(update=netdev) if each.name == "enp1s0f0np0" else each for each in at.inventory.netdevs
    )
    return replace(at, inventory=at.inventory.model_copy(update={"netdevs": netdevs}))


# -- memory registration ---------------------------------------------------------------------------------------


def refusal(memlock: int, *, unlimited: bool, errno: int = 12, step: str = "register") -> dict[str, Any]:
    text = "Failed to register a MR. length: 67108864, access flags: 3. Errno: 12, Cannot allocate memory"
    tried = [{"device": "rocep1s0f0", "step": step, "errno": errno, "text": text}]
    return {"bytes": 16 * MIB, "needed": 64 * MIB, "memlock": memlock, "unlimited": unlimited, "tried": tried}


def test_a_memlock_limit_is_named_with_the_units_setting(at: Context) -> None:
    finding = one(registration.judge(at, refusal(8 * MIB, unlimited=False)))
    assert (finding.code, finding.severity) == ("verbs.memory-registration", Severity.ERROR)
    assert "memlock limit is 8 MiB" in finding.measured
    assert "LimitMEMLOCK=infinity" in finding.fix


def test_without_a_limit_the_kernel_or_the_firmware_is_at_fault(at: Context) -> None:
    finding = one(registration.judge(at, refusal(-1, unlimited=True)))
    assert finding.code == "verbs.memory-registration"
    assert "Cannot allocate memory" in finding.measured
    assert "firmware" in finding.fix
    assert "memlock" not in finding.fix


def test_the_limit_of_a_persons_shell_says_nothing_about_the_daemon(at: Context) -> None:
    finding = one(registration.judge(replace(at, alone=True), refusal(8 * MIB, unlimited=False)))
    assert (finding.code, finding.severity) == ("verbs.memlock-here", Severity.NOTE)


def test_devices_that_may_not_be_opened_are_no_fault_of_memory(at: Context) -> None:
    told = refusal(-1, unlimited=True, errno=13, step="open")
    assert one(registration.judge(at, told)).code == "verbs.no-access"


def test_a_registration_that_succeeds_says_nothing(at: Context) -> None:
    assert list(registration.judge(at, refusal(-1, unlimited=True, errno=0))) == []


async def test_a_device_that_is_not_there_is_another_checks_word(at: Context) -> None:
    """This machine has no RDMA: the real child answers, and nothing is concluded about memory."""
    told = list(await registration.run(at))
    assert {finding.code for finding in told} <= {"verbs.memory-registration", "verbs.no-access"}
    assert list(await registration.run(replace(at, config=config(transport="socket")))) == []


# -- PCIe ------------------------------------------------------------------------------------------------------


def test_a_function_of_a_spark_as_it_should_be_is_fine(at: Context) -> None:
    sound = Pcie(width=4, speed=32.0, most_width=16, most_speed=32.0)
    assert list(pcie.run(changed(at, pcie=sound, speed=200_000))) == []


@pytest.mark.parametrize(("width", "speed"), [(2, 32.0), (4, 16.0), (1, 32.0)])
def test_a_link_that_trained_narrow_or_slow_is_named_with_figures(at: Context, width: int, speed: float) -> None:
    finding = one(pcie.run(changed(at, pcie=Pcie(width=width, speed=speed), speed=200_000, driver="mlx5_core")))
    assert (finding.code, finding.severity) == ("fabric.pcie-slow", Severity.WARNING)
    assert f"x{width} at {speed:g} GT/s" in finding.measured


def test_nothing_is_said_of_a_link_that_does_not_tell(at: Context) -> None:
    assert list(pcie.run(changed(at, pcie=None, speed=200_000))) == []
    assert list(pcie.run(changed(at, pcie=Pcie(width=1, speed=2.5), speed=None))) == []


# -- devices ---------------------------------------------------------------------------------------------------


def test_a_twin_without_its_device_is_named() -> None:
    own = inventory(Twin(0, False, at="192.168.100.1/24"), Twin(0, True, at="192.168.101.1/24", device=False))
    finding = one(roce.run(Context(config=config(), me="spark-1", inventory=own)))
    assert (finding.code, finding.subject) == ("fabric.no-roce-device", "enP2p1s0f0np0")


# -- firewalls -------------------------------------------------------------------------------------------------


def filters(name: str) -> Filters:
    return Filters.model_validate(json.loads((RECORDED / f"filters-{name}.json").read_text()))


def test_ufw_that_drops_the_cables_traffic_is_named_once_a_netdev_with_its_own_command(
    at: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    conf = tmp_path / "ufw.conf"
    conf.write_text("# /etc/ufw/ufw.conf\nENABLED=yes\nLOGLEVEL=low\n")
    monkeypatch.setattr(firewall, "UFW", conf)
    found = [finding for finding in firewall.judge(at, filters("ufw")) if "enp1s0f0np0" in finding.subject]
    finding = one(found)
    assert "TCP 8899 (the session between the Sparks)" in finding.measured
    assert "TCP 29551 (the ranks' rendezvous)" in finding.measured
    assert "weights" not in finding.measured, "the leader dials"
    assert "UDP 4791" not in finding.measured, "an adapter takes RoCE before the kernel's filters"
    assert "ufw allow in on enp1s0f0np0" in finding.fix


def test_a_worker_lets_the_leader_in_that_brings_its_weights(at: Context) -> None:
    worker = replace(at, me="spark-2")
    found = list(firewall.judge(worker, filters("ufw")))
    assert found
    port = worker.config.weights.port
    assert all(f"TCP {port} (weights from the leader)" in finding.measured for finding in found)
    own = worker.config.model.model_copy(update={"path": "/srv/a", "drafter_path": "/srv/b"})
    served = replace(worker, config=worker.config.model_copy(update={"model": own}))
    assert not any("weights" in finding.measured for finding in firewall.judge(served, filters("ufw")))


def test_soft_roce_is_filtered_and_says_so(at: Context) -> None:
    assert at.inventory is not None
    soft = tuple(device.model_copy(update={"driver": "rdma_rxe"}) for device in at.inventory.devices)
    own = at.inventory.model_copy(update={"devices": soft})
    found = list(firewall.judge(replace(at, inventory=own), filters("ufw")))
    assert all("UDP 4791 (RoCE)" in finding.measured for finding in found)


def test_a_netdev_that_is_let_in_is_left_alone(at: Context) -> None:
    assert [finding.subject for finding in firewall.judge(at, filters("ufw-allowed"))] == ["firewall on enP2p1s0f0np0"]


def test_dockers_policy_matters_to_a_netdev_in_a_bridge_only(
    at: Context, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filtered = tmp_path / "bridge-nf-call-iptables"
    filtered.write_text("1\n")
    monkeypatch.setattr(firewall, "BRIDGE_FILTERED", filtered)
    assert list(firewall.bridged(at, filters("docker"))) == []
    finding = one(firewall.bridged(changed(at, master="br0"), filters("docker")))
    assert (finding.code, finding.subject) == ("fabric.forward-dropped", "enp1s0f0np0")
    assert "br0" in finding.fix
    filtered.write_text("0\n")
    assert list(firewall.bridged(changed(at, master="br0"), filters("docker"))) == []


# -- owners ----------------------------------------------------------------------------------------------------

PROFILE = "[connection]\nid=Wired connection 2\nuuid=5fb06bd0\ntype=ethernet\n\n[ipv4]\nmethod={}\n"


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("devices", "profiles", "links"):
        (tmp_path / name).mkdir()
    monkeypatch.setattr(owners, "NM_DEVICES", tmp_path / "devices")
    monkeypatch.setattr(owners, "NM_PROFILES", (tmp_path / "profiles",))
    monkeypatch.setattr(owners, "NETWORKD_LINKS", tmp_path / "links")
    return tmp_path


def index_of(at: Context, name: str) -> int:
    assert at.inventory is not None
    netdev = at.inventory.netdev(name)
    assert netdev is not None
    return netdev.index


def network_manager(host: Path, index: int, method: str) -> None:
    state = "[device]\nmanaged=true\nconnection-uuid=5fb06bd0\nperm-hw-addr-fake=52:54:00:CC:01:A0\n"
    (host / "devices" / str(index)).write_text(state)
    (host / "profiles" / "wired.nmconnection").write_text(PROFILE.format(method))


def test_the_stock_profile_that_asks_for_an_address_is_named_with_the_command_that_fixes_it(
    at: Context, host: Path
) -> None:
    bare = changed(at, addresses=())
    network_manager(host, index_of(at, "enp1s0f0np0"), "auto")
    finding = one(owners.run(bare))
    assert (finding.code, finding.severity) == ("fabric.networkmanager-auto", Severity.WARNING)
    assert '"Wired connection 2" has ipv4.method auto; nobody on the cable gives one' in finding.measured
    assert 'nmcli connection modify "Wired connection 2" ipv4.method manual' in finding.fix


def test_a_profile_with_a_fixed_address_is_as_it_should_be(at: Context, host: Path) -> None:
    network_manager(host, index_of(at, "enp1s0f0np0"), "manual")
    assert list(owners.run(at)) == []


def test_two_programs_that_configure_one_netdev_are_both_named(at: Context, host: Path) -> None:
    index = index_of(at, "enp1s0f0np0")
    network_manager(host, index, "manual")
    networkd = (
        "ADMIN_STATE=configured\nOPER_STATE=routable\nNETWORK_FILE=/run/systemd/network/10-netplan-cable.network\n"
    )
    (host / "links" / str(index)).write_text(networkd)
    finding = one(owners.run(at))
    assert finding.code == "fabric.two-owners"
    assert "Wired connection 2" in finding.measured
    assert "10-netplan-cable.network" in finding.measured


def test_a_netdev_that_both_leave_alone_has_no_owner(at: Context, host: Path) -> None:
    index = index_of(at, "enp1s0f0np0")
    (host / "devices" / str(index)).write_text("[device]\nmanaged=false\n")
    (host / "links" / str(index)).write_text("ADMIN_STATE=unmanaged\n")
    assert list(owners.run(at)) == []


def test_a_reading_without_the_cable_asks_nobody() -> None:
    bare = Context(config=config(), me="spark-1", inventory=Inventory())
    assert list(pcie.run(bare)) == list(owners.run(bare)) == []
