"""The virtual engine: a cluster in memory that carries a policy and runs jobs under it, on its own clock."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fairway import __version__
from fairway.engines.port import Imported, Refused, Remark
from fairway.engines.virtual.cluster import Life
from fairway.engines.virtual.jobs.mirror import Mirroring
from fairway.engines.virtual.jobs.submit import VirtualJobs
from fairway.engines.virtual.policy import translate as policy_translate
from fairway.engines.virtual.policy.translate import Fields
from fairway.engines.virtual.simulator.jobs import SimState
from fairway.engines.virtual.simulator.simulator import Simulator
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import NodeName, PoolName, SliceName, TeamName
from fairway.model.observation import Observation
from fairway.policy.objects import Action, Activity, Change, FoundObject, FoundPolicy, ObjectKey, Translation

VERSION = f"virtual {__version__}"
REMEMBERED: Final = 20_000
"""Ended jobs, and changes of jobs: some 2 KB each."""


@dataclass(frozen=True, slots=True, eq=False)
class OccupiedDevices:
    """Devices that something holds on one node; two holds are never the same one."""

    node: NodeName
    pool: PoolName
    slice: SliceName | None
    devices: int


@dataclass(frozen=True, slots=True)
class _Written:
    """An object of the cluster, with who wrote it last."""

    fields: Fields
    ours: bool
    changed_by: str | None = None


class VirtualEngine(VirtualJobs, Mirroring):
    """A cluster of the nodes its pools describe, all well and idle at first.

    The simulator obeys the objects that are there, whoever wrote them, and nothing else. Its clock follows
    another: whatever is asked, everything that was due has happened first.
    """

    def __init__(
        self,
        cluster: Cluster,
        pools: tuple[Pool, ...],
        *,
        speed: float = 1.0,
        clock: Callable[[], float] | None = time.time,
    ) -> None:
        """`speed`: seconds of the cluster for each second of `clock`, which None leaves to `tick`."""
        self.simulator = Simulator(pools, remember=REMEMBERED)
        self._life = Life(self.simulator, clock, speed)
        self._cluster = cluster
        self._objects: dict[ObjectKey, _Written] = {}
        self._holds: list[OccupiedDevices] = []
        self._speed = speed
        self._clock = clock

    def resized(self, cluster: Cluster, pools: tuple[Pool, ...]) -> VirtualEngine:
        """The cluster with other nodes: its policy stays, its jobs and what happened to its nodes do not."""
        other = VirtualEngine(cluster, pools, speed=self._speed, clock=self._clock)
        other._obey(dict(self._objects))
        return other

    async def observe(self) -> Observation:
        self._life.follow()
        nodes = self.simulator.nodes()
        seen = tuple(nodes[name].seen() for name in sorted(nodes))
        return Observation(self._cluster.name, VERSION, seen)

    async def close(self) -> None:
        """Nothing to let go of."""

    def tick(self, now: float) -> None:
        """Let the cluster's clock follow another, in seconds; the first call only sets the watch."""
        self._life.tick(now)

    # policy

    async def find_policy(self) -> FoundPolicy:
        found = (
            FoundObject(
                key,
                written.fields,
                written.ours,
                written.changed_by,
                policy_translate.needs_of(key, written.fields),
                policy_translate.team_of(key) if written.ours else None,
            )
            for key, written in sorted(self._objects.items())
        )
        return FoundPolicy(VERSION, tuple(found), MappingProxyType({}))

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """Pure. A virtual cluster keeps every promise: nothing to warn of, nothing to configure."""
        return policy_translate.translate(fleet, self._cluster.name)

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        self._life.follow()
        running: Counter[ObjectKey] = Counter()
        waiting: Counter[ObjectKey] = Counter()
        for (state, team, supply, user, priority), jobs in self.simulator.under().items():
            count = running if state is SimState.RUNNING else waiting
            count[ObjectKey(policy_translate.TEAM, team)] += jobs
            count[ObjectKey(policy_translate.GRANT, f"{team}/{supply}")] += jobs
            count[ObjectKey(policy_translate.MEMBER, f"{team}/{user}")] += jobs
            count[ObjectKey(policy_translate.PRIORITY, priority)] += jobs
        return {key: Activity(running[key], waiting[key]) for key in keys if running[key] or waiting[key]}

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make changes of one stage, all at one moment: the cluster never runs under half of them.

        A team that goes takes its jobs with it: a plan that does so is applied with force only.
        """
        self._life.follow()
        after = dict(self._objects)
        for change in changes:
            if change.action is Action.DELETE:
                after.pop(change.key, None)
            elif change.action is Action.ADOPT:
                if change.key not in after:
                    raise Refused("NothingToAdopt", f"there is no {change.key}", "fairway plan -o wide")
                after[change.key] = _Written(after[change.key].fields, ours=True)
            else:
                after[change.key] = _Written(dict(change.wanted or {}), ours=True)
        for change in changes:
            if change.action is Action.DELETE and change.key.kind == policy_translate.TEAM:
                self._end_jobs(TeamName(change.key.name))
        self._obey(after)
        for change in changes:
            yield change

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> Imported:
        """Pure. A virtual cluster's objects are a fleet's words already; what fits none is remarked."""
        terms = policy_translate.read_terms({o.key: o.fields for o in found.objects})
        teams = {team.name for team in terms.teams}
        remarks = [
            Remark(str(o.key), f"belongs to team {policy_translate.team_of(o.key)}, which does not exist")
            for o in found.objects
            if o.key.kind in policy_translate.KINDS and policy_translate.team_of(o.key) not in {None, *teams}
        ]
        remarks += [
            Remark(str(o.key), "is of no kind that a fleet file has a word for")
            for o in found.objects
            if o.key.kind not in policy_translate.KINDS
        ]
        whole = replace(
            fleet,
            clusters=(self._cluster,),
            pools=fleet.pools_of(self._cluster.name),
            teams=terms.teams,
            priorities=terms.priorities or fleet.priorities,
            fairness=terms.fairness,
            chosen_teams=terms.default_teams,
        )
        return Imported(whole, tuple(remarks))

    # what an administrator does by hand

    def change_by_hand(self, key: ObjectKey, fields: Fields, by: str) -> None:
        """Make or change an object as somebody other than Fairway: given fields change, a mark stays."""
        before = self._objects.get(key)
        whole = {**(before.fields if before else {}), **fields}
        self._obey({**self._objects, key: _Written(whole, before is not None and before.ours, by)})

    def remove_by_hand(self, key: ObjectKey) -> None:
        """Delete an object as somebody other than Fairway. Raises Refused if it is a team with jobs."""
        self._obey({k: written for k, written in self._objects.items() if k != key})

    def _obey(self, after: dict[ObjectKey, _Written]) -> None:
        terms = policy_translate.read_terms({key: written.fields for key, written in after.items()})
        if terms != self.simulator.terms:
            self.simulator.apply(terms)
        self._objects = after

    def _end_jobs(self, team: TeamName) -> None:
        for job in list(self.simulator.jobs()):
            if job.team == team and job.ended is None:
                self.simulator.cancel(job.id)

    # what happens to nodes

    def occupy(self, pool: PoolName, devices: int, slice_: SliceName | None = None) -> OccupiedDevices:
        """Take devices on the first node that has as many free. Raises Refused if none has."""
        for node in self.simulator.nodes().values():
            if node.pool.name == pool and slice_ in node.places and node.free(slice_) >= devices:
                self.simulator.occupy(node.name, devices, slice_)
                self._holds.append(OccupiedDevices(node.name, pool, slice_, devices))
                return self._holds[-1]
        raise Refused(
            "NotEnoughFree",
            f"no node of pool {pool} has {devices} free {slice_ or 'GPUs'}",
            f"fairway get nodes --pool {pool}",
        )

    def vacate(self, hold: OccupiedDevices) -> None:
        """Give back what `occupy` took."""
        self._holds.remove(hold)
        self.simulator.occupy(hold.node, -hold.devices, hold.slice)

    def drain(self, node: NodeName, reason: str) -> None:
        """Close a node to new work; what runs or is held there goes on."""
        self.simulator.drain(node, reason)

    def resume(self, node: NodeName) -> None:
        self.simulator.resume(node)

    def lose(self, node: NodeName) -> None:
        """The node dies; its jobs wait again. What `occupy` took stays on the books, as it does a while."""
        self.simulator.lose(node)

    def recover(self, node: NodeName) -> None:
        self.simulator.recover(node)

    def sicken(self, node: NodeName, devices: int, slice_: SliceName | None = None) -> None:
        """So many devices of the node are unhealthy now; 0 heals them."""
        self.simulator.sicken(node, devices, slice_)
