"""Write a Fleet as the text of a fleet file, without inherited or default values; remarks become comments."""

from __future__ import annotations

import json
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Final

from fairway.files.fleet.checks.pools import RESOURCES
from fairway.files.fleet.schema_prices import BEFORE
from fairway.files.schema.values import UNLIMITED, percent_text
from fairway.model.budget import Budget
from fairway.model.fleet import (
    Cluster,
    Connection,
    Fleet,
    KubernetesConnection,
    KubernetesPlace,
    Place,
    Pool,
    SlurmConnection,
    SlurmPlace,
    VirtualConnection,
    VirtualPlace,
)
from fairway.model.gpu import GpuType, Vendor
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import PriorityName, SliceName
from fairway.model.price import DEFAULT_COST_RULES, CostRules
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Grant, Limits, Priority, Supply, Team, TeamTree
from fairway.model.text import duration_text

WIDEST: Final = 110
_PLAIN: Final = re.compile(r"[A-Za-z0-9_/.]([A-Za-z0-9_./@+:=-]*[A-Za-z0-9_/.+])?")
# Would not be read as text, by Fairway or by other YAML parsers.
_NOT_TEXT: Final = re.compile(
    r"true|false|null|y|yes|n|no|on|off|[-+.]?[0-9][0-9_]*(\.[0-9]*)?(e[-+]?[0-9]+)?|0[xo][0-9a-f]+|\.(inf|nan)",
    re.IGNORECASE,
)

Value = str | int | Sequence["Value"] | Mapping[str, "Value"]
"""The value of a key: text, a number, a list or a mapping."""


def compose_fleet(fleet: Fleet, remarks: Iterable[tuple[str, str]] = ()) -> str:
    """Write `fleet` as a fleet file that reads back as an equal Fleet.

    It is equal if its teams and grants are in the order in which `files` puts them: children right after
    their parent, grants by pool. Each remark, (about, text), becomes a comment above the team or pool whose
    name `about` ends with, or at the top of the file.
    """
    return "\n".join(_Composer(fleet, remarks).lines()) + "\n"


class _Composer:
    def __init__(self, fleet: Fleet, remarks: Iterable[tuple[str, str]]) -> None:
        self.fleet = fleet
        self.tree = TeamTree(fleet.teams)
        self.names = {str(t.name) for t in fleet.teams} | {str(p.name) for p in fleet.pools}
        self.remarks: dict[str, list[str]] = {}
        for about, text in remarks:
            last = re.split(r"[\s/:]", about.strip())[-1] if about.strip() else ""
            place = last if last in self.names else ""
            self.remarks.setdefault(place, []).append(f"{about}: {text}" if about else text)

    def lines(self) -> Iterator[str]:
        fleet = self.fleet
        yield from self._comments("", "")
        yield from _block({"apiVersion": "fairway/v1alpha1", "kind": "Fleet", "name": fleet.name}, "")
        yield f"currency: {_word(fleet.currency)}"
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
            yield f"  {_word(pool.name)}:"
            yield from _block(_pool(pool), "    ")
        if fleet.priorities != DEFAULT_PRIORITIES:
            yield from _section("priorities", {p.name: _priority(p) for p in fleet.priorities})
        if fleet.fairness != Fairness():
            yield from ("", "fairness:", f"  half_life: {duration_text(fleet.fairness.half_life_seconds)}")
        if fleet.teams:
            yield from ("", "teams:")
        for team in self.tree.top():
            yield from self._team(team, None, "  ")
        if fleet.chosen_teams:
            told = {str(user): {"default_team": str(team)} for user, team in fleet.chosen_teams.items()}
            yield from _section("users", told)

    def _team(self, team: Team, parent: Team | None, indent: str) -> Iterator[str]:
        yield from self._comments(team.name, indent)
        inherited = parent.priorities if parent else tuple(p.name for p in self.fleet.priorities)
        said, children = _said(team, parent, inherited), self.tree.children(team)
        if not said and not children:
            yield f"{indent}{_word(team.name)}: {{}}"
            return
        yield f"{indent}{_word(team.name)}:"
        yield from _block(said, f"{indent}  ")
        if children:
            yield f"{indent}  teams:"
        for child in children:
            yield from self._team(child, team, f"{indent}    ")

    def _comments(self, place: str, indent: str) -> Iterator[str]:
        for text in self.remarks.get(place, ()):
            printable = "".join(c if c.isprintable() else " " for c in text)
            for line in textwrap.wrap(printable, WIDEST - len(indent) - 2) or [""]:
                yield f"{indent}# {line}"
        if not place and self.remarks.get(""):
            yield ""


# --- the parts --------------------------------------------------------------------------------------------


def _gpu_type(gpu: GpuType) -> Mapping[str, Value]:
    told: dict[str, Value] = {"memory": f"{gpu.memory_gb}GB"}
    if gpu.products:
        told["products"] = gpu.products
    if gpu.vendor is not Vendor.NVIDIA:
        told["vendor"] = gpu.vendor
    return told


