"""The runtime that the configuration names at each start."""

from __future__ import annotations

from collections.abc import Callable

from glm_spark.config.model import Config
from glm_spark.engine.containers import ContainerRuntime
from glm_spark.engine.process import ProcessRuntime
from glm_spark.engine.runtime import Running, Runtime
from glm_spark.engine.spec import RankSpec


class ChosenRuntime:
    """`engine.runtime` may change in a running daemon: it takes effect with the next start."""

    def __init__(self, config: Callable[[], Config]) -> None:
        self._config = config
        self._process = ProcessRuntime()
        self._container = ContainerRuntime(config)

    def _chosen(self) -> Runtime:
        return self._process if self._config().engine.runtime == "process" else self._container

    async def start(self, spec: RankSpec) -> Running:
        return await self._chosen().start(spec)

    async def sweep(self, cluster: str, node: str) -> list[str]:
        """A container of an earlier life is ended by the process runtime too, as what carries the marks."""
        return await self._chosen().sweep(cluster, node)
