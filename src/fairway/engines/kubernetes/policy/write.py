"""Write changes to the API server, many at once: each object is checked to be ours and read back."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import aclosing
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import FAIRWAY, KINDS, MANAGED_BY, RELEASED, TEAM, Json, ObjectKind
from fairway.engines.kubernetes.api.requests import KubeRequests, concurrently
from fairway.engines.kubernetes.policy.fields import flatten, unflatten
from fairway.engines.kubernetes.policy.restore import read_bodies, restore
from fairway.engines.port import Unreachable
from fairway.model.errors import Refused
from fairway.policy.objects import Action, Change, ObjectKey

_TERMINATION_SECONDS: Final = 60.0
"""How long a terminating object is awaited before it is created anew."""
_POLL_SECONDS: Final = 0.25


async def write(requests: KubeRequests, changes: Sequence[Change]) -> AsyncIterator[Change]:
    """Make the changes of one stage; yield each once it is made.

    At the first refusal nothing new is started; what is under way is awaited and yielded, then it is raised.
    """
    existing = await read_bodies(requests, [c.key for c in changes])

    async def make(change: Change) -> Change:
        await _make(requests, change, existing.get(change.key))
        return change

    async with aclosing(concurrently(changes, make)) as made:
        async for change in made:
            yield change


async def _make(requests: KubeRequests, change: Change, body: Json | None) -> None:
    kind = KINDS[change.key.kind]
    meta = None if body is None else body["metadata"]
    if change.action is Action.RESTORE:
        await restore(requests, kind, change, body)
    elif change.action is Action.ADOPT:
        await _adopt(requests, kind, change, meta)
    elif meta is not None and not _is_ours(meta):
        raise Refused(
            "NotOurs",
            f"{change.key} is not managed by Fairway and stays unchanged",
            f"look at it:  kubectl get {kind.plural} {change.key.name.rpartition('/')[2]} -o yaml; "
            f"to let Fairway manage it:  fairway adopt CLUSTER {kind.name}/{change.key.name}",
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
        raise Refused("Gone", f"{change.key} no longer exists", "plan again:  fairway plan")
    mark = {"metadata": {"uid": meta["uid"], "labels": {MANAGED_BY: FAIRWAY}}}
    await requests.merge(kind.path(change.key.name), kind.resource, mark)


async def _remove(requests: KubeRequests, kind: ObjectKind, change: Change, meta: Json | None) -> None:
    if meta is None:
        return
    if kind is not kinds.NAMESPACE:
        await requests.delete(kind.path(change.key.name), kind.resource, str(meta["uid"]))
        return
    # Deleting a namespace would delete all in it, users' data and running jobs: it is only released.
    released = {
        "uid": meta["uid"],
        "labels": {MANAGED_BY: None, TEAM: None, RELEASED: "true"},
        "annotations": dict.fromkeys(kinds.NAMESPACE_ANNOTATIONS),
    }
    await requests.merge(kind.path(change.key.name), kind.resource, {"metadata": released})


async def _put(requests: KubeRequests, kind: ObjectKind, change: Change, meta: Json | None) -> None:
    if meta is not None and _is_made_anew(kind, change):
        await requests.delete(kind.path(change.key.name), kind.resource, str(meta["uid"]))
        await _until_gone(requests, kind, change.key)
        meta = None
    if meta is not None and "deletionTimestamp" in meta:
        await _until_gone(requests, kind, change.key)
        meta = None
    wanted = dict(change.wanted or {})
    written = await requests.apply(kind, change.key.name, _body(kind, change, meta))
    if meta is not None and RELEASED in (meta.get("labels") or {}):
        unmark = {"metadata": {"labels": {RELEASED: None}}}
        written = await requests.merge(kind.path(change.key.name), kind.resource, unmark)
    # Server-side apply does not remove what other managers wrote beside our fields and into our lists.
    fields = flatten(kind, written)
    if fields != wanted:
        patch = {part: below for part, below in unflatten(wanted).items() if part != "metadata"}
        for path in fields:
            if path not in wanted:
                _add_null(patch, unflatten({path: "x"}))
        written = await requests.merge(kind.path(change.key.name), kind.resource, patch)
    _check(kind, change, written)


def _is_made_anew(kind: ObjectKind, change: Change) -> bool:
    """Return whether an object is deleted and created: Kueue does not let a LocalQueue change its queue.

    Its running jobs go on, and its waiting jobs wait in the new one.
    """
    return kind is kinds.LOCAL_QUEUE and any(
        f.field == "spec.clusterQueue" and f.before is not None for f in change.fields
    )


def _body(kind: ObjectKind, change: Change, meta: Json | None) -> Json:
    body = unflatten(change.wanted or {})
    metadata = body.setdefault("metadata", {})
    namespace, _, name = change.key.name.rpartition("/")
    metadata["name"] = name
    if kind.namespaced:
        metadata["namespace"] = namespace
    if meta is not None:
        metadata["uid"] = meta["uid"]  # if it was replaced since, the API server refuses
    metadata["labels"] = {
        **metadata.get("labels", {}),
        MANAGED_BY: FAIRWAY,
        **({TEAM: change.team} if change.team else {}),
    }
    return {"apiVersion": kind.api_version, "kind": kind.name, **body}


def _add_null(patch: Json, example: Mapping[str, Any]) -> None:
    """Add a null to a merge patch, so that it removes the field of `example`."""
    for key, below in example.items():
        if isinstance(below, Mapping) and below:
            inner = patch.setdefault(key, {})
            if inner is not None:
                _add_null(inner, below)
        else:
            patch[key] = None


def _check(kind: ObjectKind, change: Change, written: Json) -> None:
    """Raise Refused unless the API server stored what was written: else the next plan would not be empty."""
    fields, wanted = flatten(kind, written), dict(change.wanted or {})
    differing = [
        f"{path} = {fields.get(path)} instead of {wanted.get(path)}"
        for path in sorted(fields.keys() | wanted.keys())
        if fields.get(path) != wanted.get(path)
    ]
    if differing:
        raise Refused(
            "NotKept",
            f"{change.key}: the API server keeps {', '.join(differing)}",
            "another controller or webhook writes it too: look at its managedFields, "
            f"kubectl get {kind.plural} --show-managed-fields -o yaml",
        )


async def _until_gone(requests: KubeRequests, kind: ObjectKind, key: ObjectKey) -> None:
    for _ in range(int(_TERMINATION_SECONDS / _POLL_SECONDS)):
        if await requests.get(kind.path(key.name), kind.resource, Json) is None:
            return
        await asyncio.sleep(_POLL_SECONDS)
    raise Unreachable(
        "StillGoing",
        f"{key} is being deleted and cannot be created before that: jobs or queues still use it",
        "look at what uses it:  kubectl get workloads,clusterqueues -A; it is gone a second after the "
        f"last one:  kubectl get {kind.plural}",
    )
