"""Small virtual clusters for the tests: pools, teams in the file's words, jobs in a line each."""

from __future__ import annotations

from typing import Any

from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply
from fairway.simulate.cluster.jobs import JobRequest, SimState
from fairway.simulate.cluster.simulator import Simulator
from fairway.simulate.cluster.terms import terms_of

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: test
currency: USD
clusters: { lab: { engine: virtual } }
pools:
  gpu:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 1
    topology: [rack]
    virtual: { nodes: 4, nodes_per_rack: 2 }
  mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 1
    virtual: { nodes: 1, gpus_per_node: 1, slices_per_gpu: { 1g.10gb: 4 } }
  spot: { cluster: lab, gpu: A100-80GB, capacity: spot, price: 1, virtual: { nodes: 2 } }
"""
GPU = Supply(PoolName("gpu"))


def fleet(teams: str) -> Fleet:
    return parse_fleet(HEAD + teams, "test.yaml")


class World:
    """A simulator with short words for what tests do."""

    def __init__(self, teams: str, **options: Any) -> None:
        self.fleet = fleet(teams)
        self.sim = Simulator(self.fleet.pools, terms_of(self.fleet), **options)

    def request(
        self,
        team: str | None,
        gpus: int = 8,
        *,
        user: str | None = None,
        pool: str = "gpu",
        slice_: str | None = None,
        priority: str | None = None,
        **wish: Any,
    ) -> JobRequest:
        if user is None:
            user = next(t.members[0] for t in self.fleet.teams if t.name == team)
        return JobRequest(
            UserName(user),
            PoolName(pool),
            gpus,
            team=None if team is None else TeamName(team),
            slice=None if slice_ is None else SliceName(slice_),
            priority=None if priority is None else PriorityName(priority),
            **wish,
        )

    def submit(self, team: str | None, gpus: int = 8, *, count: int = 1, **wish: Any) -> list[int]:
        return list(self.sim.submit_many([self.request(team, gpus, **wish)] * count))

    def one(self, team: str | None, gpus: int = 8, **wish: Any) -> int:
        return self.sim.submit(self.request(team, gpus, **wish))

    def apply(self, teams: str, *, evict: bool = False) -> None:
        self.fleet = fleet(teams)
        self.sim.apply(terms_of(self.fleet), evict=evict)

    def pass_time(self, seconds: float) -> None:
        self.sim.advance(self.sim.now + seconds)

    def running(self, *jobs: int) -> list[int]:
        return [j for j in jobs if self.sim.job(j).state is SimState.RUNNING]

    def runs(self, job: int) -> bool:
        return self.sim.job(job).state is SimState.RUNNING

    def held(self, team: str, supply: Supply = GPU) -> int:
        return self.sim.held_devices(supply)[TeamName(team)]

    def taken(self, *jobs: int) -> list[int]:
        """Which of them lost an attempt."""
        return [j for j in jobs if any(a.by is not None for a in self.sim.attempts(j))]

    def wait(self, job: int) -> str:
        wait = self.sim.job(job).wait
        assert wait is not None
        return wait.code
