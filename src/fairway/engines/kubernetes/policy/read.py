"""Read a cluster's policy: every object of the governed kinds, and Kueue's configuration."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from ruamel.yaml import YAML
from ruamel.yaml.error import YAMLError

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import (
    FAIRWAY,
    INTERVENER,
    KINDS,
    MANAGED_BY,
    OVERRIDDEN,
    RELEASED,
    TEAM,
    Json,
    ObjectKind,
)
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.nodes.claims import RESOURCE_API
from fairway.engines.kubernetes.nodes.devices import (
    SHARED_SUFFIX,
    claimed_resources,
    device_classes,
    looks_like_gpu,
    replica_of,
    resource,
    whole_number,
)
from fairway.engines.kubernetes.nodes.observe import claimed_on
from fairway.engines.kubernetes.nodes.slices import (
    CLASSES,
    SLICES,
    DeviceClassObject,
    DeviceCounts,
    SliceObject,
    count_devices,
    device_classes_of,
    slice_transform,
)
from fairway.engines.kubernetes.policy.advice import (
    FRAMEWORKS,
    GROUPS,
    MEMBER_ROLE_SETTING,
    SELECTOR,
    UNCLAIMED,
    UNDECLARED,
    UNSELECTED,
    VERSION,
    selects,
    settings_of,
)
from fairway.engines.kubernetes.policy.device_classes import MAPPINGS, MISSING_CLASSES, mappings_setting
from fairway.engines.kubernetes.policy.existing import GPU_CLAIMS, FindRoots, find_workloads, has_gpu_classes
from fairway.engines.kubernetes.policy.fields import Fields, flatten
from fairway.engines.kubernetes.policy.flavor_nodes import flavor_settings
from fairway.engines.kubernetes.policy.flavors import terminating_setting, used_setting
from fairway.engines.kubernetes.policy.translate import MEMBER_ROLE, OWN_ROLES, bind_to_setting
from fairway.engines.kubernetes.policy.users import served_setting
from fairway.model.errors import Refused
from fairway.model.fleet import KubernetesPlace, Pool
from fairway.model.names import TeamName
from fairway.model.team import Supply
from fairway.model.workload_kinds import WORKLOAD_KINDS
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Value

Published = tuple[Mapping[str, Mapping[str, DeviceCounts]], Sequence[str]]
"""Devices by node and resource, and the DeviceClasses of pools that do not exist."""

KUEUE_SETTING, NOT_INSTALLED = "kueue", "not installed"
_KUEUE: Final = "kueue-system"
_CONFIG_MAP: Final = f"/api/v1/namespaces/{_KUEUE}/configmaps/kueue-manager-config"
_DEPLOYMENT: Final = f"/apis/apps/v1/namespaces/{_KUEUE}/deployments/kueue-controller-manager"
_DEVICE_CLASSES: Final = f"{RESOURCE_API}/deviceclasses"
_CLUSTER_ROLES: Final = "/apis/rbac.authorization.k8s.io/v1/clusterroles"
_BIND_TO: Final = "fairway.dev/bind-to"
"""The annotation of a role that Fairway binds to its own account in the namespaces of teams."""


async def find_policy(requests: KubeRequests, pools: Sequence[Pool], find_roots: FindRoots) -> FoundPolicy:
    """List every governed kind, all kinds at once, and Kueue's settings."""
    lists, (kueue, settings), nodes, roles, version, (gpu_claims, groups) = await asyncio.gather(
        asyncio.gather(*(_list_kind(requests, kind) for kind in KINDS.values())),
        _kueue(requests),
        requests.list_all("/api/v1/nodes", "nodes", type_=NodeObject),
        _roles(requests),
        _kubernetes_version(requests),
        asyncio.gather(_gpu_claims(requests), _groups(requests)),
    )
    found = list(zip(KINDS.values(), lists, strict=True))
    has_kueue = _has_kueue([(k, bodies is not None) for k, bodies in found if k.root == kinds.KUEUE])
    objects = tuple(o for kind, bodies in found for o in _objects(kind, bodies or ()))
    served = {
        served_setting(kind): "no" if bodies is None else "yes" for kind, bodies in found if kind.optional
    }
    terminating = {
        terminating_setting(kind): ",".join(_terminating(kind, bodies or ()))
        for kind, bodies in found
        if kind is kinds.FLAVOR or kind is kinds.TOPOLOGY
    }
    used = _used_flavors(next(bodies or [] for kind, bodies in found if kind is kinds.CLUSTER_QUEUE))
    claims = {GPU_CLAIMS: "counted" if device_classes(pools) else "yes" if gpu_claims else "no"}
    selector = json.loads(settings.get(SELECTOR) or "null")
    namespaces = next(bodies for kind, bodies in found if kind is kinds.NAMESPACE) or ()
    unselected = [
        n["metadata"]["name"] for n in namespaces if not selects(selector, n["metadata"].get("labels") or {})
    ]
    resources = claimed_resources(pools)
    devices, missing_classes = await _published(requests, pools, nodes)
    capacities = _capacities(nodes, pools, devices) | flavor_settings(dict(_flavors(found)), nodes)
    return FoundPolicy(
        engine_version=f"{version}, {kueue}",
        objects=objects,
        settings={
            **settings,
            **capacities,
            **served,
            **terminating,
            **used,
            **claims,
            **roles,
            UNSELECTED: ",".join(unselected),
            GROUPS: ",".join(groups),
            MISSING_CLASSES: ",".join(missing_classes),
            **({} if has_kueue else {KUEUE_SETTING: NOT_INSTALLED}),
        },
        workloads=await find_workloads(requests, objects, resources, find_roots, claims=gpu_claims),
    )


