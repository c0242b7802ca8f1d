"""A text that cannot work is refused before anything is switched, with the name of the option that mends it."""

from __future__ import annotations

import json

import pytest

from tests.nix.evaluate import ROOT, Refused, module, spark, value

# What an owner might write on top of the example pair -> what the refusal must name.
REFUSED = {
    "one Spark": (
        '{ lib, ... }: { services.glm-spark.nodes = lib.mkForce [ { name = "spark-1"; } ]; }',
        ["services.glm-spark.nodes", "1 given"],
    ),
    "four Sparks": (
        '{ services.glm-spark.nodes = [ { name = "c"; address = "192.168.100.3"; }'
        ' { name = "d"; address = "192.168.100.4"; } ]; }',
        ["services.glm-spark.nodes", "4 given"],
    ),
    "another host": (
        '{ lib, ... }: { networking.hostName = lib.mkForce "laptop"; }',
        ["services.glm-spark.nodes", "laptop", "networking.hostName", "spark-1, spark-2"],
    ),
    "one name twice": (
        '{ services.glm-spark.nodes = [ { name = "spark-2"; address = "192.168.100.9"; } ]; }',
        ["services.glm-spark.nodes", "spark-2 is there twice"],
    ),
    "one address twice": (
        '{ services.glm-spark.nodes = [ { name = "spark-3"; address = "192.168.100.2"; } ]; }',
        ["services.glm-spark.nodes", "192.168.100.2 is there twice"],
    ),
    "a worker without an address": (
        '{ lib, ... }: { services.glm-spark.nodes = lib.mkForce [ { name = "spark-1"; } { name = "spark-2"; } ]; }',
        ["services.glm-spark.nodes", "spark-2 has none"],
    ),
    "no token": (
        "{ lib, ... }: { services.glm-spark.tokenFile = lib.mkForce null; }",
        ["services.glm-spark.tokenFile", "not set"],
    ),
    "the token in the store": (
        '{ lib, ... }: { services.glm-spark.tokenFile = lib.mkForce "/nix/store/0-token"; }',
        ["services.glm-spark.tokenFile", "readable by all"],
    ),
    "the token by a relative path": (
        '{ lib, ... }: { services.glm-spark.tokenFile = lib.mkForce "~/token"; }',
        ["services.glm-spark.tokenFile", "an absolute path"],
    ),
    "the keys in the store": (
        '{ services.glm-spark.apiKeysFile = "/nix/store/0-keys"; }',
        ["services.glm-spark.apiKeysFile", "readable by all"],
    ),
    "the Hub's token in the store": (
        '{ services.glm-spark.hubTokenFile = "/nix/store/0-hub"; }',
        ["services.glm-spark.hubTokenFile", "readable by all"],
    ),
    "keys in the store, named among the settings": (
        '{ services.glm-spark.settings.api.keys_file = "/nix/store/0-keys"; }',
        ["services.glm-spark.settings.api.keys_file", "readable by all"],
    ),
    "weights where the process runtime sees nothing": (
        '{ services.glm-spark.settings = { engine.runtime = "process"; model.cache = "/home/me/models"; }; }',
        ["services.glm-spark.settings", "/home/me/models", "/home"],
    ),
    "a clock's limit that an ordinary user may not set": (
        '{ services.glm-spark.settings = { engine.runtime = "process"; gpu.clock_limit_mhz = 2200; }; }',
        ["services.glm-spark.settings.gpu.clock_limit_mhz", "services.glm-spark.gpu.clockLimitMHz"],
    ),
    "a secret among the settings": (
        '{ services.glm-spark.settings.api.api_key = "sk-1"; }',
        ["services.glm-spark.settings", "api.api_key", "readable by all"],
    ),
    "a token among the engine's variables": (
        '{ services.glm-spark.settings.engine.environment.TENSORFOLD_HF_TOKEN = "hf_1"; }',
        ["services.glm-spark.settings", "TENSORFOLD_HF_TOKEN", "readable by all", "services.glm-spark.hubTokenFile"],
    ),
    "several requests with mtp": (
        "{ services.glm-spark.settings.engine.parallel = 4; }",
        ["services.glm-spark.settings.engine.parallel", "dflash2"],
    ),
    "dflash2 without its licence": (
        '{ services.glm-spark.settings.model.drafter = "dflash2"; }',
        ["services.glm-spark.settings.model.accept_noncommercial", "CC BY-NC-ND 4.0"],
    ),
    "a network without keys": (
        '{ services.glm-spark.settings.api.host = "0.0.0.0"; }',
        ["services.glm-spark.settings.api.host", "apiKeysFile"],
    ),
    "a name for the endpoint's address": (
        '{ services.glm-spark.settings.api.host = "localhost"; }',
        ["services.glm-spark.settings.api.host", "not an IP address", "127.0.0.1"],
    ),
    "an open firewall before a closed door": (
        "{ services.glm-spark.openFirewall = true; }",
        ["services.glm-spark.openFirewall", "127.0.0.1"],
    ),
    "an image by its tag": (
        '{ services.glm-spark.settings.engine.image = "example.org/engine:latest"; }',
        ["services.glm-spark.settings.engine.image", "not pinned"],
    ),
    "a container without CDI": (
        "{ lib, ... }: { hardware.nvidia-container-toolkit.enable = lib.mkForce false; }",
        ["services.glm-spark.settings.engine.runtime", "hardware.nvidia-container-toolkit.enable"],
    ),
    "proprietary modules": (
        '{ lib, ... }: { services.xserver.videoDrivers = [ "nvidia" ]; hardware.nvidia.open = lib.mkForce false; }',
        ["hardware.nvidia.open = true"],
    ),
    "an address without its length": (
        '{ lib, ... }: { services.glm-spark.fabric.ports.enp1s0f0np0.address = lib.mkForce "192.168.100.1"; }',
        ["services.glm-spark.fabric.ports.enp1s0f0np0.address", "192.168.100.1/24"],
    ),
    "an octet too large": (
        '{ lib, ... }: { services.glm-spark.fabric.ports.enp1s0f0np0.address = lib.mkForce "192.168.300.1/24"; }',
        ["services.glm-spark.fabric.ports.enp1s0f0np0.address"],
    ),
    "an address for a Spark that is not there": (
        '{ services.glm-spark.fabric.ports.enp1s0f0np0.address.spark-9 = "192.168.100.9/24"; }',
        ["services.glm-spark.fabric.ports", "spark-9 is not among"],
    ),
    "one address on two netdevs": (
        "{ lib, ... }: { services.glm-spark.fabric.ports.enP2p1s0f0np0.address ="
        ' lib.mkForce { spark-1 = "192.168.100.1/24"; }; }',
        ["services.glm-spark.fabric.ports", "192.168.100.1 is there twice"],
    ),
    "one address on two Sparks": (
        "{ lib, ... }: { services.glm-spark.fabric.ports.enP2p1s0f0np0.address = lib.mkForce"
        ' { spark-1 = "192.168.101.1/24"; spark-2 = "192.168.101.1/24"; }; }',
        ["services.glm-spark.fabric.ports", "192.168.101.1 is there twice"],
    ),
    "a Spark's address with a length": (
        '{ lib, ... }: { services.glm-spark.nodes = lib.mkForce [ { name = "spark-1"; }'
        ' { name = "spark-2"; address = "192.168.100.2/24"; } ]; }',
        ["services.glm-spark.nodes", "192.168.100.2/24", "without a prefix length"],
    ),
    "a Spark's address as a name": (
        '{ lib, ... }: { services.glm-spark.nodes = lib.mkForce [ { name = "spark-1"; }'
        ' { name = "spark-2"; address = "spark-2.local"; } ]; }',
        ["services.glm-spark.nodes", "spark-2.local", "an IPv4 address"],
    ),
    "NetworkManager on the cable": (
        "{ lib, ... }: { networking.networkmanager = { enable = true; unmanaged = lib.mkForce [ ]; }; }",
        ["services.glm-spark.fabric.ports", "networking.networkmanager.unmanaged", "enp1s0f0np0"],
    ),
    "DHCP on the cable": (
        "{ networking.interfaces.enp1s0f0np0.useDHCP = true; }",
        ["networking.interfaces.enp1s0f0np0.useDHCP"],
    ),
    "an unknown setting": (
        "{ services.glm-spark.settings.timeouts.silence_second = 5; }",
        ["services.glm-spark.settings", "timeouts.silence_second is not a setting", "timeouts.silence_seconds"],
    ),
    "a misspelt setting of a large table": (
        "{ services.glm-spark.settings.engine.paralel = 2; }",
        ["engine.paralel is not a setting (known: engine.parallel)"],
    ),
    "a value for a table": (
        "{ services.glm-spark.settings.timeouts = 5; }",
        ["timeouts is not a setting", "timeouts.silence_seconds"],
    ),
    "a table for a value": (
        "{ services.glm-spark.settings.engine.context.tokens = 5; }",
        ["services.glm-spark.settings", "engine.context: a value of kind integer is wanted"],
    ),
    "an unknown table": (
        "{ services.glm-spark.settings.apis.port = 5; }",
        ["services.glm-spark.settings", "apis.port is not a setting", "api.port"],
    ),
    "a setting of another kind": (
        '{ services.glm-spark.settings.engine.context = "1M"; }',
        ["services.glm-spark.settings", "engine.context", "integer"],
    ),
}

