"""Build prices and cost rules from a fleet file, and check those that depend on several keys."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final
from zoneinfo import available_timezones

from fairway.files.diagnostics import FaultCode, Faults, Severity, Spot, did_you_mean, listed
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_prices as ps
from fairway.files.fleet import schema_teams as ts
from fairway.files.schema.containers import Key, Section
from fairway.files.schema.values import ParsedValue
from fairway.model.budget import Budget
from fairway.model.gpu import GpuType
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.price import DEFAULT_COST_RULES, DEFAULT_PRICING, Commitment, CostRules, PriceStep, Pricing
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Grant, Limits, Priority, Supply, Team

GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True)
class PoolSupply:
    """One supply of a pool, with its size as far as it is known."""

    supply: Supply
    pool: Section
    most: int | None
    """Upper bound on the number of devices; None if only the engine knows."""
    exact: bool
    """Whether `most` is the exact number: for slices that are cut on demand it is only a bound."""
    gpu_part: float
    """The part of a GPU that one device takes: 1, or a slice's share of the memory."""


class Supplies:
    """All supplies of a fleet in file order, with lookup by name."""

    def __init__(self, file: Section, gpu_types: Mapping[str, GpuType]) -> None:
        self.pools: Final = {name: found.value for name, found in (file.get(fs.POOLS) or {}).items()}
        self.written: Final = frozenset(file.names_in(fs.POOLS))
        stocks = [stock for pool in self.pools.values() for stock in _stocks(pool, gpu_types)]
        self.stocks: Final = {stock.supply: stock for stock in stocks}
        self._by_text: Final = {str(stock.supply): stock.supply for stock in stocks}
        self.order: Final = {supply: i for i, supply in enumerate(self.stocks)}

    def named(self, text: str) -> Supply | None:
        """Return the supply named `text`. Returns None if there is none."""
        return self._by_text.get(text)

    def explain(self, text: str, spot: Spot, faults: Faults) -> None:
        """Report why `text` names no supply, unless its pool already has a fault."""
        if faults.full:
            faults.add(FaultCode.UNKNOWN_POOL, spot, "", hint="")  # counted, not shown
            return
        name, _, slice_ = text.partition("/")
        pool = self.pools.get(name)
        if name not in self.written:
            faults.add(
                FaultCode.UNKNOWN_POOL,
                spot,
                f"{name} is not a pool of this fleet",
                expected=f"one of {listed(self._by_text)}" if self._by_text else "a pool",
                hint=did_you_mean(text, self._by_text, "add it under pools, or name one that is there"),
            )
        elif pool is None or not pool.sound(fs.SLICES):
            return
        elif not slice_:
            slices = [str(supply) for supply in self.stocks if supply.pool == name]
            faults.add(
                FaultCode.SLICED_POOL,
                spot,
                f"the GPUs of pool {name} are cut into slices; whole ones cannot be granted",
                expected=f"one of {listed(slices)}",
                hint=f"name the slice:  {slices[0]}",
            )
        elif not pool.get(fs.SLICES):
            faults.add(
                FaultCode.WHOLE_POOL,
                spot,
                f"the GPUs of pool {name} are not cut into slices",
                expected=name,
                hint=f"grant whole GPUs:  {name}; or cut them:  slices: [{slice_}]",
            )
        else:
            have = [str(supply.slice) for supply in self.stocks if supply.pool == name]
            faults.add(
                FaultCode.UNKNOWN_SLICE,
                spot,
                f"the GPUs of pool {name} are not cut into {slice_}",
                expected=f"one of {listed(have)}",
                hint=did_you_mean(slice_, have, f"use one of {listed(have)}"),
            )


def _stocks(pool: Section, gpu_types: Mapping[str, GpuType]) -> Iterator[PoolSupply]:
    gpus, exact = gpus_of(pool)
    place = pool.get(fs.VIRTUAL_PLACE)
    cut = (place.get(fs.SLICES_PER_GPU) if place else None) or {}
    name, gpu = PoolName(pool.name), gpu_types.get(pool.get(fs.GPU) or "")
    slices = pool.get(fs.SLICES)
    if not slices:
        yield PoolSupply(Supply(name), pool, gpus, exact, 1)
        return
    for found in slices:
        profile = gpu.profile(found.value) if gpu else None
        part = float(gpu.fraction(profile)) if gpu and profile else 0.0
        counted = cut.get(found.value)
        each = counted.value if counted else profile.max_instances if profile else None
        most = gpus * each if gpus is not None and each is not None else None
        yield PoolSupply(
            Supply(name, SliceName(found.value)), pool, most, exact and counted is not None, part
        )


