"""Translate a fleet into the objects of one Kubernetes cluster with Kueue. Pure.

A team is a namespace with a queue named `main`, in front of a ClusterQueue that holds its guarantee. A
team with child teams, or whose ceiling must cover its low jobs too, is a Cohort around them. Low jobs have a
ClusterQueue of their own, `TEAM.low`, with no guarantee and no weight: it never preempts anybody, and every
entitled queue preempts it. It is as far out in the tree as the team's ceilings allow.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import TEAM, Json, ObjectKind
from fairway.engines.kubernetes.nodes.devices import claimed_resources
from fairway.engines.kubernetes.policy.admission_policies import KUEUES_QUEUE, QUEUE, guards, queue_guard
from fairway.engines.kubernetes.policy.advice import advise, notices
from fairway.engines.kubernetes.policy.fields import Fields, flatten, read_taint
from fairway.engines.kubernetes.policy.quota import Quota, ResourceGroups, resource
from fairway.engines.kubernetes.policy.users import can_place, counts_by_user, user_queues, user_slugs
from fairway.model.budget import Hold
from fairway.model.fleet import Fleet, KubernetesPlace, Pool
from fairway.model.names import ClusterName
from fairway.model.team import Grant, Priority, Supply, Team, TeamTree
from fairway.policy.objects import FoundPolicy, ObjectKey, Translation, WantedObject

ROOT: Final = "fairway.fleet"
"""The Cohort of all teams. A team's name has no dots, so none can have this name."""
MEMBER_ROLE: Final = "fairway-member"
RBAC: Final = "rbac.authorization.k8s.io"
MEMBERS: Final = "fairway-members"
CEILING: Final = "fairway-ceiling"
HOSTNAME: Final = "kubernetes.io/hostname"
ANY_NODE: Final = {"kubernetes.io/os": "linux"}
"""Kueue requires at least one label of a flavor with a topology."""


QuotaOf = Callable[[Supply], Quota | None]


