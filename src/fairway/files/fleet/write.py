"""Write a Fleet as the text of a fleet file, without inherited or default values; remarks become comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from decimal import Decimal
from typing import Final

from fairway.files.fleet.checks.pools import default_resource
from fairway.files.fleet.schema_diagnosis import written_thresholds
from fairway.files.fleet.schema_prices import BEFORE
from fairway.files.schema.values import UNLIMITED, percent_text
from fairway.model.budget import Budget
from fairway.model.channel import Channels
from fairway.model.diagnosis import DiagnosisSettings
from fairway.model.fleet import (
    Cluster,
    Connection,
    ExistingWorkloads,
    Fleet,
    KubernetesConnection,
    KubernetesPlace,
    NamedBudget,
    Place,
    Pool,
    SiteEnergy,
    SlurmConnection,
    SlurmPlace,
    Telemetry,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.gpu import GpuType, Vendor
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.gpu_health import HealthRule
from fairway.model.idle import DEFAULT_IDLE, IdleRule, IdleRules
from fairway.model.names import PriorityName, SliceName
from fairway.model.notice_rules import DIGEST_HOUR, NoticeRule
from fairway.model.price import DEFAULT_COST_RULES, CostRules
from fairway.model.slo import DEFAULT_WINDOW, DeliveredWithin, Slo, StartsWithin
from fairway.model.team import (
    DEFAULT_PRIORITIES,
    Fairness,
    Grant,
    Limits,
    Move,
    Priority,
    Supply,
    Team,
    TeamTree,
)
from fairway.model.text import duration_text

MAX_WIDTH: Final = 110
_PLAIN: Final = re.compile(r"[A-Za-z0-9_/.]([A-Za-z0-9_./@+:=-]*[A-Za-z0-9_/.+])?")
# Would not be read as text, by Fairway or by other YAML parsers.
_NOT_TEXT: Final = re.compile(
    r"true|false|null|y|yes|n|no|on|off|[-+.]?[0-9][0-9_]*(\.[0-9]*)?(e[-+]?[0-9]+)?|0[xo][0-9a-f]+|\.(inf|nan)",
    re.IGNORECASE,
)

Value = str | int | Sequence["Value"] | Mapping[str, "Value"]
"""The value of a key: text, a number, a list or a mapping."""


def compose_fleet(
    fleet: Fleet, remarks: Iterable[tuple[str, str]] = (), comments: Iterable[tuple[str, str]] = ()
) -> str:
    """Write `fleet` as a fleet file that reads back as an equal Fleet.

    It is equal if its teams and grants are in the order in which `files` puts them: children right after
    their parent, grants by pool. Each remark, (about, text), becomes a comment above the team or pool whose
    name `about` ends with, or at the top of the file. Comments, (name, text), stand above the team or pool of
    that name as they are.
    """
    return "\n".join(_Composer(fleet, remarks, comments).lines()) + "\n"


class _Composer:
    def __init__(
        self, fleet: Fleet, remarks: Iterable[tuple[str, str]], comments: Iterable[tuple[str, str]]
    ) -> None:
        self.fleet = fleet
        self.tree = TeamTree(fleet.teams)
        self.names = {str(t.name) for t in fleet.teams} | {str(p.name) for p in fleet.pools}
        self.remarks: dict[str, list[str]] = {}
        for name, text in comments:
            self.remarks.setdefault(name if name in self.names else "", []).append(text)
        for about, text in remarks:
            last = re.split(r"[\s/:]", about.strip())[-1] if about.strip() else ""
            place = last if last in self.names else ""
            self.remarks.setdefault(place, []).append(f"{about}: {text}" if about else text)

    def lines(self) -> Iterator[str]:
        fleet = self.fleet
        yield from self._comments("", "")
        yield from _block({"apiVersion": "fairway/v1alpha1", "kind": "Fleet", "name": fleet.name}, "")
        yield f"currency: {_scalar(fleet.currency)}"
        if fleet.partial:
            yield "partial: true"
        own_types = {p.gpu.name: p.gpu for p in fleet.pools if CATALOGUE.get(p.gpu.name) != p.gpu}
        if own_types:
            yield from _section("gpu_types", {name: _gpu_type(gpu) for name, gpu in own_types.items()})
        if fleet.cost != DEFAULT_COST_RULES:
            yield from ("", "cost:", *_block(_cost(fleet.cost), "  "))
        yield from _section("clusters", {c.name: _cluster(c) for c in fleet.clusters})
        if fleet.pools:
            yield from ("", "pools:")
        for pool in fleet.pools:
            yield from self._comments(pool.name, "  ")
            yield f"  {_scalar(pool.name)}:"
            yield from _block(_pool(pool), "    ")
        if fleet.priorities != DEFAULT_PRIORITIES:
            yield from _section("priorities", {p.name: _priority(p) for p in fleet.priorities})
        if fleet.fairness != Fairness():
            yield from ("", "fairness:", f"  half_life: {duration_text(fleet.fairness.half_life_seconds)}")
        yield from _diagnosis(fleet.diagnosis)
        if fleet.teams:
            yield from ("", "teams:")
        for team in self.tree.top():
            yield from self._team(team, None, "  ")
        if fleet.chosen_teams:
            users = {str(user): {"default_team": str(team)} for user, team in fleet.chosen_teams.items()}
            yield from _section("users", users)
        yield from _actions(fleet)

    def _team(self, team: Team, parent: Team | None, indent: str) -> Iterator[str]:
        yield from self._comments(team.name, indent)
        inherited = parent.priorities if parent else tuple(p.name for p in self.fleet.priorities)
        keys, children = _team(team, parent, inherited), self.tree.children(team)
        if not keys and not children:
            yield f"{indent}{_scalar(team.name)}: {{}}"
            return
        yield f"{indent}{_scalar(team.name)}:"
        yield from _block(keys, f"{indent}  ")
        if children:
            yield f"{indent}  teams:"
        for child in children:
            yield from self._team(child, team, f"{indent}    ")

    def _comments(self, place: str, indent: str) -> Iterator[str]:
        for text in self.remarks.get(place, ()):
            printable = "".join(c if c.isprintable() else " " for c in text)
            for line in textwrap.wrap(printable, MAX_WIDTH - len(indent) - 2) or [""]:
                yield f"{indent}# {line}"
        if not place and self.remarks.get(""):
            yield ""


# --- the parts --------------------------------------------------------------------------------------------


def _given(keys: Mapping[str, Value | None]) -> dict[str, Value]:
    """Return the keys that have a value; None and empty lists and mappings are none."""
    return {key: value for key, value in keys.items() if value or isinstance(value, str | int)}


def _gpu_type(gpu: GpuType) -> Mapping[str, Value]:
    vendor = gpu.vendor if gpu.vendor is not Vendor.NVIDIA else None
    return _given({"memory": f"{gpu.memory_gb}GB", "products": gpu.products, "vendor": vendor})


def _cluster(cluster: Cluster) -> Mapping[str, Value]:
    folders = cluster.folders
    rest: dict[str, Value | None] = {
        "logs": folders.logs,
        "logs_seen_at": folders.logs_seen_at,
        "checkpoints": folders.checkpoints,
        "overhead": _amounts(cluster.overhead),
        "telemetry": _telemetry(cluster.telemetry),
        "energy": _energy(cluster.energy),
    }
    return _connection(cluster.connection) | _given(rest)


def _diagnosis(settings: DiagnosisSettings) -> Iterator[str]:
    if keys := _given({"services": settings.services, **written_thresholds(settings)}):
        yield from ("", "diagnosis:", *_block(keys, "  "))


def _health_rule(rule: HealthRule) -> Mapping[str, Value]:
    default = HealthRule(rule.name)
    share = _Unquoted(percent_text(rule.max_share)) if rule.max_share != default.max_share else None
    return _given(
        {
            "events": rule.events if rule.events != default.events else None,
            "pools": rule.pools,
            "do": rule.action.value,
            "max_share": share,
            "max_nodes": rule.max_nodes,
        }
    )


def _actions(fleet: Fleet) -> Iterator[str]:
    """Yield whom Fairway notifies, of which budgets, and what it does about idle jobs and broken GPUs."""
    if fleet.notify is not None:
        yield from ("", "notify:", *_block(_channels(fleet.notify), "  "))
    if fleet.idle != DEFAULT_IDLE:
        yield from _idle(fleet.idle)
    if fleet.budgets:
        yield from _section("budgets", {budget.name: _named_budget(budget) for budget in fleet.budgets})
    if fleet.slos:
        yield from _section("slos", {slo.name: _slo(slo) for slo in fleet.slos})
    if fleet.health:
        yield from _section("health", {rule.name: _health_rule(rule) for rule in fleet.health})


def _telemetry(source: Telemetry | None) -> Value | None:
    return None if source is None else _given({key: value or None for key, value in asdict(source).items()})


def _energy(site: SiteEnergy) -> Value:
    factor = None if site.co2_grams_per_kwh is None else _Unquoted(format(site.co2_grams_per_kwh, "f"))
    return _given(
        {"co2_grams_per_kwh": factor, "pue": None if site.pue == 1 else _Unquoted(format(site.pue, "f"))}
    )


def _connection(connection: Connection) -> dict[str, Value]:
    match connection:
        case SlurmConnection(url, user, jwt_key_file, token_file, tools, existing):
            other_user = user if user != "fairway" else None
            credentials = {"jwt_key_file": jwt_key_file, "token_file": token_file, "user": other_user}
            keys: dict[str, Value] = {"engine": "slurm", "url": url, "credentials": _given(credentials)}
            return keys | _given({"tools": tools, "existing_workloads": _refused(existing)})
        case KubernetesConnection(kubeconfig, context, existing):
            given = {"engine": "kubernetes", "kubeconfig": kubeconfig, "context": context}
            return _given({**given, "existing_workloads": _refused(existing)})
        case VirtualConnection():
            return {"engine": "virtual"}


def _refused(existing: ExistingWorkloads) -> Value | None:
    return existing.value if existing is ExistingWorkloads.REFUSE else None


def _pool(pool: Pool) -> Mapping[str, Value]:
    keys: dict[str, Value | None] = {
        "cluster": pool.cluster,
        "gpu": pool.gpu.name,
        "gpus": pool.gpus,
        "slices": pool.slices,
        "capacity": pool.capacity,
        **_pricing(pool),
        "topology": pool.topology,
    }
    return _given(keys) | _place(pool.place, pool.gpu, pool.slices)


def _pricing(pool: Pool) -> dict[str, Value | None]:
    pricing, first = pool.pricing, _Unquoted(format(pool.price, "f"))
    steps = {str(step.since): _Unquoted(format(step.per_gpu_hour, "f")) for step in pricing.steps}
    # The first dated price also applies before its day, so `before` is only written if it differs.
    same = bool(pricing.steps) and pricing.steps[0].per_gpu_hour == pool.price
    return {
        "price": (steps if same else {BEFORE: first} | steps) if steps else first,
        "discount": _Unquoted(percent_text(pricing.discount)) if pricing.discount else None,
        "commitments": [
            ({"id": c.id} if c.id else {})
            | {
                "gpus": c.gpus,
                "price": _Unquoted(format(c.per_gpu_hour, "f")),
                "from": str(c.since),
                "until": str(c.until),
            }
            for c in pricing.commitments
        ],
        "slice_prices": _amounts(pricing.slices),
    }


def _amounts(amounts: Mapping[SliceName, Decimal] | Mapping[str, Decimal]) -> dict[str, Value]:
    return {str(name): _Unquoted(format(amount, "f")) for name, amount in amounts.items()}


def _cost(rules: CostRules) -> dict[str, Value]:
    written, default = _cost_keys(rules), _cost_keys(DEFAULT_COST_RULES)
    return {key: value for key, value in written.items() if value != default[key]}


def _cost_keys(rules: CostRules) -> dict[str, Value]:
    return {
        "timezone": rules.timezone,
        "idle": str(rules.idle),
        "overhead": str(rules.overhead),
        "labels": rules.labels,
    }


def _place(place: Place, gpu: GpuType, slices: Sequence[SliceName]) -> dict[str, Value]:
    match place:
        case SlurmPlace(partition, gres, others):
            return {"slurm": _given({"partition": partition, "other_partitions": others, "gres": gres})}
        case KubernetesPlace(node_labels, taints, resource, device_class, slice_classes):
            default = default_resource(gpu, device_class, slices)
            keys: dict[str, Value | None] = {
                "node_labels": node_labels,
                "taints": taints,
                "resource": resource if resource != default else None,
                "device_class": device_class,
                "device_classes": {str(name): class_ for name, class_ in slice_classes.items()},
            }
            return {"kubernetes": _given(keys)}
        case VirtualPlace():
            size: dict[str, Value | None] = {
                "nodes": place.nodes,
                "gpus_per_node": place.gpus_per_node,
                "slices_per_gpu": {str(name): n for name, n in place.slices_per_gpu.items()},
                "nodes_per_rack": place.nodes_per_rack,
            }
            return {"virtual": _given(size)}


def _priority(priority: Priority) -> Mapping[str, Value]:
    default = _Unquoted("true") if priority.default else None
    preemptible = "always" if priority.preemptible else None
    return _given({"rank": priority.rank, "default": default, "preemptible": preemptible})


def _team(team: Team, parent: Team | None, inherited: tuple[PriorityName, ...]) -> dict[str, Value]:
    """Return the keys of a team whose values are neither inherited nor defaults."""
    guarantee, borrow = _granted(team.grants, parent)
    draining = team.draining and not (parent and parent.draining)
    limits = _limits(team.limits, parent.limits if parent else Limits())
    share = team.share if team.share != 1 else None
    granted: dict[str, Value | None] = {"guarantee": guarantee, "borrow": borrow, "limits": limits}
    keys = _given({"account": team.account, "share": share, **granted})
    if team.priorities != inherited:
        keys["priorities"] = team.priorities
    if team.projects != (parent.projects if parent else ()):
        keys["projects"] = team.projects
    rest: dict[str, Value | None] = {
        "members": team.members,
        "budget": _budget(team.budget) if team.budget is not None else None,
        "cost_centre": team.cost_centre,
        "notify": _channels(team.notify) if team.notify is not None else None,
        "renamed_from": team.renamed_from,
        "moved": _move(team.moved) if team.moved is not None else None,
        "draining": _Unquoted("true") if draining else None,
    }
    return keys | _given(rest)


def _move(move: Move) -> Mapping[str, Value]:
    return _given({"from": move.source, "since": _Unquoted(move.since.isoformat())})


def _idle(idle: IdleRules) -> Iterator[str]:
    yield from ("", "idle:")
    if idle.longest_keep_seconds != DEFAULT_IDLE.longest_keep_seconds:
        yield f"  longest_keep: {duration_text(idle.longest_keep_seconds)}"
    if idle.rules:
        yield "  rules:"
    for rule in idle.rules:
        yield f"    {_scalar(rule.name)}:"
        yield from _block(_idle_rule(rule), "      ")


def _idle_rule(rule: IdleRule) -> Mapping[str, Value]:
    services = None if rule.except_services else _Unquoted("false")
    exempt = _given({"users": rule.except_users, "jobs": rule.except_jobs, "services": services})
    keys: dict[str, Value | None] = {
        "below": _Unquoted(percent_text(rule.below)),
        "for": duration_text(rule.for_seconds),
        "do": {step.action.value: duration_text(step.after_seconds) for step in rule.steps},
        "pools": rule.pools,
        "teams": rule.teams,
        "priorities": rule.priorities,
        "except": exempt,
        "dry_run": None if rule.dry_run else _Unquoted("false"),
    }
    return _given(keys)


def _granted(grants: Sequence[Grant], parent: Team | None) -> tuple[dict[str, Value], dict[str, Value]]:
    inherited: set[Supply] = {grant.supply for grant in parent.grants} if parent else set()
    by_supply = {grant.supply: grant for grant in grants if grant.ceiling != 0}
    guarantee: dict[str, Value] = {str(g.supply): g.guarantee for g in by_supply.values() if g.guarantee}
    borrow: dict[str, Value] = {}
    for grant in by_supply.values():
        if grant.borrow is not None:
            borrow[str(grant.supply)] = grant.borrow
        elif not grant.guarantee and grant.supply not in inherited:
            borrow[str(grant.supply)] = UNLIMITED
    closed = (grant.supply for grant in parent.grants if grant.supply not in by_supply) if parent else ()
    return guarantee, borrow | {str(supply): 0 for supply in closed}


def _limits(limits: Limits, inherited: Limits) -> dict[str, Value]:
    job: dict[str, Value] = {}
    if limits.job_gpus != inherited.job_gpus:
        job["gpus"] = UNLIMITED if limits.job_gpus is None else limits.job_gpus
    if limits.job_seconds != inherited.job_seconds:
        job["time"] = UNLIMITED if limits.job_seconds is None else duration_text(limits.job_seconds)
    user: dict[str, Value] = {}
    if limits.user_gpus != inherited.user_gpus:
        user["gpus"] = UNLIMITED if limits.user_gpus is None else limits.user_gpus
    return _given({"job": job, "user": user})


def _channels(channels: Channels) -> dict[str, Value]:
    written: dict[str, Value] = {k.value: _given(asdict(one)) for k, one in channels.by_kind().items()}
    rules = channels.rules
    more: dict[str, Value | None] = {
        "rules": {rule.kind.value: _notice_rule(rule) for rule in rules.rules},
        "quiet": None if rules.quiet is None else str(rules.quiet),
        "digest_hour": None if rules.digest_hour == DIGEST_HOUR else rules.digest_hour,
    }
    return written | _given(more)


def _notice_rule(rule: NoticeRule) -> dict[str, Value]:
    written: dict[str, Value] = {"send": rule.send.value}
    return written | ({"to": tuple(kind.value for kind in rule.to)} if rule.to else {})


def _named_budget(named: NamedBudget) -> dict[str, Value]:
    scope: dict[str, Value | None] = {
        "team": named.team,
        "project": named.project,
        "pools": named.pools or None,
        "capacity": tuple(kind.value for kind in named.capacity) or None,
    }
    return _budget(named.budget) | _given(scope)


def _slo(slo: Slo) -> dict[str, Value]:
    match slo.promise:
        case StartsWithin(seconds):
            promise: dict[str, Value] = {"starts_within": duration_text(seconds)}
        case DeliveredWithin(hours, seconds):
            promise = {"gpu_hours": _Unquoted(format(hours, "f")), "within": duration_text(seconds)}
    window = None if slo.window_seconds == DEFAULT_WINDOW else duration_text(slo.window_seconds)
    scope: dict[str, Value | None] = {
        "window": window,
        "team": slo.team,
        "pools": slo.pools or None,
        "gpus": slo.gpus,
        "priority": slo.priority,
    }
    return promise | {"target": percent_text(slo.target)} | _given(scope)


def _budget(budget: Budget) -> dict[str, Value]:
    written, default = _budget_keys(budget), _budget_keys(Budget(budget.amount))
    return {key: value for key, value in written.items() if key == "amount" or value != default[key]}


def _budget_keys(budget: Budget) -> dict[str, str]:
    return {
        "amount": _Unquoted(format(budget.amount, "f")),
        "every": budget.every,
        "warn_at": percent_text(budget.warn_at),
        "at_limit": budget.at_limit,
        "running": budget.running,
    }


# --- YAML -------------------------------------------------------------------------------------------------


class _Unquoted(str):
    """Text that is written without quotes: a price with its digits, a boolean."""

    __slots__ = ()


def _section(name: str, entries: Mapping[str, Mapping[str, Value]]) -> Iterator[str]:
    yield from ("", f"{name}:")
    for key, value in entries.items():
        short = f"  {_scalar(key)}: {_flow(value)}"
        if len(short) <= MAX_WIDTH and name != "clusters":
            yield short
        else:
            yield f"  {_scalar(key)}:"
            yield from _block(value, "    ")


def _block(keys: Mapping[str, Value], indent: str) -> Iterator[str]:
    """Write one key per line; a value that does not fit is folded inside its brackets."""
    for key, value in keys.items():
        line = f"{indent}{_scalar(key)}: {_flow(value)}"
        if len(line) <= MAX_WIDTH or isinstance(value, str | int):
            yield line
        else:
            yield from _folded(f"{indent}{_scalar(key)}: ", value, indent)


def _folded(start: str, value: Sequence[Value] | Mapping[str, Value], indent: str) -> Iterator[str]:
    is_mapping = isinstance(value, Mapping)
    items = (
        [f"{_scalar(k)}: {_flow(v)}" for k, v in value.items()]
        if isinstance(value, Mapping)
        else [_flow(v) for v in value]
    )
    yield start + ("{" if is_mapping else "[")
    line = f"{indent} "
    for item in items:
        if len(line) + len(item) + 2 > MAX_WIDTH and line.strip():
            yield line
            line = f"{indent} "
        line += f" {item},"
    yield line
    yield f"{indent}{'}' if is_mapping else ']'}"


def _flow(value: Value) -> str:
    match value:
        case _Unquoted():
            return str(value)
        case str():
            return _scalar(value)
        case int():
            return str(value)
        case Mapping():
            inner = ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case _:
            return f"[{', '.join(_flow(item) for item in value)}]"


def _scalar(text: str) -> str:
    """Quote a text for YAML: plain if that is safe, else in double quotes."""
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    return json.dumps(text)
