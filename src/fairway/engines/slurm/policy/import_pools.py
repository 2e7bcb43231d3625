"""The pools of a cluster that nobody described yet: its partitions with GPUs. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from decimal import Decimal
from typing import Final

from fairway.engines.port import Remark
from fairway.engines.slurm.policy.sites import is_profile, partition_types
from fairway.model.fleet import Capacity, Fleet, Pool, SlurmPlace
from fairway.model.gpu import GpuType
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, is_name

_GUESS: Final = "A100-80GB"
_NODES: Final = re.compile(r"partition/([^/]+)/Nodes")


def pools_of(
    fleet: Fleet, cluster: ClusterName, settings: Mapping[str, str]
) -> tuple[list[Pool], list[Remark]]:
    """The known pools of the cluster, and one for each other partition whose GPUs no pool has yet."""
    pools = list(fleet.pools_of(cluster))
    remarks: list[Remark] = []
    places = [p.place for p in pools if isinstance(p.place, SlurmPlace)]
    taken = {settings.get(f"partition/{place.partition}/Nodes", "") for place in places}
    for key, nodes in settings.items():
        named = _NODES.fullmatch(key)
        types = partition_types(settings, named[1]) if named else ()
        if named is None or not types or any(place.partition == named[1] for place in places):
            continue
        if nodes in taken:
            remarks.append(
                Remark(f"partition {named[1]}", "is over the nodes of another pool: it stays as it is")
            )
            continue
        taken.add(nodes)
        new, said = _pools_of_partition(cluster, named[1], types)
        pools += new
        remarks += said
    return pools, remarks


def _pools_of_partition(
    cluster: ClusterName, partition: str, types: Sequence[str]
) -> tuple[list[Pool], list[Remark]]:
    whole = [t for t in types if not is_profile(t)]
    slices = tuple(dict.fromkeys(SliceName(t.rpartition("_")[2]) for t in types if is_profile(t)))
    pools: list[Pool] = []
    remarks: list[Remark] = []
    for kind in whole:
        gpu, sure = _gpu(kind)
        name = _name(partition if len(types) == 1 else f"{partition}-{kind}")
        pools.append(_pool(cluster, name, gpu, SlurmPlace(partition, kind)))
        remarks += _said(name, kind, gpu, sure=sure)
    if slices:
        cut = next((g for g in CATALOGUE.values() if all(g.profile(s) for s in slices)), CATALOGUE[_GUESS])
        name = _name(f"{partition}-mig" if whole else partition)
        pools.append(_pool(cluster, name, cut, SlurmPlace(partition), slices))
        remarks += _said(name, ", ".join(slices), cut, sure=False)
    return pools, remarks


def _pool(
    cluster: ClusterName, name: PoolName, gpu: GpuType, place: SlurmPlace, slices: tuple[SliceName, ...] = ()
) -> Pool:
    capacity = Capacity.SPOT if "spot" in place.partition else Capacity.OWNED
    return Pool(name, cluster, gpu, capacity, Decimal(0), place, slices=slices)


def _said(name: PoolName, kind: str, gpu: GpuType, *, sure: bool) -> list[Remark]:
    guess = [] if sure else [Remark(f"pool {name}", f"{gpu.name} is a guess from the GRES type {kind}")]
    return [*guess, Remark(f"pool {name}", "Slurm knows no price: write what a GPU-hour costs")]


def _gpu(kind: str) -> tuple[GpuType, bool]:
    """The type of the catalogue that a GRES type means, and whether only one can be meant."""
    words = set(re.split(r"[_\W]+", kind.lower()))
    fit = [gpu for name, gpu in CATALOGUE.items() if name.lower().partition("-")[0] in words]
    exact = [gpu for gpu in fit if set(re.split(r"\W+", gpu.name.lower())) <= words]
    best = exact or sorted(fit, key=lambda gpu: -gpu.memory_gb)
    return (best[0], len(exact or fit) == 1) if best else (CATALOGUE[_GUESS], False)


def _name(text: str) -> PoolName:
    if is_name(text):
        return PoolName(text)
    return PoolName(re.sub(r"[^a-z0-9]+", "-", f"p-{text}".lower()).strip("-")[:40].rstrip("-"))
