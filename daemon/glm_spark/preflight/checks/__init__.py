"""The checks in the order in which they are told: this Spark's own file first, then the cable, then the host."""

from glm_spark.preflight.checks import (
    address,
    configuration,
    link,
    memory,
    mtu,
    path,
    ports,
    program,
    reading,
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
    program.CHECK,
)
