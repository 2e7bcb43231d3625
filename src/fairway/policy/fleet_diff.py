"""Describe the changes between two fleets in the terms of the fleet file, grouped by team.

A team is listed only if its own settings change: when a parent's limit is lowered, the teams that inherit it
are not listed. The cost is linear in teams, grants and members.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Final

from fairway.model.budget import AtLimit, Budget, Running
from fairway.model.channel import Channels
from fairway.model.diagnosis import DEFAULT_DIAGNOSIS, Thresholds
from fairway.model.fleet import (
    Cluster,
    Connection,
    Fleet,
    Folders,
    KubernetesConnection,
    KubernetesPlace,
    NamedBudget,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.gpu_health import HealthAction, HealthRule
from fairway.model.idle import DEFAULT_IDLE, IdleRule
from fairway.model.names import TeamName
from fairway.model.notice_rules import DIGEST_HOUR, NoticeRule
from fairway.model.price import DEFAULT_COST_RULES
from fairway.model.team import Grant, Limits, Supply, Team
from fairway.model.text import duration_text

ADDED: Final = "+"
REMOVED: Final = "-"
CHANGED: Final = "~"
_AMOUNT: Final = "budget"
_WARNS_AT: Final = "budget warning at"
_AT_LIMIT: Final = "at budget limit"
_NAMED_BUDGET: Final = "budget: "
_BUDGET_FIELDS: Final = frozenset({_AMOUNT, _WARNS_AT, _AT_LIMIT})


def is_budget_field(what: str) -> bool:
    """Return whether a field is of a budget, which not everybody may see."""
    return what in _BUDGET_FIELDS or what.startswith(_NAMED_BUDGET)


@dataclass(frozen=True, slots=True)
class FieldDiff:
    """One difference: `~ guarantee on hpc-a100  16 → 24`, `+ member  dana`."""

    sign: str
    """`+` added, `-` removed, `~` changed."""
    what: str
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
        changes = _team(was, team, old, new) if was and old else _new_team(team, new)
        groups.append(TeamDiff(team.name, tuple(changes)))
    removed = [t.name for t in before.teams if t.name not in new.by_name] if before else []
    groups.extend(TeamDiff(name, (FieldDiff(REMOVED, "team", name),)) for name in removed)
    return tuple(group for group in groups if group.changes)


def _differ(what: str, was: str | None, now: str | None) -> Iterator[FieldDiff]:
    if was != now:
        yield FieldDiff(ADDED if was is None else REMOVED if now is None else CHANGED, what, was, now)


# --- teams ------------------------------------------------------------------------------------------------


class _TeamIndex:
    """The teams of a fleet by name, with the values that each would inherit."""

    def __init__(self, fleet: Fleet) -> None:
        self.by_name: Final = {team.name: team for team in fleet.teams}
        self._top: Final = Team(TeamName(""), priorities=tuple(p.name for p in fleet.priorities))

    def parent(self, team: Team) -> Team:
        """Return the team that `team` inherits from: its parent, or one with the fleet's defaults."""
        return self._top if team.parent is None else self.by_name[team.parent]

    def inherited_grants(self, team: Team) -> dict[Supply, Grant]:
        return {g.supply: Grant(g.supply) for g in self.parent(team).grants}


def _new_team(team: Team, new: _TeamIndex) -> Iterator[FieldDiff]:
    parent = new.parent(team)
    yield from _differ("team", None, team.name)
    yield from _differ("parent", None, team.parent)
    yield from _differ("account", None, team.account)
    if team.share != 1:
        yield from _differ("share", None, str(team.share))
    inherited, own = new.inherited_grants(team), {g.supply: g for g in team.grants}
    for supply in inherited | own:
        if supply not in own:
            yield from _differ(f"borrow on {supply}", None, "0")
        elif own[supply] != inherited.get(supply):
            yield from _grant(supply, None, own[supply])
    for what, was, now in _limit_texts(parent.limits, team.limits):
        if was != now:
            yield from _differ(what, None, now)
    if team.priorities != parent.priorities:
        yield from _differ("priorities", None, _names(team.priorities))
    if team.projects != parent.projects:
        yield from _differ("projects", None, _names(team.projects) or "any")
    yield from _budget(None, team.budget)
    yield from _differ("cost centre", None, team.cost_centre)
    yield from _differ("notices go to", None, _channels(team.notify))
    if team.draining and not parent.draining:
        yield from _differ("draining", None, "yes")
    for member in team.members:
        yield from _differ("member", None, member)


