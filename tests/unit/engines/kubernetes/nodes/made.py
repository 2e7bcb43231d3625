"""Small values that the tests of this folder are made of."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal

import msgspec

from fairway.engines.kubernetes.api.wire import NodeObject, PodObject
from fairway.model.fleet import Capacity, KubernetesPlace, Pool
from fairway.model.gpu import GpuType
from fairway.model.names import ClusterName, PoolName, SliceName


def pool(
    name: str,
    labels: Mapping[str, str] | None = None,
    slices: tuple[str, ...] = (),
    resource: str = "nvidia.com/gpu",
) -> Pool:
    return Pool(
        name=PoolName(name),
        cluster=ClusterName("cloud"),
        gpu=GpuType("A100-80GB", 80),
        capacity=Capacity.OWNED,
        price=Decimal(1),
        place=KubernetesPlace(node_labels=labels or {}, resource=resource),
        slices=tuple(SliceName(s) for s in slices),
    )


def node(**parts: object) -> NodeObject:
    """A Node as the API server writes it, from the parts that a test cares about."""
    return msgspec.json.decode(msgspec.json.encode({"metadata": {"name": "n1"}, **parts}), type=NodeObject)


def pod(**spec: object) -> PodObject:
    """A Pod bound to n1, unless `spec` says otherwise."""
    written = {
        "metadata": {"name": "p", "namespace": "x"},
        "spec": {"nodeName": "n1", "containers": [], **spec},
    }
    return msgspec.json.decode(msgspec.json.encode(written), type=PodObject)


def ready(status: str = "True", **more: str) -> dict[str, str]:
    return {"type": "Ready", "status": status, **more}
