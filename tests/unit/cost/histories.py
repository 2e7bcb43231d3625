"""Fleets that change: worlds with several applied files, and by hand which of them holds in an hour.

A file changes prices (with and without dates), discounts, commitments, slice prices, overhead and rules;
pools and teams are removed and come back; teams are renamed and moved, with and without a date. The rule is
worked out here hour by hour, without `fairway.cost`: what has no date holds from the hour after its apply,
what has one by its day as the newest file has it, and nothing before the first apply.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import timedelta
from decimal import Decimal
from random import Random
from typing import Final

from fairway.model.fleet import Fleet, Pool
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.price import Commitment, PriceStep, Sharing
from fairway.model.team import Move, Supply, Team
from fairway.model.usage import AttemptUsage
from tests.unit.cost.worlds import DISCOUNTS, OVERHEADS, PRICES, SHARINGS, Hour, World, world

SHARES: Final = 4
"""Of a GPU, as `gres/shard` of Slurm and replicas of Kubernetes have them."""
SHARD: Final = SliceName(f"shared-{SHARES}")
Path = tuple[str, ...]
"""A team and those around it, the nearest first, as they are called now."""


@dataclass(frozen=True, slots=True)
class Held:
    """What holds in an hour."""

    pools: tuple[Pool, ...]
    """Each with its price of that day, and no steps."""
    removed: frozenset[PoolName]
    overhead: tuple[tuple[ClusterName, Decimal], ...]
    paths: tuple[tuple[str, Path], ...]
    """By every name that usage may have."""
    fixed: tuple[object, ...]
    """What charges depend on beside the day: hours in which it is the same are charged together."""


@dataclass(slots=True)
class History:
    """A world and the files that were applied, with the moment of each."""

    world: World
    applied: tuple[tuple[int, Fleet], ...]

    @property
    def newest(self) -> Fleet:
        return self.applied[-1][1]

    def number(self, hour: Hour) -> int | None:
        """Which file holds in an hour; the first one from its own hour on."""
        found = 0 if self.applied[0][0] < hour.end else None
        for n, (at, _) in enumerate(self.applied[1:], 1):
            if at <= hour.start:
                found = n
        return found

    def names(self) -> tuple[str, ...]:
        """Every name that a team ever had."""
        return tuple(sorted({team.name for _, fleet in self.applied for team in fleet.teams}))

    def called_now(self, name: str, number: int) -> str:
        """The name that a team of a file has in the newest one."""
        for _, fleet in self.applied[number:]:
            if not any(team.name == name for team in fleet.teams):
                name = next((t.name for t in fleet.teams if t.renamed_from == name), name)
        return name

    def path(self, name: str, number: int, hour: Hour) -> Path:
        """A team and those around it in an hour, or when a file last had it."""
        for n in range(number, -1, -1):
            parents = {
                self.called_now(t.name, n): t.parent and self.called_now(t.parent, n)
                for t in self.applied[n][1].teams
            }
            for team in self.newest.teams:
                move = team.moved
                its = (move.source, team.parent) if move is not None else ()
                if move is not None and parents.get(team.name, team.name) in its:
                    parents[team.name] = team.parent if move.since <= hour.day else move.source
            now = self.called_now(name, n)
            if now in parents:
                path = [now]
                while (above := parents.get(path[-1])) is not None and above not in path:
                    path.append(above)
                return tuple(path)
        return (self.called_now(name, number),)

    def held(self, hour: Hour) -> Held | None:
        """What holds in an hour; None: nothing is charged yet."""
        number = self.number(hour)
        if number is None:
            return None
        fleet = self.applied[number][1]
        pools = {pool.name: self._merged(pool) for pool in fleet.pools}
        for _, before in reversed(self.applied[:number]):
            for pool in before.pools:
                if pool.name not in pools:
                    pools[pool.name] = replace(pool, pricing=replace(pool.pricing, commitments=()))
        removed = pools.keys() - {pool.name for pool in fleet.pools}
        overhead = tuple((c.name, sum(c.overhead.values(), Decimal(0))) for c in fleet.clusters)
        names = {*self.names(), *(team for _, team, _ in self.world.holders if team)}
        paths = tuple((name, self.path(name, number, hour)) for name in sorted(names))
        rules = (fleet.cost.idle, fleet.cost.overhead)
        shared = Sharing.BY_GUARANTEE in rules
        teams = {
            (
                self.called_now(t.name, number),
                *(t.renamed_from, t.parent, t.moved),
                frozenset((g.supply, g.guarantee) for g in t.grants if shared and g.guarantee),
            )
            for t in fleet.teams
        }
        return Held(
            tuple(_on_day(pools[name], hour) for name in sorted(pools)),
            frozenset(removed),
            overhead,
            paths,
            (sorted(pools.items()), frozenset(removed), overhead, rules, teams, paths),
        )

    def _merged(self, then: Pool) -> Pool:
        """A pool with the dated prices and commitments of the newest file, if that has it."""
        now = next((pool for pool in self.newest.pools if pool.name == then.name), then)
        first = [step.since for step in now.pricing.steps[:1]]
        steps = (*(s for s in then.pricing.steps if not first or s.since < first[0]), *now.pricing.steps)
        new = [c for c in now.pricing.commitments if c not in then.pricing.commitments]
        gone: tuple[Commitment, ...] = ()
        for old in then.pricing.commitments:
            # One that begins or ends as a missing one did is that one, corrected.
            corrected = [c for c in new if c.since == old.since or c.until == old.until]
            if old in now.pricing.commitments:
                continue
            if corrected:
                new.remove(corrected[0])
            else:
                gone = (*gone, old)
        merged = replace(then.pricing, steps=steps, commitments=(*now.pricing.commitments, *gone))
        return then if then.pricing == now.pricing else replace(then, pricing=merged)

    def last_change_has_dates(self) -> bool:
        """Whether the last file has other dates than the one before it, or renames what was."""
        before, now = self.applied[-2][1], self.newest
        dated = [{p.name: (p.pricing.steps, p.pricing.commitments) for p in f.pools} for f in (before, now)]
        moves = [{(t.name, t.moved) for t in f.teams if t.moved} for f in (before, now)]
        return dated[0] != dated[1] or moves[0] != moves[1]


def _on_day(pool: Pool, hour: Hour) -> Pool:
    price = pool.price
    for step in pool.pricing.steps:
        if step.since <= hour.day:
            price = step.per_gpu_hour
    return replace(pool, price=price, pricing=replace(pool.pricing, steps=()))


def history(seed: int) -> History:
    """The history of a seed: one to four files, applied at any time before and in the window."""
    found = world(seed)
    _add_shares(Random(seed ^ 0x5A4E), found)
    rng = Random(seed ^ 0x5EED)
    begin, end = found.hours[0].start, found.hours[-1].end
    early = begin - 5 * 3600 if rng.random() < 0.7 else begin
    moments = sorted(early + int(rng.random() * (end - early)) for _ in range(int(0.5 + rng.random() * 4)))
    first = begin - 40 * 86400 if rng.random() < 0.6 else begin + int(rng.random() * (end - begin) / 2)
    fleet = found.fleet
    past: list[Fleet] = [fleet]
    if rng.random() < 0.3 and len(fleet.pools) > 1:
        fleet = replace(fleet, pools=fleet.pools[1:])  # the first one comes later
    applied = [(first, fleet)]
    for at in moments:
        if at <= first:
            continue
        for _ in range(1 + int(rng.random() * 2)):
            fleet = _changed(rng, fleet, past, found)
        applied.append((at, fleet))
        past.append(fleet)
    return History(found, tuple(applied))


def _add_shares(rng: Random, found: World) -> None:
    """Jobs that hold shares of GPUs, in some pools of whole ones."""
    begin, end = found.hours[0].start - 7200, found.hours[-1].end
    for pool in found.fleet.pools:
        if pool.slices or rng.random() < 0.7:
            continue
        for team in (*(t.name for t in found.fleet.teams[:1]), ""):
            found.holders.append((Supply(pool.name, SHARD), team, "u"))
            start = begin + int(rng.random() * (end - begin))
            until = min(end, start + int(rng.random() * 20000))
            if start < until:
                devices = 1 + int(rng.random() * 3 * SHARES)
                found.stories.append([AttemptUsage(len(found.holders) - 1, devices, start, until)])


def _of(rng: Random, each: tuple[Decimal, ...]) -> Decimal:
    return each[int(rng.random() * len(each))]


def _changed(rng: Random, fleet: Fleet, past: list[Fleet], found: World) -> Fleet:
    what = int(rng.random() * 12)
    if what < 6:
        return _repriced(rng, fleet, past, found)
    if what == 6:
        rule = SHARINGS[int(rng.random() * 3)]
        idle, cost = rng.random() < 0.5, fleet.cost
        return replace(fleet, cost=replace(cost, idle=rule) if idle else replace(cost, overhead=rule))
    if what == 7:
        clusters = tuple(replace(c, overhead={"power": _of(rng, OVERHEADS)}) for c in fleet.clusters)
        return replace(fleet, clusters=clusters)
    if what == 8:
        return _pools_changed(rng, fleet, past)
    return _teams_changed(rng, fleet, past, found)


def _pools_changed(rng: Random, fleet: Fleet, past: list[Fleet]) -> Fleet:
    gone = {p.name: p for then in past for p in then.pools} | {p.name: p for p in fleet.pools}
    missing = [gone[name] for name in sorted(gone.keys() - {p.name for p in fleet.pools})]
    if missing:
        return replace(fleet, pools=(*fleet.pools, missing[0]))
    at = int(rng.random() * len(fleet.pools))
    name = fleet.pools[at].name
    teams = tuple(replace(t, grants=tuple(g for g in t.grants if g.supply.pool != name)) for t in fleet.teams)
    return replace(fleet, pools=(*fleet.pools[:at], *fleet.pools[at + 1 :]), teams=teams)


def _repriced(rng: Random, fleet: Fleet, past: list[Fleet], found: World) -> Fleet:
    if not fleet.pools:
        return fleet
    at = int(rng.random() * len(fleet.pools))
    pool, day = fleet.pools[at], found.hours[int(rng.random() * len(found.hours))].day
    pricing = pool.pricing
    match int(rng.random() * 6):
        case 0 | 1:
            pool = replace(pool, price=_of(rng, PRICES))
        case 2:
            steps = {s.since: s for s in pricing.steps} | {day: PriceStep(day, _of(rng, PRICES))}
            pricing = replace(pricing, steps=tuple(steps[since] for since in sorted(steps)))
        case 3:
            pricing = replace(pricing, discount=DISCOUNTS[int(rng.random() * 6)][0])
        case 4 if pricing.commitments and rng.random() < 0.5:
            pricing = replace(pricing, commitments=pricing.commitments[1:])
        case 4 if pricing.commitments:
            old, *others = pricing.commitments
            corrected = replace(old, gpus=1 + int(rng.random() * 9), per_gpu_hour=_of(rng, PRICES))
            pricing = replace(pricing, commitments=(corrected, *others))
        case 4:
            # One that begins or ends like another would be that other one, corrected.
            files = [*past, fleet]
            every = [c for then in files for p in then.pools for c in p.pricing.commitments]
            taken = {on for c in every for on in (c.since, c.until)}
            more = Commitment(1 + int(rng.random() * 9), _of(rng, PRICES), day, day + timedelta(days=60))
            pricing = replace(pricing, commitments=() if {day, more.until} & taken else (more,))
        case _ if pool.slices:
            pricing = replace(pricing, slices={pool.slices[0]: _of(rng, PRICES)})
    pool = replace(pool, pricing=pricing)
    return replace(fleet, pools=(*fleet.pools[:at], pool, *fleet.pools[at + 1 :]))


def _teams_changed(rng: Random, fleet: Fleet, past: list[Fleet], found: World) -> Fleet:
    teams = fleet.teams
    if not teams:
        return fleet
    at = int(rng.random() * len(teams))
    team = teams[at]
    match int(rng.random() * 4):
        case 0 if not team.name.endswith("x"):  # renamed
            new = TeamName(f"{team.name}x")
            if any(t.name == new for then in past for t in then.teams):
                return fleet
            renamed = replace(team, name=new, renamed_from=team.name, moved=None)
            return replace(
                fleet,
                teams=tuple(
                    renamed if t is team else replace(t, parent=new) if t.parent == team.name else t
                    for t in teams
                ),
            )
        case 1 if not any(t.parent == team.name for t in teams):  # moved, now or from a day on
            parent = next((t for t in teams if t.parent is None and t is not team), None)
            new_parent = None if parent is None or team.parent == parent.name else parent.name
            if new_parent == team.parent:
                return fleet
            day = found.hours[int(rng.random() * len(found.hours))].day
            moved = Move(team.parent, day) if rng.random() < 0.4 else None
            grants = tuple(replace(g, guarantee=0) for g in team.grants)
            its = replace(team, parent=new_parent, moved=moved, grants=grants)
            return replace(fleet, teams=tuple(its if t is team else t for t in teams))
        case 2 if not any(t.parent == team.name for t in teams):  # removed
            return replace(fleet, teams=tuple(t for t in teams if t is not team))
        case _:  # one that was there before comes back
            names = {t.name for t in teams} | {t.renamed_from for t in teams}
            for then in past:
                for old in then.teams:
                    if old.name not in names and old.parent is None:
                        return replace(fleet, teams=(*teams, Team(old.name)))
            return fleet
