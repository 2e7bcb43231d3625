"""Compute the changes that set the holds of teams on a cluster, and nothing else. Pure.

Any other difference on the cluster is drift, or left for an apply: a hold must neither undo the one nor
anticipate the other. So only fields whose value depends on holds are changed; they are found by translating
the fleet under every possible hold.
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
    """Return the changes that turn the holds of `found` into those of `wanted`.

    `others` are translations of the same fleet under other holds. Objects that are missing or not Fairway's
    are left alone.
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
