"""What must be written so that a cluster holds the teams it shall, and nothing else. Pure.

Whatever else differs on the cluster is somebody's drift, or an apply's work: a hold must neither undo the one
nor anticipate the other. So of each object only those fields are touched whose value depends on holds, and
which these are is found by translating the fleet with every hold there is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fairway.policy.objects import (
    Action,
    Change,
    FieldChange,
    FoundPolicy,
    ObjectKey,
    Translation,
    Value,
    WantedObject,
)


def hold_changes(
    wanted: Translation, others: Iterable[Translation], found: FoundPolicy
) -> tuple[Change, ...]:
    """What makes the holds of `found` those of `wanted`; `others`: the same fleet under other holds.

    An object that is not there, or not ours, is left alone.
    """
    asked = {o.key: o for o in wanted.objects}
    varying = _varying(asked, others)
    changes: list[Change] = []
    for have in found.objects:
        fields = varying.get(have.key)
        if fields is None or not have.ours:
            continue
        want = asked[have.key]
        differ = tuple(
            FieldChange(name, have.fields.get(name), want.fields.get(name))
            for name in sorted(fields)
            if have.fields.get(name) != want.fields.get(name)
        )
        if differ:
            changes.append(
                Change(Action.UPDATE, have.key, differ, _with(have.fields, differ), team=want.team)
            )
    return tuple(sorted(changes, key=lambda c: c.key))


def _varying(
    asked: Mapping[ObjectKey, WantedObject], others: Iterable[Translation]
) -> dict[ObjectKey, set[str]]:
    found: dict[ObjectKey, set[str]] = {}
    for other in others:
        for one in other.objects:
            want = asked.get(one.key)
            if want is None or want.fields == one.fields:
                continue
            names = want.fields.keys() | one.fields.keys()
            found.setdefault(one.key, set()).update(
                name for name in names if want.fields.get(name) != one.fields.get(name)
            )
    return found


def _with(fields: Mapping[str, Value], changes: Iterable[FieldChange]) -> dict[str, Value]:
    made = dict(fields)
    for change in changes:
        if change.after is None:
            made.pop(change.field, None)
        else:
            made[change.field] = change.after
    return made
