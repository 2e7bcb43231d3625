"""Describe the changes between two fleets in the terms of the fleet file, grouped by team.

A team is listed only if its own settings change: when a parent's limit is lowered, the teams that inherit it
are not listed. The cost is linear in teams, grants and members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Final

from fairway.model.budget import AtLimit, Budget, Running
from fairway.model.fleet import (
    Cluster,
    Connection,
    Fleet,
    Folders,
    KubernetesConnection,
    KubernetesPlace,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.names import PriorityName, TeamName
from fairway.model.price import DEFAULT_COST_RULES
from fairway.model.team import Grant, Limits, Supply, Team
from fairway.model.text import duration_text

NONE: Final = "none"


def price_text(pool: Pool) -> str:
    """Format a pool's price: `1.90`, or `2.10, 1.75 from 2026-07-01`."""
    steps = pool.pricing.steps
    # A first dated price holds before its day too.
    first = () if steps and steps[0].per_gpu_hour == pool.price else (f"{pool.price:f}",)
    return ", ".join((*first, *(f"{step.per_gpu_hour:f} from {step.since}" for step in steps)))


def discount_text(pool: Pool) -> str:
    """Format a pool's discount: `12 %`."""
    return f"{(pool.pricing.discount * 100).normalize():f} %" if pool.pricing.discount else NONE


def commitments_text(pool: Pool) -> str:
    """Format a pool's commitments: `32 GPUs at 2.10 from 2026-01-01 until 2027-01-01`."""
    told = (
        f"{c.gpus} GPUs at {c.per_gpu_hour:f} from {c.since} until {c.until}"
        for c in pool.pricing.commitments
    )
    return "; ".join(told) or NONE


def slice_prices_text(pool: Pool) -> str:
    """Format a pool's slice prices: `1g.10gb 0.30`."""
    return ", ".join(f"{name} {price:f}" for name, price in sorted(pool.pricing.slices.items())) or NONE


POOL_MONEY: Final[tuple[tuple[str, Callable[[Pool], str]], ...]] = (
    ("price", price_text),
    ("discount", discount_text),
    ("commitments", commitments_text),
    ("slice prices", slice_prices_text),
)


FLEET_MONEY: Final[tuple[tuple[str, Callable[[Fleet], str]], ...]] = (
    ("time zone of charges", lambda f: f.cost.timezone),
    ("what nobody used is carried", lambda f: f.cost.idle),
    ("overhead is carried", lambda f: f.cost.overhead),
)


def overhead_text(cluster: Cluster) -> str | None:
    """Format a cluster's overhead: `people 9,000, power 4,000 a month`. Returns None if there is none."""
    told = ", ".join(f"{what} {_price_amount(amount)}" for what, amount in sorted(cluster.overhead.items()))
    return f"{told} a month" if told else None


def _price_amount(amount: Decimal) -> str:
    return f"{amount:,f}"


NEW: Final = "+"

GONE: Final = "-"

OTHER: Final = "~"


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """One difference: `~ guarantee on hpc-a100  16 → 24`, `+ member  dana`."""

    sign: str
    """`+` added, `-` removed, `~` changed."""
    word: str
    before: str | None = None
    """None if it is added."""
    after: str | None = None
    """None if it is removed."""


@dataclass(frozen=True, slots=True)
class TeamDiff:
    """The changes of one team, or of the fleet itself."""

    team: TeamName | None
    """None for the fleet itself."""
    changes: tuple[FieldDiff, ...]


def describe(before: Fleet | None, after: Fleet) -> tuple[TeamDiff, ...]:
    """Describe what `after` changes: the fleet first, then its teams in order, then removed teams.

    Empty if the fleets are equivalent; without `before` everything is new.
    """
    old = _TeamIndex(before) if before is not None else None
    new = _TeamIndex(after)
    groups = [TeamDiff(None, tuple(_fleet(before, after)))]
    for team in after.teams:
        was = old.by_name.get(team.name) if old else None
        words = _team(was, team, old, new) if was and old else _new_team(team, new)
        groups.append(TeamDiff(team.name, tuple(words)))
    gone = [t.name for t in before.teams if t.name not in new.by_name] if before else []
    groups.extend(TeamDiff(name, (FieldDiff(GONE, "team", name),)) for name in gone)
    return tuple(group for group in groups if group.changes)


