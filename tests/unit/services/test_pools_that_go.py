"""Which fleet held when: nothing that was used is forgotten because a pool went away since."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.model.charge import Span
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName
from fairway.services.fleets import revisions_on, with_past_rules, with_removed_pools

DAY = Span(1000, 2000)
LAB = Cluster(ClusterName("lab"), VirtualConnection())


def _fleet(**prices: int) -> Fleet:
    pools = tuple(
        Pool(
            PoolName(name),
            LAB.name,
            CATALOGUE["A100-80GB"],
            Capacity.OWNED,
            Decimal(price),
            VirtualPlace(1, 8),
        )
        for name, price in prices.items()
    )
    return Fleet("acme", "USD", (LAB,), pools)


@pytest.mark.parametrize(
    ("moments", "held"),
    [
        ([], (None, None)),
        ([500], (0, 0)),
        ([500, 1000], (1, 1)),  # as the day begins it holds already
        ([500, 1500], (0, 1)),
        ([500, 1200, 1800], (0, 2)),
        ([500, 2000], (0, 0)),  # of the next day
        ([1500], (0, 0)),  # before anything was applied, the first
        ([3000], (0, 0)),
    ],
)
def test_what_held_on_a_day(moments: list[int], held: tuple[int | None, int | None]) -> None:
    assert revisions_on(DAY, moments, range(len(moments))) == held


def test_a_pool_counts_on_the_day_it_goes() -> None:
    before, after = _fleet(old=1, kept=2), _fleet(kept=3, new=4)

    found = with_removed_pools(after, before)

    assert {p.name: p.price for p in found.pools} == {"kept": 3, "new": 4, "old": 1}
    assert with_removed_pools(after, after) is after


def test_older_days_have_newest_prices_and_the_pools_of_then() -> None:
    newest, then = _fleet(kept=3), replace(_fleet(old=1, kept=2), clusters=())

    found = with_past_rules(newest, then)

    assert {p.name: p.price for p in found.pools} == {"kept": 3, "old": 1}
    assert found.clusters == ()
