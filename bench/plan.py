"""Planning a fleet from observed state at hand: translate, compare, fingerprint, for every cluster.

Bare: writing the very same wanted and found objects as JSON once, the least that any tool which compares
them has to do. The plan changes every tenth team. The larger sizes show whether it grows as the teams do.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping

from bench.figure import Figure, median
from bench.fleets import large_fleet, with_raised_guarantees
from fairway.engines.port import Governs
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.policy.objects import FoundObject, FoundPolicy
from fairway.policy.plan import ClusterPlan, build_plan, compute_changes
from fairway.server import build_engine, collect_garbage_less_often

TARGET = 40.0
"""A plan is more than one encoding of its objects; what counts is the time in seconds."""
TEAMS, MOST_SECONDS = 1000, 2.0
GROWTH = {5000: 6.0}
"""How many times the seconds of 1,000 teams a larger fleet may take."""
CLUSTERS = 10
SIZES = {"small": (100, 300), "1000": (100, 1000, 5000)}
ROUNDS = 3
VERSIONS = {"slurm": "24.11.5", "kubernetes": "v1.36.3, Kueue v0.19.2", "virtual": "1"}


def _engines(fleet: Fleet) -> dict[ClusterName, Governs]:
    return {c.name: build_engine(c, fleet.pools_of(c.name)) for c in fleet.clusters}


def _as_applied(fleet: Fleet, engines: Mapping[ClusterName, Governs]) -> dict[ClusterName, FoundPolicy]:
    """What each cluster has once `fleet` was applied to it."""
    found: dict[ClusterName, FoundPolicy] = {}
    for cluster in fleet.clusters:
        empty = FoundPolicy(VERSIONS[cluster.engine], (), {})
        wanted = engines[cluster.name].translate(fleet, empty)
        found[cluster.name] = FoundPolicy(
            empty.engine_version,
            tuple(FoundObject(o.key, o.fields, ours=True, after=o.after) for o in wanted.objects),
            {},
        )
    return found


def _plan(
    fleet: Fleet, engines: Mapping[ClusterName, Governs], found: Mapping[ClusterName, FoundPolicy]
) -> list[ClusterPlan]:
    plans = []
    for cluster in fleet.clusters:
        here = found[cluster.name]
        wanted = engines[cluster.name].translate(fleet, here)
        changes = compute_changes(wanted, here)
        plans.append(build_plan(cluster.name, cluster.engine, wanted, here, changes, {}))
    return plans


def _bare(
    fleet: Fleet, engines: Mapping[ClusterName, Governs], found: Mapping[ClusterName, FoundPolicy]
) -> float:
    wanted = [engines[c.name].translate(fleet, found[c.name]) for c in fleet.clusters]
    start = time.perf_counter()
    for translation, cluster in zip(wanted, fleet.clusters, strict=True):
        json.dumps([[o.key.kind, o.key.name, dict(o.fields)] for o in translation.objects])
        json.dumps([[o.key.kind, o.key.name, dict(o.fields)] for o in found[cluster.name].objects])
    return time.perf_counter() - start


async def run(size: str) -> list[Figure]:
    """One figure for each number of teams."""
    collect_garbage_less_often()  # as a server does
    figures = []
    of_thousand = MOST_SECONDS
    for teams in SIZES[size]:
        fleet = large_fleet(teams, CLUSTERS)
        engines = _engines(fleet)
        found = _as_applied(fleet, engines)
        changed = with_raised_guarantees(fleet)
        seconds: list[float] = []
        bare: list[float] = []
        plans: list[ClusterPlan] = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            plans = _plan(changed, engines, found)
            seconds.append(time.perf_counter() - start)
            bare.append(_bare(changed, engines, found))
        middle = median(seconds)
        if teams == TEAMS:
            of_thousand = middle
        figures.append(
            Figure(
                f"plan of {teams} teams on {CLUSTERS} clusters",
                size,
                middle,
                median(bare),
                "s",
                TARGET,
                "one core: translating and comparing every object",
                {
                    "objects": sum(len(f.objects) for f in found.values()),
                    "changes": sum(len(p.changes) for p in plans),
                    "microseconds_a_team_and_cluster": round(middle / teams / CLUSTERS * 1e6, 1),
                },
                MOST_SECONDS if teams <= TEAMS else GROWTH[teams] * of_thousand,
            )
        )
        for engine in engines.values():
            await engine.close()
    return figures
