"""Advise how Kueue counts claims of DeviceClasses, and name classes that are missing. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.nodes.devices import claims_devices, device_classes, looks_like_gpu
from fairway.engines.kubernetes.policy.advice import CONFIGURATION, FILE, NOT_READABLE, RESTART
from fairway.model.fleet import Pool
from fairway.policy.objects import Advice, Notice

MAPPINGS: Final = "kueue.resources.deviceClassMappings"
"""The setting for the resource by which Kueue counts each DeviceClass, as JSON."""
MISSING_CLASSES: Final = "deviceclasses.missing"
"""The setting for DeviceClasses that pools name and the cluster does not have."""


def mappings_setting(resources: Mapping[str, Any]) -> str:
    """Return the setting for the mappings in the part `resources` of Kueue's configuration."""
    found = {
        str(name): str(mapping.get("name", ""))
        for mapping in resources.get("deviceClassMappings") or ()
        for name in mapping.get("deviceClassNames") or ()
    }
    return json.dumps(found, sort_keys=True)


def gpu_classes(settings: Mapping[str, str]) -> dict[str, str]:
    """Return the DeviceClass of each resource by which Kueue counts claims for GPUs.

    A resource of several classes is left out: a pool has one.
    """
    found: dict[str, list[str]] = {}
    for name, resource in json.loads(settings.get(MAPPINGS) or "{}").items():
        found.setdefault(resource, []).append(name)
    return {
        resource: names[0]
        for resource, names in found.items()
        if len(names) == 1 and (looks_like_gpu(resource) or "gpu" in names[0])
    }


def class_advice(pools: Sequence[Pool], settings: Mapping[str, str]) -> Iterator[Advice]:
    """Yield the line of Kueue's configuration that counts the classes of pools, unless it is there.

    Mappings of other classes stay as they are.
    """
    found: dict[str, str] = json.loads(settings.get(MAPPINGS) or "{}")
    wanted = device_classes(pools)
    if settings.get(CONFIGURATION, NOT_READABLE) == NOT_READABLE:
        return
    if all(found.get(name) == resource for name, resource in wanted.items()):
        return
    why = "else Kueue does not count claims of these classes, and jobs with such claims never start"
    current = _line(found) if found else ""
    yield Advice(FILE, _line(found | wanted), current, why, RESTART)


def _line(mappings: Mapping[str, str]) -> str:
    by_resource: dict[str, list[str]] = {}
    for name, resource in sorted(mappings.items()):
        by_resource.setdefault(resource, []).append(name)
    entries = (
        f"{{name: {resource}, deviceClassNames: [{', '.join(names)}]}}"
        for resource, names in sorted(by_resource.items())
    )
    return f"resources: {{deviceClassMappings: [{', '.join(entries)}]}}"


def class_notices(pools: Sequence[Pool], settings: Mapping[str, str]) -> Iterator[Notice]:
    """Yield the notices about pools whose GPUs pods claim."""
    claimed = [str(pool.name) for pool in pools if claims_devices(pool)]
    if claimed:
        yield Notice(
            "ClaimsNotPlaced",
            f"Kueue counts claims of {', '.join(claimed)} and does not choose their nodes: a guaranteed job "
            "may be admitted and still wait in the scheduler, and the limit of GPUs per job is checked for "
            "`fairway run` only",
            "keep job sizes that divide the GPUs of a node; racks (`together`) need extended resources",
            promise="guarantee",
        )
    if missing := settings.get(MISSING_CLASSES):
        yield Notice(
            "DeviceClassMissing",
            f"the cluster has no DeviceClass {missing.replace(',', ', ')}: nobody can claim GPUs of the "
            "pools that name it",
            "install the driver's classes, or correct device_class in the fleet file:  "
            "kubectl get deviceclasses",
            promise="guarantee",
        )
