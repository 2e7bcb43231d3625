"""Compute a plan: changes in dependency order, objections to them, and a fingerprint."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Final

import msgspec

from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName, TeamName
from fairway.model.text import first_few
from fairway.policy.objects import (
    Action,
    Activity,
    Advice,
    Change,
    FieldChange,
    FoundObject,
    FoundPolicy,
    Notice,
    ObjectKey,
    Translation,
    Value,
    WantedObject,
)


def depths(
    objects: Iterable[tuple[ObjectKey, tuple[ObjectKey, ...]]], *, forbid_cycles: bool
) -> dict[ObjectKey, int]:
    """Return the depth of each object in the dependency graph; dependencies outside `objects` are ignored.

    A cycle has no order: raises ValueError if `forbid_cycles`, else puts objects in or behind it deepest.
    """
    needs = dict(objects)
    # Many objects share one long tuple of dependencies, e.g. all guarantees of a pool: process it once.
    alike: dict[int, list[ObjectKey]] = {}
    lists: dict[int, frozenset[ObjectKey]] = {}
    for key, after in needs.items():
        mine = id(after)
        if mine not in lists:
            lists[mine] = frozenset(after)
        if key in lists[mine]:  # an object does not depend on itself
            lists[id(key)] = lists[mine] - {key}
            mine = id(key)
        alike.setdefault(mine, []).append(key)
    needed_by: dict[ObjectKey, list[int]] = {}
    missing: dict[int, int] = {}
    for mine in alike:
        here = [need for need in lists[mine] if need in needs]
        missing[mine] = len(here)
        for need in here:
            needed_by.setdefault(need, []).append(mine)
    found: dict[ObjectKey, int] = {}
    ready, depth = [mine for mine, count in missing.items() if not count], 0
    while ready:
        following: list[int] = []
        for mine in ready:
            for key in alike[mine]:
                found[key] = depth
                for other in needed_by.get(key, ()):
                    missing[other] -= 1
                    if not missing[other]:
                        following.append(other)
        ready, depth = following, depth + 1
    circle = [key for key in needs if key not in found]
    if circle and forbid_cycles:
        raise ValueError(f"objects need each other in a circle: {', '.join(map(str, circle[:5]))}")
    return found | dict.fromkeys(circle, depth)


def stages(
    written: Iterable[Change],
    written_depths: Mapping[ObjectKey, int],
    deleted: Iterable[Change],
    deleted_depths: Mapping[ObjectKey, int],
) -> tuple[Change, ...]:
    """Assign a stage to every change: writes from the shallowest, then deletions from the deepest."""
    levels = _levels(written, written_depths) + _levels(deleted, deleted_depths)[::-1]
    return tuple(replace(c, stage=number) for number, level in enumerate(levels) for c in level)


def _levels(changes: Iterable[Change], depth: Mapping[ObjectKey, int]) -> list[list[Change]]:
    by_depth: dict[int, list[Change]] = {}
    for change in changes:
        by_depth.setdefault(depth[change.key], []).append(change)
    return [sorted(by_depth[d], key=lambda c: c.key) for d in sorted(by_depth)]


MOST_CHANGED: Final = 0.30
"""The fraction of a cluster's managed objects that may change or be deleted without `--force`."""

FEW: Final = 10
"""Up to this many changes never need `--force`, whatever fraction of a small fleet they are."""

