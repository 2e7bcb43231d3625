"""Fields that a nudge holds for a while. The object says so: what policy gives them, what they are now."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any, Final

from fairway.engines.kubernetes.policy.access import Access
from fairway.engines.kubernetes.policy.fields import Json
from fairway.engines.kubernetes.policy.kinds import NUDGED, NUDGER, Kind

STRATEGY: Final = "spec.queueingStrategy"
WEIGHT: Final = "spec.fairSharing.weight"
_BORROWING: Final = "borrowingLimit"


def note(body: Json) -> Mapping[str, Any]:
    """Which fields a nudge holds on this object."""
    try:
        read = json.loads((body["metadata"].get("annotations") or {}).get(NUDGED, "{}"))
    except ValueError:
        return {}
    return read if isinstance(read, dict) else {}


async def hold(
    access: Access,
    kind: Kind,
    body: Json,
    changes: Mapping[str, tuple[object, object] | None],
    *,
    policy: Mapping[str, str] | None = None,
    notes: Mapping[str, str] | None = None,
) -> None:
    """Give fields another value, or (None) the one that policy gives them."""
    held = dict(note(body))
    patch: Json = {}
    for path, change in changes.items():
        if change is None:
            was = held.pop(path, (None, None))[0]
            _set(patch, path, (policy or {}).get(path, was))
        else:
            held[path] = change
            _set(patch, path, change[1])
    await _write(access, kind, body, patch, held, notes)


async def hold_borrowing(access: Access, kind: Kind, body: Json, flavor: str, *, back: bool) -> bool:
    """Let it borrow nothing new of a flavor, or (`back`) as much as policy says; whether that is a change."""
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
        await _write(access, kind, body, {"spec": {"resourceGroups": groups}}, held, None)
    return changed


def holds_borrowing(body: Json) -> bool:
    """Whether a nudge keeps it from borrowing."""
    return any(path.endswith(_BORROWING) for path in note(body))


async def _write(
    access: Access,
    kind: Kind,
    body: Json,
    patch: Json,
    held: Mapping[str, Any],
    notes: Mapping[str, str] | None,
) -> None:
    text = json.dumps(held, sort_keys=True) if held else None
    patch["metadata"] = {"annotations": {NUDGED: text, **(notes or {})}}
    answer = await access.merge(kind.path(body["metadata"]["name"]), kind.resource, patch, NUDGER)
    body["metadata"]["annotations"] = answer["metadata"].get("annotations") or {}
    body["spec"] = answer["spec"]


def _set(patch: Json, path: str, value: object) -> None:
    *outer, last = path.split(".")
    for key in outer:
        patch = patch.setdefault(key, {})
    patch[last] = value
