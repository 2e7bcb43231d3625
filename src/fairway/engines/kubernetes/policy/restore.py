"""Leave a Kubernetes cluster: save whole objects, write them back, and lift the guards.

An object is restored by a merge patch, so that it keeps its uid and what refers to it. Where the API server
refuses that because a field is immutable (the ClusterQueue of a LocalQueue), it is deleted and created anew.
Of a namespace only Fairway's own labels and annotations are restored: others belong to the site.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import (
    FAIRWAY,
    KINDS,
    MANAGED_BY,
    OVERRIDDEN,
    RELEASED,
    TEAM,
    Json,
    ObjectKind,
)
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.policy.admission_policies import TOPOLOGY
from fairway.engines.kubernetes.policy.read import name_of
from fairway.engines.port import Unreachable
from fairway.model.errors import Refused
from fairway.policy.leave import Leaving, created_objects, restore_change, unsaved_objects
from fairway.policy.objects import (
    Action,
    Advice,
    Change,
    FieldChange,
    FoundPolicy,
    Notice,
    ObjectKey,
    Record,
    SavedObject,
)

MAX_SINGLE_READS: Final = 20
"""Up to this many objects of a kind are read one by one; for more, one list of the kind is cheaper."""
_VOLATILE: Final = (
    "creationTimestamp",
    "deletionTimestamp",
    "finalizers",
    "generation",
    "managedFields",
    "resourceVersion",
    "selfLink",
    "uid",
)
_GUARDS: Final = (kinds.ADMISSION_BINDING, kinds.MUTATING_BINDING, kinds.RESOURCE_QUOTA)
_QUEUES: Final = (kinds.LOCAL_QUEUE, kinds.CLUSTER_QUEUE)
_STOP: Final = "spec.stopPolicy"
_GONE_SECONDS: Final = 30.0
_POLL_SECONDS: Final = 0.25


# --- records ----------------------------------------------------------------------------------------------


async def read_records(requests: KubeRequests, keys: Collection[ObjectKey]) -> Mapping[ObjectKey, Record]:
    """Return these objects as a whole, without what the API server writes itself."""
    bodies = await read_bodies(requests, keys)
    return {
        key: record_of(KINDS[key.kind], body)
        for key, body in bodies.items()
        if "deletionTimestamp" not in body["metadata"]
    }


async def read_bodies(requests: KubeRequests, keys: Collection[ObjectKey]) -> Mapping[ObjectKey, Json]:
    """Return the existing objects of these names as the API server has them."""
    by_kind: dict[str, list[str]] = {}
    for key in keys:
        by_kind.setdefault(key.kind, []).append(key.name)
    parts = [_read_kind(requests, KINDS[kind], names) for kind, names in by_kind.items()]
    return {key: body for part in await asyncio.gather(*parts) for key, body in part}


async def _read_kind(
    requests: KubeRequests, kind: ObjectKind, names: Sequence[str]
) -> list[tuple[ObjectKey, Json]]:
    if len(names) > MAX_SINGLE_READS:
        wanted = set(names)
        bodies = await requests.list_all(kind.list_path, kind.resource)
        bodies = [b for b in bodies if name_of(kind, b["metadata"]) in wanted]
    else:
        read = await asyncio.gather(*(requests.get(kind.path(n), kind.resource, Json) for n in names))
        bodies = [body for body in read if body is not None]
    return [(ObjectKey(kind.name, name_of(kind, body["metadata"])), body) for body in bodies]


def record_of(kind: ObjectKind, body: Mapping[str, Any]) -> Record:
    """Return an object as people wrote it."""
    metadata = {key: value for key, value in body["metadata"].items() if key not in _VOLATILE}
    for part in ("labels", "annotations"):
        values = {key: value for key, value in (metadata.pop(part, None) or {}).items() if key != OVERRIDDEN}
        if kind is kinds.NAMESPACE:  # named even if empty: a patch must not remove the site's own
            metadata[part] = {key: value for key, value in values.items() if _is_fairways(key)}
        elif values:
            metadata[part] = values
    rest = {
        key: value for key, value in body.items() if key not in {"status", "metadata", "apiVersion", "kind"}
    }
    if kind is kinds.NAMESPACE:
        rest.pop("spec", None)
    return {"apiVersion": kind.api_version, "kind": kind.name, "metadata": metadata, **rest}


def _is_fairways(key: str) -> bool:
    return key in {MANAGED_BY, TEAM, RELEASED} or key in kinds.NAMESPACE_ANNOTATIONS


# --- the plan ---------------------------------------------------------------------------------------------


def leaving(
    cluster: str, found: FoundPolicy, saved: Sequence[SavedObject], now: Mapping[ObjectKey, Record]
) -> Leaving:
    """Return what is restored, in the order in which kinds refer to each other, and what people do."""
    order = {name: stage for stage, name in enumerate(KINDS)}
    by_key = {o.key: o for o in found.objects}
    restored = [
        restore_change(o.key, by_key.get(o.key), o, order[o.key.kind])
        for o in saved
        if o.record is not None and o.key.kind in order and now.get(o.key) != o.record
    ]
    # A namespace that Fairway created is not deleted, with people's jobs and data: it loses the labels.
    restored += [
        restore_change(o.key, o, SavedObject(o.key, {}, _bare_namespace(o.key.name)), order[o.key.kind])
        for o in created_objects(found, saved)
        if o.key.kind == kinds.NAMESPACE.name and o.ours
    ]
    restored += [
        restore_change(o.key, o, None, order[o.key.kind])
        for o in unsaved_objects(found, saved, marked=tuple(KINDS))
    ]
    return Leaving(
        tuple(restored),
        {},
        deferred=frozenset({kinds.NAMESPACE.name}),
        first=frozenset(kind.name for kind in _GUARDS),
        notices=tuple(_notices(cluster, found, saved)),
        advice=tuple(_advice()),
    )


def _bare_namespace(name: str) -> Record:
    metadata = {"name": name, "labels": {}, "annotations": {}}
    return {"apiVersion": "v1", "kind": kinds.NAMESPACE.name, "metadata": metadata}


def _notices(cluster: str, found: FoundPolicy, saved: Sequence[SavedObject]) -> Iterator[Notice]:
    namespaces = [o.key.name for o in created_objects(found, saved) if o.key.kind == kinds.NAMESPACE.name]
    if namespaces:
        yield Notice(
            "NamespacesStay",
            f"namespaces that Fairway created stay, without its labels: {', '.join(namespaces)}; deleting "
            "one deletes the jobs and data in it",
            f"when one is no longer needed:  kubectl delete namespace {namespaces[0]}",
        )


def _advice() -> Iterator[Advice]:
    yield Advice(
        "rights.yaml",
        "kubectl delete -f rights.yaml",
        "",
        f"after the last  fairway leave: it removes Fairway's access and the ClusterRole {FAIRWAY}-member",
    )
    yield Advice(
        "Kueue's configuration",
        "fairSharing, quotaCheckStrategy and the integrations, if you changed them for Fairway",
        "",
        "queues that you made work with either",
        "kubectl -n kueue-system rollout restart deployment kueue-controller-manager",
    )


# --- guards -----------------------------------------------------------------------------------------------


def guards(found: FoundPolicy) -> tuple[Change, ...]:
    """Return the changes that unbind admission policies, remove ResourceQuotas and start stopped queues."""
    guarding = {kind.name for kind in _GUARDS}
    queues = {kind.name for kind in _QUEUES}
    changes: list[Change] = []
    for o in found.objects:
        if not o.ours:
            continue
        if o.key.kind in guarding and o.key.name != TOPOLOGY:  # the queues need it as long as they are
            changes.append(Change(Action.DELETE, o.key, team=o.team))
        elif o.key.kind in queues and o.fields.get(_STOP) is not None:
            wanted = {name: value for name, value in o.fields.items() if name != _STOP}
            fields = (FieldChange(_STOP, o.fields[_STOP], None),)
            changes.append(Change(Action.UPDATE, o.key, fields, wanted, stage=1, team=o.team))
    return tuple(sorted(changes, key=lambda c: (c.stage, c.key)))


# --- writing ----------------------------------------------------------------------------------------------


async def restore(requests: KubeRequests, kind: ObjectKind, change: Change, body: Json | None) -> None:
    """Write a saved object back; with nothing saved, take only the mark off."""
    path = kind.path(change.key.name)
    if change.record is None:
        if body is not None:
            await requests.merge(
                path, kind.resource, {"metadata": {"labels": {MANAGED_BY: None, TEAM: None}}}
            )
        return
    saved = dict(change.record)
    if body is None or "deletionTimestamp" in body["metadata"]:
        await _create(requests, kind, change.key, saved, body)
        return
    patch = merge_patch(record_of(kind, body), saved)
    if OVERRIDDEN in (body["metadata"].get("annotations") or {}):
        patch.setdefault("metadata", {}).setdefault("annotations", {})[OVERRIDDEN] = None
    if not patch:
        return
    patch.setdefault("metadata", {})["uid"] = body["metadata"]["uid"]
    try:
        await requests.merge(path, kind.resource, patch)
    except Refused:
        if kind is kinds.NAMESPACE or kind.name not in _REPLACED:
            raise
        await requests.delete(path, kind.resource, str(body["metadata"]["uid"]))
        await _create(requests, kind, change.key, saved, body)


_REPLACED: Final = frozenset({kinds.LOCAL_QUEUE.name, kinds.ROLE_BINDING.name})
"""Kinds with an immutable field whose objects hold nothing: replacing one ends no job."""


async def _create(
    requests: KubeRequests, kind: ObjectKind, key: ObjectKey, saved: Json, body: Json | None
) -> None:
    path = kind.path(key.name)
    for _ in range(int(_GONE_SECONDS / _POLL_SECONDS)):
        if body is None:
            break
        body = await requests.get(path, kind.resource, Json)
        if body is not None:
            await asyncio.sleep(_POLL_SECONDS)
    if body is not None:
        raise Unreachable(
            "StillGoing",
            f"{key} is being removed and cannot be restored before that: jobs still use it",
            f"when they have ended, leave again; look at it:  kubectl get {kind.plural} -A",
        )
    await requests.apply(kind, key.name, saved)


def merge_patch(now: Mapping[str, Any], saved: Mapping[str, Any]) -> Json:
    """Return the merge patch that turns `now` into `saved`."""
    patch: Json = {}
    for key in now.keys() | saved.keys():
        have, want = now.get(key), saved.get(key)
        if have == want:
            continue
        if isinstance(have, Mapping) and isinstance(want, Mapping):
            patch[key] = merge_patch(have, want)
        else:
            patch[key] = want
    return patch