_NAMED: Final = 5
"""Maximum number of objects listed in a message."""


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason why a plan is not applied."""

    code: str
    message: str
    hint: str
    forceable: bool
    """Whether `--force` overrides it."""


@dataclass(frozen=True, slots=True)
class JobsUnder:
    """The jobs that depend on objects that a plan touches."""

    changes: Sequence[Change]
    touched: Mapping[ObjectKey, Activity]
    staying: frozenset[TeamName]
    """The teams that still have objects on this cluster after the plan."""

    def of(self, action: Action) -> list[tuple[Change, Activity]]:
        """Return the changes with this action whose objects have jobs."""
        pairs = ((c, self.touched.get(c.key)) for c in self.changes if c.action is action)
        return [(c, a) for c, a in pairs if a is not None and (a.running or a.waiting)]


def objections(
    cluster: ClusterName,
    changes: Sequence[Change],
    managed: int,
    in_the_way: Sequence[FoundObject],
    jobs: JobsUnder,
) -> tuple[Objection, ...]:
    """Return all objections to the plan; those that `--force` cannot override come first."""
    return (
        *_in_the_way(cluster, in_the_way),
        *_jobs_under_what_goes(jobs),
        *_too_many(changes, managed),
    )


def touched_notices(jobs: JobsUnder) -> tuple[Notice, ...]:
    """Return a notice with the number of jobs under changed objects; they keep running."""
    running, waiting = _count(activity_by_kind(jobs.of(Action.UPDATE)))
    if not running and not waiting:
        return ()
    return (
        Notice(
            "JobsUnderChanges",
            f"{_jobs(running, waiting)} under objects that change: nothing that runs ends",
            "fairway plan -o wide  lists the objects",
            promise="no-surprise",
        ),
    )


def _in_the_way(cluster: ClusterName, found: Sequence[FoundObject]) -> Iterable[Objection]:
    if not found:
        return
    keys = sorted(o.key for o in found)
    one = len(keys) == 1
    yield Objection(
        "InTheWay",
        f"{first_few(keys, _NAMED)} {'is' if one else 'are'} on {cluster} already and not Fairway's",
        f"look at {'it' if one else 'them'}, then let Fairway have {'it' if one else 'them'}:  "
        f"fairway adopt {cluster} "
        + (
            " ".join(f"{k.kind}/{k.name}" for k in keys)
            if len(keys) <= _NAMED
            else "--all-in-the-way -f fleet.yaml"
        ),
        forceable=False,
    )


def _jobs_under_what_goes(jobs: JobsUnder) -> Iterable[Objection]:
    going = jobs.of(Action.DELETE)
    teams: dict[TeamName, list[tuple[Change, Activity]]] = {}
    others = []
    for change, activity in going:
        if change.team is not None and change.team not in jobs.staying:
            teams.setdefault(change.team, []).append((change, activity))
        else:
            others.append((change, activity))
    for team, under in sorted(teams.items()):
        yield Objection(
            "TeamHasJobs",
            f"team {team} would go, and has {_jobs(*_count(activity_by_kind(under)))}",
            f"keep {team} with  draining: true  until its jobs have ended, then remove it; "
            "or end them now with --force",
            forceable=True,
        )
    if others:
        yield Objection(
            "WouldEndJobs",
            f"{first_few([c.key for c, _ in others], _NAMED)} would go, with "
            f"{_jobs(*_count(activity_by_kind(others)))} under {'it' if len(others) == 1 else 'them'}",
            "let them end first: keep the team with  draining: true  meanwhile; or end them now with --force",
            forceable=True,
        )


def _too_many(changes: Sequence[Change], managed: int) -> Iterable[Objection]:
    changed = sum(c.action is Action.UPDATE for c in changes)
    gone = sum(c.action is Action.DELETE for c in changes)
    if changed + gone > FEW and changed + gone > MOST_CHANGED * managed:
        yield Objection(
            "TooManyChanges",
            f"{changed} of {managed} objects would change and {gone} go: "
            f"more than {MOST_CHANGED:.0%} of what is managed",
            "read the plan once more (-o wide lists every object); if it is meant, apply it with --force",
            forceable=True,
        )


def activity_by_kind(under: Iterable[tuple[Change, Activity]]) -> dict[str, Activity]:
    """Sum the jobs by kind of object. A job is under one object of each kind, and must not count twice."""
    sums: dict[str, Activity] = {}
    for change, activity in under:
        so_far = sums.get(change.key.kind, Activity())
        sums[change.key.kind] = Activity(so_far.running + activity.running, so_far.waiting + activity.waiting)
    return sums


def _count(by_kind: Mapping[str, Activity]) -> tuple[int, int]:
    return (
        max((a.running for a in by_kind.values()), default=0),
        max((a.waiting for a in by_kind.values()), default=0),
    )


def _jobs(running: int, waiting: int) -> str:
    said = [f"{running} running"] * bool(running) + [f"{waiting} waiting"] * bool(waiting)
    return f"{' and '.join(said)} {'job' if running + waiting == 1 else 'jobs'}"


__all__ = [
    "ClusterPlan",
    "Objection",
    "complete",
    "compute_adoption",
    "compute_changes",
    "touched_keys",
]


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The plan of one cluster: its changes, objections, notices and fingerprint."""

    cluster: ClusterName
    engine: EngineKind
    engine_version: str
    fingerprint: str
    """A hash of found and wanted objects: equal as long as neither changes."""
    changes: tuple[Change, ...]
    """In the order in which they are applied."""
    managed: int
    """The number of found objects with Fairway's mark, the base of the safety limits."""
    in_the_way: tuple[FoundObject, ...] = ()
    """Objects without Fairway's mark that have a wanted name."""
    touched: Mapping[ObjectKey, Activity] | None = None
    """Jobs that depend on objects to be changed or deleted."""
    notices: tuple[Notice, ...] = ()
    advice: tuple[Advice, ...] = ()
    objections: tuple[Objection, ...] = ()


