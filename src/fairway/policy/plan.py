"""A plan is a value: ordered changes, what they were computed from, and what a reader should know."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter

import msgspec

from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.policy.limits import JobsUnder, Objection, objections, touched_notices
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
from fairway.policy.order import depths, stages

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
    """What changes on one cluster."""

    cluster: ClusterName
    engine: EngineKind
    engine_version: str
    fingerprint: str
    """Of what was found and what is wanted: equal as long as nobody changed either."""
    changes: tuple[Change, ...]
    """In the order in which they are made."""
    managed: int
    """Objects with our mark that were found: what the safety limits count against."""
    in_the_way: tuple[FoundObject, ...] = ()
    """Objects without our mark that bear a wanted name."""
    touched: Mapping[ObjectKey, Activity] | None = None
    """Jobs that depend on objects which change or go."""
    notices: tuple[Notice, ...] = ()
    advice: tuple[Advice, ...] = ()
    objections: tuple[Objection, ...] = ()


def compute_changes(wanted: Translation, found: FoundPolicy) -> tuple[Change, ...]:
    """What must be written so that `found` becomes `wanted`: ordered, each with its stage.

    First what is made and changed, each after what it needs; then what goes, each before what it needs. The
    stage of an object depends on all that is wanted, not on what of it happens to change. An object without
    our mark is left alone, even where its name is wanted: see `ClusterPlan.in_the_way`.
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
    """What puts our mark on these objects and changes nothing else.

    Those that have it already, and those that are not there, are left out.
    """
    here = {o.key: o for o in found.objects}
    return tuple(
        Change(Action.ADOPT, key, wanted=dict(here[key].fields))
        for key in dict.fromkeys(keys)
        if key in here and not here[key].ours
    )


def touched_keys(changes: Iterable[Change]) -> tuple[ObjectKey, ...]:
    """Existing objects that change or go: whose jobs must be counted before the plan is complete."""
    return tuple(c.key for c in changes if c.action in {Action.UPDATE, Action.DELETE})


def complete(
    cluster: ClusterName,
    engine: EngineKind,
    wanted: Translation,
    found: FoundPolicy,
    changes: tuple[Change, ...],
    activity: Mapping[ObjectKey, Activity],
) -> ClusterPlan:
    """The plan of one cluster, with its fingerprint and what speaks against it."""
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
    """Field by field; one that is missing is one that is not set. What is found and not wanted is unset."""
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
    """The same on every machine and release. Of an object that is not ours only counts that it is there."""
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
    if isinstance(fields, dict) and None not in fields.values():  # as almost all are: no copy
        return fields
    return {name: value for name, value in fields.items() if value is not None}