class _TeamIndex:
    """The teams of a fleet by name, with the values that each would inherit."""

    def __init__(self, fleet: Fleet) -> None:
        self.by_name: Final = {team.name: team for team in fleet.teams}
        self._all: Final = tuple(p.name for p in fleet.priorities)

    def parent(self, team: Team) -> Team | None:
        return self.by_name[team.parent] if team.parent is not None else None

    def limits(self, team: Team) -> Limits:
        parent = self.parent(team)
        return parent.limits if parent else Limits()

    def priorities(self, team: Team) -> tuple[PriorityName, ...]:
        parent = self.parent(team)
        return parent.priorities if parent else self._all

    def draining(self, team: Team) -> bool:
        parent = self.parent(team)
        return parent is not None and parent.draining

    def grants(self, team: Team) -> dict[Supply, Grant]:
        parent = self.parent(team)
        return {g.supply: Grant(g.supply) for g in parent.grants} if parent else {}


# --- teams ------------------------------------------------------------------------------------------------


def _new_team(team: Team, new: _TeamIndex) -> Iterator[FieldDiff]:
    yield FieldDiff(NEW, "team", None, team.name)
    if team.parent is not None:
        yield FieldDiff(NEW, "parent", None, team.parent)
    if team.share != 1:
        yield FieldDiff(NEW, "share", None, str(team.share))
    inherited, own = new.grants(team), {g.supply: g for g in team.grants}
    for supply in inherited | own:
        if supply not in own:
            yield FieldDiff(NEW, f"borrow on {supply}", None, "0")
        elif own[supply] != inherited.get(supply):
            yield from _grant(supply, None, own[supply])
    for word, was, now in _limit_words(new.limits(team), team.limits):
        if was != now:
            yield FieldDiff(NEW, word, None, now)
    if team.priorities != new.priorities(team):
        yield FieldDiff(NEW, "priorities", None, _names(team.priorities))
    yield from _budget(None, team.budget)
    if team.draining and not new.draining(team):
        yield FieldDiff(NEW, "draining", None, "yes")
    for member in team.members:
        yield FieldDiff(NEW, "member", None, member)


def _team(was: Team, now: Team, old: _TeamIndex, new: _TeamIndex) -> Iterator[FieldDiff]:
    if was.parent != now.parent:
        yield FieldDiff(OTHER, "parent", was.parent or "none", now.parent or "none")
    if was.share != now.share:
        yield FieldDiff(OTHER, "share", str(was.share), str(now.share))
    yield from _grants(was, now, old, new)
    yield from _limits(was, now, old, new)
    told = was.priorities != old.priorities(was) or now.priorities != new.priorities(now)
    if told and was.priorities != now.priorities:
        yield FieldDiff(OTHER, "priorities", _names(was.priorities), _names(now.priorities))
    yield from _budget(was.budget, now.budget)
    told = was.draining != old.draining(was) or now.draining != new.draining(now)
    if told and was.draining != now.draining:
        yield FieldDiff(OTHER, "draining", _yes(was.draining), _yes(now.draining))
    before, after = set(was.members), set(now.members)
    yield from (FieldDiff(NEW, "member", None, m) for m in now.members if m not in before)
    yield from (FieldDiff(GONE, "member", m) for m in was.members if m not in after)


def _grants(was: Team, now: Team, old: _TeamIndex, new: _TeamIndex) -> Iterator[FieldDiff]:
    before = {g.supply: g for g in was.grants}
    after = {g.supply: g for g in now.grants}
    if before == after:
        return
    by_default, by_default_now = old.grants(was), new.grants(now)
    for supply in before | after:
        one, other = before.get(supply), after.get(supply)
        told = one != by_default.get(supply) or other != by_default_now.get(supply)
        if told and one != other:
            yield from _grant(supply, one, other)