def _team(was: Team, now: Team, old: _TeamIndex, new: _TeamIndex) -> Iterator[FieldDiff]:
    parent_was, parent = old.parent(was), new.parent(now)
    yield from _differ("parent", was.parent or "none", now.parent or "none")
    yield from _differ("account", was.account_name, now.account_name)
    yield from _differ("share", str(was.share), str(now.share))
    yield from _grants(was, now, old, new)
    inherited = _limit_texts(parent_was.limits, parent.limits)
    for (what, *texts), (_, *inherited_texts) in zip(
        _limit_texts(was.limits, now.limits), inherited, strict=True
    ):
        if texts != inherited_texts:
            yield from _differ(what, *texts)
    if was.priorities != parent_was.priorities or now.priorities != parent.priorities:
        yield from _differ("priorities", _names(was.priorities), _names(now.priorities))
    if was.projects != parent_was.projects or now.projects != parent.projects:
        yield from _differ("projects", _names(was.projects) or "any", _names(now.projects) or "any")
    yield from _budget(was.budget, now.budget)
    yield from _differ("cost centre", was.cost_centre, now.cost_centre)
    yield from _differ("notices go to", _channels(was.notify), _channels(now.notify))
    if was.draining != parent_was.draining or now.draining != parent.draining:
        yield from _differ("draining", _yes(was.draining), _yes(now.draining))
    before, after = set(was.members), set(now.members)
    yield from (FieldDiff(ADDED, "member", None, m) for m in now.members if m not in before)
    yield from (FieldDiff(REMOVED, "member", m) for m in was.members if m not in after)


def _grants(was: Team, now: Team, old: _TeamIndex, new: _TeamIndex) -> Iterator[FieldDiff]:
    before = {g.supply: g for g in was.grants}
    after = {g.supply: g for g in now.grants}
    if before == after:
        return
    inherited_before, inherited = old.inherited_grants(was), new.inherited_grants(now)
    for supply in before | after:
        pair = before.get(supply), after.get(supply)
        if pair != (inherited_before.get(supply), inherited.get(supply)):
            yield from _grant(supply, *pair)


def _grant(supply: Supply, was: Grant | None, now: Grant | None) -> Iterator[FieldDiff]:
    """Describe the change of a grant; if added or removed, by its guarantee and any explicit borrow."""
    single = None if was and now else was or now
    if single is None or single.guarantee:
        guarantees = [str(grant.guarantee) if grant else None for grant in (was, now)]
        yield from _differ(f"guarantee on {supply}", *guarantees)
    if single is None or single.borrow is not None or not single.guarantee:
        borrows = [_limit(grant.borrow) if grant else None for grant in (was, now)]
        yield from _differ(f"borrow on {supply}", *borrows)


def _budget(was: Budget | None, now: Budget | None) -> Iterator[FieldDiff]:
    """Describe the change of a budget: `budget  120,000 a month → 150,000`; other fields have own lines."""
    if was is None or now is None:
        yield from _differ(_AMOUNT, _amount(was), _amount(now))
        if now is not None:
            yield from _differ(_AT_LIMIT, None, _at_limit(now))
        return
    if (was.amount, was.every) != (now.amount, now.every):
        after = _amount(now) if was.every is not now.every else f"{now.amount:,f}"
        yield FieldDiff(CHANGED, _AMOUNT, _amount(was), after)
    yield from _differ(_WARNS_AT, _percent(was), _percent(now))
    yield from _differ(_AT_LIMIT, _at_limit(was), _at_limit(now))


def _named_budget(named: NamedBudget | None) -> str | None:
    """Format a budget that is no team's own: `50,000 a month, warns at 80 %, of the fleet, spot capacity`."""
    if named is None:
        return None
    return f"{_amount(named.budget)}, warns at {_percent(named.budget)}, of {named.scope}"


def _amount(budget: Budget | None) -> str | None:
    return None if budget is None else f"{budget.amount:,f} a {budget.every}"


def _percent(budget: Budget) -> str:
    return f"{(budget.warn_at * 100).normalize():f} %"


def _at_limit(budget: Budget) -> str:
    ends = budget.running is Running.END and budget.at_limit is not AtLimit.WARN
    return f"{budget.at_limit}, and what runs is ended" if ends else budget.at_limit


