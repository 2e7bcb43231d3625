"""Clusters and policies as hypothesis draws them, and what a perfect engine makes of a plan's changes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import (
    Action,
    Activity,
    Change,
    FoundObject,
    FoundPolicy,
    ObjectKey,
    Translation,
    Value,
    WantedObject,
)
from fairway.policy.plan import ClusterPlan, build_plan, compute_changes, touched_keys

patient = settings(deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
"""The same examples in every run, however busy the machine is."""

HPC = ClusterName("hpc")
KEYS = tuple(ObjectKey(kind, name) for kind in ("account", "qos") for name in "abcdef")
TEAMS = tuple(TeamName(name) for name in ("research", "product", "web"))

values: st.SearchStrategy[Value] = st.one_of(
    st.none(), st.integers(-3, 99), st.text("xyz", max_size=3), st.lists(st.text("pq", max_size=2)).map(tuple)
)
fields: st.SearchStrategy[dict[str, Value]] = st.dictionaries(
    st.sampled_from(["limit", "parent", "weight", "flags"]), values, max_size=4
)
activities = st.builds(Activity, st.integers(0, 2), st.integers(0, 2))


def _needs(keys: list[ObjectKey]) -> st.SearchStrategy[list[tuple[ObjectKey, ...]]]:
    """What each one needs: only of those before it, so that there is an order; or a stranger."""
    stranger = ObjectKey("partition", "gpu")
    return st.tuples(
        *(st.lists(st.sampled_from([stranger, *keys[:i]]), max_size=3).map(tuple) for i in range(len(keys)))
    ).map(list)


@st.composite
def translations(draw: st.DrawFn) -> Translation:
    """What a fleet might mean."""
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True))
    needs = draw(_needs(keys))
    wanted = [
        WantedObject(
            key,
            draw(fields),
            after,
            draw(st.none() | st.sampled_from(TEAMS)),
            shared=draw(st.sampled_from([False, False, True])),
        )
        for key, after in zip(keys, needs, strict=True)
    ]
    return Translation(tuple(draw(st.permutations(wanted))))


@st.composite
def policies(draw: st.DrawFn) -> FoundPolicy:
    """What a cluster might have."""
    keys = draw(st.lists(st.sampled_from(KEYS), unique=True))
    needs = draw(_needs(keys))
    found = [
        FoundObject(
            key,
            draw(fields),
            ours=draw(st.booleans()),
            after=after,
            team=draw(st.none() | st.sampled_from(TEAMS)),
        )
        for key, after in zip(keys, needs, strict=True)
    ]
    return FoundPolicy("1.0", tuple(draw(st.permutations(found))), {})


@dataclass(frozen=True)
class Situation:
    """A policy, a cluster, and the jobs on it."""

    wanted: Translation
    found: FoundPolicy
    jobs: Mapping[ObjectKey, Activity]

    def plan(self) -> ClusterPlan:
        changes = compute_changes(self.wanted, self.found)
        activity = {key: self.jobs[key] for key in touched_keys(changes) if key in self.jobs}
        return build_plan(HPC, EngineKind.VIRTUAL, self.wanted, self.found, changes, activity)


situations = st.builds(
    Situation, translations(), policies(), st.dictionaries(st.sampled_from(KEYS), activities)
)


def made(found: FoundPolicy, changes: Iterable[Change]) -> FoundPolicy:
    """The cluster after the changes."""
    objects = {o.key: o for o in found.objects}
    for change in changes:
        if change.action is Action.DELETE:
            del objects[change.key]
        else:
            assert change.wanted is not None
            objects[change.key] = FoundObject(change.key, change.wanted, ours=True)
    return FoundPolicy(found.engine_version, tuple(objects.values()), found.settings)


def set_fields(given: Mapping[str, Value]) -> dict[str, Value]:
    """Without what is not set."""
    return {name: value for name, value in given.items() if value is not None}
