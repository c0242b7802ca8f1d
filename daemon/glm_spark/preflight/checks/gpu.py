"""Do the NVIDIA driver's two halves belong together, and can a container be given the GPU?"""

from __future__ import annotations

from collections.abc import Iterator

from glm_spark.engine import gpu
from glm_spark.finding import Finding, Severity
from glm_spark.preflight.context import Check, Context

GENERATE = (
    "sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml (NixOS: hardware.nvidia-container-toolkit.enable)"
)


def run(context: Context) -> Iterator[Finding]:
    yield from judge(context, gpu.read())


def judge(context: Context, driver: gpu.Driver) -> Iterator[Finding]:
    """Pure. Without a container nothing is said of an absent GPU: the engine may be one that needs none."""
    engine = context.config.engine
    contained = engine.runtime != "process" and not engine.gpu_options
    if not driver.kernel:
        if contained:
            yield _no_driver(context, driver)
        return
    if driver.userspace and driver.userspace != driver.kernel:
        yield context.finding(
            "gpu.driver-differs",
            Severity.ERROR,
            "NVIDIA driver",
            measured=f"kernel module {driver.kernel}, userspace {driver.userspace} ({driver.library})",
            wanted="one version: the driver was updated under a running kernel",
            fix=f"Reboot {context.me}.",
        )
        return
    if contained and engine.runtime == "podman":
        yield from _cdi(context, driver)


def _no_driver(context: Context, driver: gpu.Driver) -> Finding:
    there = f"userspace {driver.userspace} is installed" if driver.userspace else "no userspace of it was found either"
    return context.finding(
        "gpu.no-driver",
        Severity.ERROR,
        "NVIDIA driver",
        measured=f"its kernel module is not loaded (no /sys/module/nvidia/version); {there}",
        wanted="a loaded driver",
        fix="Load it (sudo modprobe nvidia); journalctl -k says why it does not load. After an update of the kernel or "
        f"the driver reboot {context.me}.",
    )


def _cdi(context: Context, driver: gpu.Driver) -> Iterator[Finding]:
    usable = [one for one in driver.specifications if one.has_all]
    if not usable:
        yield context.finding(
            "gpu.cdi-missing",
            Severity.ERROR,
            "CDI specification for the GPU",
            measured="no file in /etc/cdi or /var/run/cdi describes nvidia.com/gpu=all",
            wanted="the device nvidia.com/gpu=all, by which podman gives a container the GPU",
            fix=f"Write it: {GENERATE}.",
        )
        return
    for one in usable:
        other = sorted(one.versions - {driver.kernel})
        measured = f"{one.path} names the driver's libraries of version {', '.join(other)}" if other else ""
        if one.absent:
            measured = f"{one.path} names {len(one.absent)} files that are not there, first {one.absent[0]}"
        if measured:
            yield context.finding(
                "gpu.cdi-stale",
                Severity.ERROR,
                "CDI specification for the GPU",
                measured=measured,
                wanted=f"the files of driver {driver.kernel}",
                fix=f"Write it anew: {GENERATE}; or sudo systemctl restart nvidia-cdi-refresh.",
            )


CHECK = Check(
    id="gpu",
    measures="/sys/module/nvidia/version, the version of libnvidia-ml, the CDI specifications",
    wants="one driver version everywhere, and the device nvidia.com/gpu=all",
    advice="Reboot after an update of the driver; write the CDI specification anew.",
    run=run,
)
