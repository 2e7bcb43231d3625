"""Compute drift: the differences between a cluster and the policy last applied to it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from fairway.model.apply import DriftKind
from fairway.model.names import TeamName
from fairway.policy.objects import Action, Change, FoundObject, FoundPolicy, ObjectKey, Translation, Value


@dataclass(frozen=True, slots=True)
class DriftEntry:
    """One difference between a cluster and the applied policy."""

    key: ObjectKey
    kind: DriftKind
    field: str = ""
    """Empty unless the kind is CHANGED."""
    wanted: Value = None
    found: Value = None
    changed_by: str | None = None
    """Who made the change; None if the engine does not report it."""
    team: TeamName | None = None


def find_drift(wanted: Translation, found: FoundPolicy, changes: Iterable[Change]) -> tuple[DriftEntry, ...]:
    """Convert the changes that would restore the applied policy to drift entries, plus lost marks."""
    by_key = {o.key: o for o in found.objects}
    return tuple(e for c in changes for e in _entries(c, by_key.get(c.key))) + tuple(
        DriftEntry(w.key, DriftKind.UNMARKED, changed_by=by_key[w.key].changed_by, team=w.team)
        for w in wanted.objects
        if not w.shared and w.key in by_key and not by_key[w.key].ours
    )


def without_holds(entries: Iterable[DriftEntry], free: Translation) -> tuple[DriftEntry, ...]:
    """Drop the entries that are only a hold not yet written; `free` is the same fleet without holds."""
    fields = {o.key: o.fields for o in free.objects}
    return tuple(
        e
        for e in entries
        if e.kind is not DriftKind.CHANGED or e.key not in fields or e.found != fields[e.key].get(e.field)
    )


def _entries(change: Change, have: FoundObject | None) -> Iterator[DriftEntry]:
    by = have.changed_by if have else None
    match change.action:
        case Action.CREATE:
            yield DriftEntry(change.key, DriftKind.MISSING, team=change.team)
        case Action.DELETE:
            yield DriftEntry(change.key, DriftKind.EXTRA, changed_by=by, team=change.team)
        case Action.UPDATE:
            for f in change.fields:
                yield DriftEntry(
                    change.key, DriftKind.CHANGED, f.field, f.after, f.before, changed_by=by, team=change.team
                )
