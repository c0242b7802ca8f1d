"""Where the engine finds this Spark's directories: as they are, or under the container's mounts."""

from __future__ import annotations

from glm_spark.config.model import Config

CONTAINER_CACHE = "/root/.cache/huggingface"  # where the recipe's image looks for the Hugging Face cache
CONTAINER_MODEL = "/model"
CONTAINER_DRAFTER = "/drafter"
CONTAINER_SPILL = "/spill"


def mounts(config: Config) -> dict[str, str]:
    """Directory on this Spark -> directory in the container, for the paths the engine is given."""
    model = config.model
    pairs = {model.cache: CONTAINER_CACHE, model.path: CONTAINER_MODEL, model.drafter_path: CONTAINER_DRAFTER}
    if config.engine.spill.gib:
        pairs[config.engine.spill.directory] = CONTAINER_SPILL
    return {here.rstrip("/") or "/": there for here, there in pairs.items() if here}


def seen_by_engine(config: Config, path: str) -> str:
    """The path as the engine sees it: unchanged for a process, under the deepest mount for a container."""
    if config.engine.runtime == "process":
        return path
    for here, there in sorted(mounts(config).items(), key=lambda pair: len(pair[0]), reverse=True):
        if path.rstrip("/") == here:
            return there
        if path.startswith(f"{here}/"):
            return there + path[len(here) :]
    return path