async def _groups(requests: KubeRequests) -> list[str]:
    """Return the API groups of workloads that the API server has."""
    known = {kind.group for kind in WORKLOAD_KINDS}
    served = await _get_if_allowed(requests, "/apis", "")
    return sorted(known & {str(g.get("name")) for g in (served or {}).get("groups") or ()})


async def _gpu_claims(requests: KubeRequests) -> bool:
    """Return whether resource claims can be for GPUs, as far as Fairway may see."""
    try:
        return has_gpu_classes(await requests.list_all(_DEVICE_CLASSES, CLASSES))
    except Refused:
        return False


def _has_kueue(served: Sequence[tuple[ObjectKind, bool]]) -> bool:
    """Return whether Kueue is installed. Raises Refused if it serves only some of its kinds."""
    missing = [kind for kind, is_served in served if not is_served]
    if missing and len(missing) < len(served):
        raise Refused(
            "KueueTooOld",
            f"the API server does not serve {missing[0].resource} as {missing[0].api_version}",
            "install a release of Kueue that does; docs/engines/kubernetes.md names those that Fairway knows",
        )
    return not missing


async def _list_kind(requests: KubeRequests, kind: ObjectKind) -> list[Json] | None:
    """Return every object of a kind. Returns None where the API server does not serve or show the kind."""
    try:
        return await requests.list_all(kind.list_path, kind.resource)
    except Refused as e:
        if kind.optional and e.code in {"NotAnApiServer", "Forbidden"}:
            return None
        if kind.root == kinds.KUEUE and e.code == "NoKueue":
            return None  # Kueue is not installed, or another release of it
        raise


def _terminating(kind: ObjectKind, bodies: Sequence[Json]) -> Iterator[str]:
    """Yield the names of objects that are being deleted: they are not free yet."""
    for body in bodies:
        if "deletionTimestamp" in body["metadata"]:
            yield name_of(kind, body["metadata"])


def _used_flavors(queues: Sequence[Json]) -> dict[str, str]:
    """Return the settings for the devices that jobs hold in each flavor, as the queues report it."""
    used: dict[str, int] = {}
    for queue in queues:
        for flavor in (queue.get("status") or {}).get("flavorsReservation") or ():
            totals = (
                whole_number(str(r.get("total", "0")))
                for r in flavor.get("resources") or ()
                if looks_like_gpu(r["name"])
            )
            used[flavor["name"]] = used.get(flavor["name"], 0) + sum(totals)
    return {used_setting(name): str(total) for name, total in used.items()}


def _objects(kind: ObjectKind, bodies: Sequence[Json]) -> Iterator[FoundObject]:
    for body in bodies:
        meta = body["metadata"]
        # A terminating object counts as gone: it is created anew if wanted. A released one has no owner.
        if "deletionTimestamp" in meta or RELEASED in (meta.get("labels") or {}):
            continue
        yield found_object(kind, body)


def found_object(kind: ObjectKind, body: Json) -> FoundObject:
    """Convert one object to the normal form that plans compare."""
    meta = body["metadata"]
    labels = meta.get("labels") or {}
    ours = labels.get(MANAGED_BY) == FAIRWAY
    team = labels.get(TEAM)
    fields = without_interventions(flatten(kind, body), (meta.get("annotations") or {}).get(OVERRIDDEN, ""))
    return FoundObject(
        key=ObjectKey(kind.name, name_of(kind, meta)),
        fields=fields,
        ours=ours,
        changed_by=_changed_by(meta.get("managedFields") or ()),
        after=tuple(_refers_to(kind, body)),
        team=TeamName(team) if ours and team else None,
    )


def name_of(kind: ObjectKind, meta: Mapping[str, Any]) -> str:
    """Return the name of a key: with the namespace in front where the kind has one."""
    return f"{meta['namespace']}/{meta['name']}" if kind.namespaced else str(meta["name"])


