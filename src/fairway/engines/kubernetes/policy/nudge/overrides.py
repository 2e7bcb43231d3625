"""Fields that a nudge overrides for a while. An annotation records the policy's value and the current one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from fairway.engines.kubernetes.api.kinds import NUDGED, NUDGER, Json, ObjectKind
from fairway.engines.kubernetes.api.requests import KubeRequests

STRATEGY: Final = "spec.queueingStrategy"
WEIGHT: Final = "spec.fairSharing.weight"
_BORROWING: Final = "borrowingLimit"


def note(body: Json) -> Mapping[str, Any]:
    """Return the fields that a nudge overrides on this object."""
    try:
        read = json.loads((body["metadata"].get("annotations") or {}).get(NUDGED, "{}"))
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


async def hold(
    requests: KubeRequests,
    kind: ObjectKind,
    body: Json,
    changes: Mapping[str, tuple[object, object] | None],
    *,
    policy: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Override fields with another value, or (None) restore the policy's."""
    held = dict(note(body))
    patch: Json = {}
    for path, change in changes.items():
        if change is None:
            was = held.pop(path, (None, None))[0]
            _set(patch, path, (policy or {}).get(path, was))
        else:
            held[path] = change
            _set(patch, path, change[1])
    await _write(requests, kind, body, patch, held, notes)


async def hold_borrowing(
    requests: KubeRequests, kind: ObjectKind, body: Json, flavor: str, *, back: bool
) -> bool:
    """Set borrowing of a flavor to 0, or (`back`) restore the policy's limits.

    Returns whether anything changed.
    """
    groups = copy.deepcopy(body["spec"].get("resourceGroups") or [])
    held, changed = dict(note(body)), False
    for group in groups:
        covered = ",".join(group["coveredResources"])
        for each in group["flavors"]:
            if each["name"].partition(".")[0] != flavor and not back:
                continue
            for quota in each["resources"]:
                inner = f"flavors[{each['name']}].resources[{quota['name']}].{_BORROWING}"
                path = f"spec.resourceGroups[{covered}].{inner}"
                if back and path in held:
                    policy = held.pop(path)[0]
                    quota.pop(_BORROWING, None)
                    if policy is not None:
                        quota[_BORROWING] = policy
                    changed = True
                elif not back and path not in held:
                    limit = quota.get(_BORROWING)
                    held[path] = (None if limit is None else int(limit), 0)
                    quota[_BORROWING] = 0
                    changed = True
    if changed:
        await _write(requests, kind, body, {"spec": {"resourceGroups": groups}}, held, None)
    return changed


def holds_borrowing(body: Json) -> bool:
    """Return whether a nudge prevents it from borrowing."""
    return any(path.endswith(_BORROWING) for path in note(body))


async def _write(
    requests: KubeRequests,
    kind: ObjectKind,
    body: Json,
    patch: Json,
    held: Mapping[str, Any],
    notes: Mapping[str, str] | None,
) -> None:
    text = json.dumps(held, sort_keys=True) if held else None
    patch["metadata"] = {"annotations": {NUDGED: text, **(notes or {})}}
    answer = await requests.merge(kind.path(body["metadata"]["name"]), kind.resource, patch, NUDGER)
    body["metadata"]["annotations"] = answer["metadata"].get("annotations") or {}
    body["spec"] = answer["spec"]


def _set(patch: Json, path: str, value: object) -> None:
    *outer, last = path.split(".")
    for key in outer:
        patch = patch.setdefault(key, {})
    patch[last] = value
