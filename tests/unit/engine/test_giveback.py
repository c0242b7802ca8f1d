"""What the last rank held must be back before the next one starts, or somebody is named."""

from __future__ import annotations

from glm_spark.engine import giveback
from glm_spark.finding import Severity


def test_memory_that_came_back_within_the_margin_is_no_matter() -> None:
    assert giveback.held("spark-2", 118.1, 116.5, 3.0, ["desktop (pid 7) 1.2 GiB"]) is None


def test_what_stays_away_is_told_with_its_holders() -> None:
    found = giveback.held("spark-2", 118.1, 87.1, 12.0, ["python3 (pid 77) 28.0 GiB", "gnome-shell (pid 9) 0.6 GiB"])
    assert found is not None
    assert (found.code, found.severity, found.node) == ("memory.held", Severity.WARNING, "spark-2")
    assert "31.0 GiB did not come back" in found.measured
    assert "python3 (pid 77) 28.0 GiB" in found.measured
    driver = giveback.held("spark-2", 118.1, 87.1, 12.0, [])
    assert driver is not None
    assert "the driver does" in driver.measured
