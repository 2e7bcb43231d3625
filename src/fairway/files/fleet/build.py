"""Build supplies, teams and prices from the sections of a fleet file, and check its prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Final
from zoneinfo import available_timezones

from fairway.files.diagnostics import FaultCode, Faults, Location, Severity, did_you_mean, listed
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_budgets as bs
from fairway.files.fleet import schema_idle
from fairway.files.fleet import schema_notify as ns
from fairway.files.fleet import schema_prices as ps
from fairway.files.fleet import schema_teams as ts
from fairway.files.schema.containers import Key, Section, Sections
from fairway.files.schema.values import ParsedValue, Problem
from fairway.model.budget import Budget
from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.fleet import NamedBudget, SiteEnergy
from fairway.model.gpu import GpuType
from fairway.model.idle import DEFAULT_IDLE, IdleAction, IdleRule, IdleRules, IdleStep
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.notice_rules import DIGEST_HOUR, NoticeRule, NoticeRules, SendWhen, parse_quiet_hours
from fairway.model.price import DEFAULT_COST_RULES, DEFAULT_PRICING, Commitment, CostRules, PriceStep, Pricing
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Grant, Limits, Move, Priority, Supply, Team

GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True)
class PoolSupply:
    """One supply of a pool, with its size as far as it is known."""

    supply: Supply
    pool: Section
    max_devices: int | None
    """Upper bound on the number of devices; None if only the engine knows."""
    exact: bool
    """Whether `max_devices` is the exact number: for slices that are cut on demand it is only a bound."""
    gpu_part: float
    """The part of a GPU that one device takes: 1, or a slice's share of the memory."""


class Supplies:
    """All supplies of a fleet in file order, with lookup by name."""

    def __init__(self, file: Section, gpu_types: Mapping[str, GpuType]) -> None:
        self.pools: Final = {name: found.value for name, found in (file.get(fs.POOLS) or {}).items()}
        self.pool_names: Final = frozenset(file.names_in(fs.POOLS))
        found = (supply for pool in self.pools.values() for supply in _pool_supplies(pool, gpu_types))
        self.by_supply: Final = {one.supply: one for one in found}
        self._by_name: Final = {str(supply): supply for supply in self.by_supply}
        self.order: Final = {supply: i for i, supply in enumerate(self.by_supply)}

    def find(self, name: str) -> Supply | None:
        """Return the supply with this name. Returns None if there is none."""
        return self._by_name.get(name)

    def report_unknown(self, text: str, location: Location, faults: Faults) -> None:
        """Report why `text` names no supply, unless its pool already has a fault."""
        if faults.full:
            faults.add(FaultCode.UNKNOWN_POOL, location, "", hint="")  # counted, not shown
            return
        name, _, slice_ = text.partition("/")
        pool = self.pools.get(name)
        supplies = [supply for supply in self.by_supply if supply.pool == name]
        if name not in self.pool_names:
            expected = f"one of {listed(self._by_name)}" if self._by_name else "a pool"
            hint = did_you_mean(text, self._by_name, "add it under pools, or name one that is there")
            problem = Problem(FaultCode.UNKNOWN_POOL, f"{name} is not a pool of this fleet", hint)
        elif pool is None or not pool.valid(fs.SLICES):
            return
        elif not slice_:
            expected = f"one of {listed(str(supply) for supply in supplies)}"
            message = f"the GPUs of pool {name} are cut into slices; whole ones cannot be granted"
            problem = Problem(FaultCode.SLICED_POOL, message, f"name the slice:  {supplies[0]}")
        elif not pool.get(fs.SLICES):
            expected, message = name, f"the GPUs of pool {name} are not cut into slices"
            hint = f"grant whole GPUs:  {name}; or cut them:  slices: [{slice_}]"
            problem = Problem(FaultCode.WHOLE_POOL, message, hint)
        else:
            slices = [str(supply.slice) for supply in supplies]
            expected = f"one of {listed(slices)}"
            message = f"the GPUs of pool {name} are not cut into {slice_}"
            hint = did_you_mean(slice_, slices, f"use {expected}")
            problem = Problem(FaultCode.UNKNOWN_SLICE, message, hint)
        problem.report(location, expected, faults)


