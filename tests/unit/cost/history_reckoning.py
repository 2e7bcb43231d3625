"""What a history must cost, hour by hour, from the drawn numbers and `histories` alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from fractions import Fraction

from fairway.model.charge import CapacitySum, Span
from fairway.model.fleet import Pool
from fairway.model.team import Supply
from tests.unit.cost.histories import SHARD, SHARES, Held, History, Path
from tests.unit.cost.reckoning import SCALE, ZERO, covered, hour_cost, worth
from tests.unit.cost.worlds import Hour, days_in_month

Place = tuple[str, date]


@dataclass(slots=True)
class Due:
    """What must be charged."""

    by_place: dict[Place, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    """Of each pool or cluster and day: capacity × price, what was held beyond it, and overhead."""
    usage: dict[str, Fraction] = field(default_factory=lambda: defaultdict(Fraction))
    """Of each team itself, without shares."""
    stretches: list[tuple[Span, Mapping[str, Path]]] = field(default_factory=list)
    """Stretches in which the same holds, with the path of each team by its name of now."""


def due(history: History, capacity: Sequence[CapacitySum], sums: Mapping[tuple[int, int], int]) -> Due:
    """Price each hour by what holds in it."""
    case, found = history.world, Due()
    rows = {(row.supply, row.start): row for row in capacity}
    before: Held | None = None
    nets: dict[tuple[Place, tuple[object, ...]], list[Fraction]] = {}
    runs: dict[str, tuple[object, int]] = {}
    for hour in case.hours:
        held = history.held(hour)
        if held is None:
            continue
        if before is None or before.fixed != held.fixed:
            now = {path[0]: path for _, path in held.paths}
            found.stretches.append((Span(hour.start, hour.end), now))
        else:
            span, same = found.stretches[-1]
            found.stretches[-1] = (Span(span.start, hour.end), same)
        before = held
        teams = dict(held.paths)
        for pool in held.pools:
            there = [] if pool.name in held.removed else _rows(pool, hour, rows)
            place: Place = (pool.name, hour.day)
            found.by_place[place] += Fraction(hour_cost(case, pool, hour, there), SCALE)
            rates, per_gpu, eighth = worth(case, pool, hour, there)
            steady = not (pool.slices or pool.pricing.commitments or case.points.get(pool.name))
            shares = covered(pool, hour, there)
            priced = (hour.day, len(found.stretches), *(() if steady else (per_gpu, eighth, shares)))
            if runs.get(pool.name, (None, 0))[0] != priced:
                runs[pool.name] = (priced, hour.start)
            for supply in pool.supplies:
                used = ZERO
                # Shares are held of the pool's whole GPUs.
                parts = {supply: Fraction(1), Supply(pool.name, SHARD): Fraction(not pool.slices, SHARES)}
                for n, (its, team, _) in enumerate(case.holders):
                    if parts.get(its) and (seconds := sums.get((hour.start, n), 0)):
                        used += seconds * parts[its]
                        name = teams[team][0] if team else ""
                        found.usage[name] += seconds * parts[its] * rates[supply] / SCALE
                total = sum(row.total for row in there if row.supply == supply)
                key = (supply, runs[pool.name][1])
                net = nets.setdefault((place, key), [ZERO, rates[supply] / SCALE])
                net[0] += used - total
        for cluster, monthly in held.overhead:
            whole = case.stage.day_seconds[hour.day] * days_in_month(case.stage.zone, hour.day)
            found.by_place[cluster, hour.day] += Fraction(monthly) * Fraction(hour.end - hour.start, whole)
    # More was held than was seen: it was there after all. Netted while the rate, and what covers the
    # GPUs, stays the same within a day.
    for (place, _), (beyond, rate) in nets.items():
        if beyond > 0:
            found.by_place[place] += beyond * rate
    return found


def _rows(pool: Pool, hour: Hour, rows: Mapping[tuple[Supply, int], CapacitySum]) -> list[CapacitySum]:
    return [rows[supply, hour.start] for supply in pool.supplies if (supply, hour.start) in rows]
