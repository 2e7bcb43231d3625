"""Compute a plan: changes in dependency order, objections to them, and a fingerprint."""

from __future__ import annotations

import hashlib
import shlex
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
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
from fairway.policy.recent_use import TakenAway

MAX_CHANGED: Final = 0.30
"""The fraction of a cluster's managed objects that may change or be deleted without `--force`."""

FEW: Final = 10
"""Up to this many changes never need `--force`, whatever fraction of a small fleet they are."""

_MAX_LISTED: Final = 5
"""Maximum number of objects listed in a message."""

ChangedJobs = list[tuple[Change, Activity]]
"""Changes to objects that have jobs, with the number of these jobs."""


@dataclass(frozen=True, slots=True)
class Objection:
    """A reason why a plan is not applied."""

    code: str
    message: str
    hint: str
    forceable: bool
    """Whether `--force` overrides it."""


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
    taken: tuple[TakenAway, ...] = ()
    """What people could use before, and who did."""
    staying: Mapping[ObjectKey, str] | None = None
    """Of leaving: objects of Fairway's that stay for now, each with the reason."""


def compute_changes(wanted: Translation, found: FoundPolicy) -> tuple[Change, ...]:
    """Compute the changes that turn `found` into `wanted`: ordered, each with its stage.

    First creations and updates, each after its dependencies; then deletions, each before its dependencies.
    The stage of an object depends on all wanted objects, not only on those that change. An object without
    Fairway's mark is left alone, even if its name is wanted: see `ClusterPlan.in_the_way`.
    """
    writes = _writes(wanted.objects, {o.key: o for o in found.objects})
    write_depths = depths(((o.key, o.after) for o in wanted.objects), forbid_cycles=True)
    keys = {o.key for o in wanted.objects}
    extra = [o for o in found.objects if o.ours and o.key not in keys]
    deletions = [Change(Action.DELETE, o.key, _differences(o.fields, {}), team=o.team) for o in extra]
    deletion_depths = depths(((o.key, o.after) for o in extra), forbid_cycles=False)
    stages = _levels(writes, write_depths) + _levels(deletions, deletion_depths)[::-1]
    return tuple(replace(c, stage=number) for number, level in enumerate(stages) for c in level)


def compute_adoption(found: FoundPolicy, keys: Sequence[ObjectKey]) -> tuple[Change, ...]:
    """Compute the changes that put Fairway's mark on these objects, and nothing else.

    Objects that already have it or do not exist are left out.
    """
    by_key = {o.key: o for o in found.objects}
    return tuple(
        Change(Action.ADOPT, key, wanted=dict(by_key[key].fields))
        for key in dict.fromkeys(keys)
        if key in by_key and not by_key[key].ours
    )


def touched_keys(changes: Iterable[Change]) -> tuple[ObjectKey, ...]:
    """Return the objects to be changed or deleted, whose jobs must be counted to build the plan."""
    return tuple(c.key for c in changes if c.action in {Action.UPDATE, Action.DELETE})


def build_plan(
    cluster: ClusterName,
    engine: EngineKind,
    wanted: Translation,
    found: FoundPolicy,
    changes: tuple[Change, ...],
    activity: Mapping[ObjectKey, Activity],
    source: str = "fleet.yaml",
) -> ClusterPlan:
    """Build the plan of one cluster, with its fingerprint and objections. `source`: the fleet file's name."""
    by_key = {o.key: o for o in wanted.objects}
    in_the_way = tuple(
        o for o in found.objects if not o.ours and o.key in by_key and not by_key[o.key].shared
    )
    managed = sum(o.ours for o in found.objects)
    touched = {key: activity[key] for key in touched_keys(changes) if key in activity}
    with_jobs = [(c, a) for c in changes if (a := touched.get(c.key)) and (a.running or a.waiting)]
    return ClusterPlan(
        cluster=cluster,
        engine=engine,
        engine_version=found.engine_version,
        fingerprint=fingerprint(wanted.objects, found.objects),
        changes=changes,
        managed=managed,
        in_the_way=in_the_way,
        touched=touched,
        notices=(*wanted.notices, *_update_notices([p for p in with_jobs if p[0].action is Action.UPDATE])),
        advice=wanted.advice,
        objections=(  # those that `--force` cannot override come first
            *_in_the_way(cluster, in_the_way, source),
            *_ended_jobs(
                [pair for pair in with_jobs if pair[0].action is Action.DELETE],
                staying={o.team for o in wanted.objects if o.team},
            ),
            *_too_many(changes, managed),
            *_rejected_workloads(wanted.rejected),
        ),
    )