def gpus_of(pool: Section) -> tuple[int | None, bool]:
    """Return the number of GPUs of a pool according to the file, and whether it is known.

    The number is None if the file does not state it or the pool has errors.
    """
    if not pool.sound(fs.POOL_GPUS, fs.VIRTUAL_PLACE, fs.SLICES):
        return None, False
    place = pool.get(fs.VIRTUAL_PLACE)
    nodes = place.get(fs.NODES) if place else None
    if place is not None and nodes is not None:
        return nodes * (place.get(fs.GPUS_PER_NODE) or GPUS_PER_NODE), True
    told = pool.get(fs.POOL_GPUS)
    return told, told is not None


@dataclass(frozen=True, slots=True)
class WrittenTeam:
    """A team's section of the file, and the Team built from it with inherited values."""

    section: Section
    parent: WrittenTeam | None
    team: Team
    """In a file with faults, built from the valid parts."""

    @property
    def name(self) -> str:
        return self.team.name

    def told(self, key: Key[Any], supply: Supply) -> ParsedValue[int | None] | None:
        """Return the team's own value for a supply under `guarantee` or `borrow`. Returns None if not set."""
        said: Mapping[str, ParsedValue[int | None]] = self.section.get(key) or {}
        return said.get(str(supply))


def priorities_of(file: Section) -> tuple[Priority, ...]:
    """Return the fleet's priorities, highest rank first; the three defaults if the file has none."""
    told = file.get(ts.PRIORITIES)
    if told is None:
        return DEFAULT_PRIORITIES
    found = (
        Priority(
            PriorityName(name),
            entry.value.get(ts.RANK) or 0,
            default=entry.value.get(ts.IS_DEFAULT) is True,
            preemptible=entry.value.get(ts.PREEMPTIBLE) is not None,
        )
        for name, entry in told.items()
    )
    return tuple(sorted(found, key=lambda p: -p.rank))


def fairness_of(file: Section) -> Fairness:
    """Return the fleet's fairness settings, or the defaults."""
    told = file.get(ts.FAIRNESS)
    half_life = told.get(ts.HALF_LIFE) if told else None
    return Fairness() if half_life is None else Fairness(half_life)


def chosen_teams_of(file: Section) -> Mapping[UserName, TeamName]:
    """Return the default teams that the file assigns to users."""
    return MappingProxyType(
        {
            UserName(user): TeamName(found.value.need(ts.DEFAULT_TEAM))
            for user, found in (file.get(ts.USERS) or {}).items()
        }
    )


def teams_of(file: Section, supplies: Supplies, priorities: tuple[Priority, ...]) -> tuple[WrittenTeam, ...]:
    """Build all teams, parents before children, otherwise in file order."""
    ranked = tuple(p.name for p in priorities)
    return tuple(_walk(file.get(ts.TEAMS) or {}, None, supplies, ranked))


def _walk(
    teams: Mapping[str, ParsedValue[Section]],
    parent: WrittenTeam | None,
    supplies: Supplies,
    ranked: tuple[PriorityName, ...],
) -> Iterator[WrittenTeam]:
    for name, found in teams.items():
        section = found.value
        above = parent.team if parent else None
        told = section.get(ts.TEAM_PRIORITIES)
        chosen = {item.value for item in told} if told is not None else None
        inherited = above.priorities if above else ranked
        written = WrittenTeam(
            section,
            parent,
            Team(
                name=TeamName(name),
                parent=above.name if above else None,
                share=section.get(ts.SHARE) or 1,
                grants=_grants(section, above, supplies),
                limits=_limits(section, above.limits if above else Limits()),
                priorities=inherited if chosen is None else tuple(p for p in ranked if p in chosen),
                members=tuple(UserName(item.value) for item in section.get(ts.MEMBERS) or ()),
                draining=section.get(ts.DRAINING) is True or (above is not None and above.draining),
                budget=_budget(section),
            ),
        )
        yield written
        yield from _walk(section.get(ts.INNER_TEAMS) or {}, written, supplies, ranked)