def _channels(channels: Channels | None) -> str | None:
    """Format channels: `slack by /etc/fairway/slack.url, mail to ops@example.org`. Returns None for none."""
    if channels is None:
        return None
    webhook, slack, mail = channels.webhook, channels.slack, channels.mail
    texts = (
        f"webhook {webhook.url or f'by {webhook.url_file}'}" if webhook else "",
        f"with {webhook.token_file}" if webhook and webhook.token_file else "",
        f"slack by {slack.url_file}" if slack else "",
        f"mail to {' '.join(mail.to)}" if mail else "",
        *(_notice_rule(rule) for rule in channels.rules.rules),
        f"quiet {channels.rules.quiet}" if channels.rules.quiet else "",
        f"digests at {channels.rules.digest_hour} h" if channels.rules.digest_hour != DIGEST_HOUR else "",
    )
    return ", ".join(text for text in texts if text) or None


def _notice_rule(rule: NoticeRule) -> str:
    return f"{rule.kind} {rule.send}{' by ' + ' and '.join(rule.to) if rule.to else ''}"


def _limit_texts(was: Limits, now: Limits) -> tuple[tuple[str, str, str], ...]:
    return (
        ("GPUs of a job", _limit(was.job_gpus), _limit(now.job_gpus)),
        ("time of a job", _time(was.job_seconds), _time(now.job_seconds)),
        ("GPUs of a user", _limit(was.user_gpus), _limit(now.user_gpus)),
    )


# --- the fleet --------------------------------------------------------------------------------------------


