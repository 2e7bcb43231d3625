"""Translate a fleet into the objects of one Kubernetes cluster with Kueue. Pure.

A team is a namespace with a queue named `main`, in front of a ClusterQueue that holds its guarantee. A
team with child teams, or whose ceiling must cover its low jobs too, is a Cohort around them. Low jobs have a
ClusterQueue of their own, `TEAM.low`, with no guarantee and no weight: it never preempts other jobs, and
every queue within its guarantee preempts it. It is as far out in the tree as the team's ceilings allow.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from typing import Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import TEAM, Json, ObjectKind
from fairway.engines.kubernetes.nodes.devices import claimed_resources, is_claimed, resource
from fairway.engines.kubernetes.policy.admission_policies import (
    KUEUES_QUEUE,
    QUEUE,
    TOPOLOGY,
    AdmissionFacts,
    workload_policy,
)
from fairway.engines.kubernetes.policy.advice import (
    advise,
    can_queue_pods,
    existing_notices,
    frameworks,
    notices,
    rejected_workloads,
)
from fairway.engines.kubernetes.policy.device_classes import class_advice, class_notices
from fairway.engines.kubernetes.policy.existing import (
    GPU_CLAIMS,
    annotation,
    existing_in,
    left_alone,
)
from fairway.engines.kubernetes.policy.fields import Fields, flatten
from fairway.engines.kubernetes.policy.flavors import flavor_notices, flavors_of_others, place_pools
from fairway.engines.kubernetes.policy.mutating_policies import (
    ANYWHERE,
    ANYWHERE_RESOURCE,
    queue_policy,
    topology_policy,
)
from fairway.engines.kubernetes.policy.pod_policies import pod_policies
from fairway.engines.kubernetes.policy.quota import Quota, ResourceGroups
from fairway.engines.kubernetes.policy.site_queues import site_queue_notices, site_queues
from fairway.engines.kubernetes.policy.users import (
    can_assign_queues,
    has_user_queues,
    user_queues_annotation,
    user_slugs,
)
from fairway.model.budget import Hold
from fairway.model.fleet import ExistingWorkloads, Fleet, KubernetesConnection, KubernetesPlace, Pool
from fairway.model.names import ClusterName, TeamName
from fairway.model.team import Grant, Priority, Supply, Team, TeamTree
from fairway.policy.objects import FoundPolicy, GpuWorkload, Notice, ObjectKey, Translation, WantedObject

ROOT: Final = "fairway.fleet"
"""The Cohort of all teams. Names of teams have no dots, so no team can have this name."""
MEMBER_ROLE: Final = "fairway-member"
RBAC: Final = "rbac.authorization.k8s.io"
MEMBERS: Final = "fairway-members"
OWN_ROLES: Final = ("fairway-run", "fairway-logs")
"""Roles of Fairway's own accounts, which it binds in the namespaces of teams and nowhere else."""
CEILING: Final = "fairway-ceiling"


def bind_to_setting(role: str) -> str:
    """Return the setting that has the account to bind a role of Fairway's own to."""
    return f"rbac.{role}"


QuotaOf = Callable[[Supply], Quota | None]


