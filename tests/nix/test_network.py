"""The cable and the firewall: the engine's unauthenticated port is reachable over the cable and nowhere else."""

from __future__ import annotations

from typing import Any

from tests.nix.evaluate import spark

TWINS = ["enP2p1s0f0np0", "enp1s0f0np0"]
NETWORK_MANAGER = "{ networking.networkmanager.enable = true; }"


def test_each_spark_gets_its_own_address_from_one_text() -> None:
    def addresses(host: str) -> dict[str, Any]:
        networks = spark(host)["networks"]
        return {one["matchConfig"]["Name"]: one["address"] for one in networks.values()}

    assert addresses("spark-1") == {"enp1s0f0np0": ["192.168.100.1/24"], "enP2p1s0f0np0": ["192.168.101.1/24"]}
    assert addresses("spark-2") == {"enp1s0f0np0": ["192.168.100.2/24"], "enP2p1s0f0np0": ["192.168.101.2/24"]}


def test_the_cable_has_jumbo_frames_and_nothing_that_comes_and_goes() -> None:
    for network in spark("spark-1")["networks"].values():
        assert network["linkConfig"] == {"MTUBytes": "9000", "RequiredForOnline": "no"}
        assert network["networkConfig"]["DHCP"] == "no"
        assert network["networkConfig"]["LinkLocalAddressing"] == "no"
        assert network["networkConfig"]["ConfigureWithoutCarrier"] is True


def test_twins_do_not_answer_arp_for_each_other() -> None:
    sysctl = spark("spark-1")["sysctl"]
    for netdev in TWINS:
        assert sysctl[f"net.ipv4.conf.{netdev}.arp_ignore"] == 1
        assert sysctl[f"net.ipv4.conf.{netdev}.arp_announce"] == 2


def test_rdma_modules_are_there_for_roce_only() -> None:
    assert spark("spark-1")["modules"] == ["mlx5_ib", "ib_uverbs", "rdma_ucm"]
    assert spark("spark-1", '{ services.glm-spark.settings.fabric.transport = "socket"; }')["modules"] == []


def test_the_rendezvous_is_open_on_the_cable_and_nowhere_else() -> None:
    firewall = spark("spark-1")["firewall"]
    assert sorted(firewall["interfaces"]) == TWINS
    for rules in firewall["interfaces"].values():
        # Sessions, weights, the rendezvous.
        assert rules["allowedTCPPorts"] == [8899, 8898, 29551]
        # The path probe and RoCE v2.
        assert rules["allowedUDPPorts"] == [8899, 4791]
    assert firewall["allowedTCPPorts"] == []
    assert firewall["allowedTCPPortRanges"] == []
    assert firewall["extraInputRules"] == firewall["extraCommands"] == ""


def test_ports_that_were_changed_are_the_ones_that_open() -> None:
    text = """{ services.glm-spark.settings =
      { control.port = 9000; engine.master_port = 9001; weights.port = 9002; }; }"""
    for rules in spark("spark-1", text)["firewall"]["interfaces"].values():
        assert rules["allowedTCPPorts"] == [9000, 9002, 9001]
        assert rules["allowedUDPPorts"] == [9000, 4791]


def test_three_sparks_admit_each_other_over_the_lan_and_nobody_else() -> None:
    firewall = spark("spark-2", example="three")["firewall"]
    assert len(firewall["interfaces"]) == 4
    lines = firewall["extraCommands"].splitlines()
    assert [line.split()[4] for line in lines] == ["10.0.0.11", "10.0.0.13"]
    assert all("--dport 32768:60999 -j nixos-fw-accept" in line and "29551" not in line for line in lines)
    with_nftables = spark("spark-2", "{ networking.nftables.enable = true; }", example="three")["firewall"]
    assert "ip saddr { 10.0.0.11, 10.0.0.13 } tcp dport 32768-60999 accept" in with_nftables["extraInputRules"]
    assert with_nftables["extraCommands"] == ""


def test_networkd_has_the_cable_beside_networkmanager() -> None:
    alone = spark("spark-1")["networking"]
    assert alone == {"networkd": True, "useNetworkd": True, "unmanaged": [], "waitOnline": True}
    beside = spark("spark-1", NETWORK_MANAGER)["networking"]
    assert beside["networkd"] is True
    assert beside["useNetworkd"] is False
    assert beside["waitOnline"] is False
    assert sorted(beside["unmanaged"]) == [f"interface-name:{netdev}" for netdev in TWINS]


def test_a_cable_that_something_else_configures_is_fenced_all_the_same() -> None:
    text = '{ lib, ... }: { services.glm-spark.fabric = { ports = lib.mkForce { }; netdevs = [ "br0" ]; }; }'
    result = spark("spark-1", text)
    assert result["refused"] == []
    assert result["networks"] == {}
    assert list(result["firewall"]["interfaces"]) == ["br0"]
    assert result["networking"]["useNetworkd"] is False
