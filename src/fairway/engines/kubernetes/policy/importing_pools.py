"""A ResourceFlavor that people made, as a pool of the fleet. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from decimal import Decimal
from typing import Any, Final

from fairway.engines.kubernetes.gpu_resources import MIG_PREFIX, PRODUCT, slice_of
from fairway.engines.kubernetes.policy.fields import taint_line
from fairway.engines.port import Remark
from fairway.model.fleet import Capacity, Fleet, KubernetesPlace, Pool
from fairway.model.gpu import GpuType
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import PoolName, SliceName, is_name

_HOSTNAME: Final = "kubernetes.io/hostname"


def pool_of(
    name: str, flavor: Mapping[str, Any], topology: Mapping[str, Any], resources: Sequence[str], fleet: Fleet
) -> tuple[Pool, list[Remark]]:
    """The known pool with the flavor's labels, or a new one of its name."""
    spec = flavor.get("spec") or {}
    labels = dict(spec.get("nodeLabels") or {})
    remarks = list(_remarks(name, spec, resources))
    for pool in fleet.pools:
        if isinstance(pool.place, KubernetesPlace) and dict(pool.place.node_labels) == labels:
            if pool.name != name:
                remarks.append(
                    Remark(f"ResourceFlavor {name}", f"is pool {pool.name}; Fairway makes its own")
                )
            return pool, remarks
    gpu = _gpu(labels)
    if gpu is None:
        gpu = CATALOGUE["A100-80GB"]
        remarks.append(
            Remark(f"ResourceFlavor {name}", f"its labels do not say which GPU it is: {gpu.name} is a guess")
        )
    remarks.append(Remark(f"ResourceFlavor {name}", "what a GPU-hour costs is not known here: price 0"))
    taints = tuple(taint_line(t) for t in spec.get("nodeTaints") or ())
    slices = [s for r in resources if r.startswith(MIG_PREFIX) and (s := slice_of(r)) is not None]
    whole = next((r for r in resources if not r.startswith(MIG_PREFIX)), "nvidia.com/gpu")
    levels = [str(level["nodeLabel"]) for level in (topology.get("spec") or {}).get("levels") or ()]
    return (
        Pool(
            name=PoolName(name if is_name(name) else name.replace(".", "-").replace("_", "-").lower()[:40]),
            cluster=fleet.clusters[0].name,
            gpu=gpu,
            capacity=Capacity.SPOT if any("spot" in t for t in taints) else Capacity.OWNED,
            price=Decimal(0),
            place=KubernetesPlace(labels, taints, whole),
            slices=tuple(SliceName(s) for s in slices),
            topology=tuple(level for level in levels if level != _HOSTNAME),
        ),
        remarks,
    )


def pools_of_nodes(products: Mapping[str, Sequence[str]], fleet: Fleet) -> tuple[list[Pool], list[Remark]]:
    """A pool for each product on nodes that no flavor claims: a cluster without queues has GPUs too."""
    claimed = {p.place.node_labels.get(PRODUCT) for p in fleet.pools if isinstance(p.place, KubernetesPlace)}
    pools: list[Pool] = []
    remarks: list[Remark] = []
    for product, resources in sorted(products.items()):
        labels = {PRODUCT: product}
        gpu = _gpu(labels)
        if product in claimed or gpu is None:
            continue
        slices = tuple(s for r in sorted(set(resources)) if (s := slice_of(r)) is not None)
        name = PoolName(gpu.name.lower() + ("-mig" if slices else ""))
        if name in {p.name for p in (*fleet.pools, *pools)}:
            continue
        whole = next((r for r in resources if not r.startswith(MIG_PREFIX)), "nvidia.com/gpu")
        place = KubernetesPlace(labels, (), whole)
        cluster = fleet.clusters[0].name
        pools.append(Pool(name, cluster, gpu, Capacity.OWNED, Decimal(0), place, slices=slices))
        remarks.append(Remark(f"pool {name}", "from the nodes, for no queue counts them; owned is a guess"))
        remarks.append(Remark(f"pool {name}", "what a GPU-hour costs is not known here: price 0"))
    return pools, remarks


def _gpu(labels: Mapping[str, str]) -> GpuType | None:
    product = labels.get(PRODUCT, "")
    known = ((len(p), gpu) for gpu in CATALOGUE.values() for p in gpu.products if product.startswith(p))
    return max(known, key=lambda pair: pair[0], default=(0, None))[1]


def _remarks(name: str, spec: Mapping[str, Any], resources: Sequence[str]) -> Iterator[Remark]:
    about = f"ResourceFlavor {name}"
    if not spec.get("topologyName"):
        yield Remark(about, "has no Topology, so Kueue gives out quota and not places; Fairway's own has one")
    if spec.get("tolerations"):
        yield Remark(
            about, "puts tolerations on every pod; under Fairway a job says itself what it tolerates"
        )
    whole = [r for r in resources if not r.startswith(MIG_PREFIX)]
    if whole and len(whole) < len(resources):
        yield Remark(
            about, f"counts whole GPUs and slices; a pool is either: only {', '.join(resources)} of slices"
        )
