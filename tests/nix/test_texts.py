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
    dozen, network = BLOCKS
    assert len(dozen.splitlines()) <= 13
    for more in ("", network):
        result = module(f"{{ {dozen} }}", f"{{ {more} }}", SPARK, f'{{ networking.hostName = "{host}"; }}')
        assert result["refused"] == result["warnings"] == []
    assert result["firewall"]["allowedTCPPorts"] == [8888]


def test_links_lead_somewhere() -> None:
    for page in (ROOT / "docs/install-nixos.md", ROOT / "docs/install-dgx-os.md", ROOT / "daemon/systemd/README.md"):
        for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
