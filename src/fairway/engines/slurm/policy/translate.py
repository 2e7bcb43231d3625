"""Translate a fleet into Slurm's accounting: QOS, accounts, associations, users. Pure.

A guarantee is the limit of a team's own QOS, which preempts lent jobs; a job lists that QOS and the ones it
may fall back on, and Slurm tries them by their Priority. Guarantee plus borrow is a limit on the account.
The two count different resources on purpose: a QOS's limit hides an account's on the same one, so a QOS
counts `gres/gpu` and an account `gres/gpu:TYPE`. Of GPUs that jobs share, a QOS counts `gres/shard` or
`gres/mps`, and an account has no limit: Slurm does not count shares by type.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.partitions import SupplySite, sites, teams_here
from fairway.engines.slurm.policy.site_fields import SiteFields
from fairway.model.budget import AtLimit, Hold
from fairway.model.fleet import Fleet
from fairway.model.names import PriorityName, TeamName
from fairway.model.team import Supply, Team, TeamTree
from fairway.policy.objects import FoundObject, ObjectKey, Value, WantedObject

UNTYPED: Final = "gres/gpu"

# A list of QOS is tried by Priority, the highest first.
LOW_PRIORITY: Final = 1
LENT_PRIORITY: Final = 10
KIN_PRIORITY: Final = 20
OWN_PRIORITY: Final = 100
URGENT_PRIORITY: Final = 200
"""The accounting shows a waiting job under the QOS of its list with the highest Priority."""

ANY_NUMBER_OF_JOBS: Final = 1_000_000_000
"""The limit a QOS sets against the gate's 0: with `OverPartQOS` its own limit counts instead."""


@dataclass(frozen=True, slots=True)
class PolicyContext:
    """A fleet on one cluster, with the lookups that every query needs done once."""

    fleet: Fleet
    sites: tuple[SupplySite, ...]
    teams: tuple[Team, ...]
    tree: TeamTree
    settings: Mapping[str, str]
    """What was found of the cluster's configuration; empty if it is not known."""
    may_be_low_only: bool
    """Whether some team's spent budget allows only its low jobs, now or one day."""

    @classmethod
    def of(cls, fleet: Fleet, cluster: str, settings: Mapping[str, str]) -> PolicyContext:
        places = sites(fleet, cluster, settings)
        low_only = any(
            t.hold is Hold.LOW_ONLY or (t.budget is not None and t.budget.at_limit is AtLimit.LOW_ONLY)
            for t in fleet.teams
        )
        return cls(fleet, places, teams_here(fleet, places), TeamTree(fleet.teams), settings, low_only)

    @property
    def partitions(self) -> tuple[str, ...]:
        """Every partition over a pool's nodes that a job may name, without Fairway's own."""
        return tuple(dict.fromkeys(p for site in self.sites for p in site.partitions))

    def helper_partition(self, partitions: str) -> str | None:
        """Return where a small job of Fairway's own runs beside a job. Returns None if it is in no pool."""
        first = partitions.partition(",")[0]
        for site in self.sites:
            if first in (*site.partitions, *map(names.lent_partition, site.partitions)):
                return site.lent_partition
        return None

    def partition_qos(self, partition: str) -> str:
        """Return the QOS that the site has assigned to a partition; empty if there is none, or the gate.

        Once the gate is there in its place, the second partition still has it.
        """
        for name in (partition, names.lent_partition(partition)):
            assigned = self.settings.get(f"partition/{name}/QOS") or ""
            if assigned and not names.is_gate(assigned):
                return assigned
        return ""

    def gate(self, partition: str) -> str:
        """Return the QOS of a pool's own partition."""
        return names.gate_qos(partition) if self.partition_qos(partition) else names.GATE

    def may_use(self, team: Team, supply: Supply) -> bool:
        """Return whether the team may ever hold any of it."""
        grant = team.grant(supply)
        return grant is not None and grant.ceiling != 0

    def own_guarantee(self, team: Team, supply: Supply) -> int:
        """Return the team's guarantee less what it promised to its child teams."""
        grant = team.grant(supply)
        return 0 if grant is None else grant.guarantee - self.tree.guaranteed_to_children(team, supply)

    def kin_guarantee(self, team: Team, supply: Supply) -> int:
        """Return its children's guarantees. Returns 0 if nobody else in the family could use them."""
        children = self.tree.children(team)
        if len(children) + bool(team.members) < 2:
            return 0
        return self.tree.guaranteed_to_children(team, supply)

    def qos(self, team: Team, supply: Supply) -> tuple[str, ...]:
        """Return the QOS that a team's jobs on a supply may run as, most guaranteed first, without low."""
        family = (team, *self.tree.ancestors(team))
        return (
            *(names.own_qos(t.name, supply) for t in family if self.own_guarantee(t, supply) > 0),
            *(names.kin_qos(t.name, supply) for t in family if self.kin_guarantee(t, supply) > 0),
            names.LENT,
        )

    def account_of(self, team: TeamName) -> str:
        return self.tree[team].account_name

    def depth(self, team: Team) -> int:
        return sum(1 for _ in self.tree.ancestors(team))

    def has_low(self, team: Team) -> bool:
        """Return whether the team may use a preemptible priority."""
        return any(self.fleet.priority(name).preemptible for name in team.priorities)

    def has_urgent(self, team: Team) -> bool:
        """Return whether the team may use a priority above the default."""
        return any(self.is_urgent(name) for name in team.priorities)

    def is_urgent(self, name: PriorityName) -> bool:
        """Return whether jobs of this priority may preempt those of the default one."""
        priority = self.fleet.priority(name)
        return not priority.preemptible and priority.rank > self.fleet.default_priority.rank


