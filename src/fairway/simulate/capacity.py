"""Find the smallest size of a pool that meets objectives, and what it costs. Pure.

The search asks for replays (`SizeSearch.next_size`) and learns their results; the caller may run
many searches side by side.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from decimal import Decimal
from math import ceil
from typing import Final

from fairway.model.fleet import Capacity, Fleet, Pool
from fairway.model.names import PoolName
from fairway.model.team import Grant, Team
from fairway.policy.slo import Counts
from fairway.simulate.replay.sizes import PoolSizes

MONTH_HOURS: Final = Decimal("730.5")
"""Hours of a mean month."""


class SizeSearch:
    """Searches the smallest number of nodes that meets objectives, by doubling and then by bisection."""

    def __init__(self, current: int, most: int, least: int = 1) -> None:
        """`most` is the size beyond which more nodes change nothing; below `least`, jobs do not fit."""
        self._current: Final = max(least, current)
        self._most: Final = max(most, self._current)
        self._too_few = max(1, least) - 1
        self._enough: int | None = None

    @property
    def found(self) -> int | None:
        """Return the smallest size that meets them so far; None: none does yet."""
        return self._enough

    def next_size(self) -> int | None:
        """Return the size to try next; None: the search has ended."""
        if self._enough is None:
            if self._too_few >= self._most:
                return None
            return min(self._most, max(self._current, self._too_few * 2))
        return (self._too_few + self._enough) // 2 if self._enough - self._too_few > 1 else None

    def tell(self, size: int, *, meets: bool) -> None:
        """Take the result of a replay."""
        if meets:
            self._enough = size
        else:
            self._too_few = size


def meets(counts: Mapping[str, Counts], targets: Mapping[str, Decimal]) -> bool:
    """Return whether the good part of each objective's events reaches its target; without events it does."""
    return all(
        (part := counts[name].compliance) is None or part >= float(target) for name, target in targets.items()
    )


def with_nodes(
    fleet: Fleet, sizes: PoolSizes, pool: PoolName, nodes: int, *, keep_limits: bool
) -> tuple[Fleet, PoolSizes]:
    """Return a fleet and its sizes with another number of nodes in a pool.

    Guarantees and ceilings of teams on it grow in proportion, unless `keep_limits`; they always shrink with
    it, as the pool could not keep them.
    """
    place = sizes[pool]
    part = nodes / place.nodes
    changed = {**sizes, pool: replace(place, nodes=nodes)}
    if part == 1.0 or (keep_limits and part > 1.0):
        return fleet, changed
    return replace(fleet, teams=tuple(_scaled(team, pool, part) for team in fleet.teams)), changed


def _scaled(team: Team, pool: PoolName, part: float) -> Team:
    def scaled(grant: Grant) -> Grant:
        if grant.supply.pool != pool:
            return grant
        guarantee = int(grant.guarantee * part)
        borrow = None if grant.ceiling is None else ceil(grant.ceiling * part) - guarantee
        return replace(grant, guarantee=guarantee, borrow=borrow)

    return replace(team, grants=tuple(map(scaled, team.grants)))


def price_by_kind(
    pools: Iterable[Pool], pool: Pool, prices: Mapping[PoolName, Decimal]
) -> dict[Capacity, Decimal]:
    """Return the price of a GPU-hour like those of a pool, by kind of capacity: its own, or the lowest.

    `prices` are those of all pools on one day; a kind that no pool with this type of GPU has is missing.
    """
    found: dict[Capacity, Decimal] = {}
    for one in pools:
        if one.gpu.name == pool.gpu.name:
            price = prices[one.name]
            found[one.capacity] = min(price, found.get(one.capacity, price))
    return found | {pool.capacity: prices[pool.name]}


@dataclass(frozen=True, slots=True)
class MonthlyCost:
    """What GPUs beyond the present ones cost in a month; None: the fleet file has no price for it."""

    buy: Decimal | None
    """At the price of owned capacity."""
    reserve: Decimal | None
    burst: Decimal | None
    """On demand, for the hours in which they are held alone."""


NO_COST: Final = MonthlyCost(None, None, None)


def monthly_cost(prices: Mapping[Capacity, Decimal], gpus: int, hours: float) -> MonthlyCost:
    """Return the cost of `gpus` more for a month, of which `hours` GPU-hours are held."""

    def always(kind: Capacity) -> Decimal | None:
        return prices[kind] * gpus * MONTH_HOURS if kind in prices else None

    burst = prices.get(Capacity.ON_DEMAND)
    return MonthlyCost(
        always(Capacity.OWNED),
        always(Capacity.RESERVED),
        None if burst is None else burst * Decimal(str(round(hours, 6))),
    )
