"""Names of hosts: whatever a header holds, only this Spark's names, the allowed ones and addresses pass."""

from __future__ import annotations

import ipaddress

from hypothesis import given
from hypothesis import strategies as st

from glm_spark.api.hosts import foreign_host, foreign_origin, own_names

OURS = own_names(["spark-1.lab.example"])


def test_a_spark_goes_by_its_full_short_and_mdns_names() -> None:
    assert {"spark-1", "spark-1.lab.example", "spark-1.local"} <= OURS
    assert own_names([""]) == frozenset()


@given(st.text())
def test_any_text_as_host_is_judged_and_only_ours_or_an_address_passes(host: str) -> None:
    if not foreign_host(host, OURS):
        name = host.rpartition(":")[0] or host
        bare = name.strip("[]").rstrip(".").lower()
        assert bare in OURS | {"localhost"} or _is_address(bare)


@given(st.text(), st.text())
def test_any_text_as_origin_is_judged(origin: str, host: str) -> None:
    assert foreign_origin(origin, host, OURS) in (True, False)


@given(st.ip_addresses(v=4), st.ip_addresses(v=4))
def test_a_page_served_from_another_address_is_foreign(
    page: ipaddress.IPv4Address, spark: ipaddress.IPv4Address
) -> None:
    if page != spark and str(page) != "127.0.0.1":
        assert foreign_origin(f"http://{page}", str(spark), OURS)
    assert not foreign_origin(f"http://{spark}:3000", f"{spark}:8888", OURS)


def _is_address(name: str) -> bool:
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