# --- changes ----------------------------------------------------------------------------------------------


def _writes(wanted: Iterable[WantedObject], found: Mapping[ObjectKey, FoundObject]) -> list[Change]:
    changes: list[Change] = []
    for want in wanted:
        have = found.get(want.key)
        if have is None:
            fields = _differences({}, want.fields)
            changes.append(Change(Action.CREATE, want.key, fields, want.fields, team=want.team))
        elif have.ours and not want.shared and have.fields != want.fields:
            fields = _differences(have.fields, want.fields)
            if fields:
                changes.append(Change(Action.UPDATE, want.key, fields, want.fields, team=want.team))
    return changes


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


def depths(
    objects: Iterable[tuple[ObjectKey, tuple[ObjectKey, ...]]], *, forbid_cycles: bool
) -> dict[ObjectKey, int]:
    """Return the depth of each object in the dependency graph; dependencies outside `objects` are ignored.

    A cycle has no order: raises ValueError if `forbid_cycles`, else puts objects in or behind it deepest.
    """
    needs = dict(objects)
    # Many objects share one long tuple of dependencies, e.g. all guarantees of a pool: process it once.
    members: dict[int, list[ObjectKey]] = {}
    dependencies: dict[int, frozenset[ObjectKey]] = {}
    for key, after in needs.items():
        group = id(after)
        if group not in dependencies:
            dependencies[group] = frozenset(after)
        if key in dependencies[group]:  # an object does not depend on itself
            dependencies[id(key)] = dependencies[group] - {key}
            group = id(key)
        members.setdefault(group, []).append(key)
    needed_by: dict[ObjectKey, list[int]] = {}
    missing: dict[int, int] = {}
    for group in members:
        present = [need for need in dependencies[group] if need in needs]
        missing[group] = len(present)
        for need in present:
            needed_by.setdefault(need, []).append(group)
    found: dict[ObjectKey, int] = {}
    ready, depth = [group for group, count in missing.items() if not count], 0
    while ready:
        following: list[int] = []
        for group in ready:
            for key in members[group]:
                found[key] = depth
                for dependent in needed_by.get(key, ()):
                    missing[dependent] -= 1
                    if not missing[dependent]:
                        following.append(dependent)
        ready, depth = following, depth + 1
    cycle = [key for key in needs if key not in found]
    if cycle and forbid_cycles:
        raise ValueError(f"objects need each other in a circle: {', '.join(map(str, cycle[:5]))}")
    return found | dict.fromkeys(cycle, depth)


def _levels(changes: Iterable[Change], depth: Mapping[ObjectKey, int]) -> list[list[Change]]:
    by_depth: dict[int, list[Change]] = {}
    for change in changes:
        by_depth.setdefault(depth[change.key], []).append(change)
    return [sorted(by_depth[d], key=lambda c: c.key) for d in sorted(by_depth)]


# --- notices and objections -------------------------------------------------------------------------------


def _update_notices(updates: ChangedJobs) -> Iterator[Notice]:
    if updates:
        yield Notice(
            "JobsUnderChanges",
            f"{_jobs(updates)} affected; no running job is stopped",
            "fairway plan -o wide  lists the objects",
            promise="no-surprise",
        )


def _in_the_way(cluster: ClusterName, found: Sequence[FoundObject], source: str) -> Iterator[Objection]:
    if not found:
        return
    keys = sorted(o.key for o in found)
    one = len(keys) == 1
    yield Objection(
        "InTheWay",
        f"{first_few(keys, _MAX_LISTED)} already {'exists' if one else 'exist'} on {cluster} "
        f"and {'does' if one else 'do'} not belong to Fairway",
        f"review {'it' if one else 'them'}, then let Fairway manage {'it' if one else 'them'}:  "
        f"fairway adopt {cluster} "
        + (
            " ".join(f"{k.kind}/{k.name}" for k in keys)
            if len(keys) <= _MAX_LISTED
            else f"--all-in-the-way -f {shlex.quote(source)}"
        ),
        forceable=False,
    )