def _grants(section: Section, above: Team | None, supplies: Supplies) -> tuple[Grant, ...]:
    guarantee, borrow = section.get(ts.GUARANTEE) or {}, section.get(ts.BORROW) or {}
    if above is not None and not guarantee and not borrow:
        return tuple(Grant(g.supply) for g in above.grants)
    named = {supply for text in (*guarantee, *borrow) if (supply := supplies.named(text)) is not None}
    inherited = {g.supply for g in above.grants} if above else set()
    found = []
    for supply in sorted(named | inherited, key=supplies.order.__getitem__):
        text = str(supply)
        grant = Grant(
            supply,
            guarantee[text].value if text in guarantee else 0,
            borrow[text].value if text in borrow else None,
        )
        if grant.ceiling != 0:  # no access is having no grant
            found.append(grant)
    return tuple(found)


def _limits(section: Section, inherited: Limits) -> Limits:
    limits = section.get(ts.LIMITS)
    job = limits.get(ts.JOB_LIMITS) if limits else None
    user = limits.get(ts.USER_LIMITS) if limits else None
    if job is None and user is None:
        return inherited
    return Limits(
        job_gpus=_told(job, ts.JOB_GPUS, inherited.job_gpus),
        job_seconds=_told(job, ts.JOB_TIME, inherited.job_seconds),
        user_gpus=_told(user, ts.USER_GPUS, inherited.user_gpus),
    )


def _budget(section: Section) -> Budget | None:
    """Build the team's own budget. A parent's budget is not inherited: it covers the team anyway."""
    told = section.get(ts.BUDGET)
    amount = told.get(ts.AMOUNT) if told else None
    if told is None or amount is None:
        return None
    usual = Budget(amount)
    return Budget(
        amount,
        told.get(ts.EVERY) or usual.every,
        told.get(ts.WARN_AT) or usual.warn_at,
        told.get(ts.AT_LIMIT) or usual.at_limit,
        told.get(ts.RUNNING) or usual.running,
    )


def _told(section: Section | None, key: Key[int | None], inherited: int | None) -> int | None:
    """Return a limit or the inherited one. `unlimited` reads as None and removes the parent's limit."""
    found = section.found(key) if section else None
    return inherited if found is None else found.value


def pricing_of(pool: Section) -> tuple[Decimal, Pricing]:
    """Return a pool's first list price, and its Pricing: later prices, discount, commitments, slices."""
    written = pool.need(ps.PRICE)
    slices = pool.get(ps.SLICE_PRICES) or {}
    pricing = Pricing(
        steps=tuple(PriceStep(day.value, price) for day, price in written.steps),
        discount=pool.get(ps.DISCOUNT) or Decimal(0),
        commitments=tuple(_commitment(section) for section in pool.get(ps.COMMITMENTS) or ()),
        slices=MappingProxyType({SliceName(name): found.value for name, found in slices.items()}),
    )
    return written.first, DEFAULT_PRICING if pricing == DEFAULT_PRICING else pricing


def overhead_of(cluster: Section) -> MappingProxyType[str, Decimal]:
    """Return a cluster's monthly overhead by name."""
    return MappingProxyType({name: found.value for name, found in (cluster.get(ps.OVERHEAD) or {}).items()})


def cost_rules_of(file: Section) -> CostRules:
    """Return the fleet's cost rules, with defaults for missing keys."""
    cost, usual = file.get(ps.COST), DEFAULT_COST_RULES
    if cost is None:
        return usual
    return CostRules(
        timezone=cost.get(ps.TIMEZONE) or usual.timezone,
        idle=cost.get(ps.IDLE) or usual.idle,
        overhead=cost.get(ps.OVERHEAD_RULE) or usual.overhead,
    )


def check_prices(file: Section, faults: Faults) -> None:
    """Run the checks of prices that compare several values."""
    _zone_exists(file, faults)
    for found in (file.get(fs.POOLS) or {}).values():
        pool = found.value
        _steps_in_order(pool, faults)
        _commitments_hold(pool, faults)
        _committed_gpus_exist(pool, faults)
        _priced_slices_exist(pool, faults)
        _has_a_price(pool, faults)


