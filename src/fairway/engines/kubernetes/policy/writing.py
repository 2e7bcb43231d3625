"""Changes onto the API server: many at once, each checked to be ours, each read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.policy import kinds
from fairway.engines.kubernetes.policy.access import Access
from fairway.engines.kubernetes.policy.fields import Json, flatten, unflatten
from fairway.engines.kubernetes.policy.finding import name_of
from fairway.engines.kubernetes.policy.kinds import FAIRWAY, KINDS, MANAGED_BY, RELEASED, TEAM, Kind
from fairway.engines.port import Refused, Unreachable
from fairway.model.errors import FairwayError
from fairway.policy.objects import Action, Change, ObjectKey

AT_ONCE: Final = 16
FEW: Final = 20
"""Up to so many objects of a kind are looked at one by one; beyond, one list of the kind is cheaper."""
_GOING_SECONDS: Final = 60.0
"""How long an object that is being removed is waited for before it is made anew."""
_GOING_STEP: Final = 0.25


async def write(access: Access, changes: Sequence[Change]) -> AsyncIterator[Change]:
    """Make the changes of one stage; yields each when it is made.

    At the first refusal nothing new is begun; what is under way ends and is yielded, then it is raised.
    """
    known = await _look(access, [c.key for c in changes])
    waiting = iter(changes)
    under_way: dict[asyncio.Task[None], Change] = {}
    refusal: FairwayError | None = None

    def begin() -> None:
        for change in waiting:
            task = asyncio.create_task(_make(access, change, known.get(change.key)))
            under_way[task] = change
            if len(under_way) >= AT_ONCE:
                return

    try:
        begin()
        while under_way:
            done, _ = await asyncio.wait(under_way, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                change = under_way.pop(task)
                error = task.exception()
                if error is None:
                    yield change
                elif isinstance(error, FairwayError):
                    refusal = refusal or error
                else:
                    raise error
            if refusal is None:
                begin()
    finally:
        for task in under_way:
            task.cancel()
        await asyncio.gather(*under_way, return_exceptions=True)
    if refusal is not None:
        raise refusal


async def _look(access: Access, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Json]:
    """Who the objects are that stand under these names now."""
    by_kind: dict[str, list[str]] = {}
    for key in keys:
        by_kind.setdefault(key.kind, []).append(key.name)
    parts = [_look_at(access, KINDS[kind], names) for kind, names in by_kind.items()]
    return {key: meta for part in await asyncio.gather(*parts) for key, meta in part}


async def _look_at(access: Access, kind: Kind, names: Sequence[str]) -> list[tuple[ObjectKey, Json]]:
    if len(names) > FEW:
        wanted = set(names)
        bodies = await access.every(kind.list_path, kind.resource)
        metas = [b["metadata"] for b in bodies if name_of(kind, b["metadata"]) in wanted]
    else:
        found = await asyncio.gather(*(access.object(kind.path(n), kind.resource) for n in names))
        metas = [body["metadata"] for body in found if body is not None]
    return [(ObjectKey(kind.name, name_of(kind, meta)), meta) for meta in metas]


async def _make(access: Access, change: Change, meta: Json | None) -> None:
    kind = KINDS[change.key.kind]
    if change.action is Action.ADOPT:
        await _adopt(access, kind, change, meta)
    elif meta is not None and not _is_ours(meta):
        raise Refused(
            "NotOurs",
            f"{change.key} does not carry Fairway's mark; it is left as it is",
            f"look at it:  kubectl get {kind.plural} {change.key.name.rpartition('/')[2]} -o yaml; "
            f"to let Fairway have it:  fairway adopt CLUSTER {kind.name}/{change.key.name}",
        )
    elif change.action is Action.DELETE:
        await _remove(access, kind, change, meta)
    else:
        await _put(access, kind, change, meta)


def _is_ours(meta: Json) -> bool:
    labels = meta.get("labels") or {}
    return labels.get(MANAGED_BY) == FAIRWAY or RELEASED in labels


async def _adopt(access: Access, kind: Kind, change: Change, meta: Json | None) -> None:
    if meta is None:
        raise Refused("Gone", f"{change.key} is not there any more", "plan again:  fairway plan")
    mark = {"metadata": {"uid": meta["uid"], "labels": {MANAGED_BY: FAIRWAY}}}
    await access.merge(kind.path(change.key.name), kind.resource, mark)


async def _remove(access: Access, kind: Kind, change: Change, meta: Json | None) -> None:
    if meta is None:
        return
    if kind is not kinds.NAMESPACE:
        await access.delete(kind, change.key.name, str(meta["uid"]))
        return
    # A namespace takes everything in it along, people's data and running jobs: it is let go of, not removed.
    notes = dict.fromkeys(kinds.NOTES)
    released = {
        "uid": meta["uid"],
        "labels": {MANAGED_BY: None, TEAM: None, RELEASED: "true"},
        "annotations": notes,
    }
    await access.merge(kind.path(change.key.name), kind.resource, {"metadata": released})


async def _put(access: Access, kind: Kind, change: Change, meta: Json | None) -> None:
    if meta is not None and "deletionTimestamp" in meta:
        await _until_gone(access, kind, change.key)
        meta = None
    wanted = dict(change.wanted or {})
    answer = await access.apply(kind, change.key.name, _body(kind, change, meta))
    if meta is not None and RELEASED in (meta.get("labels") or {}):
        free = {"metadata": {"labels": {RELEASED: None}}}
        answer = await access.merge(kind.path(change.key.name), kind.resource, free)
    # What somebody else wrote beside our fields, and into our lists, applying does not take away.
    has = flatten(kind, answer)
    if has != wanted:
        patch = {part: below for part, below in unflatten(wanted).items() if part != "metadata"}
        _plant_nulls(patch, [path for path in has if path not in wanted])
        answer = await access.merge(kind.path(change.key.name), kind.resource, patch)
    _check(kind, change, answer)


def _body(kind: Kind, change: Change, meta: Json | None) -> Json:
    body = unflatten(change.wanted or {})
    inside = body.setdefault("metadata", {})
    namespace, _, name = change.key.name.rpartition("/")
    inside["name"] = name
    if kind.namespaced:
        inside["namespace"] = namespace
    if meta is not None:
        inside["uid"] = meta["uid"]  # if another took its place meanwhile, the API server refuses
    inside["labels"] = {
        **inside.get("labels", {}),
        MANAGED_BY: FAIRWAY,
        **({TEAM: change.team} if change.team else {}),
    }
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


def _plant_nulls(patch: Json, paths: Sequence[str]) -> None:
    """Have a merge patch take these fields away."""
    for path in paths:
        _plant_null(patch, unflatten({path: "x"}))


def _plant_null(patch: Json, example: Mapping[str, Any]) -> None:
    for key, below in example.items():
        if isinstance(below, Mapping) and below:
            inner = patch.setdefault(key, {})
            if inner is not None:
                _plant_null(inner, below)
        else:
            patch[key] = None


def _check(kind: Kind, change: Change, answer: Json) -> None:
    """Whether the API server keeps what was written: else the next plan is not empty, for no reason."""
    has, wanted = flatten(kind, answer), dict(change.wanted or {})
    differ = list(_differing(has, wanted))
    if differ:
        raise Refused(
            "NotKept",
            f"{change.key}: the API server keeps {', '.join(differ)}",
            "another controller or webhook writes it too: look at its managedFields, "
            f"kubectl get {kind.plural} --show-managed-fields -o yaml",
        )


def _differing(has: Mapping[str, Any], wanted: Mapping[str, Any]) -> Iterator[str]:
    for path in sorted(has.keys() | wanted.keys()):
        if has.get(path) != wanted.get(path):
            yield f"{path} = {has.get(path)} instead of {wanted.get(path)}"


async def _until_gone(access: Access, kind: Kind, key: ObjectKey) -> None:
    for _ in range(int(_GOING_SECONDS / _GOING_STEP)):
        if await access.object(kind.path(key.name), kind.resource) is None:
            return
        await asyncio.sleep(_GOING_STEP)
    raise Unreachable(
        "StillGoing",
        f"{key} is being removed and cannot be made anew before it is gone: jobs still hold it",
        f"let them end:  kubectl get workloads -A; it is gone a second after the last one ({kind.plural})",
    )
