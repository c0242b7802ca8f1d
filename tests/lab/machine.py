"""One virtual Spark as a machine: its power, its clock, its disk, and commands in it."""

from __future__ import annotations

import io
import json
import shlex
import signal
import subprocess
import tarfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from . import qemu
from .agent import Agent, CommandFailed, Completed, GuestCommand
from .host import Arch
from .image import Image
from .qmp import Qmp
from .topology import Topology, kernel_arguments, spark_name

BOOT_SECONDS = 240.0

# A QEMU dies with the thread that started it (PR_SET_PDEATHSIG), and this thread lives as long as the process:
# whatever ends the tests, no machine is left behind.
_SPAWNER = ThreadPoolExecutor(1, "lab-spawner")


class MachineDied(RuntimeError):
    """QEMU ended by itself; the text carries what it said."""


class Machine:
    """A machine is off, running, frozen or stalled. Its disk outlives all but `new_disk`."""

    def __init__(self, topology: Topology, number: int, arch: Arch, image: Image, place: qemu.Place) -> None:
        self.topology, self.number, self.name = topology, number, spark_name(number)
        self.kernel_words: list[str] = kernel_arguments(topology, number)
        self._arch, self._image, self._place = arch, image, place
        self._process: subprocess.Popen[bytes] | None = None
        self._qmp: Qmp | None = None
        self._agent = Agent(place.of(number, "agent"))

    def __repr__(self) -> str:
        return f"<{self.name}>"

    # --- power

    @property
    def disk(self) -> Path:
        return self._place.of(self.number, "qcow2")

    @property
    def console_log(self) -> Path:
        return self._place.of(self.number, "console.log")

    @property
    def powered(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def qmp(self) -> Qmp:
        if self._qmp is None or not self.powered:
            raise MachineDied(f"{self.name} is off: {self._last_words()}")
        return self._qmp

    def start(self, snapshot: str | None = None) -> None:
        """Switch on, stopped before its first instruction; `release` lets it run."""
        if self.powered:
            raise RuntimeError(f"{self.name} is already on")
        argv = qemu.arguments(
            self.topology, self.number, self._arch, self._image, self._place, self.kernel_words, snapshot
        )
        # Datagram sockets are not unlinked by a QEMU that was killed, and its successor cannot bind over them.
        for path in [self._place.of(self.number, "lan"), *self._place.directory.glob(f"plug{self.number}.*")]:
            path.unlink(missing_ok=True)
        for name in ("qmp", "agent", "console"):
            self._place.of(self.number, name).unlink(missing_ok=True)
        self._process = _SPAWNER.submit(self._spawn, [*argv, "-S"]).result()
        try:
            self._qmp = Qmp(self._place.of(self.number, "qmp"))
        except OSError as error:
            raise MachineDied(f"{self.name} did not start: {self._last_words()}") from error

    def _spawn(self, argv: Sequence[str]) -> subprocess.Popen[bytes]:
        with self._place.of(self.number, "qemu.log").open("ab") as log:
            command = ["setpriv", "--pdeathsig", "KILL", *argv]
            return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def _last_words(self) -> str:
        log = self._place.of(self.number, "qemu.log")
        return log.read_text(errors="replace")[-1500:] if log.exists() else "it was never started"

    def release(self) -> None:
        self.qmp.command("cont")

    def await_up(self, within: float = BOOT_SECONDS) -> None:
        """Return once systemd has finished the boot (running or degraded)."""
        self._agent.await_up(within)
        state = self.out("systemctl is-system-running --wait || true", timeout=within)
        if state not in ("running", "degraded"):
            raise RuntimeError(f"{self.name}: systemd says {state!r} after the boot")

    def kill(self) -> None:
        """The power is cut: what was not synced is lost, the disk stays."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
        if self._qmp is not None:
            self._qmp.close()
        self._agent.close()
        self._process = self._qmp = None

    def reset(self) -> None:
        """A hard reset in the middle of whatever it does; `await_boot` with the boot id from before follows."""
        self.qmp.command("system_reset")

    def await_boot(self, after: str, within: float = BOOT_SECONDS) -> None:
        """Return once another boot than `after` (a boot id) is up."""
        end = time.monotonic() + within
        while time.monotonic() < end:
            try:
                self._agent.await_up(end - time.monotonic())
                if self.boot_id() != after:
                    self.await_up(end - time.monotonic())
                    return
            except (TimeoutError, CommandFailed):
                continue
            time.sleep(0.3)
        raise TimeoutError(f"{self.name}: no boot after {after} within {within:.0f} s")

    # --- time

    def freeze(self) -> None:
        """Stop the processor; all of the guest's clocks stand still with it."""
        self.qmp.command("stop")

    def thaw(self) -> None:
        self.qmp.command("cont")

    def stall(self) -> None:
        """The host hangs as a Spark out of memory does: nothing runs, but time goes on."""
        self._signal(signal.SIGSTOP)

    def unstall(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is None:
            raise RuntimeError(f"{self.name} is off")
        self._process.send_signal(number)

    def set_clock(self) -> None:
        """The guest's wall clock becomes the host's; needed after a restore or a thaw."""
        self._agent.call("guest-set-time", time=time.time_ns())

    # --- commands

    def start_command(self, command: str, stdin: bytes | None = None) -> GuestCommand:
        return self._agent.start(command, stdin)

    def run(self, command: str, timeout: float = 120.0, *, check: bool = True, stdin: bytes | None = None) -> Completed:
        """A shell command as root. Raises CommandFailed for another status than 0 unless `check` is false."""
        done = self.start_command(command, stdin).wait(timeout)
        if check and done.status:
            said = (done.stdout + done.stderr).strip()
            raise CommandFailed(f"{self.name}: status {done.status} of: {command}\n{said}")
        return done

    def out(self, command: str, timeout: float = 120.0) -> str:
        return self.run(command, timeout).stdout.strip()

    def python(self, program: str, timeout: float = 120.0) -> str:
        """Run a Python program in the guest, for what no command shows."""
        return self.run("python3 -", timeout, stdin=program.encode()).stdout.strip()

    def boot_id(self) -> str:
        return self.out("cat /proc/sys/kernel/random/boot_id", timeout=20.0)

    def write(self, path: str, text: str, mode: int = 0o644) -> None:
        quoted = shlex.quote(path)
        command = f"mkdir -p $(dirname {quoted}) && umask 077 && cat > {quoted} && chmod {mode:o} {quoted}"
        self.run(command, stdin=text.encode())

    def push(self, files: Mapping[str, bytes], target: str) -> None:
        """Put files (path below `target` -> content) into the guest; paths in a bin folder are executable."""
        self.push_archive(archive(files), target)

    def push_archive(self, packed: bytes, target: str) -> None:
        """Unpack a tar.gz under `target`, which is made when missing."""
        quoted = shlex.quote(target)
        self.run(f"mkdir -p {quoted} && tar -xzf - -C {quoted}", stdin=packed)

    def journal(self, unit: str | None = None, *, boot: str = "0", matches: str = "") -> list[dict[str, Any]]:
        """Journal entries, oldest first, as journald's own fields. `boot` as for journalctl: 0, -1, all."""
        chosen = f"-b {shlex.quote(boot)} " + (f"-u {shlex.quote(unit)} " if unit else "")
        text = self.run(f"journalctl --no-pager -a -o json {chosen}{matches}").stdout
        return [json.loads(line) for line in text.splitlines()]

    def journal_lines(self, unit: str | None = None, *, boot: str = "0") -> list[str]:
        return [str(entry.get("MESSAGE", "")) for entry in self.journal(unit, boot=boot)]

    def await_journal(self, unit: str, text: str, within: float) -> dict[str, Any]:
        """The first entry of this boot whose message contains `text`; the failure shows the last lines.

        The guest itself waits: asking again and again would take the processor from what is waited for.
        """
        wanted = shlex.quote(json.dumps(text, ensure_ascii=False)[1:-1])
        follow = f"timeout {within:.0f} journalctl -b -u {shlex.quote(unit)} -o json -n all -f"
        found = self.run(f"grep -m1 -F -e {wanted} < <({follow})", within + 30, check=False).stdout
        if found:
            return dict(json.loads(found))
        tail = "\n".join(self.journal_lines(unit)[-30:])
        raise AssertionError(f"{self.name}: {unit} did not say {text!r} within {within:.0f} s; last:\n{tail}")

    def release_agent(self) -> None:
        """Let another process talk to the agent; the next command here connects anew."""
        self._agent.close()


def archive(files: Mapping[str, bytes]) -> bytes:
    """A tar.gz of the files, owned by root."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz", compresslevel=1) as tar:
        for path, content in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(content), int(time.time())
            entry.mode = 0o755 if Path(path).parent.name == "bin" else 0o644
            tar.addfile(entry, io.BytesIO(content))
    return packed.getvalue()