def _pool_supplies(pool: Section, gpu_types: Mapping[str, GpuType]) -> Iterator[PoolSupply]:
    gpus, exact = gpus_of(pool)
    place = pool.get(fs.VIRTUAL_PLACE)
    counts = (place.get(fs.SLICES_PER_GPU) if place else None) or {}
    name, gpu = PoolName(pool.name), gpu_types.get(pool.get(fs.GPU) or "")
    slices = pool.get(fs.SLICES)
    if not slices:
        yield PoolSupply(Supply(name), pool, gpus, exact, 1)
        return
    for found in slices:
        profile = gpu.profile(found.value) if gpu else None
        part = float(gpu.fraction(profile)) if gpu and profile else 0.0
        count = counts.get(found.value)
        per_gpu = count.value if count else profile.max_instances if profile else None
        devices = gpus * per_gpu if gpus is not None and per_gpu is not None else None
        supply = Supply(name, SliceName(found.value))
        yield PoolSupply(supply, pool, devices, exact and count is not None, part)


def gpus_of(pool: Section) -> tuple[int | None, bool]:
    """Return the number of GPUs of a pool according to the file, and whether it is known.

    The number is None if the file does not state it or the pool has errors.
    """
    if not pool.valid(fs.POOL_GPUS, fs.VIRTUAL_PLACE, fs.SLICES):
        return None, False
    place = pool.get(fs.VIRTUAL_PLACE)
    nodes = place.get(fs.NODES) if place else None
    if place is not None and nodes is not None:
        return nodes * (place.get(fs.GPUS_PER_NODE) or GPUS_PER_NODE), True
    gpus = pool.get(fs.POOL_GPUS)
    return gpus, gpus is not None


@dataclass(frozen=True, slots=True)
class TeamSection:
    """A team's section of the file, and the Team built from it with inherited values."""

    section: Section
    parent: TeamSection | None
    team: Team
    """In a file with faults, built from the valid parts."""

    @property
    def name(self) -> str:
        return self.team.name

    def amount(self, key: Key[Any], supply: Supply) -> ParsedValue[int | None] | None:
        """Return the team's own value for a supply under `guarantee` or `borrow`. Returns None if not set."""
        amounts: Mapping[str, ParsedValue[int | None]] = self.section.get(key) or {}
        return amounts.get(str(supply))


def priorities_of(file: Section) -> tuple[Priority, ...]:
    """Return the fleet's priorities, highest rank first; the three defaults if the file has none."""
    sections = file.get(ts.PRIORITIES)
    if sections is None:
        return DEFAULT_PRIORITIES
    priorities = (
        Priority(
            PriorityName(name),
            entry.value.get(ts.RANK) or 0,
            default=entry.value.get(ts.IS_DEFAULT) is True,
            preemptible=entry.value.get(ts.PREEMPTIBLE) is not None,
        )
        for name, entry in sections.items()
    )
    return tuple(sorted(priorities, key=lambda p: -p.rank))


def fairness_of(file: Section) -> Fairness:
    """Return the fleet's fairness settings, or the defaults."""
    fairness = file.get(ts.FAIRNESS)
    half_life = fairness.get(ts.HALF_LIFE) if fairness else None
    return Fairness() if half_life is None else Fairness(half_life)


def idle_of(file: Section) -> IdleRules:
    """Return the fleet's idle rules, in file order."""
    idle = file.get(schema_idle.IDLE)
    if idle is None:
        return DEFAULT_IDLE
    rules = tuple(
        _idle_rule(name, found.value) for name, found in (idle.get(schema_idle.RULES) or {}).items()
    )
    return IdleRules(rules, idle.get(schema_idle.LONGEST_KEEP) or DEFAULT_IDLE.longest_keep_seconds)


def budgets_of(file: Section) -> tuple[NamedBudget, ...]:
    """Return the budgets besides those of teams."""
    return tuple(_named_budget(name, found.value) for name, found in (file.get(bs.BUDGETS) or {}).items())


def _named_budget(name: str, section: Section) -> NamedBudget:
    default = Budget(section.require(bs.AMOUNT))
    budget = replace(
        default,
        every=section.get(ts.EVERY) or default.every,
        warn_at=section.get(ts.WARN_AT) or default.warn_at,
    )
    team, project = section.get(bs.TEAM), section.get(bs.PROJECT)
    return NamedBudget(
        name,
        budget,
        TeamName(team) if team else None,
        project,
        tuple(PoolName(item.value) for item in section.get(bs.POOLS) or ()),
        tuple(item.value for item in section.get(bs.CAPACITY) or ()),
    )


