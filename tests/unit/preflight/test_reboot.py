"""A kernel or driver that was changed under a running one is said, with the Spark to reboot."""

from __future__ import annotations

from pathlib import Path

import pytest

from glm_spark.finding import Finding, Severity
from glm_spark.preflight.checks import ALL, reboot
from glm_spark.preflight.context import Context
from tests.unit.fabric.sparks import config

AT = Context(config=config(), me="spark-2")
HASHES = ("0" * 32, "1" * 32)


@pytest.fixture
def system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Files as NixOS and Ubuntu have them; nothing there yet."""
    monkeypatch.setattr(reboot, "BOOTED", tmp_path / "booted-system")
    monkeypatch.setattr(reboot, "CURRENT", tmp_path / "current-system")
    monkeypatch.setattr(reboot, "WANTED_BY", tmp_path / "reboot-required.pkgs")
    return tmp_path


def generation(system: Path, name: str, kernel: str, modules: str) -> None:
    """A generation as /run/booted-system and /run/current-system lead to one."""
    target = system / f"nixos-{name}"
    target.mkdir()
    for link, built, file in (("kernel", kernel, "Image"), ("kernel-modules", modules, "lib")):
        (system / built).mkdir(exist_ok=True)
        (system / built / file).touch()
        (target / link).symlink_to(system / built / (file if link == "kernel" else ""))
    (system / f"{name}-system").symlink_to(target)


def findings() -> list[Finding]:
    return list(reboot.run(AT))


def test_a_kernel_switched_to_and_not_booted_is_named_with_the_spark_to_reboot(system: Path) -> None:
    generation(system, "booted", "linux-6.17.1", "modules-1")
    generation(system, "current", "linux-6.17.4", "modules-2")
    (finding,) = findings()
    assert (finding.code, finding.severity, finding.node) == ("host.reboot-needed", Severity.WARNING, "spark-2")
    assert "linux-6.17.1" in finding.measured
    assert "linux-6.17.4" in finding.measured
    assert finding.fix.startswith("Reboot spark-2")


def test_a_driver_switched_under_the_same_kernel_is_said(system: Path) -> None:
    generation(system, "booted", "linux-6.17.1", "modules-with-driver-580.95")
    generation(system, "current", "linux-6.17.1", "modules-with-driver-580.105")
    (finding,) = findings()
    assert "modules of the generation that booted" in finding.measured


def test_a_generation_with_the_kernel_that_runs_needs_no_reboot(system: Path) -> None:
    generation(system, "booted", "linux-6.17.1", "modules-1")
    generation(system, "current", "linux-6.17.1", "modules-1")
    assert findings() == []


def test_where_there_is_no_nixos_and_nothing_was_updated_nothing_is_said(system: Path) -> None:
    assert findings() == []
    generation(system, "current", "linux-6.17.1", "modules-1")
    assert findings() == []


def test_store_paths_are_told_by_their_names() -> None:
    old, new = (
        reboot.Generation(f"/nix/store/{digest}-linux-6.17.{number}/Image", f"/nix/store/{digest}-linux-modules")
        for number, digest in enumerate(HASHES)
    )
    (finding,) = reboot.judge(AT, old, new)
    assert finding.measured == "linux-6.17.0 runs, linux-6.17.1 was switched to"
    rebuilt = reboot.Generation(old.kernel.replace(HASHES[0], HASHES[1]), new.modules)
    (finding,) = reboot.judge(AT, old, rebuilt)
    assert finding.measured == "another build of linux-6.17.0 runs than the one switched to"


def test_ubuntus_note_counts_when_kernel_or_driver_want_it(system: Path) -> None:
    note = system / "reboot-required.pkgs"
    note.write_text("libc6\n")
    assert findings() == []
    note.write_text("libc6\nlinux-image-6.14.0-1015-nvidia\nnvidia-driver-580-open\nlinux-image-6.14.0-1015-nvidia\n")
    (finding,) = findings()
    assert "linux-image-6.14.0-1015-nvidia, nvidia-driver-580-open (" in finding.measured


def test_it_is_looked_at_before_every_start() -> None:
    assert reboot.CHECK in ALL
