"""Fleets of any size for benchmarks: so many teams over so many clusters, half Slurm, half Kubernetes."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fairway.model.fleet import (
    Capacity,
    Cluster,
    Fleet,
    KubernetesConnection,
    KubernetesPlace,
    Pool,
    SlurmConnection,
    SlurmPlace,
)
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Grant, Limits, Team

A100 = CATALOGUE["A100-80GB"]
PRIORITIES = (PriorityName("urgent"), PriorityName("normal"), PriorityName("low"))
PRODUCT = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB"}


def teams_of(count: int, pools: tuple[Pool, ...], members: tuple[str, ...] = ()) -> tuple[Team, ...]:
    """`count` teams, four fifths of them inside a parent of four, with guarantees, limits and members."""
    made: list[Team] = []
    while len(made) < count:
        parent = _team(f"org-{len(made):05}", None, 8, pools, members)
        made.append(parent)
        for _ in range(min(4, count - len(made))):
            made.append(_team(f"team-{len(made):05}", parent.name, 1, pools, members))
    return tuple(made)


def _team(
    name: str, parent: TeamName | None, guarantee: int, pools: tuple[Pool, ...], members: tuple[str, ...]
) -> Team:
    return Team(
        TeamName(name),
        parent,
        share=10,
        grants=tuple(Grant(s, guarantee, borrow=16) for p in pools for s in p.supplies),
        limits=Limits(job_gpus=64, job_seconds=72 * 3600, user_gpus=32),
        priorities=PRIORITIES,
        members=tuple(UserName(m) for m in members) or (UserName(f"user-{name}"),),
    )


def large_fleet(teams: int, clusters: int) -> Fleet:
    """`teams` teams, each with a grant on one pool of every cluster."""
    named = [ClusterName(f"cluster-{n:02}") for n in range(clusters)]
    made = tuple(
        Cluster(n, SlurmConnection("http://127.0.0.1:1") if i % 2 else KubernetesConnection())
        for i, n in enumerate(named)
    )
    pools = tuple(
        Pool(
            PoolName(f"{n}-a100"),
            n,
            A100,
            Capacity.OWNED,
            Decimal("1.90"),
            SlurmPlace("gpu", "a100") if i % 2 else KubernetesPlace(PRODUCT),
            gpus=100_000,
        )
        for i, n in enumerate(named)
    )
    return Fleet("bench", "USD", made, pools, teams_of(teams, pools))


def with_raised_guarantees(fleet: Fleet, every: int = 10) -> Fleet:
    """The same fleet with every tenth team's guarantees one higher: a plan with something in it."""
    return replace(
        fleet,
        teams=tuple(
            t
            if i % every
            else replace(t, grants=tuple(replace(g, guarantee=g.guarantee + 1) for g in t.grants))
            for i, t in enumerate(fleet.teams)
        ),
    )
