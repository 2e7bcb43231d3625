"""Intervene in Kueue by its own API where it falls short of a promise; each intervention is reported.

The state that must survive a restart is on the objects: a deactivated Workload has the uid of the one it made
room for, a queue whose strategy or weight is overridden has the policy's value.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import suppress
from typing import Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import (
    FAIRWAY,
    INTERVENER,
    KUEUE,
    MANAGED_BY,
    TEAM,
    Json,
    ObjectKind,
)
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import BOUND_AND_UNFINISHED, NodeObject, ObjectMeta, PodObject
from fairway.engines.kubernetes.nodes.devices import claimed_resources, whole_number
from fairway.engines.kubernetes.nodes.facts import requested
from fairway.engines.kubernetes.policy.flavors import HOSTNAME
from fairway.engines.kubernetes.policy.intervention.overrides import (
    STRATEGY,
    WEIGHT,
    borrowing_is_blocked,
    override,
    overrides_of,
    set_borrowing_limits,
)
from fairway.engines.kubernetes.policy.intervention.preemption import select_victims
from fairway.engines.kubernetes.policy.intervention.snapshot import (
    LOW_SUFFIX,
    JobPod,
    Snapshot,
    take_snapshot,
)
from fairway.engines.kubernetes.policy.intervention.starvation import Starvation, StarvedJob
from fairway.engines.kubernetes.policy.intervention.usage_decay import (
    BASELINE_USAGE,
    MIN_WEIGHT_CHANGE,
    DecayedUsage,
    parse_usage,
    weights,
)
from fairway.engines.kubernetes.policy.mutating_policies import ANYWHERE
from fairway.engines.kubernetes.policy.workloads import WORKLOADS, Workload, list_workloads
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.model.team import Team, TeamTree
from fairway.policy.objects import Intervention

DEACTIVATED_FOR: Final = "fairway.dev/put-back-for"
"""The annotation of a deactivated Workload: the uid of the one that gets its place."""
USAGE: Final = "fairway.dev/used"
"""The annotation of a queue or cohort: the team's decayed usage."""
STUCK_SECONDS: Final = 4.0
"""How long Kueue has to make room by itself: it reclaims borrowed quota within two or three seconds."""
MAX_DEACTIVATED_SECONDS: Final = 60.0
"""After this time a deactivated job may run again, even if the one it made room for has not started."""
MAX_WEIGHTS: Final = 50
"""Weights written in one run: those that differ most."""
LIST_PAUSE_FACTOR: Final = 2.0
"""Listing every workload pauses for this many times its duration, so that it is never much of the load."""
MAX_PAUSE_SECONDS: Final = 60.0
_OURS: Final = {"labelSelector": f"{MANAGED_BY}={FAIRWAY}"}


