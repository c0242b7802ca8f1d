"""The settings that every rank must share, and the words for ranks that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from glm_spark.standin.options import ServeOptions

SHARED_PREFIXES = ("TF_GLM_", "TENSORFOLD_", "TF_ROCE_")
SHARED_NAMES = ("NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS")
# A Spark's own: device names differ from Spark to Spark; the script is the test's, not the engine's.
OWN_PREFIXES = ("TENSORFOLD_STANDIN", "TF_ROCE_HCA")


def shared_settings(options: ServeOptions, environment: Mapping[str, str]) -> dict[str, str]:
    """Name -> value of everything that must be the same on all ranks; paths are not among them."""
    flags = {
        "tp": str(options.tp),
        "context": str(options.context),
        "drafts": options.drafter if options.drafter in ("auto", "none") else "dir",
        "parallel": options.parallel,
        "kv dtype": options.kv_dtype,
        "vision": str(int(options.vision)),
        "spill": f"{options.spill_gib:g}",
    }
    for name in sorted(environment):
        if name.startswith(OWN_PREFIXES):
            continue
        if name.startswith(SHARED_PREFIXES) or name in SHARED_NAMES:
            flags[name] = environment[name]
    return flags


def difference(ranks: Sequence[Mapping[str, str]]) -> str:
    """The engine's sentence about ranks that were given different settings, or "" when all agree."""
    names = [
        name
        for name in dict.fromkeys(key for settings in ranks for key in settings)
        if len({settings.get(name) for settings in ranks}) > 1
    ]
    if not names:
        return ""
    which = "two ranks" if len(ranks) == 2 else "ranks"
    values = ", ".join(
        f"rank {rank} {[settings.get(name, 'unset') for name in names]}" for rank, settings in enumerate(ranks)
    )
    return f"the {which} were started with different settings ({', '.join(names)}): {values}; give both the same flags"