def _idle_rule(name: str, rule: Section) -> IdleRule:
    exempt = rule.get(schema_idle.EXCEPT)
    users = (exempt.get(schema_idle.EXCEPT_USERS) if exempt else None) or ()
    jobs = (exempt.get(schema_idle.EXCEPT_JOBS) if exempt else None) or ()
    return IdleRule(
        name,
        rule.require(schema_idle.BELOW),
        rule.require(schema_idle.FOR),
        idle_steps_of(rule),
        tuple(PoolName(item.value) for item in rule.get(schema_idle.POOLS) or ()),
        tuple(TeamName(item.value) for item in rule.get(schema_idle.TEAMS) or ()),
        tuple(PriorityName(item.value) for item in rule.get(schema_idle.PRIORITIES) or ()),
        tuple(UserName(item.value) for item in users),
        tuple(item.value for item in jobs),
        except_services=not (exempt and exempt.get(schema_idle.EXCEPT_SERVICES) is False),
        dry_run=rule.get(schema_idle.DRY_RUN) is not False,
    )


def idle_steps_of(rule: Section) -> tuple[IdleStep, ...]:
    """Return the steps of an idle rule, the mildest first."""
    do = rule.get(schema_idle.DO)
    graces = ((key, do.get(key) if do else None) for key in schema_idle.STEPS)
    return tuple(IdleStep(IdleAction(key.name), grace) for key, grace in graces if grace is not None)


def chosen_teams_of(file: Section) -> Mapping[UserName, TeamName]:
    """Return the default teams that the file assigns to users."""
    return MappingProxyType(
        {
            UserName(user): TeamName(found.value.require(ts.DEFAULT_TEAM))
            for user, found in (file.get(ts.USERS) or {}).items()
        }
    )


def teams_of(file: Section, supplies: Supplies, priorities: tuple[Priority, ...]) -> tuple[TeamSection, ...]:
    """Build all teams, parents before children, otherwise in file order."""
    ranked = tuple(p.name for p in priorities)
    return tuple(_walk(file.get(ts.TEAMS) or {}, None, supplies, ranked))


def _walk(
    teams: Sections, parent: TeamSection | None, supplies: Supplies, ranked: tuple[PriorityName, ...]
) -> Iterator[TeamSection]:
    for name, found in teams.items():
        section = found.value
        parent_team = parent.team if parent else None
        listed_priorities = section.get(ts.TEAM_PRIORITIES)
        priorities = parent_team.priorities if parent_team else ranked
        if listed_priorities is not None:
            own = {item.value for item in listed_priorities}
            priorities = tuple(p for p in ranked if p in own)
        team = TeamSection(
            section,
            parent,
            Team(
                name=TeamName(name),
                parent=parent_team.name if parent_team else None,
                share=section.get(ts.SHARE) or 1,
                grants=_grants(section, parent_team, supplies),
                limits=_limits(section, parent_team.limits if parent_team else Limits()),
                priorities=priorities,
                members=tuple(UserName(item.value) for item in section.get(ts.MEMBERS) or ()),
                draining=section.get(ts.DRAINING) is True or bool(parent_team and parent_team.draining),
                budget=_budget(section),
                account=_account(section, name),
                cost_centre=section.get(ts.COST_CENTRE),
                notify=channels_of(section.get(ns.TEAM_NOTIFY)),
                projects=_projects(section, parent_team),
                renamed_from=_team_name(section.get(ts.RENAMED_FROM)),
                moved=_move(section.get(ts.MOVED)),
            ),
        )
        yield team
        yield from _walk(section.get(ts.INNER_TEAMS) or {}, team, supplies, ranked)


def _projects(section: Section, parent: Team | None) -> tuple[str, ...]:
    own = section.get(ts.PROJECTS)
    if own is None:
        return parent.projects if parent else ()
    return tuple(item.value for item in own)


def _grants(section: Section, parent: Team | None, supplies: Supplies) -> tuple[Grant, ...]:
    guarantee, borrow = section.get(ts.GUARANTEE) or {}, section.get(ts.BORROW) or {}
    if parent is not None and not guarantee and not borrow:
        return tuple(Grant(g.supply) for g in parent.grants)
    granted = {supply for text in (*guarantee, *borrow) if (supply := supplies.find(text)) is not None}
    inherited = {g.supply for g in parent.grants} if parent else set()
    found = []
    for supply in sorted(granted | inherited, key=supplies.order.__getitem__):
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
        job_gpus=_limit(job, ts.JOB_GPUS, inherited.job_gpus),
        job_seconds=_limit(job, ts.JOB_TIME, inherited.job_seconds),
        user_gpus=_limit(user, ts.USER_GPUS, inherited.user_gpus),
    )


def _team_name(name: str | None) -> TeamName | None:
    return None if name is None else TeamName(name)


def _move(section: Section | None) -> Move | None:
    day = section.get(ts.MOVED_SINCE) if section is not None else None
    return Move(_team_name(section.get(ts.MOVED_FROM)), day) if section is not None and day else None