class KubernetesIntervener:
    """The intervener of one cluster, with its state between runs."""

    def __init__(self, cluster: ClusterName, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._starvation = Starvation()
        self._waiting_since: dict[str, float] = {}
        self._usage: dict[str, DecayedUsage] = {}
        self._next_listing = 0.0
        self._deactivated_at: dict[str, float] = {}

    async def intervene(self, requests: KubeRequests, fleet: Fleet) -> tuple[Intervention, ...]:
        """Check the cluster once, and make the changes that are needed."""
        queues, cohorts = await asyncio.gather(
            requests.list_all(kinds.CLUSTER_QUEUE.list_path, kinds.CLUSTER_QUEUE.resource, _OURS),
            requests.list_all(kinds.COHORT.list_path, kinds.COHORT.resource, _OURS),
        )
        interventions = [n async for n in self._update_weights(requests, fleet, queues, cohorts)]
        busy = any((q.get("status") or {}).get("pendingWorkloads") for q in queues) or self._deactivated_at
        helping = any(STRATEGY in overrides_of(o) or borrowing_is_blocked(o) for o in (*queues, *cohorts))
        began = self._clock()
        if (busy or helping) and began >= self._next_listing:
            snapshot, workloads = await self._take_snapshot(requests, fleet)
            interventions += await _request_places(requests, fleet, queues, workloads)
            interventions += await self._reactivate(requests, workloads)
            interventions += await self._make_room(requests, snapshot, workloads)
            interventions += await self._help_starved_job(requests, snapshot, queues, cohorts)
            now = self._clock()
            self._next_listing = now + min(MAX_PAUSE_SECONDS, LIST_PAUSE_FACTOR * (now - began))
        return tuple(interventions)

    async def _take_snapshot(self, requests: KubeRequests, fleet: Fleet) -> tuple[Snapshot, list[Workload]]:
        workloads, pods, nodes, local_queues = await asyncio.gather(
            list_workloads(requests),
            requests.list_all("/api/v1/pods", "pods", {"fieldSelector": BOUND_AND_UNFINISHED}, JobPod),
            requests.list_all("/api/v1/nodes", "nodes", type_=NodeObject),
            requests.list_all(kinds.LOCAL_QUEUE.list_path, kinds.LOCAL_QUEUE.resource, _OURS),
        )
        cluster_queues = {
            f"{q['metadata']['namespace']}/{q['metadata']['name']}": q["spec"]["clusterQueue"]
            for q in local_queues
            # jobs in a stopped queue do not wait for devices
            if str(q["spec"].get("stopPolicy", "None")) == "None"
        }
        return take_snapshot(fleet, self._cluster, workloads, pods, nodes, cluster_queues), workloads

    # guaranteed jobs that cannot start because the free devices are scattered over nodes

    async def _make_room(
        self, requests: KubeRequests, snapshot: Snapshot, workloads: Sequence[Workload]
    ) -> list[Intervention]:
        """Deactivate jobs on the nodes where that lets a guaranteed job start."""
        now = self._clock()
        by_uid = {w.workload.metadata.uid: w for w in snapshot.waiting}
        self._waiting_since = {uid: self._waiting_since.get(uid, now) for uid in by_uid}
        if any(DEACTIVATED_FOR in w.metadata.annotations for w in workloads):
            return []  # one job at a time, so that the freed devices are not counted for two
        stuck = [w for uid, w in by_uid.items() if now - self._waiting_since[uid] >= STUCK_SECONDS]
        stuck.sort(key=lambda w: (-w.workload.spec.priority, w.workload.metadata.creation_timestamp))
        for waiting in stuck:
            selected = select_victims(snapshot, waiting)
            if selected is None:
                continue
            supply, victims = selected
            interventions = []
            for victim in victims:
                why = (
                    f"{waiting.workload.job} is within {waiting.team.name}'s guarantee on {supply} and found "
                    f"no place in one piece; {victim.team.name} held {victim.devices} beyond its own on "
                    f"{', '.join(sorted(victim.nodes))}"
                )
                uid = waiting.workload.metadata.uid
                interventions.append(await _set_active(requests, victim.workload, why, deactivated_for=uid))
                self._deactivated_at[victim.workload.metadata.uid] = now
            return interventions
        return []

    async def _reactivate(self, requests: KubeRequests, workloads: Sequence[Workload]) -> list[Intervention]:
        """Reactivate jobs once the one they made room for has started, or after a while."""
        now = self._clock()
        by_uid = {w.metadata.uid: w for w in workloads}
        interventions = []
        for workload in workloads:
            other_uid = workload.metadata.annotations.get(DEACTIVATED_FOR)
            if other_uid is None:
                continue
            since = self._deactivated_at.setdefault(workload.metadata.uid, now)
            other = by_uid.get(other_uid)
            done = other is None or other.finished or other.condition("PodsReady") is not None
            if not done and now - since < MAX_DEACTIVATED_SECONDS:
                continue
            why = "the job it made room for has its place" if done else "it waited long enough"
            interventions.append(await _set_active(requests, workload, why, deactivated_for=None))
            self._deactivated_at.pop(workload.metadata.uid, None)
        self._deactivated_at = {uid: at for uid, at in self._deactivated_at.items() if uid in by_uid}
        return interventions

    # large jobs that small ones overtake for ever

    async def _help_starved_job(
        self, requests: KubeRequests, snapshot: Snapshot, queues: Sequence[Json], cohorts: Sequence[Json]
    ) -> list[Intervention]:
        """Restrict what keeps the most overtaken job waiting, and restore what restricted others for one."""
        starved = self._starvation.find_starved_job(snapshot, self._clock())
        interventions = []
        for queue in queues:
            name, is_strict = queue["metadata"]["name"], STRATEGY in overrides_of(queue)
            strict = starved is not None and starved.strict_fifo and name == starved.waiting.queue
            if strict != is_strict:
                change = ("BestEffortFIFO", "StrictFIFO") if strict else None
                await override(requests, kinds.CLUSTER_QUEUE, queue, {STRATEGY: change})
                strategy = f"queueingStrategy {'StrictFIFO' if strict else 'BestEffortFIFO'}"
                interventions.append(
                    _starvation_intervention(kinds.CLUSTER_QUEUE, name, strategy, starved if strict else None)
                )
        blocked: set[int] = set()
        if starved is not None:
            by_team = dict(_weighted_objects(queues, cohorts))
            by_name = {q["metadata"]["name"]: (kinds.CLUSTER_QUEUE, q) for q in queues}
            others = [by_team[t] for t in sorted(starved.blocked_teams) if t in by_team]
            others += [by_name[q] for q in sorted(starved.blocked_queues) if q in by_name]
            for kind, body in others:
                blocked.add(id(body))
                if await set_borrowing_limits(requests, kind, body, starved.supply.pool):
                    limit = f"borrowingLimit 0 on {starved.supply}"
                    interventions.append(
                        _starvation_intervention(kind, body["metadata"]["name"], limit, starved)
                    )
        for kind, bodies in ((kinds.CLUSTER_QUEUE, queues), (kinds.COHORT, cohorts)):
            for body in bodies:
                if borrowing_is_blocked(body) and id(body) not in blocked:
                    await set_borrowing_limits(requests, kind, body, None)
                    limit = "borrowingLimit as the policy says"
                    interventions.append(
                        _starvation_intervention(kind, body["metadata"]["name"], limit, None)
                    )
        return interventions

    # past usage of teams

    async def _update_weights(
        self, requests: KubeRequests, fleet: Fleet, queues: Sequence[Json], cohorts: Sequence[Json]
    ) -> AsyncIterator[Intervention]:
        now, half_life = self._clock(), float(fleet.fairness.half_life_seconds)
        tree = TeamTree(fleet.teams)
        by_team = dict(_weighted_objects(queues, cohorts))
        teams = [t for t in fleet.teams if t.name in by_team]
        in_use = _devices_in_use(tree, queues)
        for team in teams:
            _, body = by_team[team.name]
            recorded = (body["metadata"].get("annotations") or {}).get(USAGE, "")
            usage = self._usage.get(team.name) or parse_usage(recorded) or DecayedUsage(0, now)
            self._usage[team.name] = usage.advance(now, half_life, in_use[team.name])
        baseline = BASELINE_USAGE * half_life * _shared_devices(queues, cohorts)
        wanted = weights(teams, {t.name: self._usage[t.name].amount for t in teams}, baseline)
        differences = sorted(
            (
                (_relative_difference(_current_weight(by_team[name][1]), weight), name)
                for name, weight in wanted.items()
            ),
            reverse=True,
        )
        for difference, name in differences[:MAX_WEIGHTS]:
            if difference < MIN_WEIGHT_CHANGE:
                break
            yield await self._write_weight(requests, tree[name], by_team[name], wanted[name])

    async def _write_weight(
        self, requests: KubeRequests, team: Team, weighted: tuple[ObjectKind, Json], weight: float
    ) -> Intervention:
        kind, body = weighted
        text = f"{max(1, round(weight * 1000))}m"
        usage = self._usage[team.name]
        is_share = abs(weight - team.share) < 0.0005 * team.share
        change = {WEIGHT: None if is_share else (team.share, text)}
        policy, annotations = {WEIGHT: str(team.share)}, {USAGE: str(usage)}
        await override(requests, kind, body, change, policy=policy, annotations=annotations)
        return Intervention(
            "memory",
            _patch_verb(kind, team.name, f"fairSharing.weight {text}"),
            team.name,
            f"share {team.share}, {usage.amount:.0f} device-seconds used of late",
        )


async def _request_places(
    requests: KubeRequests, fleet: Fleet, queues: Sequence[Json], workloads: Sequence[Workload]
) -> list[Intervention]:
    """Let waiting Workloads ask for places that were created before the policy that adds it.

    Their queues have a flavor without a topology now, and Kueue gives places to those only that ask.
    """
    anywhere = {str(q["metadata"]["name"]).partition(".")[0] for q in queues if ANYWHERE in str(q["spec"])}
    interventions = []
    for workload in workloads:
        meta = workload.metadata
        if meta.namespace not in anywhere or workload.finished or workload.status.admission is not None:
            continue
        if not (unplaced := unplaced_pod_sets(workload, fleet)):
            continue
        path = f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"
        body = await requests.get(path, WORKLOADS, Json)
        if body is None:
            continue
        for i in unplaced:
            request = body["spec"]["podSets"][i].setdefault("topologyRequest", {})
            request |= {"podSetSliceRequiredTopology": HOSTNAME, "podSetSliceSize": 1}
        patch = {
            "metadata": {"resourceVersion": body["metadata"]["resourceVersion"]},
            "spec": {"podSets": body["spec"]["podSets"]},
        }
        with suppress(Refused):  # Kueue admitted or changed it meanwhile
            await requests.merge(path, WORKLOADS, patch, INTERVENER)
            verb = f"kubectl -n {meta.namespace} patch workload {meta.name}: topologyRequest"
            why = "it has been waiting since before its queue had a flavor without a topology"
            interventions.append(Intervention("guarantee", verb, workload.job, why))
    return interventions


def unplaced_pod_sets(workload: Workload, fleet: Fleet) -> list[int]:
    """Return the pod sets that ask for devices and for no places."""
    resources = claimed_resources(fleet.pools)
    return [
        i
        for i, pods in enumerate(workload.spec.pod_sets)
        if not (pods.topology_request and pods.topology_request.asks)
        and requested(PodObject(ObjectMeta(), pods.template.spec.pod()), resources.__contains__)
    ]


async def _set_active(
    requests: KubeRequests, workload: Workload, why: str, *, deactivated_for: str | None
) -> Intervention:
    """Deactivate a Workload in favour of another, or (None) activate it again."""
    meta, active = workload.metadata, deactivated_for is None
    path = f"{KUEUE}/namespaces/{meta.namespace}/workloads/{meta.name}"
    patch = {"metadata": {"annotations": {DEACTIVATED_FOR: deactivated_for}}, "spec": {"active": active}}
    await requests.merge(path, WORKLOADS, patch, INTERVENER)
    verb = f"kubectl -n {meta.namespace} patch workload {meta.name}: active {str(active).lower()}"
    return Intervention("guarantee", verb, workload.job, why)


def _patch_verb(kind: ObjectKind, name: str, change: str) -> str:
    return f"kubectl patch {kind.name.lower()} {name}: {change}"


def _starvation_intervention(
    kind: ObjectKind, name: str, change: str, starved: StarvedJob | None
) -> Intervention:
    """Describe a change for a starved job, or (None) the return to the policy's value."""
    verb = _patch_verb(kind, name, change)
    if starved is None:
        return Intervention("no-starvation", verb, name, "no job waits for its turn now")
    devices = starved.waiting.devices
    why = f"smaller, later jobs have started on as many devices as the {devices} it waits for"
    return Intervention("no-starvation", verb, starved.waiting.workload.job, why)


def _weighted_objects(
    queues: Sequence[Json], cohorts: Sequence[Json]
) -> Iterator[tuple[str, tuple[ObjectKind, Json]]]:
    """Yield the object that has each team's weight: its Cohort if it has one, else its queue."""
    for queue in queues:
        name = queue["metadata"]["name"]
        if not name.endswith(LOW_SUFFIX) and TEAM in (queue["metadata"].get("labels") or {}):
            yield name, (kinds.CLUSTER_QUEUE, queue)
    for cohort in cohorts:
        if TEAM in (cohort["metadata"].get("labels") or {}):
            yield cohort["metadata"]["name"], (kinds.COHORT, cohort)


def _current_weight(body: Json) -> float:
    text = str((body["spec"].get("fairSharing") or {}).get("weight", "1"))
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        return 0.0


def _relative_difference(current: float, wanted: float) -> float:
    return abs(current - wanted) / wanted if wanted else 0.0


def _devices_in_use(tree: TeamTree, queues: Sequence[Json]) -> Counter[str]:
    """Return the devices of each team with its child teams, as Kueue counts them, with low jobs."""
    in_use: Counter[str] = Counter()
    for queue in queues:
        name = (queue["metadata"].get("labels") or {}).get(TEAM, "")
        if name not in tree:
            continue
        devices = sum(
            whole_number(str(r.get("total", 0)))
            for flavor in (queue.get("status") or {}).get("flavorsUsage") or ()
            for r in flavor.get("resources") or ()
        )
        for team in (tree[name], *tree.ancestors(tree[name])):
            in_use[team.name] += devices
    return in_use


def _shared_devices(queues: Sequence[Json], cohorts: Sequence[Json]) -> int:
    """Return all shared devices: the sum of every nominal quota."""
    return sum(
        whole_number(str(quota.get("nominalQuota", 0)))
        for body in (*queues, *cohorts)
        for group in body["spec"].get("resourceGroups") or ()
        for flavor in group["flavors"]
        for quota in flavor["resources"]
    )