def _cluster(cluster: Cluster) -> Mapping[str, Value]:
    folders = cluster.folders
    told = {
        "logs": folders.logs,
        "logs_seen_at": folders.logs_seen_at,
        "checkpoints": folders.checkpoints,
    }
    return {
        **_connection(cluster.connection),
        **{key: path for key, path in told.items() if path is not None},
        **({"overhead": _amounts(cluster.overhead)} if cluster.overhead else {}),
    }


def _connection(connection: Connection) -> Mapping[str, Value]:
    match connection:
        case SlurmConnection(url, user, jwt_key_file, token_file, tools):
            files = {"jwt_key_file": jwt_key_file, "token_file": token_file}
            credentials: dict[str, Value] = {key: path for key, path in files.items() if path is not None}
            if user != "fairway":
                credentials["user"] = user
            told: dict[str, Value] = {"engine": "slurm", "url": url, "credentials": credentials}
            return told | ({"tools": tools} if tools is not None else {})
        case KubernetesConnection(kubeconfig, context):
            where = {"kubeconfig": kubeconfig, "context": context}
            return {"engine": "kubernetes"} | {key: text for key, text in where.items() if text is not None}
        case VirtualConnection():
            return {"engine": "virtual"}


def _pool(pool: Pool) -> Mapping[str, Value]:
    told: dict[str, Value] = {"cluster": pool.cluster, "gpu": pool.gpu.name}
    if pool.gpus is not None:
        told["gpus"] = pool.gpus
    if pool.slices:
        told["slices"] = pool.slices
    told["capacity"] = pool.capacity
    told |= _pricing(pool)
    if pool.topology:
        told["topology"] = pool.topology
    return told | _place(pool.place, pool.gpu)


def _pricing(pool: Pool) -> dict[str, Value]:
    pricing, first = pool.pricing, _Number(format(pool.price, "f"))
    steps = {str(step.since): _Number(format(step.per_gpu_hour, "f")) for step in pricing.steps}
    # The first dated price also applies before its day, so `before` is only written if it differs.
    same = bool(pricing.steps) and pricing.steps[0].per_gpu_hour == pool.price
    told: dict[str, Value] = {"price": (steps if same else {BEFORE: first} | steps) if steps else first}
    if pricing.discount:
        told["discount"] = _Number(percent_text(pricing.discount))
    if pricing.commitments:
        told["commitments"] = [
            {
                "gpus": c.gpus,
                "price": _Number(format(c.per_gpu_hour, "f")),
                "from": str(c.since),
                "until": str(c.until),
            }
            for c in pricing.commitments
        ]
    if pricing.slices:
        told["slice_prices"] = _amounts(pricing.slices)
    return told


def _amounts(amounts: Mapping[SliceName, Decimal] | Mapping[str, Decimal]) -> dict[str, Value]:
    return {str(name): _Number(format(amount, "f")) for name, amount in amounts.items()}


def _cost(rules: CostRules) -> dict[str, Value]:
    usual = DEFAULT_COST_RULES
    told = {"timezone": rules.timezone, "idle": str(rules.idle), "overhead": str(rules.overhead)}
    same = {"timezone": usual.timezone, "idle": str(usual.idle), "overhead": str(usual.overhead)}
    return {key: word for key, word in told.items() if word != same[key]}


def _place(place: Place, gpu: GpuType) -> dict[str, Value]:
    match place:
        case SlurmPlace(partition, gres):
            return {"slurm": {"partition": partition} | ({"gres": gres} if gres is not None else {})}
        case KubernetesPlace():
            told: dict[str, Value] = {"node_labels": place.node_labels} if place.node_labels else {}
            if place.taints:
                told["taints"] = place.taints
            if place.resource != RESOURCES[gpu.vendor]:
                told["resource"] = place.resource
            return {"kubernetes": told}
        case VirtualPlace():
            size: dict[str, Value] = {"nodes": place.nodes, "gpus_per_node": place.gpus_per_node}
            if place.slices_per_gpu:
                size["slices_per_gpu"] = {str(name): n for name, n in place.slices_per_gpu.items()}
            if place.nodes_per_rack is not None:
                size["nodes_per_rack"] = place.nodes_per_rack
            return {"virtual": size}


def _priority(priority: Priority) -> Mapping[str, Value]:
    told: dict[str, Value] = {"rank": priority.rank}
    if priority.default:
        told["default"] = _Number("true")
    if priority.preemptible:
        told["preemptible"] = "always"
    return told