def _budget(section: Section) -> Budget | None:
    """Build the team's own budget. A parent's budget is not inherited: it covers the team anyway."""
    budget = section.get(ts.BUDGET)
    amount = budget.get(ts.AMOUNT) if budget else None
    if budget is None or amount is None:
        return None
    default = Budget(amount)
    return Budget(
        amount,
        budget.get(ts.EVERY) or default.every,
        budget.get(ts.WARN_AT) or default.warn_at,
        budget.get(ts.AT_LIMIT) or default.at_limit,
        budget.get(ts.RUNNING) or default.running,
    )


def channels_of(section: Section | None) -> Channels | None:
    """Build the channels of a team or of the fleet."""
    if section is None:
        return None
    webhook, slack, mail = (section.get(key) for key in (ns.WEBHOOK, ns.SLACK, ns.MAIL))
    url_file = slack.get(ns.SLACK_URL_FILE) if slack else None
    return Channels(
        webhook=Webhook(*(webhook.get(key) for key in (ns.HOOK_URL, ns.HOOK_URL_FILE, ns.HOOK_TOKEN_FILE)))
        if webhook
        else None,
        slack=None if url_file is None else Slack(url_file),
        mail=Mail(tuple(found.value for found in mail.get(ns.MAIL_TO) or ())) if mail else None,
        rules=_notice_rules(section),
    )


def _notice_rules(section: Section) -> NoticeRules:
    written, quiet, hour = section.get(ns.RULES), section.get(ns.QUIET), section.get(ns.DIGEST)
    found = {kind: written.get(key) if written else None for kind, key in ns.KINDS.items()}
    rules = (
        NoticeRule(
            kind,
            rule.get(ns.SEND) or SendWhen.AT_ONCE,
            tuple(item.value for item in rule.get(ns.TO) or ()),
        )
        for kind, rule in found.items()
        if rule is not None
    )
    return NoticeRules(
        tuple(rules),
        None if quiet is None else parse_quiet_hours(quiet),
        DIGEST_HOUR if hour is None else hour,
    )


def _account(section: Section, team: str) -> str | None:
    """Return the team's account on Slurm. Returns None if it is called like the team."""
    account = section.get(ts.ACCOUNT_NAME)
    return None if account == team else account


def _limit(section: Section | None, key: Key[int | None], inherited: int | None) -> int | None:
    """Return a limit or the inherited one. `unlimited` reads as None and removes the parent's limit."""
    found = section.found(key) if section else None
    return inherited if found is None else found.value


def pricing_of(pool: Section) -> tuple[Decimal, Pricing]:
    """Return a pool's first list price, and its Pricing: later prices, discount, commitments, slices."""
    price = pool.require(ps.PRICE)
    slices = pool.get(ps.SLICE_PRICES) or {}
    pricing = Pricing(
        steps=tuple(PriceStep(day.value, amount) for day, amount in price.steps),
        discount=pool.get(ps.DISCOUNT) or Decimal(0),
        commitments=tuple(_commitment(section) for section in pool.get(ps.COMMITMENTS) or ()),
        slices=MappingProxyType({SliceName(name): found.value for name, found in slices.items()}),
    )
    return price.first, DEFAULT_PRICING if pricing == DEFAULT_PRICING else pricing


def overhead_of(cluster: Section) -> MappingProxyType[str, Decimal]:
    """Return a cluster's monthly overhead by name."""
    return MappingProxyType({name: found.value for name, found in (cluster.get(ps.OVERHEAD) or {}).items()})


def energy_of(cluster: Section) -> SiteEnergy:
    """Return what a cluster's site adds to the energy of its GPUs."""
    section = cluster.get(ps.ENERGY)
    if section is None:
        return SiteEnergy()
    return SiteEnergy(section.get(ps.CO2_PER_KWH), section.get(ps.PUE) or SiteEnergy().pue)


def cost_rules_of(file: Section) -> CostRules:
    """Return the fleet's cost rules, with defaults for missing keys."""
    cost, default = file.get(ps.COST), DEFAULT_COST_RULES
    if cost is None:
        return default
    return CostRules(
        timezone=cost.get(ps.TIMEZONE) or default.timezone,
        idle=cost.get(ps.IDLE) or default.idle,
        overhead=cost.get(ps.OVERHEAD_RULE) or default.overhead,
        labels=tuple(item.value for item in cost.get(ps.COST_LABELS) or ()),
    )


def check_prices(file: Section, faults: Faults) -> None:
    """Run the checks of prices that compare several values."""
    _zone_exists(file, faults)
    for pool in (found.value for found in (file.get(fs.POOLS) or {}).values()):
        _steps_in_order(pool, faults)
        _commitments_hold(pool, faults)
        _commitments_differ(pool, faults)
        _committed_gpus_exist(pool, faults)
        _priced_slices_exist(pool, faults)
        _has_a_price(pool, faults)


