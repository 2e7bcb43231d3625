"""Override fields of an object for a while. An annotation records the policy's value and the current one."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from fairway.engines.kubernetes.api.kinds import INTERVENER, OVERRIDDEN, Json, ObjectKind
from fairway.engines.kubernetes.api.requests import KubeRequests

STRATEGY: Final = "spec.queueingStrategy"
WEIGHT: Final = "spec.fairSharing.weight"
_BORROWING: Final = "borrowingLimit"


def overrides_of(body: Json) -> Mapping[str, Any]:
    """Return the overridden fields of an object: the policy's value and the current one, by path."""
    try:
        overrides = json.loads((body["metadata"].get("annotations") or {}).get(OVERRIDDEN, "{}"))
    except ValueError:
        return {}
    return overrides if isinstance(overrides, dict) else {}


async def override(
    requests: KubeRequests,
    kind: ObjectKind,
    body: Json,
    changes: Mapping[str, tuple[object, object] | None],
    *,
    policy: Mapping[str, str] | None = None,
    annotations: Mapping[str, str] | None = None,
) -> None:
    """Override fields: `changes` has the policy's value and the new one, or None to restore the policy's.

    `policy` has values to restore where the recorded one may be outdated.
    """
    overrides = dict(overrides_of(body))
    patch: Json = {}
    for path, change in changes.items():
        if change is None:
            recorded = overrides.pop(path, (None, None))[0]
            _set(patch, path, (policy or {}).get(path, recorded))
        else:
            overrides[path] = change
            _set(patch, path, change[1])
    await _write(requests, kind, body, patch, overrides, annotations)


async def set_borrowing_limits(
    requests: KubeRequests, kind: ObjectKind, body: Json, flavor: str | None
) -> bool:
    """Set the borrowing limit of a pool's flavor to 0, or (None) restore the policy's limits of all flavors.

    Returns whether anything changed.
    """
    groups = copy.deepcopy(body["spec"].get("resourceGroups") or [])
    overrides, changed = dict(overrides_of(body)), False
    for group in groups:
        covered = ",".join(group["coveredResources"])
        for each in group["flavors"]:
            if flavor is not None and each["name"].partition(".")[0] != flavor:
                continue
            for quota in each["resources"]:
                inner = f"flavors[{each['name']}].resources[{quota['name']}].{_BORROWING}"
                path = f"spec.resourceGroups[{covered}].{inner}"
                if flavor is None and path in overrides:
                    policy = overrides.pop(path)[0]
                    quota.pop(_BORROWING, None)
                    if policy is not None:
                        quota[_BORROWING] = policy
                    changed = True
                elif flavor is not None and path not in overrides:
                    limit = quota.get(_BORROWING)
                    overrides[path] = (None if limit is None else int(limit), 0)
                    quota[_BORROWING] = 0
                    changed = True
    if changed:
        await _write(requests, kind, body, {"spec": {"resourceGroups": groups}}, overrides, None)
    return changed


def borrowing_is_blocked(body: Json) -> bool:
    """Return whether an intervention keeps an object from borrowing."""
    return any(path.endswith(_BORROWING) for path in overrides_of(body))


async def _write(
    requests: KubeRequests,
    kind: ObjectKind,
    body: Json,
    patch: Json,
    overrides: Mapping[str, Any],
    annotations: Mapping[str, str] | None,
) -> None:
    text = json.dumps(overrides, sort_keys=True) if overrides else None
    patch["metadata"] = {"annotations": {OVERRIDDEN: text, **(annotations or {})}}
    written = await requests.merge(kind.path(body["metadata"]["name"]), kind.resource, patch, INTERVENER)
    body["metadata"]["annotations"] = written["metadata"].get("annotations") or {}
    body["spec"] = written["spec"]


def _set(patch: Json, path: str, value: object) -> None:
    *outer, last = path.split(".")
    for key in outer:
        patch = patch.setdefault(key, {})
    patch[last] = value
