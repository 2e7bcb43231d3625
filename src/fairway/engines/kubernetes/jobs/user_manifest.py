"""Complete a manifest that a user submitted: namespace, name, queue, priority, user and pool. Pure.

The same order always makes the same object. Whatever else the manifest says stays as it is: what its pods may
do is for the cluster's own admission to decide.
"""

from __future__ import annotations

from typing import Any, Final

from fairway.engines.kubernetes.api.kinds import FAIRWAY, MANAGED_BY, Json
from fairway.engines.kubernetes.jobs.labels import labels_of
from fairway.engines.kubernetes.jobs.manifest import (
    GATED_BY,
    check_spot,
    node_expressions,
    place_of,
    queue_labels,
    team_of,
    toleration,
)
from fairway.engines.kubernetes.jobs.objects import HOLD_GATE
from fairway.engines.kubernetes.nodes.devices import is_claimed, resource
from fairway.engines.kubernetes.policy.admission_policies import (
    JOB,
    KUEUES_QUEUE,
    MAX_EXEC_TIME,
    QUEUE,
    QUEUE_NAME,
    USER,
)
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, Fleet, KubernetesPlace, Pool
from fairway.model.job import Order, format_job_id
from fairway.model.manifest import Manifest, decode_manifest, read_manifest
from fairway.model.workload_kinds import HoldBy, WorkloadKind

REPLICAS: Final = "fairway.dev/replicas"
"""An annotation of a workload that is held by 0 replicas: how many it gets back."""


def kind_of(order: Order) -> WorkloadKind:
    """Return the kind of a submitted manifest, in the version that it names. Raises Refused."""
    return _read(order)[0].kind


def complete_manifest(order: Order, fleet: Fleet, cluster: Cluster) -> Json:
    """Return the object to create. Raises Refused for what could never run on this cluster or pool."""
    manifest, body = _read(order)
    pool = fleet.pool(order.supply.pool)
    place = place_of(pool, cluster)
    team = team_of(order, fleet)
    check_spot(order.spec, pool)
    _check_resource(manifest, order, pool)
    for pod_set in manifest.pod_sets:
        if pod_set.template is not None:
            _select_pool(pod_set.template["spec"], order, pool, place, fleet)
    meta = body["metadata"]
    labels = {MANAGED_BY: FAIRWAY} | labels_of(order.spec) | _mapping(meta, "labels")
    queue = _queue_labels(labels, order, fleet)
    seconds = order.spec.time_seconds or team.limits.job_seconds
    if seconds and not manifest.kind.service:
        labels.setdefault(MAX_EXEC_TIME, str(seconds))
    annotations = _mapping(meta, "annotations") | {USER: order.user}
    if order.hold:
        _hold(manifest.kind, body, annotations)
    body["metadata"] = {
        **{key: value for key, value in meta.items() if key != "generateName"},
        "name": order.engine_name,
        "namespace": order.team,
        "labels": labels | queue | {JOB: format_job_id(order.job)},
        "annotations": annotations,
    }
    return body


def _read(order: Order) -> tuple[Manifest, Json]:
    body = decode_manifest(order.spec.manifest or "{}")
    manifest, problems = read_manifest(body)
    if manifest is None:
        raise Refused("InvalidManifest", problems[0].message, problems[0].hint)
    return manifest, body


def _check_resource(manifest: Manifest, order: Order, pool: Pool) -> None:
    offered = resource(order.supply, pool)
    if is_claimed(order.supply, pool):
        raise Refused(
            "ResourceNotInPool",
            f"pods claim the GPUs of {order.supply}, and the manifest requests {manifest.resource}",
            "create it with kubectl, with a template of claims: it is queued and mirrored all the same; or "
            "name a pool without a device class:  fairway get pools",
        )
    if manifest.resource != offered:
        raise Refused(
            "ResourceNotInPool",
            f"{order.supply} has {offered}, and the manifest requests {manifest.resource}",
            f"request {offered}, or name a pool that has {manifest.resource}:  fairway get pools",
        )


def _queue_labels(labels: Json, order: Order, fleet: Fleet) -> dict[str, str]:
    """Return the labels for Kueue. Raises Refused if a manifest names a queue of something else."""
    wanted = queue_labels(order, fleet)
    if QUEUE_NAME not in labels:
        return wanted
    queue = str(labels[QUEUE_NAME])
    names = {wanted[QUEUE_NAME]} if QUEUE_NAME in wanted else {QUEUE, KUEUES_QUEUE}
    if queue.partition(".")[0] not in names:
        raise Refused(
            "OtherQueue",
            f"the manifest names queue {queue[:100]}, which is not that of team {order.team} and priority "
            f"{order.priority}",
            f"remove the label {QUEUE_NAME}: the team's queue is filled in",
        )
    return {**wanted, QUEUE_NAME: queue}


def _mapping(parent: Json, key: str) -> Json:
    """Return a mapping within an object, empty if there is none. Raises Refused if it is something else."""
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise _wrong_type(key, "a mapping")
    return dict(value or {})


def _list(parent: Json, key: str) -> list[Any]:
    """Return a list within an object, empty if there is none. Raises Refused if it is something else."""
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise _wrong_type(key, "a list")
    return list(value or [])


def _wrong_type(key: str, expected: str) -> Refused:
    return Refused(
        "InvalidManifest", f"{key} of the manifest is not {expected}", f"write {expected}, or remove {key}"
    )


def _select_pool(spec: Json, order: Order, pool: Pool, place: KubernetesPlace, fleet: Fleet) -> None:
    """Keep the pods of a template on the pool's nodes, beside what the template says itself."""
    selector = _mapping(spec, "nodeSelector")
    for key, value in place.node_labels.items():
        if selector.get(key, value) != value:
            raise Refused(
                "OtherNodes",
                f"the nodes of pool {pool.name} have {key}={value}, and the manifest selects "
                f"{key}={str(selector[key])[:100]}",
                "remove nodeSelector, and name the pool:  --pool NAME",
            )
    if selector or place.node_labels:
        spec["nodeSelector"] = {**selector, **place.node_labels}
    if expressions := node_expressions(order, pool, place, fleet):
        _add_expressions(spec, expressions)
    own = _list(spec, "tolerations")
    missing = [t for taint in place.taints if (t := toleration(taint)) not in own]
    if missing:
        spec["tolerations"] = [*own, *missing]


def _add_expressions(spec: Json, expressions: list[Json]) -> None:
    """Add expressions to every term of the template's own node affinity: one term has to match."""
    affinity = _mapping(spec, "affinity")
    nodes = _mapping(affinity, "nodeAffinity")
    required = _mapping(nodes, _REQUIRED)
    terms = [
        {**term, "matchExpressions": [*_list(term, "matchExpressions"), *expressions]}
        for term in _list(required, "nodeSelectorTerms") or [{}]
        if isinstance(term, dict)
    ]
    spec["affinity"] = affinity | {
        "nodeAffinity": nodes | {_REQUIRED: required | {"nodeSelectorTerms": terms}}
    }


_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"


def _hold(kind: WorkloadKind, body: Json, annotations: Json) -> None:
    """Let a workload be created held."""
    if kind.hold is HoldBy.REPLICAS:
        annotations[REPLICAS] = str(body["spec"].get("replicas", 1))
        body["spec"]["replicas"] = 0
    else:
        annotations[GATED_BY] = HOLD_GATE