def _grant(supply: Supply, was: Grant | None, now: Grant | None) -> Iterator[FieldDiff]:
    """Describe the change of a grant; if added or removed, by its guarantee and any explicit borrow."""
    if was is not None and now is not None:
        if was.guarantee != now.guarantee:
            yield FieldDiff(OTHER, f"guarantee on {supply}", str(was.guarantee), str(now.guarantee))
        if was.borrow != now.borrow:
            yield FieldDiff(OTHER, f"borrow on {supply}", _most(was.borrow), _most(now.borrow))
    elif now is not None:
        if now.guarantee:
            yield FieldDiff(NEW, f"guarantee on {supply}", None, str(now.guarantee))
        if now.borrow is not None or not now.guarantee:
            yield FieldDiff(NEW, f"borrow on {supply}", None, _most(now.borrow))
    elif was is not None:
        if was.guarantee:
            yield FieldDiff(GONE, f"guarantee on {supply}", str(was.guarantee))
        if was.borrow is not None or not was.guarantee:
            yield FieldDiff(GONE, f"borrow on {supply}", _most(was.borrow))


def _budget(was: Budget | None, now: Budget | None) -> Iterator[FieldDiff]:
    """Describe the change of a budget: `budget  120,000 a month → 150,000`; other fields have own lines."""
    if was is None or now is None:
        yield from _differ("budget", _amount(was), _amount(now))
        if now is not None:
            yield from _differ("when the budget is spent", None, _at_limit(now))
        return
    if (was.amount, was.every) != (now.amount, now.every):
        after = _amount(now) if was.every is not now.every else f"{now.amount:,f}"
        yield FieldDiff(OTHER, "budget", _amount(was), after)
    yield from _differ("budget told at", _part(was), _part(now))
    yield from _differ("when the budget is spent", _at_limit(was), _at_limit(now))


def _amount(budget: Budget | None) -> str | None:
    return None if budget is None else f"{budget.amount:,f} a {budget.every}"


def _part(budget: Budget) -> str:
    return f"{(budget.warn_at * 100).normalize():f} %"


def _at_limit(budget: Budget) -> str:
    ends = budget.running is Running.END and budget.at_limit is not AtLimit.WARN
    return f"{budget.at_limit}, and what runs is ended" if ends else budget.at_limit


def _limits(was: Team, now: Team, old: _TeamIndex, new: _TeamIndex) -> Iterator[FieldDiff]:
    if was.limits == now.limits:
        return
    inherited = _limit_words(old.limits(was), new.limits(now))
    for (word, one, other), (_, by_default, by_default_now) in zip(
        _limit_words(was.limits, now.limits), inherited, strict=True
    ):
        told = one != by_default or other != by_default_now
        if told and one != other:
            yield FieldDiff(OTHER, word, one, other)


def _limit_words(was: Limits, now: Limits) -> tuple[tuple[str, str, str], ...]:
    return (
        ("GPUs of a job", _most(was.job_gpus), _most(now.job_gpus)),
        ("time of a job", _time(was.job_seconds), _time(now.job_seconds)),
        ("GPUs of a user", _most(was.user_gpus), _most(now.user_gpus)),
    )


# --- the fleet --------------------------------------------------------------------------------------------


