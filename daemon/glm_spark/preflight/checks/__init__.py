"""The checks in the order in which they are told: this Spark's own file first, then the cable, then the host."""

from glm_spark.preflight.checks import (
    address,
    configuration,
    gpu,
    image,
    kernels,
    link,
    memory,
    mtu,
    path,
    ports,
    program,
    reading,
    reclaim,
    roce,
    route,
    token,
)
from glm_spark.preflight.context import Check

ALL: tuple[Check, ...] = (
    configuration.CHECK,
    token.CHECK,
    reading.CHECK,
    roce.CHECK,
    link.CHECK,
    address.CHECK,
    route.CHECK,
    mtu.CHECK,
    path.CHECK,
    ports.CHECK,
    memory.CHECK,
    reclaim.CHECK,
    program.CHECK,
    gpu.CHECK,
    image.CHECK,
    kernels.CHECK,
)