def _fleet(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    yield from _differ("fleet", before.name if before else None, after.name)
    yield from _differ("currency", before.currency if before else None, after.currency)
    yield from _clusters(before, after)
    yield from _pools(before, after)
    yield from _costs(before, after)
    yield from _priorities(before, after)
    half_lives = [duration_text(f.fairness.half_life_seconds) if f else None for f in (before, after)]
    yield from _differ("half-life", *half_lives)
    yield from _differ(
        "operators' notices go to", *(_channels(f.notify) if f else None for f in (before, after))
    )
    yield from _diagnosis(before, after)
    budgets_before, budgets = ({b.name: b for b in f.budgets} if f else {} for f in (before, after))
    for name in budgets_before | budgets:
        named = (_named_budget(budgets_before.get(name)), _named_budget(budgets.get(name)))
        yield from _differ(f"{_NAMED_BUDGET}{name}", *named)
    slos_before, slos = ({s.name: s.text for s in f.slos} if f else {} for f in (before, after))
    for name in slos_before | slos:
        yield from _differ(f"SLO {name}", slos_before.get(name), slos.get(name))
    rules_before, rules = ({r.name: r for r in f.health} if f else {} for f in (before, after))
    for name in rules_before | rules:
        texts = (_health_rule(rules_before.get(name)), _health_rule(rules.get(name)))
        yield from _differ(f"health rule {name}", *texts)
    chosen_before, chosen = (dict(f.chosen_teams) if f else {} for f in (before, after))
    for user in chosen_before | chosen:
        yield from _differ(f"default team of {user}", chosen_before.get(user), chosen.get(user))
    yield from _idle(before, after)


def _idle(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {rule.name: rule for rule in before.idle.rules} if before else {}
    now = {rule.name: rule for rule in after.idle.rules}
    for name in was | now:
        rules = was.get(name), now.get(name)
        yield from _differ(
            f"idle rule {name}", *(None if rule is None else idle_text(rule) for rule in rules)
        )
    kept = [name for name in was if name in now]
    if kept != [name for name in now if name in was]:
        yield FieldDiff(CHANGED, "order of idle rules", _names(list(was)), _names(list(now)))
    longest = (before.idle if before else DEFAULT_IDLE).longest_keep_seconds, after.idle.longest_keep_seconds
    yield from _differ("longest keep", *map(duration_text, longest))


def idle_text(rule: IdleRule) -> str:
    """Describe an idle rule: `below 1 % for 2h: warn, cancel after 30m; in pool a100; dry run`."""
    steps = (
        f"{step.action} after {duration_text(step.after_seconds)}" if step.after_seconds else step.action
        for step in rule.steps
    )
    selected = (("pool", rule.pools), ("team", rule.teams), ("priority", rule.priorities))
    exempt = [*rule.except_users, *rule.except_jobs, *(("services",) if rule.except_services else ())]
    below = f"below {(rule.below * 100).normalize():f} % for {duration_text(rule.for_seconds)}"
    parts = (
        f"{below}: {', '.join(steps)}",
        *(f"{what} {_names(names)}" for what, names in selected if names),
        f"not {_names(exempt)}" if exempt else "",
        "dry run: only recorded" if rule.dry_run else "in force",
    )
    return "; ".join(filter(None, parts))


def _diagnosis(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was, now = (f.diagnosis if f else DEFAULT_DIAGNOSIS for f in (before, after))
    yield from _differ("services", ", ".join(was.services) or None, ", ".join(now.services) or None)
    for field in fields(Thresholds):
        values = [f"{getattr(settings.thresholds, field.name):g}" for settings in (was, now)]
        yield from _differ(f"diagnosis {field.name}", *values)


def _health_rule(rule: HealthRule | None) -> str | None:
    if rule is None:
        return None
    where = f" in {', '.join(rule.pools)}" if rule.pools else ""
    nodes = "" if rule.max_nodes is None else f" and {rule.max_nodes} nodes"
    most = f", up to {rule.max_share * 100:g}%{nodes}" if rule.action is HealthAction.CORDON else ""
    return f"{rule.action} on {', '.join(rule.events)}{where}{most}"


_COST_RULES: Final[tuple[tuple[str, Callable[[Fleet], str]], ...]] = (
    ("time zone of charges", lambda f: f.cost.timezone),
    ("unused capacity is paid", lambda f: f.cost.idle),
    ("overhead is paid", lambda f: f.cost.overhead),
    ("labels kept for cost", lambda f: ", ".join(f.cost.labels) or "none"),
)


def _costs(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    """Describe changed cost rules (not the defaults of a new fleet), then overhead by cluster."""
    base = before or replace(after, cost=DEFAULT_COST_RULES)
    for what, text in _COST_RULES:
        yield from _differ(what, text(base), text(after))
    was = {c.name: _overhead(c) for c in before.clusters} if before else {}
    for cluster in after.clusters:
        yield from _differ(f"overhead of cluster {cluster.name}", was.get(cluster.name), _overhead(cluster))
    sites = {c.name: _energy(c) for c in before.clusters} if before else {}
    for cluster in after.clusters:
        yield from _differ(f"energy of cluster {cluster.name}", sites.get(cluster.name), _energy(cluster))


def _energy(cluster: Cluster) -> str | None:
    """Format what a cluster's site adds to energy: `363 g of CO2 a kWh, PUE 1.3`. Returns None if nothing."""
    site = cluster.energy
    parts = [] if site.co2_grams_per_kwh is None else [f"{site.co2_grams_per_kwh:,f} g of CO2 a kWh"]
    if site.pue != 1:
        parts.append(f"PUE {site.pue:f}")
    return ", ".join(parts) or None


def _overhead(cluster: Cluster) -> str | None:
    """Format a cluster's overhead: `people 9,000, power 4,000 a month`. Returns None if there is none."""
    text = ", ".join(f"{what} {amount:,f}" for what, amount in sorted(cluster.overhead.items()))
    return f"{text} a month" if text else None


def _clusters(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {c.name: c for c in before.clusters} if before else {}
    now = {c.name: c for c in after.clusters}
    for name in was | now:
        old, new = was.get(name), now.get(name)
        if old is None or new is None:
            yield from _differ("cluster", name if old else None, name if new else None)
            continue
        if old.connection != new.connection:
            texts = _connection(old.connection), _connection(new.connection)
            yield FieldDiff(CHANGED, f"cluster {name}", *texts)
        yield from _differ(f"folders of cluster {name}", _folders(old.folders), _folders(new.folders))


def _folders(folders: Folders) -> str:
    logs = f"logs {folders.logs or 'with the jobs'}"
    mounted = f", seen at {folders.logs_seen_at}" if folders.logs_seen_at else ""
    return f"{logs}{mounted}, checkpoints {folders.checkpoints or 'nowhere'}"


def _connection(connection: Connection) -> str:
    match connection:
        case SlurmConnection(url, user, jwt_key_file, token_file, tools):
            tools_text = f", tools in {tools}" if tools else ""
            return f"{url} as {user}, with {jwt_key_file or token_file}{tools_text}"
        case KubernetesConnection(kubeconfig, context):
            where = kubeconfig or "the pod's service account"
            return f"{where}, context {context}" if context else where
        case VirtualConnection():
            return "virtual"


def _pools(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {p.name: p for p in before.pools} if before else {}
    now = {p.name: p for p in after.pools}
    for name in was | now:
        old, new = was.get(name), now.get(name)
        if old is None or new is None:
            yield from _differ("pool", name if old else None, name if new else None)
        elif old != new:
            for what, text in _POOL_FIELDS:
                yield from _differ(f"{what} of pool {name}", text(old), text(new))


def _price(pool: Pool) -> str:
    """Format a pool's price: `1.90`, or `2.10, 1.75 from 2026-07-01`."""
    steps = pool.pricing.steps
    # A first dated price holds before its day too.
    first = () if steps and steps[0].per_gpu_hour == pool.price else (f"{pool.price:f}",)
    return ", ".join((*first, *(f"{step.per_gpu_hour:f} from {step.since}" for step in steps)))


def _discount(pool: Pool) -> str:
    """Format a pool's discount: `12 %`."""
    return f"{(pool.pricing.discount * 100).normalize():f} %" if pool.pricing.discount else "none"


def _commitments(pool: Pool) -> str:
    """Format a pool's commitments: `32 GPUs at 2.10 from 2026-01-01 until 2027-01-01`."""
    texts = (
        f"{c.gpus} GPUs at {c.per_gpu_hour:f} from {c.since} until {c.until}{f' ({c.id})' if c.id else ''}"
        for c in pool.pricing.commitments
    )
    return "; ".join(texts) or "none"


def _slice_prices(pool: Pool) -> str:
    """Format a pool's slice prices: `1g.10gb 0.30`."""
    return ", ".join(f"{name} {price:f}" for name, price in sorted(pool.pricing.slices.items())) or "none"


def _place(place: Place) -> str:
    match place:
        case SlurmPlace(partition, gres, others):
            also = f" with {_names(others)}" if others else ""
            return f"partition {partition}{also}" + (f", gres {gres}" if gres else "")
        case KubernetesPlace(labels, taints, resource, device_class, slice_classes):
            where = ", ".join(f"{key}={value}" for key, value in sorted(labels.items())) or "all nodes"
            classes = [device_class] if device_class else list(slice_classes.values())
            claimed = f" by device class {_names(classes)}" if classes else ""
            return f"{resource}{claimed} on {where}" + (f", taints {_names(taints)}" if taints else "")
        case VirtualPlace():
            slices = ", ".join(f"{n} x {name}" for name, n in place.slices_per_gpu.items())
            cut = f" cut into {slices}" if slices else ""
            racks = f", {place.nodes_per_rack} a rack" if place.nodes_per_rack else ""
            return f"{place.nodes} nodes of {place.gpus_per_node} GPUs{cut}{racks}"


_POOL_FIELDS: Final[tuple[tuple[str, Callable[[Pool], str]], ...]] = (
    ("cluster", lambda p: p.cluster),
    ("GPU type", lambda p: p.gpu.name),
    ("GPUs", lambda p: f"{p.gpu.memory_gb} GB by {p.gpu.vendor}, {_names(p.gpu.products) or 'no products'}"),
    ("capacity", lambda p: p.capacity),
    ("price", _price),
    ("discount", _discount),
    ("commitments", _commitments),
    ("slice prices", _slice_prices),
    ("place", lambda p: _place(p.place)),
    ("slices", lambda p: _names(p.slices) or "none"),
    ("topology", lambda p: _names(p.topology) or "none"),
    ("size", lambda p: "not set" if p.gpus is None else f"{p.gpus} GPUs"),
)


def _priorities(before: Fleet | None, after: Fleet) -> Iterator[FieldDiff]:
    was = {p.name: p for p in before.priorities} if before else {}
    now = {p.name: p for p in after.priorities}
    if was == now:
        return
    for name in was | now:
        old, new = was.get(name), now.get(name)
        if old is None or new is None:
            yield from _differ("priority", name if old else None, name if new else None)
            continue
        yield from _differ(f"rank of priority {name}", str(old.rank), str(new.rank))
        yield from _differ(
            f"priority {name} always preemptible", _yes(old.preemptible), _yes(new.preemptible)
        )
    defaults = [f.default_priority.name if f else None for f in (before, after)]
    yield from _differ("default priority", *defaults)


def _names(names: Sequence[str]) -> str:
    return ", ".join(names)


def _limit(limit: int | None) -> str:
    return "unlimited" if limit is None else str(limit)


def _time(seconds: int | None) -> str:
    return "unlimited" if seconds is None else duration_text(seconds)


def _yes(truth: bool) -> str:
    return "yes" if truth else "no"