def wanted_objects(context: PolicyContext, found: Iterable[FoundObject] = ()) -> tuple[WantedObject, ...]:
    """Return every object that the fleet needs in one cluster's accounting.

    What the site has set on `found` accounts and a fleet cannot express is wanted as it is.
    """
    site = SiteFields.of(found, context.settings)
    qos = (*_qos(context), *_gates(context, site))
    accounts = list(_accounts(context, {o.key for o in qos}))
    qos_lists = {o.team: o.fields["QOS"] for o in accounts}
    users = dict.fromkeys(user for team in context.teams for user in team.members)
    return site.keep(
        (
            *qos,
            *accounts,
            *(WantedObject(names.user_key(user), {}, shared=True) for user in users),
            *(o for team in context.teams for o in _members(context, team, qos_lists[team.name])),
        ),
        {s.tres for s in context.sites if s.is_limited},
        counts_all=all(s.is_limited for s in context.sites),
        stoppable={team.name for team in context.teams if _may_stop(team)},
        partition_qos=_partition_qos(context),
    )


def _partition_qos(context: PolicyContext) -> dict[str, list[str]]:
    """Return the QOS of the site on the partitions of each GPU resource; empty for a partition without."""
    partitions: dict[str, dict[str, str]] = {}
    for site in context.sites:
        if site.is_limited:
            here = partitions.setdefault(site.tres, {})
            here |= {partition: context.partition_qos(partition) for partition in site.partitions}
    return {tres: list(of_tres.values()) for tres, of_tres in partitions.items()}


def _may_stop(team: Team) -> bool:
    """Return whether the team is stopped, or will be when its budget is spent."""
    ends = team.budget is not None and team.budget.at_limit is not AtLimit.WARN
    return team.draining or team.hold is not None or ends


def _gates(context: PolicyContext, site: SiteFields) -> Iterator[WantedObject]:
    """Yield a gate for each partition that has a QOS of the site: one with the same limits, that is shut."""
    for partition in context.partitions:
        name, gate = context.partition_qos(partition), names.gate_qos(partition)
        if not name or (found := site.objects.get(names.qos_key(name))) is None:
            continue
        limits = {
            field: value
            for field, value in found.fields.items()
            if field not in ("Priority", "Flags", "Preempt", "PreemptMode", "UsageFactor", "GraceTime")
        }
        yield WantedObject(names.qos_key(gate), {**limits, "MaxJobsPerAccount": 0})


def _qos(context: PolicyContext) -> Iterator[WantedObject]:
    gate, low, lent = (names.qos_key(name) for name in (names.GATE, names.LOW, names.LENT))
    yield WantedObject(gate, {"MaxJobsPerAccount": 0})
    # No job runs as the gate. The API cannot empty a list, so one that somebody added to could not be mended.
    yield WantedObject(
        low,
        {
            "Priority": LOW_PRIORITY,
            "Flags": ("NoReserve",),
            "Preempt": (names.GATE,),
            # Hides the GrpJobs=0 of an account whose budget is spent: low jobs start all the same.
            **({"GrpJobs": ANY_NUMBER_OF_JOBS} if context.may_be_low_only else {}),
        },
        after=(gate,),
    )
    yield WantedObject(lent, {"Priority": LENT_PRIORITY, "Preempt": (names.LOW,)}, after=(low,))
    yield WantedObject(
        names.qos_key(names.WAITING_URGENT),
        {"Priority": URGENT_PRIORITY, "Preempt": (names.GATE,), "MaxJobsPerAccount": 0},
        after=(gate,),
    )
    for site in context.sites:
        yield from _guarantees(context, site)


def _guarantees(context: PolicyContext, site: SupplySite) -> Iterator[WantedObject]:
    supply = site.supply
    teams = [t for t in context.teams if context.may_use(t, supply)]
    families = [t for t in teams if context.kin_guarantee(t, supply) > 0]
    preempted = _Preempted.of((names.LENT, names.LOW))
    for team in families:
        name, limit = names.kin_qos(team.name, supply), context.kin_guarantee(team, supply)
        counted = {f"GrpTRES.{site.untyped}": limit}
        yield _guarantee(name, team.name, KIN_PRIORITY + context.depth(team), counted, preempted)
    preempted = _Preempted.of((*preempted.qos, *(names.kin_qos(t.name, supply) for t in families)))
    for team in teams:
        if (limit := context.own_guarantee(team, supply)) > 0:
            name, priority = names.own_qos(team.name, supply), OWN_PRIORITY + context.depth(team)
            counted = {f"GrpTRES.{site.untyped}": limit}
            yield _guarantee(name, team.name, priority, counted, preempted)


