"""The texts an owner copies: the template, and the lines of docs/install-nixos.md, work as they stand."""

from __future__ import annotations

import re

import pytest

from tests.nix.evaluate import ROOT, SPARK, module

PAGE = (ROOT / "docs/install-nixos.md").read_text()
BLOCKS = re.findall(r"```nix\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize("host", ["spark-1", "spark-2"])
def test_the_template_is_fine(host: str) -> None:
    template = f"{{ services.glm-spark = (import {ROOT}/nixos-modules/template/sparks.nix).services.glm-spark; }}"
    result = module(template, SPARK, f'{{ networking.hostName = "{host}"; }}')
    assert result["refused"] == result["warnings"] == []
    assert len(result["networks"]) == 2


@pytest.mark.parametrize("host", ["spark-1", "spark-2"])
def test_the_lines_of_the_page_are_fine(host: str) -> None:
    dozen, network, docker = BLOCKS
    assert len(dozen.splitlines()) <= 13
    for more in ("", network):
        result = module(f"{{ {dozen} }}", f"{{ {more} }}", SPARK, f'{{ networking.hostName = "{host}"; }}')
        assert result["refused"] == result["warnings"] == []
    assert result["firewall"]["allowedTCPPorts"] == [8888]
    # nixos-dgx-spark's own values; an assertion of NixOS refuses them beside Docker.
    compat = "{ virtualisation.podman = { dockerCompat = true; dockerSocket.enable = true; }; }"
    result = module(f"{{ {dozen} }}", docker, compat, SPARK, f'{{ networking.hostName = "{host}"; }}')
    assert result["refused"] == result["warnings"] == []
    assert result["settings"]["engine"]["runtime"] == "docker"
    assert result["docker"] == {"enable": True, "compat": False, "socket": False}


def test_the_readme_has_the_same_lines() -> None:
    assert re.findall(r"```nix\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL) == BLOCKS[:1]


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "docs/install-nixos.md", ROOT / "docs/install-dgx-os.md", ROOT / "daemon/systemd/README.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
