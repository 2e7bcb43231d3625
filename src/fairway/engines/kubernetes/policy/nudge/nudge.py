"""Nudge Kueue by its own API where it falls short of a promise; each nudge is reported.

State that matters is on the objects: a deactivated Workload records for which one, a queue whose strategy or
weight is overridden records the policy's value. A server that restarts resumes from there.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import FAIRWAY, MANAGED_BY, NUDGER, TEAM, Json, ObjectKind
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.policy.nudge.overrides import (
    STRATEGY,
    WEIGHT,
    hold,
    hold_borrowing,
    holds_borrowing,
    note,
)
from fairway.engines.kubernetes.policy.nudge.preemption import select_victims
from fairway.engines.kubernetes.policy.nudge.snapshot import LOW_SUFFIX, JobPod, Snapshot, take_snapshot
from fairway.engines.kubernetes.policy.nudge.starvation import Starvation, StarvedJob
from fairway.engines.kubernetes.policy.nudge.usage_decay import (
    NEGLIGIBLE,
    NOTICED,
    DecayedUsage,
    parse_usage,
    weights,
)
from fairway.engines.kubernetes.policy.workloads import PATH, WORKLOADS, Workload, list_workloads
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.model.team import Team, TeamTree
from fairway.policy.objects import Nudge

FOR: Final = "fairway.dev/put-back-for"
"""On a deactivated Workload: the uid of the one that gets its place."""
USED: Final = "fairway.dev/used"
STUCK_SECONDS: Final = 4.0
"""How long Kueue has to make room by itself: it reclaims what is lent within two or three seconds."""
BACK_SECONDS: Final = 60.0
"""After so long a deactivated job may run again, whatever became of the one it made room for."""
AT_ONCE: Final = 50
"""Weights written in one run: those that are furthest off."""
CALM: Final = 2.0
"""Listing every workload is repeated only after so many times its duration: never much of the load."""
LONGEST_CALM: Final = 60.0
_BOUND: Final = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"


class KubernetesNudger:
    """Nudges one cluster, with the state between runs."""

    def __init__(self, cluster: ClusterName, clock: Callable[[], float] = time.time) -> None:
        self._cluster = cluster
        self._clock = clock
        self._starvation = Starvation()
        self._waiting_since: dict[str, float] = {}
        self._used: dict[str, DecayedUsage] = {}
        self._next_look = 0.0
        self._put_back: dict[str, float] = {}

    async def nudge(self, requests: KubeRequests, fleet: Fleet) -> tuple[Nudge, ...]:
        """Check once, and do what is needed."""
        queues, cohorts = await asyncio.gather(
            requests.every(kinds.CLUSTER_QUEUE.list_path, kinds.CLUSTER_QUEUE.resource, _OURS),
            requests.every(kinds.COHORT.list_path, kinds.COHORT.resource, _OURS),
        )
        given = [n async for n in self._remember(requests, fleet, queues, cohorts)]
        busy = any((q.get("status") or {}).get("pendingWorkloads") for q in queues) or self._put_back
        strict = [q for q in (*queues, *cohorts) if STRATEGY in note(q) or holds_borrowing(q)]
        began = self._clock()
        if (busy or strict) and began >= self._next_look:
            snapshot, workloads = await self._look(requests, fleet)
            given += await self._let_back(requests, workloads)
            given += await self._select_victims(requests, snapshot, workloads)
            given += await self._keep_order(requests, snapshot, queues, cohorts)
            now = self._clock()
            self._next_look = now + min(LONGEST_CALM, CALM * (now - began))
        return tuple(given)

    async def _look(self, requests: KubeRequests, fleet: Fleet) -> tuple[Snapshot, list[Workload]]:
        workloads, pods, nodes, locals_ = await asyncio.gather(
            list_workloads(requests),
            requests.every("/api/v1/pods", "pods", {"fieldSelector": _BOUND}, JobPod),
            requests.every("/api/v1/nodes", "nodes", type_=NodeObject),
            requests.every(kinds.LOCAL_QUEUE.list_path, kinds.LOCAL_QUEUE.resource, _OURS),
        )
        leads_to = {
            f"{q['metadata']['namespace']}/{q['metadata']['name']}": q["spec"]["clusterQueue"]
            for q in locals_
            if str(q["spec"].get("stopPolicy", "None"))
            == "None"  # what waits elsewhere waits for other things
        }
        return take_snapshot(fleet, self._cluster, workloads, pods, nodes, leads_to), workloads

    # a guaranteed job that finds no place because what is free lies in pieces

    async def _select_victims(
        self, requests: KubeRequests, snapshot: Snapshot, workloads: Sequence[Workload]
    ) -> list[Nudge]:
        now = self._clock()
        waiting = {a.workload.metadata.uid: a for a in snapshot.asking}
        self._waiting_since = {uid: self._waiting_since.get(uid, now) for uid in waiting}
        if any(FOR in w.metadata.annotations for w in workloads):
            return []  # one at a time: the places that were made are not given away twice
        stuck = [a for uid, a in waiting.items() if now - self._waiting_since[uid] >= STUCK_SECONDS]
        stuck.sort(key=lambda a: (-a.workload.spec.priority, a.workload.metadata.creation_timestamp))
        for asking in stuck:
            made = select_victims(snapshot, asking)
            if made is None:
                continue
            supply, victims = made
            given = []
            for victim in victims:
                patch = {
                    "metadata": {"annotations": {FOR: asking.workload.metadata.uid}},
                    "spec": {"active": False},
                }
                await requests.merge(_path(victim.workload), WORKLOADS, patch, NUDGER)
                self._put_back[victim.workload.metadata.uid] = now
                why = (
                    f"{asking.workload.job} is within {asking.team.name}'s guarantee on {supply} and found "
                    f"no place in one piece; {victim.team.name} held {victim.devices} beyond its own on "
                    f"{', '.join(sorted(victim.nodes))}"
                )
                given.append(Nudge("guarantee", _verb(victim.workload, "false"), victim.workload.job, why))
            return given
        return []

    async def _let_back(self, requests: KubeRequests, workloads: Sequence[Workload]) -> list[Nudge]:
        """Reactivate jobs once the place they gave up is taken."""
        now = self._clock()
        up = {w.metadata.uid: w for w in workloads}
        given = []
        for workload in workloads:
            asker = workload.metadata.annotations.get(FOR)
            if asker is None:
                continue
            since = self._put_back.setdefault(workload.metadata.uid, now)
            other = up.get(asker)
            done = other is None or other.finished or other.condition("PodsReady") is not None
            if not done and now - since < BACK_SECONDS:
                continue
            patch = {"metadata": {"annotations": {FOR: None}}, "spec": {"active": True}}
            await requests.merge(_path(workload), WORKLOADS, patch, NUDGER)
            self._put_back.pop(workload.metadata.uid, None)
            why = "the job it made room for has its place" if done else "it waited long enough"
            given.append(Nudge("guarantee", _verb(workload, "true"), workload.job, why))
        known = {w.metadata.uid for w in workloads}
        self._put_back = {uid: at for uid, at in self._put_back.items() if uid in known}
        return given

    # a large job that small ones overtake for ever

    async def _keep_order(
        self, requests: KubeRequests, snapshot: Snapshot, queues: Sequence[Json], cohorts: Sequence[Json]
    ) -> list[Nudge]:
        turn = self._starvation.turn(snapshot, self._clock())
        given = []
        weighed = dict(_weighed(queues, cohorts))
        by_name = {q["metadata"]["name"]: (kinds.CLUSTER_QUEUE, q) for q in queues}
        for queue in queues:
            name, held = queue["metadata"]["name"], STRATEGY in note(queue)
            wanted = turn is not None and turn.strict and name == turn.asking.queue
            if turn is not None and wanted and not held:
                await hold(requests, kinds.CLUSTER_QUEUE, queue, {STRATEGY: ("BestEffortFIFO", "StrictFIFO")})
                given.append(
                    _turn_nudge(turn, _set_verb(kinds.CLUSTER_QUEUE, name, "queueingStrategy StrictFIFO"))
                )
            elif held and not wanted:
                await hold(requests, kinds.CLUSTER_QUEUE, queue, {STRATEGY: None})
                verb = _set_verb(kinds.CLUSTER_QUEUE, name, "queueingStrategy BestEffortFIFO")
                given.append(Nudge("no-starvation", verb, name, "no job waits for its turn now"))
        still: set[int] = set()
        if turn is not None:
            others = [weighed[t] for t in sorted(turn.teams) if t in weighed]
            others += [by_name[q] for q in sorted(turn.queues) if q in by_name]
            for kind, body in others:
                still.add(id(body))
                if await hold_borrowing(requests, kind, body, turn.supply.pool, back=False):
                    verb = _set_verb(kind, body["metadata"]["name"], f"borrowingLimit 0 on {turn.supply}")
                    given.append(_turn_nudge(turn, verb))
        for kind, bodies in ((kinds.CLUSTER_QUEUE, queues), (kinds.COHORT, cohorts)):
            for body in bodies:
                if holds_borrowing(body) and id(body) not in still:
                    await hold_borrowing(requests, kind, body, "", back=True)
                    verb = _set_verb(kind, body["metadata"]["name"], "borrowingLimit as the policy says")
                    name = body["metadata"]["name"]
                    given.append(Nudge("no-starvation", verb, name, "no job waits for its turn now"))
        return given

    # past use between teams

    async def _remember(
        self, requests: KubeRequests, fleet: Fleet, queues: Sequence[Json], cohorts: Sequence[Json]
    ) -> Any:
        now, half_life = self._clock(), float(fleet.fairness.half_life_seconds)
        tree = TeamTree(fleet.teams)
        weighed = dict(_weighed(queues, cohorts))
        teams = [t for t in fleet.teams if t.name in weighed]
        holding = _held(tree, queues)
        for team in teams:
            _, body = weighed[team.name]
            last = self._used.get(team.name) or parse_usage(
                (body["metadata"].get("annotations") or {}).get(USED, "")
            )
            self._used[team.name] = (last or DecayedUsage(0, now)).later(
                now, half_life, holding.get(team.name, 0)
            )
        negligible = NEGLIGIBLE * half_life * _devices(queues, cohorts)
        wanted = weights(teams, {t.name: self._used[t.name].amount for t in teams}, negligible)
        off = sorted(
            ((_far(_weight(weighed[name][1]), weight), name) for name, weight in wanted.items()), reverse=True
        )
        for far, name in off[:AT_ONCE]:
            if far < NOTICED:
                break
            yield await self._weigh(requests, tree[name], weighed[name], wanted[name])

    async def _weigh(
        self, requests: KubeRequests, team: Team, weighed: tuple[ObjectKind, Json], weight: float
    ) -> Nudge:
        kind, body = weighed
        text = f"{max(1, round(weight * 1000))}m"
        used = self._used[team.name]
        plain = abs(weight - team.share) < 0.0005 * team.share
        change = None if plain else (team.share, text)
        await hold(
            requests, kind, body, {WEIGHT: change}, policy={WEIGHT: str(team.share)}, notes={USED: str(used)}
        )
        return Nudge(
            "memory",
            f"kubectl patch {kind.name.lower()} {team.name}: fairSharing.weight {text}",
            team.name,
            f"share {team.share}, {used.amount:.0f} device-seconds used of late",
        )


_OURS: Final = {"labelSelector": f"{MANAGED_BY}={FAIRWAY}"}


def _path(workload: Workload) -> str:
    return f"{PATH}/namespaces/{workload.metadata.namespace}/workloads/{workload.metadata.name}"


def _verb(workload: Workload, active: str) -> str:
    return (
        f"kubectl -n {workload.metadata.namespace} patch workload {workload.metadata.name}: active {active}"
    )


def _set_verb(kind: ObjectKind, name: str, what: str) -> str:
    return f"kubectl patch {kind.name.lower()} {name}: {what}"


def _turn_nudge(turn: StarvedJob, verb: str) -> Nudge:
    why = f"smaller, later jobs have started on as many devices as the {turn.asking.devices} it waits for"
    return Nudge("no-starvation", verb, turn.asking.workload.job, why)


def _weighed(
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


def _weight(body: Json) -> float:
    text = str((body["spec"].get("fairSharing") or {}).get("weight", "1"))
    try:
        return float(text[:-1]) / 1000 if text.endswith("m") else float(text)
    except ValueError:
        return 0.0


def _far(have: float, want: float) -> float:
    return abs(have - want) / want if want else 0.0


def _held(tree: TeamTree, queues: Sequence[Json]) -> dict[str, int]:
    """Count the devices each team, with its child teams, holds by Kueue's own count; low jobs too."""
    held: dict[str, int] = {}
    for queue in queues:
        name = (queue["metadata"].get("labels") or {}).get(TEAM, "")
        if name not in tree:
            continue
        devices = sum(
            _whole(r.get("total", 0))
            for flavor in (queue.get("status") or {}).get("flavorsUsage") or ()
            for r in flavor.get("resources") or ()
        )
        for level in (tree[name], *tree.ancestors(tree[name])):
            held[level.name] = held.get(level.name, 0) + devices
    return held


def _devices(queues: Sequence[Json], cohorts: Sequence[Json]) -> int:
    """Return all shared devices: the sum of every nominal quota."""
    return sum(
        _whole(quota.get("nominalQuota", 0))
        for body in (*queues, *cohorts)
        for group in body["spec"].get("resourceGroups") or ()
        for flavor in group["flavors"]
        for quota in flavor["resources"]
    )


def _whole(quantity: object) -> int:
    text = str(quantity)
    return int(text) if text.isdigit() else 0