def _ended_jobs(deletions: ChangedJobs, staying: Collection[TeamName]) -> Iterator[Objection]:
    """Object to deletions that end jobs. `staying` are the teams that still have objects afterwards."""
    by_team: dict[TeamName, ChangedJobs] = {}
    others: ChangedJobs = []
    for change, activity in deletions:
        removed = change.team if change.team not in staying else None
        (others if removed is None else by_team.setdefault(removed, [])).append((change, activity))
    for team, pairs in sorted(by_team.items()):
        yield Objection(
            "TeamHasJobs",
            f"team {team} would be removed, and has {_jobs(pairs)}",
            f"keep {team} with  draining: true  until its jobs have finished, then remove it; "
            "or stop them now with --force",
            forceable=True,
        )
    if others:
        yield Objection(
            "WouldEndJobs",
            f"{first_few([c.key for c, _ in others], _MAX_LISTED)} would be deleted, "
            f"which stops {_jobs(others)}",
            "let the jobs finish first: keep the team with  draining: true  meanwhile; "
            "or stop them now with --force",
            forceable=True,
        )


def _rejected_workloads(rejected: Notice | None) -> Iterator[Objection]:
    if rejected is not None:
        yield Objection(rejected.code, rejected.message, rejected.hint, forceable=True)


def _too_many(changes: Sequence[Change], managed: int) -> Iterator[Objection]:
    updated = sum(c.action is Action.UPDATE for c in changes)
    deleted = sum(c.action is Action.DELETE for c in changes)
    if updated + deleted > FEW and updated + deleted > MAX_CHANGED * managed:
        yield Objection(
            "TooManyChanges",
            f"{updated} of {managed} objects would change and {deleted} would be deleted: "
            f"more than {MAX_CHANGED:.0%} of the managed objects",
            "review the plan (-o wide lists every object); if it is intended, apply it with --force",
            forceable=True,
        )


def _jobs(pairs: ChangedJobs) -> str:
    """Format the number of jobs. A job is under one object of each kind, and must not count twice."""
    running_by_kind, waiting_by_kind = Counter[str](), Counter[str]()
    for change, activity in pairs:
        running_by_kind[change.key.kind] += activity.running
        waiting_by_kind[change.key.kind] += activity.waiting
    running, waiting = max(running_by_kind.values()), max(waiting_by_kind.values())
    counts = [f"{running} running"] * bool(running) + [f"{waiting} waiting"] * bool(waiting)
    return f"{' and '.join(counts)} {'job' if running + waiting == 1 else 'jobs'}"


# --- fingerprint ------------------------------------------------------------------------------------------

_encode = msgspec.json.Encoder(order="sorted").encode
_LONG_LIST: Final = 100


def fingerprint(wanted: Iterable[WantedObject], found: Iterable[FoundObject]) -> str:
    """Hash wanted and found objects, the same on every machine and release.

    Of an object that is not Fairway's, only its existence counts.
    """
    desired = {o.key: None if o.shared else _set_fields(o.fields) for o in wanted}
    actual: dict[ObjectKey, object] = {}
    for have in found:
        if have.key not in desired:
            if have.ours:
                actual[have.key] = _set_fields(have.fields)
        elif not have.ours or desired[have.key] is None:
            actual[have.key] = have.ours
        else:
            fields = _set_fields(have.fields)
            actual[have.key] = "as wanted" if fields == desired[have.key] else fields
    digest = hashlib.sha256(b"[")  # one JSON list, row by row: as one text it has hundreds of megabytes
    encoded: dict[int, msgspec.Raw] = {}
    for number, key in enumerate(sorted(desired.keys() | actual.keys())):
        want = _with_encoded_lists(desired.get(key, False), encoded)
        digest.update(b"," if number else b"")
        digest.update(_encode((key.kind, key.name, want, actual.get(key))))
    digest.update(b"]")
    return digest.hexdigest()


def _with_encoded_lists(fields: object, encoded: dict[int, msgspec.Raw]) -> object:
    """Encode each long list once: all guarantees of a pool share that of the QOS they preempt."""
    if not isinstance(fields, dict):
        return fields
    long = {n: value for n, value in fields.items() if isinstance(value, tuple) and len(value) > _LONG_LIST}
    for value in long.values():
        if id(value) not in encoded:
            encoded[id(value)] = msgspec.Raw(_encode(value))
    return fields | {name: encoded[id(value)] for name, value in long.items()} if long else fields


def _set_fields(fields: Mapping[str, Value]) -> dict[str, Value]:
    if isinstance(fields, dict) and None not in fields.values():  # the usual case: no copy
        return fields
    return {name: value for name, value in fields.items() if value is not None}