def _said(team: Team, parent: Team | None, inherited: tuple[PriorityName, ...]) -> dict[str, Value]:
    """Return the keys of a team whose values are neither inherited nor defaults."""
    told: dict[str, Value] = {}
    if team.share != 1:
        told["share"] = team.share
    guarantee, borrow = _granted(team.grants, parent)
    if guarantee:
        told["guarantee"] = guarantee
    if borrow:
        told["borrow"] = borrow
    limits = _limits(team.limits, parent.limits if parent else Limits())
    if limits:
        told["limits"] = limits
    if team.priorities != inherited:
        told["priorities"] = team.priorities
    if team.members:
        told["members"] = team.members
    if team.budget is not None:
        told["budget"] = _budget(team.budget)
    if team.draining and not (parent and parent.draining):
        told["draining"] = _Number("true")
    return told


def _granted(grants: Sequence[Grant], parent: Team | None) -> tuple[dict[str, Value], dict[str, Value]]:
    above: set[Supply] = {grant.supply for grant in parent.grants} if parent else set()
    has = {grant.supply: grant for grant in grants if grant.ceiling != 0}
    guarantee: dict[str, Value] = {str(g.supply): g.guarantee for g in has.values() if g.guarantee}
    borrow: dict[str, Value] = {}
    for grant in has.values():
        if grant.borrow is not None:
            borrow[str(grant.supply)] = grant.borrow
        elif not grant.guarantee and grant.supply not in above:
            borrow[str(grant.supply)] = UNLIMITED
    closed = (grant.supply for grant in parent.grants if grant.supply not in has) if parent else ()
    return guarantee, borrow | {str(supply): 0 for supply in closed}


def _limits(limits: Limits, inherited: Limits) -> dict[str, Value]:
    job: dict[str, Value] = {}
    if limits.job_gpus != inherited.job_gpus:
        job["gpus"] = UNLIMITED if limits.job_gpus is None else limits.job_gpus
    if limits.job_seconds != inherited.job_seconds:
        job["time"] = UNLIMITED if limits.job_seconds is None else duration_text(limits.job_seconds)
    told: dict[str, Value] = {"job": job} if job else {}
    if limits.user_gpus != inherited.user_gpus:
        told["user"] = {"gpus": UNLIMITED if limits.user_gpus is None else limits.user_gpus}
    return told


def _budget(budget: Budget) -> dict[str, Value]:
    told, usual = _budget_words(budget), _budget_words(Budget(budget.amount))
    return {key: value for key, value in told.items() if key == "amount" or value != usual[key]}


def _budget_words(budget: Budget) -> dict[str, str]:
    return {
        "amount": _Number(format(budget.amount, "f")),
        "every": budget.every,
        "warn_at": percent_text(budget.warn_at),
        "at_limit": budget.at_limit,
        "running": budget.running,
    }


# --- YAML -------------------------------------------------------------------------------------------------


class _Number(str):
    """Text that is written without quotes: a price with its digits, a boolean."""

    __slots__ = ()


def _section(name: str, things: Mapping[str, Mapping[str, Value]]) -> Iterator[str]:
    yield from ("", f"{name}:")
    for key, told in things.items():
        short = f"  {_word(key)}: {_flow(told)}"
        if len(short) <= WIDEST and name != "clusters":
            yield short
        else:
            yield f"  {_word(key)}:"
            yield from _block(told, "    ")


def _block(told: Mapping[str, Value], indent: str) -> Iterator[str]:
    """Write one key per line; a value that does not fit is folded inside its brackets."""
    for key, value in told.items():
        line = f"{indent}{_word(key)}: {_flow(value)}"
        if len(line) <= WIDEST or isinstance(value, str | int):
            yield line
        else:
            yield from _folded(f"{indent}{_word(key)}: ", value, indent)


def _folded(start: str, value: Sequence[Value] | Mapping[str, Value], indent: str) -> Iterator[str]:
    is_mapping = isinstance(value, Mapping)
    items = (
        [f"{_word(k)}: {_flow(v)}" for k, v in value.items()]
        if isinstance(value, Mapping)
        else [_flow(v) for v in value]
    )
    yield start + ("{" if is_mapping else "[")
    line = f"{indent} "
    for item in items:
        if len(line) + len(item) + 2 > WIDEST and line.strip():
            yield line
            line = f"{indent} "
        line += f" {item},"
    yield line
    yield f"{indent}{'}' if is_mapping else ']'}"


def _flow(value: Value) -> str:
    match value:
        case _Number():
            return str(value)
        case str():
            return _word(value)
        case int():
            return str(value)
        case Mapping():
            inner = ", ".join(f"{_word(key)}: {_flow(item)}" for key, item in value.items())
            return f"{{ {inner} }}" if inner else "{}"
        case _:
            return f"[{', '.join(_flow(item) for item in value)}]"


def _word(text: str) -> str:
    """Quote a text for YAML: plain if that is safe, else in double quotes."""
    if _PLAIN.fullmatch(text) and not _NOT_TEXT.fullmatch(text):
        return text
    return json.dumps(text)
