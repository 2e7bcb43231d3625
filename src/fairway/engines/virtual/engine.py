"""The virtual engine: enforces a policy on a simulated cluster, runs jobs, and changes its nodes."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Final

from fairway import __version__
from fairway.engines.port import CordonOutcome, ImportedPolicy, Remark
from fairway.engines.virtual.cluster import ClusterInstance
from fairway.engines.virtual.jobs.mirror import VirtualMirror
from fairway.engines.virtual.jobs.submit import VirtualRunner
from fairway.engines.virtual.policy import translate as policy_translate
from fairway.engines.virtual.policy.translate import Fields
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.job import EngineId
from fairway.model.names import NodeName, PoolName, SliceName, TeamName
from fairway.model.observation import Observation
from fairway.policy.leave import Leaving, restore_change, unsaved_objects
from fairway.policy.objects import (
    Action,
    Activity,
    Change,
    FieldChange,
    FoundObject,
    FoundPolicy,
    ObjectKey,
    Record,
    SavedObject,
    Translation,
)
from fairway.simulate.cluster.jobs import SimState
from fairway.simulate.cluster.nodes import SimulatedNode
from fairway.simulate.cluster.simulator import Simulator

VERSION = f"virtual {__version__}"
_UNSTOPPED: Final[Fields] = {"hold": None, "draining": False}
CORDONED: Final = "fairway: "
"""How the reason of a drain by Fairway begins."""
HISTORY_SIZE: Final = 20_000
"""Ended jobs and changes of jobs to store, about 2 KB each."""


@dataclass(frozen=True, slots=True, eq=False)
class OccupiedDevices:
    """Devices taken on one node by `VirtualEngine.occupy`; compared by identity."""

    node: NodeName
    pool: PoolName
    slice: SliceName | None
    devices: int


@dataclass(frozen=True, slots=True)
class _StoredObject:
    """A policy object of the cluster, and who wrote it last."""

    fields: Fields
    ours: bool
    changed_by: str | None = None


class VirtualEngine(VirtualRunner, VirtualMirror):
    """A simulated cluster with the nodes of its pools, healthy and idle at first.

    The simulator follows the stored policy objects, whoever wrote them. Every call first advances it to the
    time of the clock.
    """

    def __init__(
        self,
        cluster: Cluster,
        pools: tuple[Pool, ...],
        *,
        speed: float = 1.0,
        clock: Callable[[], float] | None = time.time,
    ) -> None:
        """`speed`: simulated seconds for each second of `clock`. Without a clock, `tick` sets the time."""
        self.simulator = Simulator(pools, history_size=HISTORY_SIZE)
        self._instance = ClusterInstance(self.simulator, clock, speed)
        self._cluster = cluster
        self._objects: dict[ObjectKey, _StoredObject] = {}
        self._occupied: list[OccupiedDevices] = []
        self._speed = speed
        self._clock = clock

    def resize(self, pools: tuple[Pool, ...]) -> None:
        """Replace the nodes and keep the policy; jobs and the state of nodes are lost.

        The object stays the same, because others than the loops refer to it: the demo, whose jobs would run
        on a cluster that nobody follows.
        """
        self.simulator = Simulator(pools, history_size=HISTORY_SIZE)
        self._instance = ClusterInstance(self.simulator, self._clock, self._speed)
        self._occupied.clear()
        self._apply(dict(self._objects))

    async def observe(self) -> Observation:
        self._instance.sync()
        nodes = self.simulator.nodes()
        observed = tuple(nodes[name].observed() for name in sorted(nodes))
        return Observation(self._cluster.name, VERSION, observed)

    async def close(self) -> None:
        """Do nothing: there are no connections."""

    def engine_id(self, number: int) -> EngineId:
        """Return the engine's id of a job of the simulator."""
        return self._instance.engine_id(number)

    def tick(self, now: float) -> None:
        """Advance the simulator to the time `now`, in seconds; the first call only sets the time."""
        self._instance.tick(now)

    # policy

    async def find_policy(self) -> FoundPolicy:
        found = (
            FoundObject(
                key,
                stored.fields,
                stored.ours,
                stored.changed_by,
                policy_translate.needs_of(key, stored.fields),
                policy_translate.team_of(key) if stored.ours else None,
            )
            for key, stored in sorted(self._objects.items())
        )
        return FoundPolicy(VERSION, tuple(found), MappingProxyType({}))

    def translate(self, fleet: Fleet, found: FoundPolicy) -> Translation:
        """Translate a fleet. Pure. A virtual cluster keeps every promise, so there are no warnings."""
        return policy_translate.translate(fleet, self._cluster.name)

    async def activity(self, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Activity]:
        self._instance.sync()
        running: Counter[ObjectKey] = Counter()
        waiting: Counter[ObjectKey] = Counter()
        for (state, team, supply, user, priority), jobs in self.simulator.job_counts().items():
            count = running if state is SimState.RUNNING else waiting
            count[ObjectKey(policy_translate.TEAM, team)] += jobs
            count[ObjectKey(policy_translate.GRANT, f"{team}/{supply}")] += jobs
            count[ObjectKey(policy_translate.MEMBER, f"{team}/{user}")] += jobs
            count[ObjectKey(policy_translate.PRIORITY, priority)] += jobs
        return {key: Activity(running[key], waiting[key]) for key in keys if running[key] or waiting[key]}

    async def write(self, changes: Sequence[Change]) -> AsyncIterator[Change]:
        """Make the changes of one stage atomically.

        Removing a team cancels its jobs; such a plan is applied only with force.
        """
        self._instance.sync()
        after = dict(self._objects)
        for change in changes:
            if change.action is Action.DELETE:
                after.pop(change.key, None)
            elif change.action is Action.ADOPT:
                if change.key not in after:
                    raise Refused("NothingToAdopt", f"there is no {change.key}", "fairway plan -o wide")
                after[change.key] = _StoredObject(after[change.key].fields, ours=True)
            elif change.action is Action.RESTORE:
                before = after.get(change.key)
                fields = before.fields if change.record is None and before else change.wanted or {}
                after[change.key] = _StoredObject(dict(fields), ours=False)
            else:
                after[change.key] = _StoredObject(dict(change.wanted or {}), ours=True)
        for change in changes:
            if change.action is Action.DELETE and change.key.kind == policy_translate.TEAM:
                self._end_jobs(TeamName(change.key.name))
        self._apply(after)
        for change in changes:
            yield change

    # leaving

    async def read_records(self, keys: Collection[ObjectKey]) -> Mapping[ObjectKey, Record]:
        """Return a record of each object that exists. It is empty: its fields are all an object has."""
        return {key: {} for key in keys if key in self._objects}

    def leaving(
        self, found: FoundPolicy, saved: Sequence[SavedObject], now: Mapping[ObjectKey, Record]
    ) -> Leaving:
        """Return the objects that have the mark or other fields than before. Pure."""
        by_key = {o.key: o for o in found.objects}
        order = {kind: stage for stage, kind in enumerate(policy_translate.KINDS)}
        restored = [
            restore_change(o.key, have, o, order.get(o.key.kind, 0))
            for o in saved
            if o.record is not None
            and ((have := by_key.get(o.key)) is None or have.ours or have.fields != o.fields)
        ]
        unsaved = unsaved_objects(found, saved, marked=policy_translate.KINDS)
        return Leaving((*restored, *(restore_change(o.key, o, None) for o in unsaved)), {})

    def guards(self, found: FoundPolicy) -> tuple[Change, ...]:
        """Return the changes that end holds and drains of teams. Pure."""
        changes = []
        for o in found.objects:
            stops = [name for name in ("hold", "draining") if o.fields.get(name)]
            if o.ours and o.key.kind == policy_translate.TEAM and stops:
                wanted = {**o.fields, **{name: _UNSTOPPED[name] for name in stops}}
                fields = tuple(FieldChange(name, o.fields[name], _UNSTOPPED[name]) for name in stops)
                changes.append(Change(Action.UPDATE, o.key, fields, wanted, team=o.team))
        return tuple(changes)

    async def requeue_waiting(self, keys: Collection[ObjectKey]) -> None:
        """Do nothing: objects with waiting jobs stay."""

    def import_policy(self, fleet: Fleet, seen: Observation, found: FoundPolicy) -> ImportedPolicy:
        """Import the objects, which match the terms of a fleet; remark on those that do not. Pure."""
        terms = policy_translate.read_terms({o.key: o.fields for o in found.objects})
        teams = {team.name for team in terms.teams}
        remarks = [
            Remark(str(o.key), f"belongs to team {policy_translate.team_of(o.key)}, which does not exist")
            for o in found.objects
            if o.key.kind in policy_translate.KINDS and policy_translate.team_of(o.key) not in {None, *teams}
        ]
        remarks += [
            Remark(str(o.key), "has a kind that a fleet file does not support")
            for o in found.objects
            if o.key.kind not in policy_translate.KINDS
        ]
        merged = replace(
            fleet,
            clusters=(fleet.cluster(self._cluster.name),),
            pools=fleet.pools_of(self._cluster.name),
            teams=terms.teams,
            priorities=terms.priorities or fleet.priorities,
            fairness=terms.fairness,
            chosen_teams=terms.default_teams,
        )
        return ImportedPolicy(merged, tuple(remarks))

    # changes past Fairway

    def change_by_hand(self, key: ObjectKey, fields: Fields, by: str) -> None:
        """Create or change an object as a user `by`; other fields and its ownership stay."""
        before = self._objects.get(key)
        merged = {**(before.fields if before else {}), **fields}
        self._apply({**self._objects, key: _StoredObject(merged, before is not None and before.ours, by)})

    def remove_by_hand(self, key: ObjectKey) -> None:
        """Delete an object as a user. Raises Refused if it is a team with jobs."""
        self._apply({k: stored for k, stored in self._objects.items() if k != key})

    def _apply(self, after: dict[ObjectKey, _StoredObject]) -> None:
        terms = policy_translate.read_terms({key: stored.fields for key, stored in after.items()})
        if terms != self.simulator.terms:
            self.simulator.apply(terms)
        self._objects = after

    def _end_jobs(self, team: TeamName) -> None:
        for job in list(self.simulator.jobs()):
            if job.team == team and job.ended is None:
                self.simulator.cancel(job.id)

    # nodes

    async def cordon(self, nodes: Mapping[NodeName, str]) -> Mapping[NodeName, CordonOutcome]:
        """Drain nodes that nobody has drained."""
        self._instance.sync()
        outcomes: dict[NodeName, CordonOutcome] = {}
        for name, reason in nodes.items():
            node = self.simulator.nodes().get(name)
            outcomes[name] = _cordon_outcome(node, node is not None and node.drained is None)
            if node is not None and node.drained is None:
                self.simulator.drain(name, f"{CORDONED}{reason}")
        return outcomes

    async def uncordon(self, nodes: Collection[NodeName]) -> Mapping[NodeName, CordonOutcome]:
        """Resume nodes that Fairway drained."""
        self._instance.sync()
        outcomes: dict[NodeName, CordonOutcome] = {}
        for name in nodes:
            node = self.simulator.nodes().get(name)
            outcomes[name] = _cordon_outcome(node, node is not None and node.drained is None)
            if node is not None and node.drained is not None and outcomes[name] is CordonOutcome.DONE:
                self.simulator.resume(name)
        return outcomes

    def occupy(self, pool: PoolName, devices: int, slice_: SliceName | None = None) -> OccupiedDevices:
        """Take devices on the first node that has enough free. Raises Refused if there is none."""
        for node in self.simulator.nodes().values():
            if node.pool.name == pool and slice_ in node.places and node.free(slice_) >= devices:
                self.simulator.occupy(node.name, devices, slice_)
                self._occupied.append(OccupiedDevices(node.name, pool, slice_, devices))
                return self._occupied[-1]
        raise Refused(
            "NotEnoughFree",
            f"no node of pool {pool} has {devices} free {slice_ or 'GPUs'}",
            f"fairway get nodes --pool {pool}",
        )

    def vacate(self, occupied: OccupiedDevices) -> None:
        """Give back devices that `occupy` took."""
        self._occupied.remove(occupied)
        self.simulator.occupy(occupied.node, -occupied.devices, occupied.slice)


def _cordon_outcome(node: SimulatedNode | None, is_open: bool) -> CordonOutcome:
    if node is None:
        return CordonOutcome.MISSING
    ours = is_open or (node.drained or "").startswith(CORDONED)
    return CordonOutcome.DONE if ours else CordonOutcome.NOT_OURS
