"""Which GPUs a pool claims, as far as the file tells, and whether another pool claims them too."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import combinations
from typing import Final

from fairway.files import fleet_shape as fs
from fairway.files.faults import FaultCode, Faults, Severity, Spot
from fairway.files.records import Key, Section
from fairway.model.gpu import GpuType, Vendor

RESOURCES: Final = {Vendor.NVIDIA: "nvidia.com/gpu", Vendor.AMD: "amd.com/gpu"}
_MOST_COMPARED: Final = 200
"""Pools of one cluster up to which each is compared with each; equal claims are found among any number."""


def resource_of(place: Section | None, gpu: GpuType | None) -> str:
    """What the cluster calls the pool's GPUs: as the file says, or as the GPU's maker does."""
    named = place.get(fs.GPU_RESOURCE) if place else None
    return named or RESOURCES[gpu.vendor if gpu else Vendor.NVIDIA]


def pools_differ(pools: Sequence[Section], gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    """Report pools that claim the same GPUs: they would be counted, lent and charged twice."""
    by_cluster: dict[str, list[Section]] = {}
    for pool in pools:
        cluster = pool.get(fs.POOL_CLUSTER)
        # With a part missing a pool would seem to claim more than it does.
        if cluster and pool.sound(fs.SLICES, fs.GPU, *fs.PLACES.values()):
            by_cluster.setdefault(cluster, []).append(pool)
    for group in by_cluster.values():
        _slurm(group, faults)
        _kubernetes(group, gpu_types, faults)


def _slurm(pools: Sequence[Section], faults: Faults) -> None:
    """Same partition and GRES type. A pool without a type claims whatever GPUs the partition has."""
    seen: dict[tuple[str, str | None], dict[str | None, Section]] = {}
    for pool in pools:
        place = pool.get(fs.SLURM_PLACE)
        partition = place.get(fs.SLURM_PARTITION) if place else None
        if place is None or partition is None:
            continue
        gres = place.get(fs.SLURM_GRES)
        for slice_ in _slices(pool):
            claims = seen.setdefault((partition, slice_), {})
            other = (
                claims.get(gres)
                or claims.get(None)
                or (next(iter(claims.values()), None) if not gres else None)
            )
            claims.setdefault(gres, pool)
            if other is not None:
                faults.add(
                    FaultCode.SAME_GPUS,
                    _spot(pool, fs.SLURM_PLACE),
                    f"pools {other.name} and {pool.name} claim the same GPUs of partition {partition}",
                    expected="pools that share no GPU",
                    hint="give each its own GRES type, e.g.  "
                    f"slurm: {{ partition: {partition}, gres: a100 }}, or its own partition",
                    related=[_spot(other, fs.SLURM_PLACE)],
                )
                break


def _kubernetes(pools: Sequence[Section], gpu_types: Mapping[str, GpuType], faults: Faults) -> None:
    seen: dict[tuple[object, ...], Section] = {}
    claims: list[tuple[Section, frozenset[tuple[str, str]], str]] = []
    for pool in pools:
        place = pool.get(fs.KUBERNETES_PLACE)
        if place is None:
            continue
        labels = frozenset((key, found.value) for key, found in (place.get(fs.NODE_LABELS) or {}).items())
        resource = resource_of(place, gpu_types.get(pool.get(fs.GPU) or ""))
        claims.append((pool, labels, resource))
        for slice_ in _slices(pool):
            other = seen.setdefault((labels, resource, slice_), pool)
            if other is not pool:
                _same_labels(other, pool, faults)
                break
    if len(claims) <= _MOST_COMPARED:
        for (first, ours, res_a), (second, theirs, res_b) in combinations(claims, 2):
            # A node goes to the first pool in the file that it suits: the narrower one may well come first.
            if res_a == res_b and ours < theirs and set(_slices(first)) & set(_slices(second)):
                _overlap(first, second, faults)


def _same_labels(first: Section, second: Section, faults: Faults) -> None:
    faults.add(
        FaultCode.SAME_GPUS,
        _spot(second, fs.KUBERNETES_PLACE),
        f"pools {first.name} and {second.name} claim the same nodes: their node_labels are equal",
        expected="pools that share no GPU",
        hint="add a label to node_labels that only the nodes of one of them have",
        related=[_spot(first, fs.KUBERNETES_PLACE)],
    )


def _overlap(wide: Section, narrow: Section, faults: Faults) -> None:
    faults.add(
        FaultCode.OVERLAPPING_POOLS,
        _spot(wide, fs.KUBERNETES_PLACE),
        f"pool {wide.name} comes first and gets the nodes of {narrow.name}: they have its node_labels too",
        expected="pools that share no GPU",
        hint=f"put {narrow.name} before {wide.name}, or add a label that only nodes of {wide.name} have",
        related=[_spot(narrow, fs.KUBERNETES_PLACE)],
        severity=Severity.WARNING,
    )


def _slices(pool: Section) -> Iterator[str | None]:
    """The kinds of device it claims; None stands for whole GPUs."""
    slices = pool.get(fs.SLICES)
    yield from (found.value for found in slices) if slices else (None,)


def _spot(pool: Section, key: Key[Section]) -> Spot:
    found = pool.found(key)
    return found.spot if found else pool.spot
