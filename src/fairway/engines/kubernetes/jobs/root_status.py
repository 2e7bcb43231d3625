"""Read what an object of any kind says of itself: how many replicas it wants, whether it has ended."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import Condition, OwnedMeta, moment
from fairway.engines.kubernetes.jobs.observed import RootStatus
from fairway.engines.kubernetes.jobs.roots import Plurals, Root, group_path
from fairway.model.errors import Refused

_COMPLETE: Final = frozenset({"Complete", "Completed", "Succeeded", "Finished"})
_FAILED: Final = frozenset({"Failed", "Error"})


class _Spec(Struct, frozen=True, gc=False):
    replicas: object = None
    """A number, in the kinds that have one."""


class _Status(Struct, frozen=True, gc=False):
    phase: object = ""
    message: object = ""
    conditions: object = None


class RootObject(Struct, frozen=True, gc=False):
    """An object of any kind: fields that many kinds have in common."""

    metadata: OwnedMeta
    spec: _Spec = _Spec()
    status: _Status = _Status()


async def read_status(requests: KubeRequests, plurals: Plurals, root: Root) -> RootStatus | None:
    """Read an object. Returns None if it does not exist, or may not be read: its pods are all there is."""
    try:
        path = await root_path(requests, plurals, root)
        found = await requests.get(path[0], path[1], RootObject) if path else None
    except Refused as e:
        if e.code != "Forbidden":
            raise
        return None
    if found is None or found.metadata.uid != root.uid:
        return None
    return status_of(found)


async def root_path(requests: KubeRequests, plurals: Plurals, root: Root) -> tuple[str, str] | None:
    """Return the path of an object and its resource. Returns None if the API server has no such kind."""
    plural = await plurals.find(requests, root.api_version, root.kind)
    if plural is None:
        return None
    group = root.api_version.rpartition("/")[0]
    path = f"{group_path(root.api_version)}/namespaces/{root.namespace}/{plural[0]}/{root.name}"
    return path, f"{plural[0]}.{group}".rstrip(".")


def status_of(found: RootObject) -> RootStatus:
    """Return what an object says: by a condition that it has ended, or by its phase."""
    replicas = found.spec.replicas if isinstance(found.spec.replicas, int) else None
    conditions = found.status.conditions
    for item in conditions if isinstance(conditions, list) else ():
        condition = _condition(item)
        if condition.status == "True" and condition.type in _COMPLETE | _FAILED:
            at = moment(condition.last_transition_time)
            return RootStatus(replicas, _end(condition.type), at, condition.message)
    phase = found.status.phase
    if isinstance(phase, str) and phase in _COMPLETE | _FAILED:
        message = found.status.message if isinstance(found.status.message, str) else ""
        return RootStatus(replicas, _end(phase), None, message)
    return RootStatus(replicas)


def _end(word: str) -> str:
    return "Complete/" if word in _COMPLETE else "Failed/"


def _condition(item: object) -> Condition:
    fields = item if isinstance(item, dict) else {}
    texts = {key: str(fields.get(key, "")) for key in ("type", "status", "message", "lastTransitionTime")}
    return Condition(texts["type"], texts["status"], "", texts["message"], texts["lastTransitionTime"])
