"""PCIe links and drivers as sysfs shows them, in folders made as a Spark's and as a virtual machine's."""

from __future__ import annotations

from pathlib import Path

from glm_spark.fabric import sysfs
from glm_spark.fabric.inventory import Pcie


def function(root: Path, **files: str) -> Path:
    """A PCIe function's folder below its bridge, with the attributes given."""
    folder = root / "devices" / "pci0000:00" / "0000:00:00.0" / "0000:01:00.0"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text + "\n")
    return folder


def test_a_connectx7_of_a_spark(tmp_path: Path) -> None:
    folder = function(
        tmp_path,
        current_link_width="4",
        current_link_speed="32.0 GT/s PCIe",
        max_link_width="16",
        max_link_speed="32.0 GT/s PCIe",
    )
    driver = tmp_path / "bus" / "pci" / "drivers" / "mlx5_core"
    driver.mkdir(parents=True)
    (folder / "driver").symlink_to(driver)
    device = tmp_path / "class" / "net" / "enp1s0f0np0" / "device"
    device.parent.mkdir(parents=True)
    device.symlink_to(folder)
    assert sysfs.pci_folder(str(device)) == str(folder)
    assert sysfs.driver(str(device)) == "mlx5_core"
    link = Pcie.model_validate(sysfs.pcie(str(folder)))
    assert (str(link), link.most_width) == ("x4 at 32 GT/s", 16)
    assert 110 < link.gbps < 114, "about 112 Gb/s, as measured on a Spark"


def test_a_virtual_function_says_that_it_does_not_know(tmp_path: Path) -> None:
    unknown = function(
        tmp_path, current_link_width="63", current_link_speed="Unknown", max_link_width="255", max_link_speed="Unknown"
    )
    assert sysfs.pcie(str(unknown)) is None


def test_a_bus_may_stand_between(tmp_path: Path) -> None:
    folder = function(tmp_path)
    (folder / "virtio3").mkdir()
    device = tmp_path / "device"
    device.symlink_to(folder / "virtio3")
    assert sysfs.pci_folder(str(device)) == str(folder)
    assert sysfs.pcie(str(folder)) is None
    assert sysfs.driver(str(device)) == ""


def test_a_netdev_without_a_device_has_no_function(tmp_path: Path) -> None:
    assert sysfs.pci_folder(str(tmp_path / "lo" / "device")) == ""
