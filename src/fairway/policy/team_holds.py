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
    WantedObject,
)


def hold_changes(
    wanted: Translation, others: Iterable[Translation], found: FoundPolicy
) -> tuple[Change, ...]:
    """Return the changes that turn the holds of `found` into those of `wanted`.

    `others` are translations of the same fleet under other holds. Objects that are missing or not Fairway's
    are left alone.
    """
    by_key = {o.key: o for o in wanted.objects}
    varying = _varying(by_key, others)
    changes: list[Change] = []
    for have in found.objects:
        fields = varying.get(have.key)
        if fields is None or not have.ours:
            continue
        want = by_key[have.key]
        differ = tuple(
            FieldChange(name, have.fields.get(name), want.fields.get(name))
            for name in sorted(fields)
            if have.fields.get(name) != want.fields.get(name)
        )
        if differ:
            unset = {change.field for change in differ if change.after is None}
            fields_after = {**have.fields, **{change.field: change.after for change in differ}}
            desired = {name: value for name, value in fields_after.items() if name not in unset}
            changes.append(Change(Action.UPDATE, have.key, differ, desired, team=want.team))
    return tuple(sorted(changes, key=lambda c: c.key))


def _varying(
    by_key: Mapping[ObjectKey, WantedObject], others: Iterable[Translation]
) -> dict[ObjectKey, set[str]]:
    found: dict[ObjectKey, set[str]] = {}
    for other in others:
        for one in other.objects:
            want = by_key.get(one.key)
            if want is None or want.fields == one.fields:
                continue
            names = want.fields.keys() | one.fields.keys()
            differ = {name for name in names if want.fields.get(name) != one.fields.get(name)}
            found.setdefault(one.key, set()).update(differ)
    return found