def translate(fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> Translation:
    """Return every object `fleet` needs on `cluster`, what Kueue cannot keep of it, and what to configure."""
    meaning = _Translator(fleet, cluster, found)
    return Translation(
        objects=tuple(meaning.objects()),
        notices=tuple(notices(fleet, meaning.teams, meaning.capped(), found)),
        advice=tuple(advise(fleet, found)) if meaning.teams else (),
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
        self.here = {o.key: o for o in found.objects}
        self.topologies = {p.name: self._name_of(kinds.TOPOLOGY, p, _topology(p)) for p in self.pools}
        self.flavors = {p.name: self._name_of(kinds.FLAVOR, p, self._flavor(p)) for p in self.pools}
        self.resource_groups = ResourceGroups(self.pools, self.flavors)
        self.children = {
            t.name: tuple(c for c in self.tree.children(t) if self.granted[c.name]) for t in self.teams
        }

    def objects(self) -> Iterator[WantedObject]:
        if not self.teams:
            return  # nothing is shared here: nothing is governed
        yield from self._pool_objects()
        for priority in self.fleet.priorities:
            value = priority.rank - self.fleet.default_priority.rank
            yield _wanted(kinds.PRIORITY_CLASS, priority.name, {"value": value})
        yield _wanted(kinds.COHORT, ROOT, {"spec": self._root()}, after=self._flavor_keys())
        for team in self.teams:
            yield from self._team_objects(team)
        queued = [p.name for p in own_queues(self.fleet)]
        resources = sorted(claimed_resources(self.pools))
        default, placing = self.fleet.default_priority.name, can_place(self.found)
        for name, policy, binding in guards(resources, queued, default, placing=placing):
            yield _wanted(kinds.ADMISSION_POLICY, name, {"spec": policy})
            after = (ObjectKey(kinds.ADMISSION_POLICY.name, name),)
            yield _wanted(kinds.ADMISSION_BINDING, name, {"spec": binding}, after=after)
        if placing:
            name, policy, binding = queue_guard(resources, queued)
            yield _wanted(kinds.MUTATING_POLICY, name, {"spec": policy})
            after = (ObjectKey(kinds.MUTATING_POLICY.name, name),)
            yield _wanted(kinds.MUTATING_BINDING, name, {"spec": binding}, after=after)

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
        for pool in self.pools:
            topology = ObjectKey(kinds.TOPOLOGY.name, self.topologies[pool.name])
            yield _wanted(kinds.TOPOLOGY, topology.name, _topology(pool))
            yield _wanted(kinds.FLAVOR, self.flavors[pool.name], self._flavor(pool), after=(topology,))

    def _flavor(self, pool: Pool) -> Json:
        place = _place(pool)
        spec: Json = {"nodeLabels": dict(place.node_labels) or dict(ANY_NODE)}
        if place.taints:
            spec["nodeTaints"] = [read_taint(t) for t in place.taints]
        # Without a topology Kueue hands out quota, not places: a guaranteed job waits in the scheduler then.
        spec["topologyName"] = self.topologies[pool.name]
        return {"spec": spec}

    def _name_of(self, kind: ObjectKind, pool: Pool, body: Json) -> str:
        """Return the pool's name, or another one where an object of that name can no longer be changed.

        One that is already as wanted is kept, whatever its name.
        """
        fields = flatten(kind, body)
        names = [pool.name, *(f"{pool.name}.{n}" for n in range(2, 10))]
        there = [(name, self.here.get(ObjectKey(kind.name, name))) for name in names]
        for name, found in there:
            if found is not None and found.ours and found.fields == fields:
                return name
        return next((name for name, found in there if found is None or not found.ours), names[-1])

    def _flavor_keys(self) -> tuple[ObjectKey, ...]:
        return tuple(ObjectKey(kinds.FLAVOR.name, name) for name in self.flavors.values())

    # the tree of quota

    def _root(self) -> Json:
        """Return the root cohort's spec: what is not guaranteed to anybody is lent by the fleet itself."""
        groups = self.resource_groups.groups(lambda s: Quota(self._unguaranteed(s)))
        # The weight is the API server's own default, said: one that somebody wrote cannot be unset again.
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
        pool = self.supplies[grant.supply]
        there = capacity(pool, grant.supply, self.found.settings)
        return grant.ceiling is not None and not 0 < there <= grant.ceiling

    def _has_low(self, team: Team) -> bool:
        return not self.preemptible.isdisjoint(team.priorities)

    def _is_cohort(self, team: Team) -> bool:
        ceiling = self._has_ceiling(team) and self._has_low(team)
        return ceiling or bool(self.children[team.name]) or self._by_user(team)

    def _by_user(self, team: Team) -> bool:
        return counts_by_user(team, self.found)

    def _is_shared(self, team: Team) -> bool:
        """Return whether several queues share its guarantee: it is in its cohort then, for all of them."""
        return bool(self.children[team.name]) or self._by_user(team)

    def _cohort_above(self, team: Team) -> str:
        return team.parent or ROOT

    def _cohort_of_low(self, team: Team) -> str:
        """Return the innermost cohort whose ceiling the team's low jobs count against, else the fleet's."""
        for around in (team, *self.tree.ancestors(team)):
            if self._has_ceiling(around):
                return around.name
        return ROOT

    def _team_objects(self, team: Team) -> Iterator[WantedObject]:
        namespace = ObjectKey(kinds.NAMESPACE.name, team.name)
        yield _wanted(kinds.NAMESPACE, team.name, {"metadata": self._namespace(team)}, team)
        above = _cohort(self._cohort_above(team))
        inside = self._is_cohort(team)
        if inside:
            spec = {**self._cohort(team), "parentName": above.name}
            yield _wanted(kinds.COHORT, team.name, {"spec": spec}, team, after=(above, *self._flavor_keys()))
            above = _cohort(team.name)
        yield self._queue(team, team.name, above, self._own_quota(team, inside), 1 if inside else team.share)
        if self._has_low(team):
            around = _cohort(self._cohort_of_low(team))
            yield self._queue(team, low_queue(team.name), around, lambda s: self._low_quota(team, s), 0)
        if self._by_user(team):
            yield from self._user_queues(team)
        yield from self._local_queues(team, namespace)
        yield from self._namespaced(team, namespace)

    def _user_queues(self, team: Team) -> Iterator[WantedObject]:
        """Yield for each member a cohort that holds no more than a user may, with their queues in it."""

        def limited(supply: Supply) -> Quota | None:
            return Quota(0, team.limits.user_gpus) if supply in self.granted[team.name] else None

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
        children = self.children[team.name]

        def quota(supply: Supply) -> Quota | None:
            grant = self.granted[team.name].get(supply)
            if grant is None:
                return None
            promised = sum(g.guarantee for c in children if (g := self.granted[c.name].get(supply)))
            own = grant.guarantee - promised if self._is_shared(team) else 0  # else its own queue holds it
            return Quota(own, grant.borrow)

        return {"resourceGroups": self.resource_groups.groups(quota), "fairSharing": {"weight": team.share}}

    def _own_quota(self, team: Team, inside: bool) -> QuotaOf:
        shared = self._is_shared(team)

        def quota(supply: Supply) -> Quota | None:
            grant = self.granted[team.name].get(supply)
            if grant is None:
                return None
            return Quota(0 if shared else grant.guarantee, None if inside else grant.borrow)

        return quota

    def _low_quota(self, team: Team, supply: Supply) -> Quota | None:
        grant = self.granted[team.name].get(supply)
        return None if grant is None else Quota(0, grant.ceiling)

    def _queue(self, team: Team, name: str, cohort: ObjectKey, quota: QuotaOf, weight: int) -> WantedObject:
        spec = {
            "cohortName": cohort.name,
            "namespaceSelector": {"matchLabels": {TEAM: team.name}},
            "resourceGroups": self.resource_groups.groups(quota),
            "fairSharing": {"weight": weight},
        }
        fields = flatten(kinds.CLUSTER_QUEUE, {"spec": spec}) | (_EVERY_QUEUE if weight else _EVERY_LOW_QUEUE)
        key = ObjectKey(kinds.CLUSTER_QUEUE.name, name)
        return WantedObject(key, fields, (cohort, *self._flavor_keys()), team.name)

    # what lies in the team's namespace

    def _namespace(self, team: Team) -> Json:
        limits = team.limits
        notes = {
            kinds.PRIORITIES: ",".join(team.priorities),
            kinds.DEVICES: ",".join(sorted({resource(s, self.supplies[s]) for s in self.granted[team.name]})),
            kinds.JOB_GPUS: limits.job_gpus,
            kinds.JOB_SECONDS: limits.job_seconds,
            kinds.USER_GPUS: limits.user_gpus,
            kinds.USER_QUEUES: user_queues(team) if self._by_user(team) else None,
        }
        return {
            "labels": {TEAM: team.name},
            "annotations": {key: str(value) for key, value in notes.items() if value is not None},
        }

    def _local_queues(self, team: Team, namespace: ObjectKey) -> Iterator[WantedObject]:
        default = self.fleet.default_priority
        queues = {QUEUE if can_place(self.found) else KUEUES_QUEUE: default.preemptible}
        queues |= {p.name: p.preemptible for p in own_queues(self.fleet) if p.name in team.priorities}
        draining = team.draining or any(t.draining for t in self.tree.ancestors(team))
        slugs = user_slugs(team).values() if self._by_user(team) else ()
        for name, preemptible in queues.items():
            low = preemptible and self._has_low(team)
            for inner, outer in [(name, team.name), *((f"{name}.{s}", f"{team.name}.{s}") for s in slugs)]:
                spec = {"clusterQueue": low_queue(outer) if low else outer}
                after = (namespace, ObjectKey(kinds.CLUSTER_QUEUE.name, spec["clusterQueue"]))
                if draining or team.hold is Hold.STOP or (team.hold is Hold.LOW_ONLY and not low):
                    spec["stopPolicy"] = "Hold"
                yield _wanted(kinds.LOCAL_QUEUE, f"{team.name}/{inner}", {"spec": spec}, team, after=after)

    def _namespaced(self, team: Team, namespace: ObjectKey) -> Iterator[WantedObject]:
        if hard := self._exact_ceilings(team):
            name = f"{team.name}/{CEILING}"
            yield _wanted(kinds.RESOURCE_QUOTA, name, {"spec": {"hard": hard}}, team, after=(namespace,))
        if team.members:
            members = {
                "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": MEMBER_ROLE},
                "subjects": [{"kind": "User", "name": user} for user in sorted(team.members)],
            }
            yield _wanted(kinds.ROLE_BINDING, f"{team.name}/{MEMBERS}", members, team, after=(namespace,))

    def _exact_ceilings(self, team: Team) -> dict[str, int]:
        """Return ceilings counted by pods too: Kueue counts a preempted job as gone while its pods still end.

        Only where every supply of a resource has one, for a quota of a namespace knows no pools.
        """
        sums: dict[str, int | None] = {}
        for supply, grant in self.granted[team.name].items():
            name = f"requests.{resource(supply, self.supplies[supply])}"
            so_far = sums.get(name, 0)
            most = grant.ceiling if self._binds(grant) else None
            sums[name] = None if so_far is None or most is None else so_far + most
        return {name: most for name, most in sorted(sums.items()) if most is not None}


def capacity(pool: Pool, supply: Supply, settings: Mapping[str, str]) -> int:
    """Return the devices of a supply: from the file, else from the nodes when the cluster was read."""
    if pool.gpus is not None and supply.slice is None:
        return pool.gpus
    return int(settings.get(f"capacity.{supply}", "0"))


def _place(pool: Pool) -> KubernetesPlace:
    if not isinstance(pool.place, KubernetesPlace):  # `files` gives a pool the place of its cluster's engine
        raise TypeError(f"pool {pool.name} is not on Kubernetes")
    return pool.place


def _topology(pool: Pool) -> Json:
    levels = [*(level for level in pool.topology if level != HOSTNAME), HOSTNAME]
    return {"spec": {"levels": [{"nodeLabel": level} for level in levels]}}


def _cohort(name: str) -> ObjectKey:
    return ObjectKey(kinds.COHORT.name, name)


def _of_every_queue(reclaim: str) -> Fields:
    """Return the fields that all queues have in common: computed once, not for each of thousands."""
    spec = {
        "queueingStrategy": "BestEffortFIFO",
        "preemption": {"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": reclaim},
        # What is guaranteed elsewhere is better than what is borrowed here.
        "flavorFungibility": {"whenCanBorrow": "TryNextFlavor", "whenCanPreempt": "TryNextFlavor"},
    }
    return flatten(kinds.CLUSTER_QUEUE, {"spec": spec})


_EVERY_QUEUE: Final = _of_every_queue("Any")
_EVERY_LOW_QUEUE: Final = _of_every_queue("Never")


def _wanted(
    kind: ObjectKind, name: str, body: Json, team: Team | None = None, after: tuple[ObjectKey, ...] = ()
) -> WantedObject:
    fields = flatten(kind, body)
    return WantedObject(ObjectKey(kind.name, name), fields, after, team.name if team else None)
