"""The hand on a virtual cluster: its simulator's own calls, on its own clock."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from fairway.engines.virtual import VirtualEngine
from fairway.files import parse_fleet
from fairway.model.errors import Refused
from fairway.model.names import NodeName, PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.simulate.cluster.jobs import JobChange, JobRequest, SimState
from tests.scenarios.hand import Denied, JobSeen, Order, State

if TYPE_CHECKING:
    from fairway.engines.port import Governs
    from fairway.model.fleet import Fleet
    from fairway.policy.objects import Translation

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: scenarios
currency: USD
clusters:
  lab: { engine: virtual }
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    virtual: { nodes: 4, gpus_per_node: 8, nodes_per_rack: 2 }
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1.90
    virtual: { nodes: 1, gpus_per_node: 1, slices_per_gpu: { 1g.10gb: 4 } }
  spot:
    cluster: lab
    gpu: A100-80GB
    capacity: spot
    price: 0.60
    virtual: { nodes: 2, gpus_per_node: 8 }
"""
NODES_A_RACK = 2
LONG_AGO = 10_000 * 86_400.0  # so many seconds, and no half-life remembers anything
STATES = {
    SimState.RUNNING: State.RUNNING,
    SimState.DONE: State.DONE,
    SimState.FAILED: State.ENDED,
    SimState.CANCELLED: State.ENDED,
    SimState.TIMEOUT: State.ENDED,
}


class VirtualHand:
    name = "virtual"
    head = HEAD
    ways: Sequence[str] = ("a job request",)
    stranger = "dave"

    def __init__(self) -> None:
        fleet = parse_fleet(HEAD, "virtual.yaml")
        self._engine = VirtualEngine(fleet.clusters[0], fleet.pools, clock=None)
        self.cluster = self._engine.simulator
        self._seen: dict[str, JobSeen] = {}
        self._changes = 0

    # the policy

    def engine(self, fleet: Fleet) -> Governs:
        return self._engine

    async def configure(self, fleet: Fleet, wanted: Translation) -> None:
        assert not wanted.advice, "a virtual cluster has nothing to configure"

    # users

    async def submit(self, order: Order) -> str:
        request = JobRequest(
            UserName(order.user),
            PoolName(order.pool),
            gpus=order.gpus,
            nodes=order.nodes,
            slice=None if order.slice is None else SliceName(order.slice),
            team=None if order.team is None else TeamName(order.team),
            seconds=order.seconds,
            limit_seconds=order.limit_seconds,
            priority=None if order.priority is None else PriorityName(order.priority),
            tolerates_loss=order.tolerates_loss,
            together=order.together,
        )
        try:
            return str(self.cluster.submit(request))
        except Refused as refusal:
            raise Denied(f"{refusal.code}: {refusal.message}") from refusal

    async def cancel(self, job: str, user: str) -> str:
        try:
            self.cluster.cancel(int(job), UserName(user))
        except Refused as refusal:
            raise Denied(f"{refusal.code}: {refusal.message}") from refusal
        return ""

    async def read(self, job: str, user: str) -> str:
        try:
            return str(self.cluster.attempts(int(job), UserName(user)))
        except Refused as refusal:
            raise Denied(f"{refusal.code}: {refusal.message}") from refusal

    async def change(self, job: str, user: str) -> str:
        try:
            self.cluster.hold(int(job), UserName(user))
        except Refused as refusal:
            raise Denied(f"{refusal.code}: {refusal.message}") from refusal
        return ""

    async def smuggle(self, order: Order) -> Mapping[str, str]:
        ways = {"as low": "low", "as urgent": "urgent"}
        came: dict[str, str] = {}
        for way, word in ways.items():
            try:
                wish = Order(order.user, order.team, order.pool, slice=order.slice, priority=word)
                came[way] = await self.submit(wish)
            except Denied as refusal:
                came[way] = f"refused: {refusal}"
        return came

    # eyes

    async def look(self) -> Sequence[Mapping[str, JobSeen]]:
        """The state after each moment in which something happened."""
        changes = self.cluster.changes(self._changes)
        self._changes += len(changes)
        looks = []
        for number, event in enumerate(changes, 1):
            self._seen[str(event.job)] = job_seen(event)
            if number == len(changes) or changes[number].at != event.at:
                looks.append(dict(self._seen))
        return looks or [dict(self._seen)]

    async def words(self, job: str) -> str:
        view = self.cluster.job(int(job))
        return f"{view.wait.code}: {view.wait.message}" if view.wait else str(view.state)

    # nodes

    def rack(self, node: str) -> str:
        return f"rack{(int(node.rpartition('-')[2]) - 1) // NODES_A_RACK}"

    async def lose(self, node: str) -> None:
        self.cluster.lose(NodeName(node))

    async def restore(self, node: str) -> None:
        self.cluster.recover(NodeName(node))

    async def clear(self) -> None:
        for view in list(self.cluster.jobs()):
            if view.ended is None:
                self.cluster.cancel(view.id)
        self.cluster.advance(self.cluster.now + LONG_AGO)
        self._changes += len(self.cluster.changes(self._changes))
        self._seen.clear()

    def now(self) -> float:
        return self.cluster.now

    async def pause(self, seconds: float) -> None:
        """To the next event, so that none is missed, but no further than that."""
        await asyncio.sleep(0)
        coming = self.cluster.next_at()
        until = self.cluster.now + seconds
        self.cluster.advance(until if coming is None else min(coming, until))


def job_seen(event: JobChange) -> JobSeen:
    """One change. A job that was taken waits again, with its attempts counted."""
    state = STATES.get(event.state, State.WAITING)
    how = str(event.ending or event.state)
    return JobSeen(state, event.attempts, event.nodes, event.devices, "" if state is State.RUNNING else how)


@asynccontextmanager
async def open_hand(name: str) -> AsyncIterator[VirtualHand]:
    """A cluster of its own."""
    yield VirtualHand()