def compute_changes(wanted: Translation, found: FoundPolicy) -> tuple[Change, ...]:
    """Compute the changes that turn `found` into `wanted`: ordered, each with its stage.

    First creations and updates, each after its dependencies; then deletions, each before its dependencies.
    The stage of an object depends on all wanted objects, not only on those that change. An object without
    Fairway's mark is left alone, even if its name is wanted: see `ClusterPlan.in_the_way`.
    """
    here = {o.key: o for o in found.objects}
    written = _writes(wanted.objects, here)
    keys = {o.key for o in wanted.objects}
    gone = [o for o in found.objects if o.ours and o.key not in keys]
    return stages(
        written,
        depths(((o.key, o.after) for o in wanted.objects), forbid_cycles=True),
        [Change(Action.DELETE, o.key, _differences(o.fields, {}), team=o.team) for o in gone],
        depths(((o.key, o.after) for o in gone), forbid_cycles=False),
    )


def compute_adoption(found: FoundPolicy, keys: Sequence[ObjectKey]) -> tuple[Change, ...]:
    """Compute the changes that put Fairway's mark on these objects, and nothing else.

    Objects that already have it or do not exist are left out.
    """
    here = {o.key: o for o in found.objects}
    return tuple(
        Change(Action.ADOPT, key, wanted=dict(here[key].fields))
        for key in dict.fromkeys(keys)
        if key in here and not here[key].ours
    )


def touched_keys(changes: Iterable[Change]) -> tuple[ObjectKey, ...]:
    """Return the objects to be changed or deleted, whose jobs must be counted to complete the plan."""
    return tuple(c.key for c in changes if c.action in {Action.UPDATE, Action.DELETE})


def complete(
    cluster: ClusterName,
    engine: EngineKind,
    wanted: Translation,
    found: FoundPolicy,
    changes: tuple[Change, ...],
    activity: Mapping[ObjectKey, Activity],
) -> ClusterPlan:
    """Build the plan of one cluster, with its fingerprint and objections."""
    asked = {o.key: o for o in wanted.objects}
    in_the_way = tuple(o for o in found.objects if not o.ours and o.key in asked and not asked[o.key].shared)
    managed = sum(o.ours for o in found.objects)
    touched = {key: activity[key] for key in touched_keys(changes) if key in activity}
    jobs = JobsUnder(changes, touched, staying=frozenset(o.team for o in wanted.objects if o.team))
    return ClusterPlan(
        cluster=cluster,
        engine=engine,
        engine_version=found.engine_version,
        fingerprint=_fingerprint(wanted.objects, found.objects),
        changes=changes,
        managed=managed,
        in_the_way=in_the_way,
        touched=touched,
        notices=wanted.notices + touched_notices(jobs),
        advice=wanted.advice,
        objections=objections(cluster, changes, managed, in_the_way, jobs),
    )


def _writes(wanted: Iterable[WantedObject], here: Mapping[ObjectKey, FoundObject]) -> list[Change]:
    written: list[Change] = []
    for want in wanted:
        have = here.get(want.key)
        if have is None:
            made = _differences({}, want.fields)
            written.append(Change(Action.CREATE, want.key, made, want.fields, team=want.team))
        elif have.ours and not want.shared and have.fields != want.fields:
            differ = _differences(have.fields, want.fields)
            if differ:
                written.append(Change(Action.UPDATE, want.key, differ, want.fields, team=want.team))
    return written


def _differences(have: Mapping[str, Value], want: Mapping[str, Value]) -> tuple[FieldChange, ...]:
    """Compare fields. A missing field is not set; a found field that is not wanted is unset."""
    differ = [
        FieldChange(name, have.get(name), value) for name, value in want.items() if have.get(name) != value
    ]
    differ += [
        FieldChange(name, value, None)
        for name, value in have.items()
        if value is not None and name not in want
    ]
    return tuple(differ)


_encode = msgspec.json.Encoder(order="sorted").encode

_by_name = attrgetter("kind", "name")


def _fingerprint(wanted: Iterable[WantedObject], found: Iterable[FoundObject]) -> str:
    """Hash wanted and found objects, the same on every machine and release.

    Of an object that is not Fairway's, only its existence counts.
    """
    asked = {o.key: None if o.shared else _set_fields(o.fields) for o in wanted}
    here: dict[ObjectKey, object] = {}
    for have in found:
        if have.key not in asked:
            if have.ours:
                here[have.key] = _set_fields(have.fields)
        elif not have.ours or asked[have.key] is None:
            here[have.key] = have.ours
        else:
            fields = _set_fields(have.fields)
            here[have.key] = "as wanted" if fields == asked[have.key] else fields
    rows = [
        (key.kind, key.name, asked.get(key, False), here.get(key))
        for key in sorted(asked.keys() | here.keys(), key=_by_name)
    ]
    return hashlib.sha256(_encode(rows)).hexdigest()


def _set_fields(fields: Mapping[str, Value]) -> dict[str, Value]:
    if isinstance(fields, dict) and None not in fields.values():  # the usual case: no copy
        return fields
    return {name: value for name, value in fields.items() if value is not None}
