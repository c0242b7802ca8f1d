"""Nothing that runs in an enclosure outlives it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests import enclosure

_ENV = enclosure.environment(os.environ)


def _enclosed(*argv: str) -> subprocess.Popen[str]:
    command = enclosure.command(argv)
    return subprocess.Popen(command, env=_ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _marked(mark: str) -> list[int]:
    """Living processes whose command line holds `mark`, this test's own aside."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                words = (entry / "cmdline").read_bytes()
            except (FileNotFoundError, ProcessLookupError):
                continue
            if mark.encode() in words:
                found.append(int(entry.name))
    return found


@pytest.mark.parametrize("code", [0, 1, 78])
def test_the_exit_status_is_the_commands(code: int) -> None:
    with _enclosed("sh", "-c", f"exit {code}") as process:
        assert process.wait(10) == code


def test_a_command_ended_by_a_signal_is_128_and_the_signal() -> None:
    with _enclosed("sh", "-c", "kill -9 $$") as process:
        assert process.wait(10) == 128 + signal.SIGKILL


def test_the_command_is_root_and_sees_its_own_processes_only() -> None:
    with _enclosed("sh", "-c", "id -u; test -d /proc/2 && echo $$; ls -A $(echo $SPARKS_ENCLOSURE | cut -d: -f2)") as p:
        assert p.communicate(timeout=10)[0].split() == ["0", "2"]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_outer_process_reaches_the_command(number: signal.Signals) -> None:
    script = f"trap 'echo got; exit 7' {number.name[3:]}; echo ready; read x"
    with _enclosed("bash", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.send_signal(number)
        assert process.stdout.readline() == "got\n"
        assert process.wait(10) == 7


def test_kill_9_of_the_outer_process_ends_every_process_inside() -> None:
    mark = f"enclosed-by-{os.getpid()}"
    script = f"setsid sh -c 'echo up; sleep 1000; : {mark}' & wait"
    with _enclosed("sh", "-c", script) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(_marked(mark)) > 1
        process.kill()
        # The pipe ends when the last process that holds it has ended.
        assert process.stdout.read() == ""
        process.wait(10)
    assert _marked(mark) == []


def test_a_program_that_is_missing_is_named() -> None:
    command = enclosure.command(["no-such-program"])
    done = subprocess.run(command, env=_ENV, capture_output=True, text=True, timeout=10)
    assert done.returncode == 125
    assert "no-such-program" in done.stderr


@pytest.mark.parametrize(
    ("sysctl", "found", "wanted"),
    [
        ("kernel.unprivileged_userns_clone", "0", "1"),
        ("kernel.apparmor_restrict_unprivileged_userns", "1", "0"),
    ],
)
def test_a_refused_user_is_told_which_sysctl_decides(tmp_path: Path, sysctl: str, found: str, wanted: str) -> None:
    path = tmp_path / sysctl.replace(".", "/")
    path.parent.mkdir()
    path.write_text(found + "\n")
    text = enclosure.refusal(PermissionError(1, "Operation not permitted"), as_root=False, sysctls=tmp_path)
    assert f"{sysctl} is {found}, wanted {wanted}" in text
    assert f"sudo sysctl -w {sysctl}={wanted}" in text


def test_a_refused_root_is_told_what_a_container_needs(tmp_path: Path) -> None:
    text = enclosure.refusal(PermissionError(1, "Operation not permitted"), as_root=True, sysctls=tmp_path)
    assert "CAP_SYS_ADMIN" in text


def test_the_enclosure_uses_this_interpreter() -> None:
    assert enclosure.command(["x"])[0] == sys.executable