def translate(fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> Translation:
    """Return every object `fleet` needs on `cluster`, what Kueue cannot keep of it, and what to configure."""
    translator = _Translator(fleet, cluster, found)
    objects = tuple(translator.objects())
    of_site = tuple(translator.site_queues(objects))
    return Translation(
        objects=(*objects, *of_site),
        notices=(
            *notices(fleet, translator.teams, translator.capped(), found),
            *site_queue_notices(of_site, found),
            *translator.existing_notices(),
            *(flavor_notices(translator.placements, found) if translator.teams else ()),
            *(class_notices(translator.pools, found.settings) if translator.teams else ()),
        ),
        advice=(*advise(found), *class_advice(translator.pools, found.settings)) if translator.teams else (),
        rejected=translator.rejected(),
    )


def own_queues(fleet: Fleet) -> tuple[Priority, ...]:
    """Return priorities whose jobs have a queue of their own: preemptible ones, as a rule."""
    default = fleet.default_priority
    return tuple(p for p in fleet.priorities if p.preemptible != default.preemptible)


def low_queue(team: str) -> str:
    """Return the ClusterQueue of a team's preemptible jobs."""
    return f"{team}.low"


class _Translator:
    """One translation, with the lookups that every part of it needs."""

    def __init__(self, fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> None:
        self.fleet = fleet
        self.found = found
        self.preemptible = frozenset(p.name for p in fleet.priorities if p.preemptible)
        self.pools = tuple(p for p in fleet.pools_of(cluster) if isinstance(p.place, KubernetesPlace))
        self.supplies = {s: p for p in self.pools for s in p.supplies}
        self.tree = TeamTree(fleet.teams)
        self.granted = {t.name: self._granted(t) for t in fleet.teams}
        self.teams = tuple(t for t in fleet.teams if self.granted[t.name])
        self.found_by_key = {o.key: o for o in found.objects}
        self.placements = place_pools(self.pools, [t.name for t in self.teams], found)
        self.flavors = {name: placement.flavor for name, placement in self.placements.items()}
        self.resource_groups = ResourceGroups(self.pools, self.flavors)
        connection = fleet.cluster(cluster).connection
        self.leaves_existing = (
            not isinstance(connection, KubernetesConnection)
            or connection.existing_workloads is ExistingWorkloads.LEAVE
        )
        self.existing = self._existing()
        self.children = {
            t.name: tuple(c for c in self.tree.children(t) if self.granted[c.name]) for t in self.teams
        }

    def _existing(self) -> dict[TeamName, tuple[GpuWorkload, ...]]:
        """Return the GPU workloads in each team's namespace from before the team was governed."""
        found: dict[str, list[GpuWorkload]] = {}
        for workload in self.found.workloads:
            found.setdefault(workload.namespace, []).append(workload)
        return {
            team.name: existing_in(
                team.name,
                self.found_by_key.get(ObjectKey(kinds.NAMESPACE.name, team.name)),
                found.get(team.name, ()),
            )
            for team in self.teams
        }

    def existing_notices(self) -> Iterator[Notice]:
        """Yield the notices about GPU workloads that are left alone or will be queued."""
        if self.teams:
            yield from existing_notices(*self._uncounted(), self.found, leaves=self.leaves_existing)

    def rejected(self) -> Notice | None:
        """Return what to say of running workloads whose next pod would be rejected."""
        if self.leaves_existing or not self.teams:
            return None
        return rejected_workloads(*self._uncounted(), self.found)

    def _uncounted(self) -> tuple[list[GpuWorkload], list[GpuWorkload]]:
        """Return the workloads that no queue counts in the namespaces of teams, and outside them."""
        inside = [w for workloads in self.existing.values() for w in workloads]
        return inside, [w for w in self.found.workloads if w.namespace not in self.existing]

    def objects(self) -> Iterator[WantedObject]:
        if not self.teams:
            return  # no team has a grant on this cluster, so nothing is governed
        yield from self._pool_objects()
        for priority in self.fleet.priorities:
            value = priority.rank - self.fleet.default_priority.rank
            yield _wanted(kinds.PRIORITY_CLASS, priority.name, {"value": value})
        yield _wanted(kinds.COHORT, ROOT, {"spec": self._root()}, after=self._flavor_keys())
        for team in self.teams:
            yield from self._team_objects(team)
        yield from self._admission_policies()

    def _admission_policies(self) -> Iterator[WantedObject]:
        facts = AdmissionFacts(
            resources=tuple(sorted(claimed_resources(self.pools))),
            queued=tuple(p.name for p in own_queues(self.fleet)),
            default=self.fleet.default_priority.name,
            assigns_queues=can_assign_queues(self.found),
            claims=self.found.settings.get(GPU_CLAIMS, "no"),
            left_alone=left_alone(self.found, [t.name for t in self.teams]) if self.leaves_existing else (),
            frameworks=frameworks(self.found),
        )
        for name, policy, binding in (workload_policy(facts), *pod_policies(facts)):
            yield _wanted(kinds.ADMISSION_POLICY, name, {"spec": policy})
            after = (ObjectKey(kinds.ADMISSION_POLICY.name, name),)
            yield _wanted(kinds.ADMISSION_BINDING, name, {"spec": binding}, after=after)
        for name, policy, binding in (queue_policy(facts), topology_policy(facts)):
            if facts.assigns_queues:
                yield _wanted(kinds.MUTATING_POLICY, name, {"spec": policy})
                after = (ObjectKey(kinds.MUTATING_POLICY.name, name),)
                yield _wanted(kinds.MUTATING_BINDING, name, {"spec": binding}, after=after)

    def site_queues(self, objects: Collection[WantedObject]) -> Iterator[WantedObject]:
        """Yield the site's queues that jobs without GPUs go on using; `objects` are all others."""
        if can_assign_queues(self.found):  # else GPU jobs that name one would wait there
            own = {o.key for o in objects if o.key.kind == kinds.LOCAL_QUEUE.name}
            resources = claimed_resources(self.pools)
            yield from site_queues({t.name for t in self.teams}, self.found, resources, own)

    def capped(self) -> tuple[Team, ...]:
        """Return teams whose low jobs count against their own ceiling, and so may use their guarantee."""
        return tuple(
            t
            for t in self.teams
            if self._cohort_of_low(t) == t.name
            and self._has_low(t)
            and any(g.guarantee for g in self.granted[t.name].values())
        )

    # pools

    def _pool_objects(self) -> Iterator[WantedObject]:
        for placement in self.placements.values():
            topologies: tuple[ObjectKey, ...] = ()
            if placement.topology:
                topologies = (ObjectKey(kinds.TOPOLOGY.name, placement.topology),)
                yield WantedObject(topologies[0], placement.topology_fields)
            flavor = ObjectKey(kinds.FLAVOR.name, placement.flavor)
            yield WantedObject(flavor, placement.flavor_fields, topologies)
        yield from flavors_of_others(self.placements, [t.name for t in self.teams], self.found)
        if can_assign_queues(self.found):
            yield _wanted(kinds.FLAVOR, ANYWHERE, {})

    def _flavor_keys(self) -> tuple[ObjectKey, ...]:
        return tuple(ObjectKey(kinds.FLAVOR.name, name) for name in self.flavors.values())

    # the tree of quota

    def _root(self) -> Json:
        """Return the root cohort's spec: it has the quota that is not guaranteed to any team, to be lent."""
        groups = self.resource_groups.groups(lambda s: Quota(self._unguaranteed(s)))
        # The API server's own default weight is written out: one that somebody else set cannot be unset.
        return {"resourceGroups": groups, "fairSharing": {"weight": 1}}

    def _unguaranteed(self, supply: Supply) -> int:
        promised = sum(g.guarantee for t in self.tree.top() if (g := self.granted[t.name].get(supply)))
        return max(0, capacity(self.supplies[supply], supply, self.found.settings) - promised)

    def _granted(self, team: Team) -> Mapping[Supply, Grant]:
        """Return the team's grants on this cluster, without those that mean no access at all."""
        return {g.supply: g for g in team.grants if g.supply in self.supplies and g.ceiling != 0}

    def _has_ceiling(self, team: Team) -> bool:
        return any(self._binds(g) for g in self.granted[team.name].values())

    def _binds(self, grant: Grant) -> bool:
        """Return whether a ceiling has an effect: one as large as the pool has none."""
        devices = capacity(self.supplies[grant.supply], grant.supply, self.found.settings)
        return grant.ceiling is not None and not 0 < devices <= grant.ceiling

    def _has_low(self, team: Team) -> bool:
        return not self.preemptible.isdisjoint(team.priorities)

    def _is_cohort(self, team: Team) -> bool:
        return (self._has_ceiling(team) and self._has_low(team)) or self._is_shared(team)

    def _by_user(self, team: Team) -> bool:
        return has_user_queues(team, self.found)

    def _is_shared(self, team: Team) -> bool:
        """Return whether several queues share its guarantee: then its cohort has it, for all of them."""
        return bool(self.children[team.name]) or self._by_user(team)

    def _cohort_of_low(self, team: Team) -> str:
        """Return the innermost cohort whose ceiling the team's low jobs count against, else the fleet's."""
        levels = (team, *self.tree.ancestors(team))
        return next((level.name for level in levels if self._has_ceiling(level)), ROOT)

    def _team_objects(self, team: Team) -> Iterator[WantedObject]:
        namespace = ObjectKey(kinds.NAMESPACE.name, team.name)
        yield _wanted(kinds.NAMESPACE, team.name, {"metadata": self._namespace(team)}, team)
        cohort = _cohort(team.parent or ROOT)
        has_cohort = self._is_cohort(team)
        if has_cohort:
            spec = {**self._cohort(team), "parentName": cohort.name}
            yield _wanted(kinds.COHORT, team.name, {"spec": spec}, team, after=(cohort, *self._flavor_keys()))
            cohort = _cohort(team.name)
        weight = 1 if has_cohort else team.share
        yield self._queue(team, team.name, cohort, self._own_quota(team, has_cohort), weight)
        if self._has_low(team):
            cohort = _cohort(self._cohort_of_low(team))
            quota = self._quota(team, lambda grant: Quota(0, grant.ceiling))
            yield self._queue(team, low_queue(team.name), cohort, quota, 0)
        if self._by_user(team):
            yield from self._user_queues(team)
        yield from self._local_queues(team, namespace)
        yield from self._quota_and_members(team, namespace)

    def _user_queues(self, team: Team) -> Iterator[WantedObject]:
        """Yield for each member a cohort that holds no more than a user may, with their queues in it."""
        limited = self._quota(team, lambda _: Quota(0, team.limits.user_gpus))
        for slug in user_slugs(team).values():
            name = f"{team.name}.{slug}"
            spec = {
                "parentName": team.name,
                "resourceGroups": self.resource_groups.groups(limited),
                "fairSharing": {"weight": 1},
            }
            after = (_cohort(team.name), *self._flavor_keys())
            yield _wanted(kinds.COHORT, name, {"spec": spec}, team, after=after)
            yield self._queue(team, name, _cohort(name), limited, 1)
            if self._has_low(team):
                yield self._queue(team, low_queue(name), _cohort(name), limited, 0)

    def _cohort(self, team: Team) -> Json:
        def quota(grant: Grant) -> Quota:
            own = 0  # the team's own queue has the guarantee
            if self._is_shared(team):
                children = (self.granted[c.name].get(grant.supply) for c in self.children[team.name])
                own = grant.guarantee - sum(g.guarantee for g in children if g)
            return Quota(own, grant.borrow)

        groups = self.resource_groups.groups(self._quota(team, quota))
        return {"resourceGroups": groups, "fairSharing": {"weight": team.share}}

    def _own_quota(self, team: Team, has_cohort: bool) -> QuotaOf:
        shared = self._is_shared(team)
        return self._quota(
            team,
            lambda grant: Quota(0 if shared else grant.guarantee, None if has_cohort else grant.borrow),
        )

    def _quota(self, team: Team, quota_of_grant: Callable[[Grant], Quota]) -> QuotaOf:
        """Return the quota of each supply that a team has a grant on."""
        grants = self.granted[team.name]
        return lambda supply: quota_of_grant(grants[supply]) if supply in grants else None

    def _queue(self, team: Team, name: str, cohort: ObjectKey, quota: QuotaOf, weight: int) -> WantedObject:
        groups, after = self.resource_groups.groups(quota), (cohort, *self._flavor_keys())
        if can_assign_queues(self.found):  # and so Workloads ask for places, from before they need to
            groups.append(_ANYWHERE)
            anywhere = ObjectKey(kinds.FLAVOR.name, ANYWHERE)
            after = (*after, anywhere, ObjectKey(kinds.MUTATING_BINDING.name, TOPOLOGY))
        spec = {
            "cohortName": cohort.name,
            "namespaceSelector": {"matchLabels": {TEAM: team.name}},
            "resourceGroups": groups,
            "fairSharing": {"weight": weight},
        }
        fields = flatten(kinds.CLUSTER_QUEUE, {"spec": spec}) | (_EVERY_QUEUE if weight else _EVERY_LOW_QUEUE)
        key = ObjectKey(kinds.CLUSTER_QUEUE.name, name)
        return WantedObject(key, fields, after, team.name)

    # objects in the team's namespace

    def _namespace(self, team: Team) -> Json:
        limits = team.limits
        annotations = {
            kinds.PRIORITIES: ",".join(team.priorities),
            kinds.DEVICES: ",".join(sorted({resource(s, self.supplies[s]) for s in self.granted[team.name]})),
            kinds.JOB_GPUS: limits.job_gpus,
            kinds.JOB_SECONDS: limits.job_seconds,
            kinds.USER_GPUS: limits.user_gpus,
            kinds.USER_QUEUES: user_queues_annotation(team) if self._by_user(team) else None,
            kinds.EXISTING: annotation(self.existing[team.name]) if self.leaves_existing else None,
        }
        return {
            "labels": {TEAM: team.name},
            "annotations": {key: str(value) for key, value in annotations.items() if value is not None},
        }

    def _local_queues(self, team: Team, namespace: ObjectKey) -> Iterator[WantedObject]:
        default = self.fleet.default_priority
        queues = {QUEUE if can_assign_queues(self.found) else KUEUES_QUEUE: default.preemptible}
        queues |= {p.name: p.preemptible for p in own_queues(self.fleet) if p.name in team.priorities}
        draining = team.draining or any(t.draining for t in self.tree.ancestors(team))
        slugs = user_slugs(team).values() if self._by_user(team) else ()
        for name, preemptible in queues.items():
            low = preemptible and self._has_low(team)
            for local, cluster in [(name, team.name), *((f"{name}.{s}", f"{team.name}.{s}") for s in slugs)]:
                spec = {"clusterQueue": low_queue(cluster) if low else cluster}
                after = (namespace, ObjectKey(kinds.CLUSTER_QUEUE.name, spec["clusterQueue"]))
                if draining or team.hold is Hold.STOP or (team.hold is Hold.LOW_ONLY and not low):
                    spec["stopPolicy"] = "Hold"
                yield _wanted(kinds.LOCAL_QUEUE, f"{team.name}/{local}", {"spec": spec}, team, after=after)

    def _quota_and_members(self, team: Team, namespace: ObjectKey) -> Iterator[WantedObject]:
        if hard := self._exact_ceilings(team):
            name = f"{team.name}/{CEILING}"
            yield _wanted(kinds.RESOURCE_QUOTA, name, {"spec": {"hard": hard}}, team, after=(namespace,))
        if team.members:
            members = {
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": MEMBER_ROLE},
                "subjects": [{"kind": "User", "name": user} for user in sorted(team.members)],
            }
            yield _wanted(kinds.ROLE_BINDING, f"{team.name}/{MEMBERS}", members, team, after=(namespace,))
        for role in OWN_ROLES:
            if account := self.found.settings.get(bind_to_setting(role)):
                binding = {
                    "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": role},
                    "subjects": [{"kind": "User", "name": account}],
                }
                yield _wanted(kinds.ROLE_BINDING, f"{team.name}/{role}", binding, team, after=(namespace,))

    def _exact_ceilings(self, team: Team) -> dict[str, int]:
        """Return the ceilings that a ResourceQuota enforces by pods: Kueue ignores pods that are ending.

        Only where every supply of a resource has a ceiling: a ResourceQuota does not tell pools apart, nor
        jobs from the workloads that are left alone: it would keep those from coming back. Nor pods that run
        from those that wait in a queue: these would keep the pods of admitted jobs from being created.
        """
        if can_queue_pods(self.found):
            return {}
        if self.leaves_existing and any(w.kind != "Job" for w in self.existing[team.name]):
            return {}
        sums: dict[str, int | None] = {}
        for supply, grant in self.granted[team.name].items():
            if is_claimed(supply, self.supplies[supply]):
                continue  # waiting pods have claims, too: those would keep admitted ones from starting
            name = f"requests.{resource(supply, self.supplies[supply])}"
            total = sums.get(name, 0)
            ceiling = grant.ceiling if self._binds(grant) else None
            sums[name] = None if total is None or ceiling is None else total + ceiling
        return {name: total for name, total in sorted(sums.items()) if total is not None}


def capacity(pool: Pool, supply: Supply, settings: Mapping[str, str]) -> int:
    """Return the devices of a supply: from the file, else from the nodes when the cluster was read."""
    if pool.gpus is not None and supply.slice is None:
        return pool.gpus
    return int(settings.get(f"capacity.{supply}", "0"))


def _cohort(name: str) -> ObjectKey:
    return ObjectKey(kinds.COHORT.name, name)


def _common_queue_fields(reclaim: str) -> Fields:
    """Return the fields that all queues have in common: computed once, not for each of thousands."""
    spec = {
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": reclaim},
        # A guarantee in another flavor is better than borrowing in this one.
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"},
    }
    return flatten(kinds.CLUSTER_QUEUE, {"spec": spec})


_ANYWHERE: Final[Json] = {
    "coveredResources": [ANYWHERE_RESOURCE],
    "flavors": [{"name": ANYWHERE, "resources": [{"name": ANYWHERE_RESOURCE, "nominalQuota": 0}]}],
}
_EVERY_QUEUE: Final = _common_queue_fields("Any")
_EVERY_LOW_QUEUE: Final = _common_queue_fields("Never")


def _wanted(
    kind: ObjectKind, name: str, body: Json, team: Team | None = None, after: tuple[ObjectKey, ...] = ()
) -> WantedObject:
    fields = flatten(kind, body)
    return WantedObject(ObjectKey(kind.name, name), fields, after, team.name if team else None)
