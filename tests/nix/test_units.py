"""The units: keys systemd knows, doors shut as far as each runtime allows, and a boot that waits for nobody."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from glm_spark.weights.secret import CREDENTIAL
from tests.nix.evaluate import ROOT, spark, value
from tests.nix.generated import VARIANTS
from tests.nix.units import by_hand

# systemd-analyze's exposure, times ten: the most that is allowed. A container has to be started by root with its
# doors open; nixos-modules/unit.nix says why for each.
MOST = {"process": 30, "podman": 69, "docker-three": 69}


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
        env={"PATH": "/usr/bin:/bin", "SYSTEMD_COLORS": "0", "LC_ALL": "C.UTF-8"},
    )


def unit(text: str) -> dict[str, list[str]]:
    """The keys of a unit with all their values."""
    keys: dict[str, list[str]] = {}
    for line in text.splitlines():
        if "=" in line and not line.startswith(("#", "[")):
            name, _, given = line.partition("=")
            keys.setdefault(name, []).append(given)
    return keys


def verify(directory: Path, texts: dict[str, str]) -> str:
    """What systemd has to say against the units."""
    for name, text in texts.items():
        (directory / name).write_text(text)
    # It exits 0 on an unknown key: only silence is consent.
    return "".join(analyze("verify", "--man=no", str(directory / name)).stderr for name in texts)


def with_programs(name: str, directory: Path) -> dict[str, str]:
    """The units of a variant with a store in `directory` that holds a program for each they name."""
    example, host, more = VARIANTS[name]
    for program in (
        "glm-spark/bin/glm-spark",
        "coreutils/bin/install",
        "coreutils/bin/kill",
        "nvidia/bin/nvidia-smi",
        "systemd/bin/systemctl",
    ):
        path = directory / program
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(0o755)
    units: dict[str, str] = spark(host, more, example=example, store=str(directory))["units"]
    return units


@pytest.mark.parametrize("name", VARIANTS)
def test_systemd_knows_every_key(name: str, tmp_path: Path) -> None:
    assert verify(tmp_path, with_programs(name, tmp_path / "store")) == ""


@pytest.mark.parametrize("name", ["glm-spark", "glm-spark-process"])
def test_systemd_knows_every_key_of_the_units_for_systems_without_nix(name: str, tmp_path: Path) -> None:
    program = tmp_path / "glm-spark"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    text = (ROOT / f"daemon/systemd/{name}.service").read_text()
    text = text.replace("/opt/glm-spark/bin/glm-spark", str(program))
    boot = (ROOT / "daemon/systemd/glm-spark-boot.service").read_text()
    assert verify(tmp_path, {"glm-spark.service": text, "glm-spark-boot.service": boot}) == ""


def test_an_unknown_key_is_found(tmp_path: Path) -> None:
    broken = (
        by_hand("podman").replace("WatchdogSec=", "WatchdogSecs=").replace("/opt/glm-spark/bin/glm-spark", "/bin/true")
    )
    assert "WatchdogSecs" in verify(tmp_path, {"glm-spark.service": broken})


@pytest.mark.parametrize("name", VARIANTS)
def test_no_door_opens_further(name: str, tmp_path: Path) -> None:
    text = with_programs(name, tmp_path / "store")["glm-spark.service"]
    file = tmp_path / "glm-spark.service"
    file.write_text(text)
    done = analyze("security", "--offline=yes", f"--threshold={MOST[name]}", str(file))
    assert done.returncode == 0, done.stdout[-200:] + done.stderr


@pytest.mark.parametrize("name", VARIANTS)
def test_the_daemon_is_supervised_as_it_expects(name: str) -> None:
    example, host, more = VARIANTS[name]
    keys = unit(spark(host, more, example=example)["units"]["glm-spark.service"])
    expected = {
        "Type": "notify",
        "NotifyAccess": "main",
        "WatchdogSec": "30",
        "TimeoutStartSec": "90",
        "TimeoutStopSec": "90",
        "Restart": "on-failure",
        "RestartSec": "2",
        "StartLimitIntervalSec": "0",
        "KillMode": "mixed",
        "Delegate": "true",
        "OOMScoreAdjust": "-900",
        "LimitMEMLOCK": "infinity",
        "RuntimeDirectory": "glm-spark",
        "StateDirectory": "glm-spark",
        "CacheDirectory": "glm-spark",
        "RuntimeDirectoryMode": "0750",
        "Group": "glm-spark",
        "LoadCredential": "glm-spark-token:/etc/glm-spark/token",
        "NoNewPrivileges": "true",
    }
    assert {key: keys[key] for key in expected} == {key: [given] for key, given in expected.items()}
    assert "78" in keys["RestartPreventExitStatus"][0].split()
    assert keys["ExecStart"] == ['"/nix/store/glm-spark/bin/glm-spark" "run" "--config" "/etc/glm-spark/config.toml"']
    assert keys["ExecReload"][-1] == "/nix/store/coreutils/bin/kill -HUP $MAINPID"


@pytest.mark.parametrize("name", VARIANTS)
def test_a_boot_and_a_switch_wait_for_nobody(name: str) -> None:
    """Nothing that waits may have a job on glm-spark.service: it is activating until the set is live."""
    example, host, more = VARIANTS[name]
    result = spark(host, more, example=example)
    assert result["wantedBy"] == {"glm-spark": [], "glm-spark-boot": ["multi-user.target"]}
    keys = unit(result["units"]["glm-spark.service"])
    # The switch neither restarts it nor reloads it: both are jobs it would wait for.
    assert keys["X-RestartIfChanged"] == ["false"]
    assert "X-Reload-Triggers" not in keys
    boot = unit(result["units"]["glm-spark-boot.service"])
    assert boot["Type"] == ["oneshot"]
    assert boot["RemainAfterExit"] == ["true"]
    assert boot["ExecStart"][0].split()[1:] == ["--no-block", "restart", "glm-spark.service"]
    assert "kill" in boot["ExecReload"][0]
    assert "After" not in boot
    assert "Wants" not in boot


def triggers(*modules: str) -> tuple[str, str]:
    """What a switch compares to know whether the daemon is to be restarted, and whether to be reloaded."""
    keys = unit(spark("spark-1", *modules)["units"]["glm-spark-boot.service"])
    return keys["X-Restart-Triggers"][0], keys["X-Reload-Triggers"][0]


def test_a_changed_setting_reloads_and_a_changed_package_restarts() -> None:
    restart, reload = triggers()
    setting = triggers("{ services.glm-spark.settings.timeouts.silence_seconds = 900; }")
    assert setting[0] == restart
    assert setting[1] != reload
    package = triggers(
        '{ services.glm-spark.package = { outPath = "/nix/store/newer"; meta.mainProgram = "glm-spark"; }; }'
    )
    assert package[0] != restart


def test_keys_reach_a_daemon_that_may_not_read_them() -> None:
    text = '{ services.glm-spark = { apiKeysFile = "/etc/glm-spark/api-keys"; settings.engine.runtime = "process"; }; }'
    result = spark("spark-1", text)
    copy = (
        '-+"/nix/store/coreutils/bin/install" "-m" "0600" "-o" "glm-spark" "-g" "glm-spark"'
        ' "/etc/glm-spark/api-keys" "/run/glm-spark/api-keys"'
    )
    keys = unit(result["units"]["glm-spark.service"])
    assert keys["ExecStartPre"] == [copy]
    # First the keys, then the signal that has them read.
    assert keys["ExecReload"][0] == copy
    assert result["users"]["users"]["glm-spark"]["isSystemUser"] is True


CLOCK = "services.glm-spark.gpu.clockLimitMHz = 2200;"
PROCESS = 'services.glm-spark.settings.engine.runtime = "process";'


def test_the_daemon_limits_the_clock_where_it_may_and_the_unit_elsewhere() -> None:
    """Only root may set it. In either case one of the two does, and the unit takes it back."""
    limit, reset = (
        f"-+/nix/store/nvidia/bin/nvidia-smi --{verb}" for verb in ("lock-gpu-clocks=0,2200", "reset-gpu-clocks")
    )
    by_daemon, by_unit = spark("spark-1", f"{{ {CLOCK} }}"), spark("spark-1", f"{{ {CLOCK} {PROCESS} }}")
    assert by_daemon["refused"] == by_unit["refused"] == []
    keys = unit(by_daemon["units"]["glm-spark.service"])
    assert by_daemon["settings"]["gpu"] == {"clock_limit_mhz": 2200}
    assert "ExecStartPre" not in keys
    assert "/nix/store/nvidia/bin" in keys["Environment"][0]
    assert reset in keys["ExecStopPost"]
    keys = unit(by_unit["units"]["glm-spark.service"])
    assert by_unit["settings"]["gpu"] == {"clock_limit_mhz": 0}
    assert keys["ExecStartPre"] == [limit]
    assert reset in keys["ExecStopPost"]
    assert "nvidia" not in "".join(spark("spark-1")["units"].values()).replace("nvidia-", "")


@pytest.mark.parametrize("name", VARIANTS)
def test_the_programs_that_the_daemon_starts_are_found(name: str) -> None:
    example, host, more = VARIANTS[name]
    path = unit(spark(host, more, example=example)["units"]["glm-spark.service"])["Environment"][0]
    assert "/nix/store/systemd/bin" in path  # journalctl
    runtime = name.partition("-")[0]
    assert f"/nix/store/{'cc' if runtime == 'process' else runtime}/bin" in path


def test_the_hubs_token_reaches_the_leader_as_a_credential() -> None:
    text = '{ services.glm-spark.hubTokenFile = "/etc/glm-spark/hub-token"; }'
    keys = {host: unit(spark(host, text)["units"]["glm-spark.service"]) for host in ("spark-1", "spark-2")}
    token, hub = "glm-spark-token:/etc/glm-spark/token", "glm-spark-hf-token:/etc/glm-spark/hub-token"
    assert keys["spark-1"]["LoadCredential"] == [token, hub]
    # A credential whose file is missing would keep a worker, which needs none, from starting.
    assert keys["spark-2"]["LoadCredential"] == [token]
    assert CREDENTIAL == "glm-spark-hf-token"


def test_an_image_that_is_missing_is_fetched_and_a_container_gets_the_gpu_by_cdi() -> None:
    assert spark("spark-1")["settings"]["engine"]["pull"] is True
    docker = spark("spark-1", '{ services.glm-spark.settings.engine.runtime = "docker"; }')
    assert docker["settings"]["engine"]["gpu_options"] == ["--device=nvidia.com/gpu=all"]
    assert spark("spark-1")["settings"]["engine"]["gpu_options"] == []


def test_weights_on_another_disk_are_writable_and_waited_for() -> None:
    text = '{ services.glm-spark.settings = { engine.runtime = "process"; model.cache = "/srv/weights"; }; }'
    result = spark("spark-1", text)
    keys = unit(result["units"]["glm-spark.service"])
    assert keys["ReadWritePaths"] == ["/srv/weights"]
    assert keys["RequiresMountsFor"] == ["/srv/weights"]
    assert result["tmpfiles"] == ["d /srv/weights :0750 :glm-spark :glm-spark -"]


def test_each_exception_is_explained_beside_it() -> None:
    """Whatever is left open for a container, and shut for a process, is named in a reason."""
    units = 'import (here + "/hand.nix")'
    process, container = (value(f'{units} "{runtime}"')["service"] for runtime in ("process", "podman"))

    def shut(entries: list[dict[str, dict[str, object]]]) -> set[str]:
        return {
            key
            for entry in entries
            for key, given in entry["set"].items()
            if given in (True, "strict") and key.startswith(("Protect", "Private", "Restrict"))
        }

    reasons = " ".join(str(entry.get("why", "")) for entry in container)
    for key in shut(process) - shut(container):
        family = "ProtectKernel*" if key.startswith("ProtectKernel") else key
        assert family in reasons, key


def test_the_fence_of_systems_without_nix_loads() -> None:
    """In a network namespace of its own; twice, because a reload loads it again."""
    fence = ROOT / "daemon/systemd/glm-spark-fence.nft"
    script = f"nft -f {fence} && nft -f {fence} && nft list table inet glm_spark"
    done = subprocess.run(
        ["unshare", "--user", "--map-root-user", "--net", "sh", "-c", script],
        capture_output=True,
        text=True,
        check=False,
        timeout=30,
        env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"},
    )
    assert done.returncode == 0, done.stderr
    assert "tcp dport 29551 iifname != @cable drop" in done.stdout


def test_the_fence_in_the_docs_is_the_one_that_is_installed() -> None:
    fence = (ROOT / "daemon/systemd/glm-spark-fence.nft").read_text()
    lines = fence[fence.index("table inet glm_spark {") :]
    assert lines in (ROOT / "docs/install-dgx-os.md").read_text()