def without_interventions(fields: Fields, annotation: str) -> Fields:
    """Return fields with overridden values replaced by the policy's; a value set by hand stays."""
    if not annotation:
        return fields
    try:
        overridden: Mapping[str, Sequence[Value]] = json.loads(annotation)
        return fields | {
            path: policy for path, (policy, now) in overridden.items() if fields.get(path) == now
        }
    except (ValueError, TypeError, AttributeError):  # users can edit annotations
        return fields


def _changed_by(managers: Sequence[Json]) -> str | None:
    """Return the last field manager besides Fairway: the client, not the user. None: there is no other."""
    others = [
        m
        for m in managers
        if m.get("manager") not in {FAIRWAY, INTERVENER}
        and not m.get("subresource")
        and _owns_policy(m.get("fieldsV1") or {})
    ]
    if not others:
        return None
    last = max(others, key=lambda m: str(m.get("time", "")))
    return f"{last.get('manager', 'somebody')} at {last.get('time', 'an unknown time')}"


def _owns_policy(owned: Mapping[str, Any]) -> bool:
    """Return whether a manager owns more than finalizers and status, which Kueue writes."""
    meta = owned.get("f:metadata") or {}
    return bool(owned.keys() - {"f:metadata", "f:status"}) or bool(
        meta.keys() & {"f:labels", "f:annotations"}
    )


def _refers_to(kind: ObjectKind, body: Json) -> Iterator[ObjectKey]:
    """Yield the objects that an object refers to, before which it must be deleted."""
    spec, meta = body.get("spec") or {}, body["metadata"]
    if kind.namespaced:
        yield ObjectKey(kinds.NAMESPACE.name, meta["namespace"])
    if kind is kinds.LOCAL_QUEUE:
        yield ObjectKey(kinds.CLUSTER_QUEUE.name, spec.get("clusterQueue", ""))
    if kind is kinds.CLUSTER_QUEUE or kind is kinds.COHORT:
        if parent := spec.get("cohortName") or spec.get("parentName"):
            yield ObjectKey(kinds.COHORT.name, parent)
        for group in spec.get("resourceGroups") or ():
            for flavor in group.get("flavors") or ():
                yield ObjectKey(kinds.FLAVOR.name, flavor["name"])
    if kind is kinds.FLAVOR and spec.get("topologyName"):
        yield ObjectKey(kinds.TOPOLOGY.name, spec["topologyName"])
    if kind is kinds.ADMISSION_BINDING:
        yield ObjectKey(kinds.ADMISSION_POLICY.name, spec.get("policyName", ""))
    if kind is kinds.MUTATING_BINDING:
        yield ObjectKey(kinds.MUTATING_POLICY.name, spec.get("policyName", ""))


async def _kubernetes_version(requests: KubeRequests) -> str:
    version = await _get_if_allowed(requests, "/version", "")
    return f"kubernetes {version['gitVersion']}" if version and "gitVersion" in version else "kubernetes"


async def _kueue(requests: KubeRequests) -> tuple[str, dict[str, str]]:
    """Return Kueue's release and configuration, as far as Fairway may read them."""
    config_map, deployment = await asyncio.gather(
        _get_if_allowed(requests, _CONFIG_MAP, "configmaps"),
        _get_if_allowed(requests, _DEPLOYMENT, "deployments.apps"),
    )
    label = _version_label(deployment) or _version_label(config_map)
    version = _image_tag(deployment) or label or "of unknown release"
    configuration = _configuration(config_map)
    mappings = mappings_setting((configuration or {}).get("resources") or {})
    return f"kueue {version}", settings_of(configuration) | {VERSION: version, MAPPINGS: mappings}


async def kueue_frameworks(requests: KubeRequests) -> frozenset[str]:
    """Return the integrations that Kueue's configuration lists. Empty if it may not be read."""
    _, settings = await _kueue(requests)
    return frozenset(settings.get(FRAMEWORKS, "").split(", "))


async def _get_if_allowed(requests: KubeRequests, path: str, resource: str) -> Json | None:
    try:
        return await requests.get(path, resource, Json)
    except Refused:
        return None


def _configuration(config_map: Json | None) -> Mapping[str, Any] | None:
    text = ((config_map or {}).get("data") or {}).get("controller_manager_config.yaml")
    if text is None:
        return None
    try:
        configuration = YAML(typ="safe", pure=True).load(text)
    except YAMLError:
        return None
    return configuration if isinstance(configuration, Mapping) else None


def _image_tag(deployment: Json | None) -> str:
    pod = ((deployment or {}).get("spec") or {}).get("template", {}).get("spec", {})
    for container in pod.get("containers") or ():
        _, _, tag = str(container.get("image", "")).rpartition("/")[2].partition(":")
        if tag:
            return tag.partition("@")[0]
    return ""


def _version_label(body: Json | None) -> str:
    labels = ((body or {}).get("metadata") or {}).get("labels") or {}
    return str(labels.get("app.kubernetes.io/version", ""))


