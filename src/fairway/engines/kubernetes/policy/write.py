"""Write changes to the API server: many at once, each checked to be ours, each read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import FAIRWAY, KINDS, MANAGED_BY, RELEASED, TEAM, Json, ObjectKind
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.policy.fields import flatten, unflatten
from fairway.engines.kubernetes.policy.read import name_of
from fairway.engines.port import Refused, Unreachable
from fairway.model.errors import FairwayError
from fairway.policy.objects import Action, Change, ObjectKey

AT_ONCE: Final = 16
FEW: Final = 20
"""Up to so many objects of a kind are read one by one; beyond, one list of the kind is cheaper."""
_GOING_SECONDS: Final = 60.0
"""How long a terminating object is awaited before it is created anew."""
_GOING_STEP: Final = 0.25


async def write(requests: KubeRequests, changes: Sequence[Change]) -> AsyncIterator[Change]:
    """Make the changes of one stage; yield each once it is made.

    At the first refusal nothing new is started; what is under way is awaited and yielded, then it is raised.
    """
    known = await _look(requests, [c.key for c in changes])
    waiting = iter(changes)
    under_way: dict[asyncio.Task[None], Change] = {}
    refusal: FairwayError | None = None

    def begin() -> None:
        for change in waiting:
            task = asyncio.create_task(_make(requests, change, known.get(change.key)))
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


async def _look(requests: KubeRequests, keys: Sequence[ObjectKey]) -> Mapping[ObjectKey, Json]:
    """Return the metadata of the existing objects of these names."""
    by_kind: dict[str, list[str]] = {}
    for key in keys:
        by_kind.setdefault(key.kind, []).append(key.name)
    parts = [_look_at(requests, KINDS[kind], names) for kind, names in by_kind.items()]
    return {key: meta for part in await asyncio.gather(*parts) for key, meta in part}


async def _look_at(
    requests: KubeRequests, kind: ObjectKind, names: Sequence[str]
) -> list[tuple[ObjectKey, Json]]:
    if len(names) > FEW:
        wanted = set(names)
        bodies = await requests.every(kind.list_path, kind.resource)
        metas = [b["metadata"] for b in bodies if name_of(kind, b["metadata"]) in wanted]
    else:
        found = await asyncio.gather(*(requests.object(kind.path(n), kind.resource) for n in names))
        metas = [body["metadata"] for body in found if body is not None]
    return [(ObjectKey(kind.name, name_of(kind, meta)), meta) for meta in metas]


async def _make(requests: KubeRequests, change: Change, meta: Json | None) -> None:
    kind = KINDS[change.key.kind]
    if change.action is Action.ADOPT:
        await _adopt(requests, kind, change, meta)
    elif meta is not None and not _is_ours(meta):
        raise Refused(
            "NotOurs",
            f"{change.key} does not carry Fairway's mark; it is left as it is",
            f"look at it:  kubectl get {kind.plural} {change.key.name.rpartition('/')[2]} -o yaml; "
            f"to let Fairway have it:  fairway adopt CLUSTER {kind.name}/{change.key.name}",
        )
    elif change.action is Action.DELETE:
        await _remove(requests, kind, change, meta)
    else:
        await _put(requests, kind, change, meta)


def _is_ours(meta: Json) -> bool:
    labels = meta.get("labels") or {}
    return labels.get(MANAGED_BY) == FAIRWAY or RELEASED in labels


async def _adopt(requests: KubeRequests, kind: ObjectKind, change: Change, meta: Json | None) -> None:
    if meta is None:
        raise Refused("Gone", f"{change.key} is not there any more", "plan again:  fairway plan")
    mark = {"metadata": {"uid": meta["uid"], "labels": {MANAGED_BY: FAIRWAY}}}
    await requests.merge(kind.path(change.key.name), kind.resource, mark)


async def _remove(requests: KubeRequests, kind: ObjectKind, change: Change, meta: Json | None) -> None:
    if meta is None:
        return
    if kind is not kinds.NAMESPACE:
        await requests.delete(kind, change.key.name, str(meta["uid"]))
        return
    # A namespace takes everything in it along, people's data and running jobs: it is let go of, not removed.
    notes = dict.fromkeys(kinds.NOTES)
    released = {
        "uid": meta["uid"],
        "labels": {MANAGED_BY: None, TEAM: None, RELEASED: "true"},
        "annotations": notes,
    }
    await requests.merge(kind.path(change.key.name), kind.resource, {"metadata": released})


async def _put(requests: KubeRequests, kind: ObjectKind, change: Change, meta: Json | None) -> None:
    if meta is not None and "deletionTimestamp" in meta:
        await _until_gone(requests, kind, change.key)
        meta = None
    wanted = dict(change.wanted or {})
    answer = await requests.apply(kind, change.key.name, _body(kind, change, meta))
    if meta is not None and RELEASED in (meta.get("labels") or {}):
        free = {"metadata": {"labels": {RELEASED: None}}}
        answer = await requests.merge(kind.path(change.key.name), kind.resource, free)
    # What somebody else wrote beside our fields, and into our lists, applying does not take away.
    has = flatten(kind, answer)
    if has != wanted:
        patch = {part: below for part, below in unflatten(wanted).items() if part != "metadata"}
        _plant_nulls(patch, [path for path in has if path not in wanted])
        answer = await requests.merge(kind.path(change.key.name), kind.resource, patch)
    _check(kind, change, answer)


def _body(kind: ObjectKind, change: Change, meta: Json | None) -> Json:
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
    """Add nulls to a merge patch, so that it removes these fields."""
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


def _check(kind: ObjectKind, change: Change, answer: Json) -> None:
    """Raise Refused unless the API server stored what was written: else the next plan would not be empty."""
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


async def _until_gone(requests: KubeRequests, kind: ObjectKind, key: ObjectKey) -> None:
    for _ in range(int(_GOING_SECONDS / _GOING_STEP)):
        if await requests.object(kind.path(key.name), kind.resource) is None:
            return
        await asyncio.sleep(_GOING_STEP)
    raise Unreachable(
        "StillGoing",
        f"{key} is being removed and cannot be made anew before it is gone: jobs still hold it",
        f"let them end:  kubectl get workloads -A; it is gone a second after the last one ({kind.plural})",
    )