@dataclass(frozen=True, slots=True)
class _Preempted:
    """The QOS that a guarantee preempts: one value for all guarantees of a pool, however many there are."""

    qos: tuple[str, ...]
    keys: tuple[ObjectKey, ...]

    @classmethod
    def of(cls, qos: Iterable[str]) -> _Preempted:
        ordered = tuple(sorted(qos))
        return cls(ordered, tuple(map(names.qos_key, ordered)))


def _guarantee(
    name: str, team: TeamName, priority: int, limit: Mapping[str, int], preempted: _Preempted
) -> WantedObject:
    fields: dict[str, Value] = {
        "Priority": priority,
        "Flags": ("OverPartQOS",),
        "Preempt": preempted.qos,
        "MaxJobsPerAccount": ANY_NUMBER_OF_JOBS,
        **limit,
    }
    return WantedObject(names.qos_key(name), fields, after=preempted.keys, team=team)


def _accounts(context: PolicyContext, qos: Collection[ObjectKey]) -> Iterator[WantedObject]:
    for team in context.teams:
        listed = {
            q for s in context.sites if context.may_use(team, s.supply) for q in context.qos(team, s.supply)
        }
        listed |= {names.LOW} if context.has_low(team) else set()
        listed |= {names.WAITING_URGENT} if context.has_urgent(team) else set()
        qos_list = tuple(sorted(q for q in listed if names.qos_key(q) in qos))
        fields: dict[str, Value] = {
            "Parent": context.account_of(team.parent) if team.parent else names.ROOT_ACCOUNT,
            "Fairshare": team.share,
            "QOS": qos_list,
            **_limits(context, team),
            **_stops(context, team),
        }
        parents = () if team.parent is None else (names.account_key(context.account_of(team.parent)),)
        after = (*parents, *map(names.qos_key, qos_list))
        yield WantedObject(names.account_key(team.account_name), fields, after=after, team=team.name)


def _stops(context: PolicyContext, team: Team) -> dict[str, Value]:
    """Return the limits that stop a team's jobs from starting. Slurm checks them before it preempts.

    A QOS's own limit hides an account's of the same kind. So `GrpJobs` does not bind low jobs where low is
    exempt from it, and `MaxJobs` binds only low and lent jobs, as guarantees have a limit of jobs against the
    gate: only both together stop everything.
    """
    all_jobs: dict[str, Value] = {"GrpJobs": 0, **({"MaxJobs": 0} if context.may_be_low_only else {})}
    if team.draining:
        return {**all_jobs, "GrpSubmit": 0}
    match team.hold:
        case Hold.STOP:
            return all_jobs
        case Hold.LOW_ONLY:
            return {"GrpJobs": 0}
        case None:
            return {}


def _limits(context: PolicyContext, team: Team) -> dict[str, Value]:
    fields: dict[str, Value] = {}
    for site in context.sites:
        if not site.is_limited:
            continue  # a limit on the untyped resource would be hidden by the QOS's
        ceiling = ceiling_of(context, team, site)
        if ceiling is not None:
            fields[f"GrpTRES.{site.tres}"] = ceiling
        if team.limits.job_gpus is not None:
            fields[f"MaxTRESPerJob.{site.tres}"] = team.limits.job_gpus
    if team.limits.job_seconds is not None:
        fields["MaxWall"] = -(-team.limits.job_seconds // 60)
    return fields


def ceiling_of(context: PolicyContext, team: Team, site: SupplySite) -> int | None:
    """Return the most the team may hold of this site's resource. Returns None if it has no limit.

    Pools of one GRES type share one resource, and so the sum of their ceilings.
    """
    ceilings: list[int] = []
    for same in (s for s in context.sites if s.tres == site.tres):
        grant = team.grant(same.supply)
        ceiling = 0 if grant is None else grant.ceiling
        if ceiling is None:
            return None
        ceilings.append(ceiling)
    return sum(ceilings)


def _members(context: PolicyContext, team: Team, qos_list: Value) -> Iterator[WantedObject]:
    """Yield members. Their QOS list is explicit: the API pins what a user inherits at its first change."""
    fields: dict[str, Value] = {"Fairshare": 1, "QOS": qos_list}
    if (limit := team.limits.user_gpus) is not None:
        fields |= {f"GrpTRES.{site.tres}": limit for site in context.sites if site.is_limited}
    for user in team.members:
        yield WantedObject(
            names.association_key(team.account_name, user),
            fields,
            after=(names.account_key(team.account_name), names.user_key(user)),
            team=team.name,
        )
