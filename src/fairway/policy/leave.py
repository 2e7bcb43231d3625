"""Compute the return of a cluster to its state before Fairway: what is restored, what goes, what stays."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

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
    SavedObject,
)
from fairway.policy.plan import Objection, depths

MARK: Final = "Fairway's mark"


@dataclass(frozen=True, slots=True)
class Leaving:
    """What leaving means for one cluster, by its engine."""

    restored: tuple[Change, ...]
    """Objects that get back what they had; each with its stage."""
    needed: Mapping[ObjectKey, str]
    """Objects of Fairway's that something outside its objects needs still, and what that is."""
    movable: frozenset[str] = frozenset()
    """Kinds whose waiting jobs `Restores.requeue_waiting` moves away before the object is deleted."""
    deferred: frozenset[str] = frozenset()
    """Kinds that are restored only when no object of Fairway's that stays refers to them any more."""
    first: frozenset[str] = frozenset()
    """Kinds that are deleted before anything else: guards, which must not outlive a return that stops."""
    notices: tuple[Notice, ...] = ()
    advice: tuple[Advice, ...] = ()
    """Lines that an administrator removes from the engine's own configuration."""
    objections: tuple[Objection, ...] = ()


@dataclass(frozen=True, slots=True)
class Return:
    """The changes that return a cluster, and what stays for now."""

    changes: tuple[Change, ...]
    """Guards go first; then objects are restored, and last those that Fairway created are deleted."""
    staying: Mapping[ObjectKey, str]
    """Objects of Fairway's that stay for now, each with the reason."""


def created_objects(found: FoundPolicy, saved: Sequence[SavedObject]) -> tuple[FoundObject, ...]:
    """Return the found objects that Fairway created: with its mark, or shared and new when it came."""
    created = {o.key for o in saved if o.record is None}
    return tuple(o for o in found.objects if o.key in created)


def unsaved_objects(
    found: FoundPolicy, saved: Sequence[SavedObject], *, marked: Collection[str]
) -> tuple[FoundObject, ...]:
    """Return objects with the mark of which nothing was saved; `marked`: kinds with a mark of their own.

    Older releases adopted them, or somebody put the mark on: they keep everything but the mark.
    """
    known = {o.key for o in saved}
    return tuple(o for o in found.objects if o.ours and o.key.kind in marked and o.key not in known)


def restore_change(
    key: ObjectKey, have: FoundObject | None, saved: SavedObject | None, stage: int = 0
) -> Change:
    """Return the change that restores an object, with the fields that differ for the plan."""
    if saved is None:
        return Change(
            Action.RESTORE,
            key,
            (FieldChange(MARK, "yes", None),),
            stage=stage,
            team=have.team if have else None,
        )
    before = have.fields if have else {}
    fields = tuple(
        FieldChange(name, before.get(name), saved.fields.get(name))
        for name in sorted(before.keys() | saved.fields.keys())
        if before.get(name) != saved.fields.get(name)
    )
    mark = (FieldChange(MARK, "yes", None),) if have is not None and have.ours else ()
    return Change(
        Action.RESTORE,
        key,
        (*mark, *fields),
        wanted=dict(saved.fields),
        stage=stage,
        team=have.team if have else None,
        record=saved.record,
    )


def compute_return(
    found: FoundPolicy,
    saved: Sequence[SavedObject],
    leaving: Leaving,
    activity: Mapping[ObjectKey, Activity],
) -> Return:
    """Compute the changes that return a cluster.

    An object that Fairway created stays while jobs are under it, or something else needs it: a second `leave`
    deletes it. What it refers to stays with it, also as Fairway has it.
    """
    all_restored = {c.key for c in leaving.restored}
    created = [o for o in created_objects(found, saved) if o.key not in all_restored]
    staying = {
        o.key: reason for o in created if (reason := _needed(o.key, leaving, activity.get(o.key))) is not None
    }
    by_key = {o.key: o for o in found.objects}
    returning = {c.key for c in leaving.restored if c.key.kind not in leaving.deferred}
    for key in _closure(staying, by_key) - returning:
        staying.setdefault(key, "an object that stays refers to it")
    restored = tuple(replace(c, stage=c.stage + 1) for c in leaving.restored if c.key not in staying)
    gone = [o for o in created if o.key not in staying]
    depth = depths(((o.key, o.after) for o in gone), forbid_cycles=False)
    first = 1 + max((c.stage for c in restored), default=0)
    deepest = max(depth.values(), default=0)
    deletions = [
        Change(
            Action.DELETE,
            o.key,
            tuple(FieldChange(name, value, None) for name, value in o.fields.items() if value is not None),
            stage=0 if o.key.kind in leaving.first else first + deepest - depth[o.key],
            team=o.team,
        )
        for o in gone
    ]
    return Return(tuple(sorted((*restored, *deletions), key=lambda c: (c.stage, c.key))), staying)


def _needed(key: ObjectKey, leaving: Leaving, jobs: Activity | None) -> str | None:
    if key in leaving.needed:
        return leaving.needed[key]
    if jobs is None:
        return None
    if jobs.running:
        return f"{jobs.running} running"
    return f"{jobs.waiting} waiting" if jobs.waiting and key.kind not in leaving.movable else None


def _closure(keys: Iterable[ObjectKey], found: Mapping[ObjectKey, FoundObject]) -> set[ObjectKey]:
    """Return the objects that these refer to, and so on, without those that Fairway does not manage."""
    reached: set[ObjectKey] = set()
    left = list(keys)
    while left:
        have = found.get(left.pop())
        for key in have.after if have else ():
            if key not in reached and key in found and found[key].ours:
                reached.add(key)
                left.append(key)
    return reached
