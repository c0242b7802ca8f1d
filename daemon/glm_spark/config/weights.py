"""How the weights come onto each Spark."""

from __future__ import annotations

from glm_spark.config.keys import AbsolutePath, Effect, GiB, OptionalPath, Port, Section, key


class Weights(Section):
    fetch: bool = key(True, why="the leader fetches what is missing from the Hub; false: only what is there is used")
    token_file: OptionalPath = key(
        "",
        why="a Hub token for gated repositories, mode 0600; the systemd credential glm-spark-hf-token wins",
        private=True,
    )
    endpoint: str = key(
        "",
        why="a mirror of the Hub; empty: the Hub itself",
        pattern=r"^(https?://[A-Za-z0-9.:\[\]-]+(/[A-Za-z0-9._~/-]*)?)?$",
        form="an address such as https://mirror.example.org, or empty",
    )
    roots: tuple[AbsolutePath, ...] = key(
        (), why="further directories that links in the cache may lead into", form="a list of absolute paths"
    )
    port: Port = key(8898, why="workers take the weights here, on the cable", effect=Effect.RESTART, agree=True)
    connections: int = key(4, why="TCP connections to each worker", ge=1, le=16)
    rate_mib: int = key(0, why="most that each worker is sent a second; 0: no limit", unit="MiB", ge=0, le=100_000)
    keep_free_gib: GiB = key(5.0, why="disk left free", unit="GiB", ge=0, le=100_000)