def _commitment(section: Section) -> Commitment:
    return Commitment(
        section.require(ps.COMMITTED_GPUS),
        section.require(ps.COMMITTED_PRICE),
        section.require(ps.COMMITTED_FROM),
        section.require(ps.COMMITTED_UNTIL),
        section.get(ps.COMMITTED_ID) or "",
    )


@lru_cache(maxsize=1)
def _zones() -> frozenset[str]:
    """Return the IANA time zones. Cached, because it reads some six hundred files."""
    return frozenset(available_timezones()) - {"localtime", "Factory"}


def _zone_exists(file: Section, faults: Faults) -> None:
    cost = file.get(ps.COST)
    zone = cost.found(ps.TIMEZONE) if cost else None
    if zone is None or zone.value in _zones():
        return
    # Users often write the city: Berlin, new york.
    city = zone.value.rsplit("/", 1)[-1].replace(" ", "_").lower()
    cities = sorted(z for z in _zones() if z.rsplit("/", 1)[-1].lower() == city)
    otherwise = "write one like Europe/Berlin, America/New_York or UTC"
    faults.add(
        FaultCode.UNKNOWN_TIME_ZONE,
        zone.location,
        f"there is no time zone {zone.value}",
        expected="a name of the IANA time zones",
        hint=f"did you mean {' or '.join(cities[:2])}?"
        if cities
        else did_you_mean(zone.value, sorted(z for z in _zones() if "/" in z or z == "UTC"), otherwise),
    )


def _steps_in_order(pool: Section, faults: Faults) -> None:
    price = pool.get(ps.PRICE)
    for (day, _), (following, _) in pairwise(price.steps if price else ()):
        if following.value <= day.value:
            faults.add(
                FaultCode.NOT_IN_ORDER,
                following.location,
                f"pool {pool.name} has a price from {following.value} after one from {day.value}",
                expected="days in their order",
                hint="write prices in the order in which they hold",
                related=[day.location],
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
        price.location,
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
                until.location,
                f"a commitment of pool {pool.name} ends on {until.value}, before its first day ends",
                expected=f"a day after {since.value}",
                hint="until is the first day on which it no longer holds",
                related=[since.location],
            )


def _commitments_differ(pool: Section, faults: Faults) -> None:
    found: dict[str, Location] = {}
    for section in pool.get(ps.COMMITMENTS) or ():
        id_ = section.found(ps.COMMITTED_ID)
        if id_ is None:
            continue
        if id_.value in found:
            faults.add(
                FaultCode.REPEATED_VALUE,
                id_.location,
                f"two commitments of pool {pool.name} have the id {id_.value}",
                expected="another id",
                hint="give each commitment its own id, or none",
                related=[found[id_.value]],
            )
        found.setdefault(id_.value, id_.location)


def _committed_gpus_exist(pool: Section, faults: Faults) -> None:
    """Warn about commitments for more GPUs than the pool has. Valid and charged, but usually a mistake."""
    gpus, _ = gpus_of(pool)
    sections = pool.get(ps.COMMITMENTS) or ()
    if gpus is None or not sections or not pool.valid(ps.COMMITMENTS):
        return
    day, committed = max(_committed(sections), key=lambda found: found[1], default=(None, 0))
    if committed > gpus:
        begun = [s for s in sections if s.require(ps.COMMITTED_FROM) <= (day or date.min)]
        faults.add(
            FaultCode.COMMITTED_TOO_MUCH,
            begun[-1].location,
            f"commitments of pool {pool.name} add up to {committed} GPUs on {day}, but it has {gpus}",
            expected=f"at most {gpus}",
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
    if not prices or not pool.valid(fs.SLICES, ps.SLICE_PRICES):
        return
    slices = [found.value for found in pool.get(fs.SLICES) or ()]
    for name, found in prices.items():
        if name in slices:
            continue
        if slices:
            expected = f"one of {listed(slices)}"
            message = f"the GPUs of pool {pool.name} are not cut into {name}"
            hint = did_you_mean(name, slices, f"price {expected}")
            problem = Problem(FaultCode.UNKNOWN_SLICE, message, hint)
        else:
            expected, message = "no slice_prices", f"the GPUs of pool {pool.name} are not cut into slices"
            hint = f"take slice_prices away, or cut the GPUs:  slices: [{name}]"
            problem = Problem(FaultCode.WHOLE_POOL, message, hint)
        problem.report(found.location, expected, faults)