async def _roles(requests: KubeRequests) -> dict[str, str]:
    """Return what is known of the roles that Fairway gives out."""
    return {MEMBER_ROLE_SETTING: await _member_role(requests), **await _own_accounts(requests)}


async def _member_role(requests: KubeRequests) -> str:
    try:
        role = await requests.get(f"{_CLUSTER_ROLES}/{MEMBER_ROLE}", "clusterroles", Json)
    except Refused:
        return "not known"
    return "missing" if role is None else "present"


async def _own_accounts(requests: KubeRequests) -> dict[str, str]:
    """Return the accounts of Fairway to bind its roles to; none where the rights are an earlier release's.

    They are read from the roles, not from who asks: servers that plan and loops that write have different
    accounts, and must compute the same plan.
    """
    accounts: dict[str, str] = {}
    for name in OWN_ROLES:
        try:
            role = await requests.get(f"{_CLUSTER_ROLES}/{name}", "clusterroles", Json)
        except Refused:
            continue
        annotations = ((role or {}).get("metadata") or {}).get("annotations") or {}
        if account := annotations.get(_BIND_TO):
            accounts[bind_to_setting(name)] = str(account)
    return accounts


def _flavors(
    found: Iterable[tuple[ObjectKind, Sequence[Json] | None]],
) -> Iterator[tuple[str, Mapping[str, str]]]:
    """Yield each ResourceFlavor with the labels of its nodes."""
    for kind, bodies in found:
        for body in (bodies or ()) if kind is kinds.FLAVOR else ():
            yield str(body["metadata"]["name"]), (body.get("spec") or {}).get("nodeLabels") or {}


async def _published(requests: KubeRequests, pools: Sequence[Pool], nodes: Sequence[NodeObject]) -> Published:
    """Return the devices that drivers publish for the DeviceClasses of pools, by node and resource.

    Without a pool that names a class nothing is read.
    """
    resources = device_classes(pools)
    if not resources:
        return {}, ()
    classes, slices = await asyncio.gather(
        requests.list_all(_DEVICE_CLASSES, CLASSES, type_=DeviceClassObject),
        requests.list_all(f"{RESOURCE_API}/resourceslices", SLICES, type_=SliceObject),
    )
    transform = slice_transform(device_classes_of(classes, resources))
    facts = [reduced for found in slices if (reduced := transform(found)) is not None]
    missing = resources.keys() - {c.metadata.name for c in classes}
    labels = {node.metadata.name: node.metadata.labels for node in nodes}
    counts = count_devices(facts, (), lambda name: claimed_on(labels.get(name, {}), pools))
    return counts, sorted(missing)


def _capacities(
    nodes: Iterable[NodeObject], pools: Sequence[Pool], published: Mapping[str, Mapping[str, DeviceCounts]]
) -> dict[str, str]:
    """Count devices of each supply over all its nodes, whatever their health: a pool's full capacity."""
    sums = {str(s): 0 for p in pools for s in p.supplies}
    claimed, unclaimed = claimed_resources(pools), set[str]()
    undeclared: dict[str, set[str]] = {}
    for node in nodes:
        for supply, pool in _claims(node, pools):
            name = resource(supply, pool)
            sums[str(supply)] += whole_number(node.status.capacity.get(name, "0"))
            if counts := published.get(node.metadata.name, {}).get(name):
                sums[str(supply)] += counts.total
            replica = replica_of(name, node.metadata.labels)
            if replica not in (None, supply.slice) and _offers(node, name):
                undeclared.setdefault(f"{UNDECLARED}{pool.name}", set()).add(str(replica))
        unclaimed |= {r for r in node.status.capacity if looks_like_gpu(r)} - claimed
    capacities = {f"capacity.{supply}": str(count) for supply, count in sums.items()}
    capacities |= {key: ", ".join(sorted(found)) for key, found in undeclared.items()}
    return capacities | {UNCLAIMED: ", ".join(sorted(unclaimed))}


def _offers(node: NodeObject, name: str) -> bool:
    """Return whether a node has devices of a resource, or of the name that it has when pods share them."""
    return any(whole_number(node.status.capacity.get(n, "0")) for n in (name, f"{name}{SHARED_SUFFIX}"))


def _claims(node: NodeObject, pools: Sequence[Pool]) -> Iterator[tuple[Supply, Pool]]:
    """Yield the supplies that a node's devices belong to.

    Of two pools that claim the same resource the first one gets it.
    """
    claimed: set[str] = set()
    for pool in pools:
        place = pool.place
        if isinstance(place, KubernetesPlace) and place.node_labels.items() <= node.metadata.labels.items():
            for supply in pool.supplies:
                name = resource(supply, pool)
                if name not in claimed:
                    claimed.add(name)
                    yield supply, pool