def _fleet(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    if before is None:
        yield FieldDiff(NEW, "fleet", None, after.name)
    elif before.name != after.name:
        yield FieldDiff(OTHER, "fleet", before.name, after.name)
    yield from _differ("currency", before.currency if before else None, after.currency)
    yield from _clusters(before, after)
    yield from _pools(before, after)
    yield from _money(before, after)
    yield from _priorities(before, after)
    half_lives = [duration_text(f.fairness.half_life_seconds) if f else None for f in (before, after)]
    yield from _differ("half-life", *half_lives)
    chosen, now_chosen = (dict(f.chosen_teams) if f else {} for f in (before, after))
    for user in chosen | now_chosen:
        yield from _differ(f"default team of {user}", chosen.get(user), now_chosen.get(user))


def _differ(word: str, was: str | None, now: str | None) -> Iterator[FieldDiff]:
    if was != now:
        yield FieldDiff(NEW if was is None else GONE if now is None else OTHER, word, was, now)


def _money(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    """Describe changed cost rules (not the defaults of a new fleet), then overhead by cluster."""
    usual = before or replace(after, cost=DEFAULT_COST_RULES)
    for word, text in FLEET_MONEY:
        yield from _differ(word, text(usual), text(after))
    was = {c.name: overhead_text(c) for c in before.clusters} if before else {}
    for cluster in after.clusters:
        told = was.get(cluster.name)
        yield from _differ(f"overhead of cluster {cluster.name}", told, overhead_text(cluster))


def _clusters(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {c.name: c.connection for c in before.clusters} if before else {}
    now = {c.name: c.connection for c in after.clusters}
    folders_were = {c.name: c.folders for c in before.clusters} if before else {}
    folders = {c.name: c.folders for c in after.clusters}
    for name in was | now:
        if name not in was or name not in now:
            sign = NEW if name in now else GONE
            yield FieldDiff(sign, "cluster", *((None, name) if sign == NEW else (name, None)))
        elif was[name] != now[name]:
            yield FieldDiff(OTHER, f"cluster {name}", _connection(was[name]), _connection(now[name]))
        if name in folders_were and name in folders:
            one, other = _folders(folders_were[name]), _folders(folders[name])
            yield from _differ(f"folders of cluster {name}", one, other)


_POOL_WORDS: Final[tuple[tuple[str, Callable[[Pool], str]], ...]] = (
    ("cluster", lambda p: p.cluster),
    ("GPU type", lambda p: p.gpu.name),
    ("GPUs", lambda p: f"{p.gpu.memory_gb} GB by {p.gpu.vendor}, {_names(p.gpu.products) or 'no products'}"),
    ("capacity", lambda p: p.capacity),
    *POOL_MONEY,
    ("place", lambda p: _place(p.place)),
    ("slices", lambda p: _names(p.slices) or "none"),
    ("topology", lambda p: _names(p.topology) or "none"),
    ("size", lambda p: "not said" if p.gpus is None else f"{p.gpus} GPUs"),
)


def _pools(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {p.name: p for p in before.pools} if before else {}
    now = {p.name: p for p in after.pools}
    for name in was | now:
        if name not in was:
            yield FieldDiff(NEW, "pool", None, name)
        elif name not in now:
            yield FieldDiff(GONE, "pool", name)
        elif was[name] != now[name]:
            for word, text in _POOL_WORDS:
                one, other = text(was[name]), text(now[name])
                if one != other:
                    yield FieldDiff(OTHER, f"{word} of pool {name}", one, other)


def _priorities(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {p.name: p for p in before.priorities} if before else {}
    now = {p.name: p for p in after.priorities}
    if was == now:
        return
    for name in was | now:
        one, other = was.get(name), now.get(name)
        if one is None or other is None:
            yield from _differ("priority", name if one else None, name if other else None)
            continue
        yield from _differ(f"rank of priority {name}", str(one.rank), str(other.rank))
        yield from _differ(
            f"priority {name} always preemptible", _yes(one.preemptible), _yes(other.preemptible)
        )
    defaults = [f.default_priority.name if f else None for f in (before, after)]
    yield from _differ("default priority", *defaults)


def _folders(folders: Folders) -> str:
    logs = f"logs {folders.logs or 'with the jobs'}"
    seen = f", seen at {folders.logs_seen_at}" if folders.logs_seen_at else ""
    return f"{logs}{seen}, checkpoints {folders.checkpoints or 'nowhere'}"


def _connection(connection: Connection) -> str:
    match connection:
        case SlurmConnection(url, user, jwt_key_file, token_file, tools):
            found = f", tools in {tools}" if tools else ""
            return f"{url} as {user}, with {jwt_key_file or token_file}{found}"
        case KubernetesConnection(kubeconfig, context):
            where = kubeconfig or "the pod's service account"
            return f"{where}, context {context}" if context else where
        case VirtualConnection():
            return "virtual"


def _place(place: Place) -> str:
    match place:
        case SlurmPlace(partition, gres):
            return f"partition {partition}" + (f", gres {gres}" if gres else "")
        case KubernetesPlace(labels, taints, resource):
            where = ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "all nodes"
            return f"{resource} on {where}" + (f", taints {_names(taints)}" if taints else "")
        case VirtualPlace():
            cut = ", ".join(f"{n} x {name}" for name, n in place.slices_per_gpu.items())
            racks = f", {place.nodes_per_rack} a rack" if place.nodes_per_rack else ""
            return (
                f"{place.nodes} nodes of {place.gpus_per_node} GPUs"
                + (f" cut into {cut}" if cut else "")
                + racks
            )


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _most(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _time(seconds: int | None) -> str:
    return "unlimited" if seconds is None else duration_text(seconds)


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"
