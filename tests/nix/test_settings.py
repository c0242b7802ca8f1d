"""What the module writes to /etc/glm-spark/config.toml is what the daemon reads, and means the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from glm_spark.config import toml
from glm_spark.config.load import load
from glm_spark.config.me import find_me
from glm_spark.config.model import Config
from tests.nix.evaluate import spark


def read(data: dict[str, Any], directory: Path) -> Config:
    """The daemon's Config of the settings as NixOS would write them."""
    file = directory / "config.toml"
    file.write_text("\n".join(f"{name} = {toml.value(value)}" for name, value in data.items()) + "\n")
    return load(file)


@pytest.mark.parametrize("host", ["spark-1", "spark-2"])
def test_both_sparks_of_the_pair_read_one_file(host: str, tmp_path: Path) -> None:
    config = read(spark(host)["settings"], tmp_path)
    assert [(node.name, node.address) for node in config.node] == [("spark-1", ""), ("spark-2", "192.168.100.2")]
    assert find_me(config, None, host) == host
    assert config == read(spark("spark-1")["settings"], tmp_path)


def test_three_sparks_have_lan_addresses(tmp_path: Path) -> None:
    config = read(spark("spark-3", example="three")["settings"], tmp_path)
    assert [node.lan_address for node in config.node] == ["10.0.0.11", "10.0.0.12", "10.0.0.13"]


def test_settings_without_an_option_of_their_own_reach_the_daemon(tmp_path: Path) -> None:
    text = """{ services.glm-spark.settings = {
      timeouts.silence_seconds = 900;
      api.allowed_hosts = [ "glm.example.org" ];
      engine.environment.TF_GLM_NEW = "1";
      engine.tuning.cache_gib = 20.5;
      log.level = "debug";
    }; }"""
    result = spark("spark-1", text)
    assert result["refused"] == []
    config = read(result["settings"], tmp_path)
    assert config.timeouts.silence_seconds == 900
    assert config.api.allowed_hosts == ("glm.example.org",)
    assert config.engine.environment == {"TF_GLM_NEW": "1"}
    assert config.engine.tuning.cache_gib == 20.5
    assert config.log.level == "debug"


def test_a_smaller_mtu_of_the_ports_is_what_the_daemon_wants(tmp_path: Path) -> None:
    text = "{ services.glm-spark.fabric.ports.enp1s0f0np0.mtu = 1500; }"
    assert read(spark("spark-1", text)["settings"], tmp_path).fabric.mtu == 1500


def test_keys_open_the_endpoint_to_a_network(tmp_path: Path) -> None:
    text = """{ services.glm-spark = {
      apiKeysFile = "/etc/glm-spark/api-keys";
      openFirewall = true;
      settings.api.host = "0.0.0.0";
    }; }"""
    result = spark("spark-1", text)
    assert result["refused"] == []
    assert read(result["settings"], tmp_path).api.keys_file == "/run/glm-spark/api-keys"
    assert result["firewall"]["allowedTCPPorts"] == [8888]


def test_dflash2_with_its_licence_accepted(tmp_path: Path) -> None:
    text = '{ services.glm-spark.settings.model = { drafter = "dflash2"; accept_noncommercial = true; }; }'
    result = spark("spark-1", text)
    assert result["refused"] == []
    assert read(result["settings"], tmp_path).parallel == 4