def _commitment(section: Section) -> Commitment:
    return Commitment(
        section.need(ps.COMMITTED_GPUS),
        section.need(ps.COMMITTED_PRICE),
        section.need(ps.COMMITTED_FROM),
        section.need(ps.COMMITTED_UNTIL),
    )


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Return the IANA time zones. Cached, because it reads some six hundred files."""
    return frozenset(available_timezones()) - {"localtime", "Factory"}


def _zone_exists(file: Section, faults: Faults) -> None:
    cost = file.get(ps.COST)
    named = cost.found(ps.TIMEZONE) if cost else None
    if named is None or named.value in _zones():
        return
    # Users often write the city: Berlin, new york.
    word = named.value.rsplit("/", 1)[-1].replace(" ", "_").lower()
    cities = sorted(z for z in _zones() if z.rsplit("/", 1)[-1].lower() == word)
    otherwise = "write one like Europe/Berlin, America/New_York or UTC"
    faults.add(
        FaultCode.UNKNOWN_TIME_ZONE,
        named.spot,
        f"there is no time zone {named.value}",
        expected="a name of the IANA time zones",
        hint=f"did you mean {' or '.join(cities[:2])}?"
        if cities
        else did_you_mean(named.value, sorted(z for z in _zones() if "/" in z or z == "UTC"), otherwise),
    )


def _steps_in_order(pool: Section, faults: Faults) -> None:
    price = pool.get(ps.PRICE)
    for (day, _), (following, _) in pairwise(price.steps if price else ()):
        if following.value <= day.value:
            faults.add(
                FaultCode.NOT_IN_ORDER,
                following.spot,
                f"pool {pool.name} has a price from {following.value} after one from {day.value}",
                expected="days in their order",
                hint="write prices in the order in which they hold",
                related=[day.spot],
            )
            return


def _has_a_price(pool: Section, faults: Faults) -> None:
    """Warn about a pool without a price. It may be free, but more often the price was forgotten."""
    price = pool.found(ps.PRICE)
    if price is None or price.value.first or any(amount for _, amount in price.value.steps):
        return
    if pool.get(ps.COMMITMENTS) or pool.get(ps.SLICE_PRICES):
        return
    faults.add(
        FaultCode.NO_PRICE,
        price.spot,
        f"pool {pool.name} has no price: its charges will be 0",
        hint="write what a GPU-hour costs, as in  price: 1.90;"
        "  fairway price owned  computes it for GPUs you bought",
        severity=Severity.WARNING,
    )


def _commitments_hold(pool: Section, faults: Faults) -> None:
    for section in pool.get(ps.COMMITMENTS) or ():
        since, until = section.found(ps.COMMITTED_FROM), section.found(ps.COMMITTED_UNTIL)
        if since is not None and until is not None and until.value <= since.value:
            faults.add(
                FaultCode.NOT_IN_ORDER,
                until.spot,
                f"a commitment of pool {pool.name} ends on {until.value}, before a day of it was over",
                expected=f"a day after {since.value}",
                hint="until is the first day on which it no longer holds",
                related=[since.spot],
            )


def _committed_gpus_exist(pool: Section, faults: Faults) -> None:
    """Warn about commitments for more GPUs than the pool has. Valid and charged, but usually a mistake."""
    has, _ = gpus_of(pool)
    sections = pool.get(ps.COMMITMENTS) or ()
    if has is None or not sections or not pool.sound(ps.COMMITMENTS):
        return
    day, committed = max(_committed(sections), key=lambda known: known[1], default=(None, 0))
    if committed > has:
        held = [s for s in sections if s.need(ps.COMMITTED_FROM) <= (day or date.min)]
        faults.add(
            FaultCode.COMMITTED_TOO_MUCH,
            held[-1].spot,
            f"commitments of pool {pool.name} add up to {committed} GPUs on {day}, but it has {has}",
            expected=f"at most {has}",
            hint="lower them, or keep them: what is committed and not there is charged as a line of its own",
            severity=Severity.WARNING,
        )


def _committed(sections: tuple[Section, ...]) -> Iterator[tuple[date, int]]:
    """Yield the number of committed GPUs on each day on which a commitment begins."""
    commitments = [_commitment(s) for s in sections]
    for day in sorted({c.since for c in commitments}):
        yield day, sum(c.gpus for c in commitments if c.since <= day < c.until)


def _priced_slices_exist(pool: Section, faults: Faults) -> None:
    prices = pool.get(ps.SLICE_PRICES)
    if not prices or not pool.sound(fs.SLICES, ps.SLICE_PRICES):
        return
    has = [found.value for found in pool.get(fs.SLICES) or ()]
    for name, found in prices.items():
        if name in has:
            continue
        if has:
            faults.add(
                FaultCode.UNKNOWN_SLICE,
                found.spot,
                f"the GPUs of pool {pool.name} are not cut into {name}",
                expected=f"one of {listed(has)}",
                hint=did_you_mean(name, has, f"price one of {listed(has)}"),
            )
        else:
            faults.add(
                FaultCode.WHOLE_POOL,
                found.spot,
                f"the GPUs of pool {pool.name} are not cut into slices",
                expected="no slice_prices",
                hint=f"take slice_prices away, or cut the GPUs:  slices: [{name}]",
            )
