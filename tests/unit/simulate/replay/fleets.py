"""Build small fleets and traces for replays."""

from __future__ import annotations

from decimal import Decimal

from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, TeamName
from fairway.model.team import Grant, Supply, Team
from fairway.model.trace import TraceJob

LAB = ClusterName("lab")
GPU = PoolName("gpu")
HOUR = 3600.0


def pool(nodes: int = 1, gpus: int = 8, name: str = GPU, capacity: Capacity = Capacity.OWNED) -> Pool:
    kind = GpuType("A100-80GB", memory_gb=80)
    return Pool(PoolName(name), LAB, kind, capacity, Decimal(2), VirtualPlace(nodes, gpus))


def team(name: str, guarantee: int = 0, borrow: int | None = None, share: int = 1, on: str = GPU) -> Team:
    return Team(TeamName(name), share=share, grants=(Grant(Supply(PoolName(on)), guarantee, borrow),))


def fleet(*teams: Team, pools: tuple[Pool, ...] = (pool(),)) -> Fleet:
    return Fleet("lab", "USD", (Cluster(LAB, VirtualConnection()),), pools, teams)


def job(at: float, seconds: float, gpus: int = 8, team: str = "red", **rest: object) -> TraceJob:
    return TraceJob(at, seconds, gpus, team=TeamName(team), **rest)  # type: ignore[arg-type]
