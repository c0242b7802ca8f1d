"""The checks in the order in which they are told: this Spark's own file first, then the cable, then the host."""

from glm_spark.preflight.context import Check

ALL: tuple[Check, ...] = ()