# What a setting of this kind does not take, not even one that takes a word such as "auto" besides.
STRANGE = {"string": "[ 1 ]", "array": "5", "boolean": '"yes"', "integer": "true", "number": "true", "table": "5"}

# Where the type itself refuses, evaluation ends with the name of the option.
THROWN = {
    "a path as the token": ("{ services.glm-spark.tokenFile = ./token; }", "services.glm-spark.tokenFile"),
    "a port that is none": (
        "{ services.glm-spark.settings.control.port = 99999; }",
        "services.glm-spark.settings.control.port",
    ),
    "a text for a port": ('{ services.glm-spark.settings.api.port = "8888"; }', "services.glm-spark.settings.api.port"),
    "an unknown runtime": (
        '{ services.glm-spark.settings.engine.runtime = "kubernetes"; }',
        "services.glm-spark.settings.engine.runtime",
    ),
    "a misspelt option": ("{ services.glm-spark.tokenfile = null; }", "services.glm-spark.tokenfile"),
    "a misspelt option of a node": (
        '{ services.glm-spark.nodes = [ { name = "x"; adress = "y"; } ]; }',
        r"services\.glm-spark\.nodes\..*adress",
    ),
    "nodes behind the module's back": (
        '{ services.glm-spark.settings.node = [ { name = "x"; } ]; }',
        "services.glm-spark.settings.node",
    ),
    "a misspelt option of NixOS": ("{ networking.hostname = null; }", "networking.hostname"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_it_is_refused(case: str) -> None:
    text, named = REFUSED[case]
    refused = "\n".join(spark("spark-1", text)["refused"])
    for part in named:
        assert part in refused


@pytest.mark.parametrize("runtime", ["podman", "process"])
def test_every_setting_of_another_kind_is_refused_by_its_name(runtime: str) -> None:
    """One evaluation for all those without an option of their own: what the module reads of them must bear it."""
    options = value('import (here + "/named.nix")')
    known = json.loads((ROOT / "nixos-modules/known-settings.json").read_text())
    free = {setting: entry["kind"] for setting, entry in known.items() if setting not in options}
    assert {"model.path", "weights.roots", "engine.spill.directory", "hook.command"} <= set(free)
    wrong = " ".join(f"{setting} = {STRANGE[kind.split(' or ')[0]]};" for setting, kind in free.items())
    text = f'{{ services.glm-spark.settings = {{ engine.runtime = "{runtime}"; {wrong} }}; }}'
    refused = "\n".join(spark("spark-1", text)["refused"])
    assert [setting for setting in free if f"{setting}: a value of kind" not in refused] == []


@pytest.mark.parametrize("case", THROWN)
def test_its_type_is_refused(case: str) -> None:
    text, named = THROWN[case]
    with pytest.raises(Refused, match=named):
        spark("spark-1", text)


@pytest.mark.parametrize("host", ["spark-1", "spark-2"])
def test_the_example_pair_is_fine(host: str) -> None:
    result = spark(host)
    assert result["refused"] == []
    assert result["warnings"] == []


@pytest.mark.parametrize("host", ["spark-1", "spark-2", "spark-3"])
def test_the_example_of_three_is_fine(host: str) -> None:
    result = spark(host, example="three")
    assert result["refused"] == []
    assert result["warnings"] == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("{ services.glm-spark.settings.api.open = true; }", "services.glm-spark.settings.api.open"),
        ("{ networking.firewall.enable = false; }", "29551"),
        ("{ networking.firewall.allowedTCPPorts = [ 29551 ]; }", "networking.firewall.allowedTCPPorts"),
        ("{ lib, ... }: { services.glm-spark.fabric.ports = lib.mkForce { }; }", "services.glm-spark.fabric.ports"),
        (
            '{ lib, ... }: { services.glm-spark.fabric.ports.enP2p1s0f0np0.address = lib.mkForce "192.168.100.9/24"; }',
            "share a subnet",
        ),
        (
            '{ services.glm-spark.nodes = [ { name = "c"; address = "192.168.100.3"; } ]; }',
            "lanAddress",
        ),
        (
            '{ lib, ... }: { services.glm-spark.nodes = lib.mkForce [ { name = "spark-1"; }'
            ' { name = "spark-2"; address = "10.0.0.12"; } ]; }',
            "spark-2 at 10.0.0.12 is in no subnet",
        ),
    ],
)
def test_what_is_doubtful_is_a_warning(text: str, named: str) -> None:
    result = spark("spark-1", text)
    assert result["refused"] == []
    assert any(named in warning for warning in result["warnings"])


def test_nothing_happens_without_enable() -> None:
    result = module(
        f"{{ lib, ... }}: {{ imports = [ {ROOT}/nixos-modules/example/pair.nix ];"
        " services.glm-spark.enable = lib.mkForce false; }"
    )
    assert result["units"] == {}
    assert result["networks"] == {}
    assert result["firewall"]["interfaces"] == {}
    assert result["users"] == {"groups": {}, "users": {}}
