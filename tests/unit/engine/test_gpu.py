"""The driver's halves, CDI specifications and the clock's limit, from files and answers as a DGX Spark gives them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from glm_spark.engine import gpu
from glm_spark.engine.command import Answer
from glm_spark.finding import Severity
from glm_spark.preflight.checks.gpu import judge
from glm_spark.preflight.context import Context
from tests.unit.engine.test_container import config

VERSION = "580.95.05"
# What nvidia-ctk cdi generate writes, shortened.
CDI = """---
cdiVersion: 0.5.0
containerEdits:
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  mounts:
  - containerPath: {lib}/libcuda.so.{version}
    hostPath: {lib}/libcuda.so.{version}
    options:
    - ro
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: all
kind: nvidia.com/gpu
"""
CDI_JSON = (
    '{{"cdiVersion":"0.5.0","kind":"nvidia.com/gpu","devices":[{{"name":"all","containerEdits":{{}}}}],'
    '"containerEdits":{{"mounts":[{{"hostPath":"{lib}/libcuda.so.{version}","containerPath":"/x"}}]}}}}'
)


class Spark:
    """The files of a Spark's driver under a folder."""

    def __init__(self, root: Path) -> None:
        self.module = root / "version"
        self.lib = root / "lib"
        self.cdi = root / "cdi"
        self.lib.mkdir()
        self.cdi.mkdir()

    def install(self, kernel: str = VERSION, userspace: str = VERSION) -> None:
        self.module.write_text(f"{kernel}\n")
        for name in ("libnvidia-ml.so", "libcuda.so"):
            (self.lib / f"{name}.{userspace}").touch()
            (self.lib / f"{name}.1").symlink_to(f"{name}.{userspace}")

    def describe(self, version: str = VERSION, text: str = CDI, name: str = "nvidia.yaml") -> None:
        (self.cdi / name).write_text(text.format(lib=self.lib, version=version))

    def findings(self, runtime: str = "podman", **engine: Any) -> list[tuple[str, Severity, str, str]]:
        made = config(engine={"runtime": runtime, **engine})
        driver = gpu.read(self.module, (self.lib,), (self.cdi,))
        found = judge(Context(config=made, me="spark-2"), driver)
        return [(one.code, one.severity, one.measured, one.fix) for one in found]


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


@pytest.mark.parametrize(("text", "name"), [(CDI, "nvidia.yaml"), (CDI_JSON, "nvidia.json")])
def test_a_sound_driver_has_nothing_to_say(spark: Spark, text: str, name: str) -> None:
    spark.install()
    spark.describe(text=text, name=name)
    assert spark.findings() == []


def test_an_updated_driver_under_a_running_kernel_wants_a_reboot_of_that_spark(spark: Spark) -> None:
    spark.install(kernel="580.65.06", userspace=VERSION)
    spark.describe()
    ((code, severity, measured, fix),) = spark.findings()
    assert (code, severity, fix) == ("gpu.driver-differs", Severity.ERROR, "Reboot spark-2.")
    assert "580.65.06" in measured
    assert VERSION in measured
    assert spark.findings("process")[0][0] == "gpu.driver-differs"


def test_a_specification_that_is_not_there_or_describes_something_else_is_missing(spark: Spark) -> None:
    spark.install()
    assert spark.findings()[0][0] == "gpu.cdi-missing"
    (spark.cdi / "other.yaml").write_text("kind: example.com/net\ndevices:\n- name: all\n")
    (spark.cdi / "part.yaml").write_text("kind: nvidia.com/gpu\ndevices:\n- name: '0'\n")
    ((code, _, _, fix),) = spark.findings()
    assert code == "gpu.cdi-missing"
    assert "nvidia-ctk cdi generate" in fix
    assert spark.findings("docker") == []


def test_a_specification_of_an_older_driver_is_stale(spark: Spark) -> None:
    spark.install()
    spark.describe(version="570.10.01")
    ((code, _, measured, _),) = spark.findings()
    assert code == "gpu.cdi-stale"
    assert "libcuda.so.570.10.01" in measured
    (spark.lib / "libcuda.so.570.10.01").touch()
    ((code, _, measured, _),) = spark.findings()
    assert code == "gpu.cdi-stale"
    assert "version 570.10.01" in measured


def test_without_a_driver_a_container_cannot_start_and_a_process_may(spark: Spark) -> None:
    ((code, severity, _, fix),) = spark.findings()
    assert (code, severity) == ("gpu.no-driver", Severity.ERROR)
    assert "modprobe nvidia" in fix
    assert spark.findings("process") == []
    assert spark.findings(gpu_options=["--device=/dev/null"]) == []


SET = 'GPU clocks set to "(gpuClkMin 0, gpuClkMax 2200)" for GPU 0000000F:01:00.0\nAll done.\n'


@pytest.mark.parametrize(
    ("answer", "trouble"),
    [
        (Answer(0, SET, ""), ""),
        (Answer(0, SET.replace("2200", "3003"), ""), "3003"),
        (Answer(0, "Setting locked GPU clocks is not supported for GPU 0000000F:01:00.0.\n", ""), "not supported"),
        (
            Answer(4, "The current user does not have permission to change clocks\nInsufficient Permissions\n", ""),
            "perm",
        ),
        (Answer(9, "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", ""), "failed"),
        (Answer(127, "", "nvidia-smi: no such library"), "no such library"),
    ],
)
def test_a_clock_limit_holds_only_when_nvidia_smi_says_so(answer: Answer, trouble: str) -> None:
    found = gpu.capped(answer, 2200)
    assert trouble in found
    assert bool(found) is bool(trouble)


@pytest.mark.parametrize(
    ("text", "clock"),
    [("208\n", None), ("2205\n", None), ("2405\n", 2405), ("[N/A]\n", None), ("[Not Supported]\n", None)],
)
def test_not_supported_is_no_fault(text: str, clock: int | None) -> None:
    assert gpu.faster(Answer(0, text, ""), 2200) == clock


async def test_the_limit_is_set_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(
        "#!/bin/sh\ncase $1 in --lock-gpu-clocks=0,2200)"
        f" printf '%s' '{SET}';; --query-gpu=*) cat {tmp_path}/clock;; esac\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    (tmp_path / "clock").write_text("[N/A]\n")
    assert await gpu.cap(2200) == ""
    (tmp_path / "clock").write_text("3003\n")
    assert "3003 MHz" in await gpu.cap(2200)
    program.unlink()
    monkeypatch.setenv("PATH", str(tmp_path))
    assert "no program nvidia-smi" in await gpu.cap(2200)
