"""Two or three Sparks, cabled: made, broken and mended as a test wants, gone at the end."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests import enclosure
from tests.sparks import settings, wiring
from tests.sparks.holder import Holder
from tests.sparks.layout import Layout, Twin, describe
from tests.sparks.spark import Spark

_HOLD_ROOM = "set -e; echo ready; exec cat >/dev/null"


class Sparks:
    """`with Sparks(3) as sparks: sparks[0].run([...])`. Needs an enclosure around the process.

    `config` is merged over the harness's settings (see `settings.text`). One config file and one token
    serve all Sparks."""

    def __init__(
        self,
        count: int = 2,
        *,
        config: Mapping[str, Any] | None = None,
        standin: Mapping[str, Any] | None = None,
        layout: Layout | None = None,
        directory: Path | None = None,
    ) -> None:
        self.layout = layout or describe(count)
        self._config = config or {}
        self._standin = standin or {}
        self._directory = directory
        self._sparks: list[Spark] = []
        self._room: Holder | None = None

    def __enter__(self) -> Self:
        if not enclosure.inside():
            raise RuntimeError(
                "Sparks are made inside an enclosure only: python -m tests.enclosure COMMAND, or ./dev test"
            )
        if self._directory is None:
            self._directory = Path(tempfile.mkdtemp(dir=enclosure.scratch()))
        try:
            self._make(self._directory)
        except BaseException:
            self.close()
            raise
        return self

    def _make(self, directory: Path) -> None:
        self.config_file = directory / "config.toml"
        self.token_file = directory / settings.TOKEN
        self.standin_file = directory / settings.SCRIPT
        checkpoint = directory / settings.CHECKPOINT
        checkpoint.mkdir()
        settings.write_json(checkpoint / "config.json", {"model_type": "glm5_next"})
        self.token_file.touch(mode=0o600)
        self.token_file.write_text(secrets.token_hex(32) + "\n")
        self.set_standin(self._standin)
        self.set_config(self._config)
        self._room = Holder("room", [], _HOLD_ROOM)
        for plan in self.layout.sparks:
            self._sparks.append(Spark(plan, directory / plan.name))
        holders = {spark.number: spark.holder.pid for spark in self._sparks}
        self._room.ip(wiring.room_lines(self.layout, holders))
        for spark in self._sparks:
            spark.holder.call(_set_sysctls)
            spark.holder.ip(wiring.spark_lines(spark.plan))

    def set_config(self, changes: Mapping[str, Any]) -> None:
        """Writes the shared config anew: the harness's settings with `changes` merged over them."""
        defaults = settings.defaults(self.layout, self.token_file.parent)
        self.config_file.write_text(settings.text(settings.merged(defaults, changes)))

    def set_standin(self, behaviour: Mapping[str, Any]) -> None:
        """Speed and faults of the stand-in engine, which reads them anew while it runs."""
        settings.write_json(self.standin_file, behaviour)

    @property
    def room(self) -> Holder:
        if self._room is None:
            raise RuntimeError("the Sparks have not been made yet")
        return self._room

    def __getitem__(self, index: int) -> Spark:
        return self._sparks[index]

    def __len__(self) -> int:
        return len(self._sparks)

    def __iter__(self) -> Iterator[Spark]:
        return iter(self._sparks)

    # Cables. Sparks are named by number (1, 2, 3); `twin` None means both rails of the cable.

    def cut_cable(self, first: int = 1, second: int = 2, twin: Twin | None = None) -> None:
        """Both ends lose their carrier at once."""
        cable = self.layout.cable(first, second)
        for one in wiring.chosen(twin):
            self.room.ip(wiring.cut(self.layout, cable, one))

    def plug_cable(self, first: int = 1, second: int = 2, twin: Twin | None = None) -> None:
        cable = self.layout.cable(first, second)
        for one in wiring.chosen(twin):
            self.room.ip(wiring.plugged(self.layout, cable, one))

    def lose_silently(self, first: int = 1, second: int = 2, twin: Twin | None = None) -> None:
        """Every frame is lost both ways; the links stay up, as with a dead firmware in between."""
        cable = self.layout.cable(first, second)
        for one in wiring.chosen(twin):
            self.room.ip(wiring.parted(self.layout, cable, one))

    def find_again(self, first: int = 1, second: int = 2, twin: Twin | None = None) -> None:
        """Ends `lose_silently`."""
        cable = self.layout.cable(first, second)
        for one in wiring.chosen(twin):
            self.room.ip(wiring.joined(self.layout, cable, one))

    def reset_host(self, number: int) -> None:
        """A hard reset: every process gone, a new boot id. Links and addresses are back as after boot."""
        spark = self[number - 1]
        spark.kill_everything()
        spark.new_boot_id()

    def close(self) -> None:
        for spark in self._sparks:
            spark.close()
        self._sparks.clear()
        if self._room is not None:
            self._room.close()
            self._room = None

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def _set_sysctls() -> None:
    # /proc/sys/net shows the network namespace of the thread that opens it.
    for path, value in wiring.SYSCTLS.items():
        Path("/proc/sys", path).write_text(value)
