"""Import partitions with GPUs as pools. Pure.

Partitions that share nodes with GPUs are one pool for each GPU type: its GPUs are counted once, and each
partition stays a way to them.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from fairway.engines.port import Remark
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.partition_settings import (
    PARTITION_PARAMETERS,
    NodeGroup,
    gpu_types,
    node_groups,
    shared_gpus,
)
from fairway.engines.slurm.policy.partitions import is_profile
from fairway.model.fleet import Capacity, Fleet, Pool, SlurmPlace
from fairway.model.gpu import GpuType
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, free_name, is_name
from fairway.model.text import first_few

_DEFAULT_GPU: Final = "A100-80GB"
_NO_TYPE: Final = ""
_MOST: Final = 12
_ACLS: Final = ("AllowAccounts", "DenyAccounts", "AllowGroups", "AllowQos", "DenyQos", "AllocNodes", "State")
_MINUTES: Final = ("MaxTime", "DefaultTime", "OverTimeLimit")
_TYPED: Final = re.compile(r"gres/gpu:([^,=]+)=")


@dataclass(frozen=True, slots=True)
class _Devices:
    """The GPUs of one type, or the slices, of partitions that share nodes."""

    kinds: tuple[str, ...]
    """GRES types: one of whole GPUs, or every one of the slices; empty text for GPUs without a type."""
    partitions: tuple[str, ...]
    """Least restricted first."""


def import_pools(
    fleet: Fleet, cluster: ClusterName, settings: Mapping[str, str]
) -> tuple[list[Pool], list[Remark]]:
    """Return the known pools of the cluster, and new ones for GPUs that no pool has yet."""
    pools, remarks = list(fleet.pools_of(cluster)), list[Remark]()
    taken = {str(pool.name) for pool in fleet.pools}
    components = _components(node_groups(settings))
    for partitions in components:
        devices = list(_devices(partitions, settings))
        several = len({d.kinds for d in devices}) > 1
        for found in devices:
            known = _known(pools, found)
            if known is not None:
                remarks += _missing_entries(known, found)
                continue
            pool, sure = _pool(cluster, found, taken, several=several)
            taken.add(pool.name)
            pools.append(pool)
            remarks += [*_pool_remarks(pool, found, settings, sure=sure)]
    return pools, [*remarks, *_partition_remarks(pools, settings)]


def _components(groups: Iterable[NodeGroup]) -> list[list[str]]:
    """Return the partitions with GPUs, those that share nodes with GPUs together."""
    found: list[set[str]] = []
    for group in groups:
        if not group.gpus:
            continue
        joined = _own(group.partitions)
        for other in [c for c in found if c & joined]:
            joined |= other
            found.remove(other)
        found.append(joined)
    return [sorted(partitions) for partitions in found]


def _own(partitions: Collection[str]) -> set[str]:
    """Return the partitions without the second ones that Fairway has had made over the same nodes."""
    return set(partitions) - {names.lent_partition(p) for p in partitions}


def _devices(partitions: Sequence[str], settings: Mapping[str, str]) -> Iterator[_Devices]:
    """Yield the kinds of devices of partitions that share nodes: whole GPUs by type, then slices."""
    wanted = frozenset(partitions)
    groups = [group for group in node_groups(settings) if group.partitions & wanted and group.gpus]
    by_kind: dict[str, dict[str, int]] = {}
    for group in groups:
        untyped = group.gpus - sum(group.by_type.values())
        for kind, count in {**group.by_type, _NO_TYPE: untyped}.items():
            for partition in _own(group.partitions) if count else ():
                counts = by_kind.setdefault(kind, {})
                counts[partition] = counts.get(partition, 0) + count
    for kind, counts in by_kind.items():
        if not is_profile(kind):
            yield _Devices((kind,), _by_restriction(counts, settings))
    slices = tuple(kind for kind in by_kind if is_profile(kind))
    if slices:
        total: dict[str, int] = {}
        for kind in slices:
            for partition, count in by_kind[kind].items():
                total[partition] = total.get(partition, 0) + count
        yield _Devices(slices, _by_restriction(total, settings))


def _by_restriction(counts: Mapping[str, int], settings: Mapping[str, str]) -> tuple[str, ...]:
    """Sort partitions: without ACLs first, then by GPUs, then by the longest time."""

    def restriction(partition: str) -> tuple[int, int, float, str]:
        acls = sum(1 for acl in _ACLS if f"partition/{partition}/{acl}" in settings)
        minutes = settings.get(f"partition/{partition}/MaxTime")
        return acls, -counts[partition], -float(minutes) if minutes else float("-inf"), partition

    return tuple(sorted(counts, key=restriction))


def _known(pools: Iterable[Pool], found: _Devices) -> Pool | None:
    """Return the pool of the fleet that has these devices already."""
    for pool in pools:
        place = pool.place
        if not isinstance(place, SlurmPlace) or not set(place.partitions) & set(found.partitions):
            continue
        is_cut = bool(pool.slices) and not pool.is_shared
        if is_cut != is_profile(found.kinds[0]):
            continue
        if is_cut or place.gres is None or place.gres in found.kinds:
            return pool
    return None


def _missing_entries(pool: Pool, found: _Devices) -> Iterator[Remark]:
    place = pool.place
    if not isinstance(place, SlurmPlace):
        return
    missing = [p for p in found.partitions if p not in place.partitions]
    if missing:
        others = ", ".join((*place.other_partitions, *missing))
        yield Remark(
            f"pool {pool.name}",
            f"partition {first_few(missing, _MOST)} also includes nodes of this pool: write "
            f"other_partitions: [{others}], or jobs there are not governed",
        )


def _pool(
    cluster: ClusterName, found: _Devices, taken: Container[str], *, several: bool
) -> tuple[Pool, bool]:
    """Return a new pool, and whether its GPU type is certain."""
    partition, *others = found.partitions
    sliced = is_profile(found.kinds[0])
    kind = None if sliced else found.kinds[0] or None
    if sliced:
        slices = tuple(dict.fromkeys(SliceName(k.rpartition("_")[2]) for k in found.kinds))
        gpu, sure = _cut_gpu(slices), False
    else:
        slices = ()
        gpu, sure = _gpu(kind or "")
    suffix = ("-mig" if sliced else f"-{kind}" if kind else "-gpu") if several else ""
    name = PoolName(free_name(_name(f"{partition}{suffix}"), taken))
    place = SlurmPlace(partition, kind, tuple(others))
    return Pool(name, cluster, gpu, Capacity.OWNED, Decimal(0), place, slices=slices), sure


def _cut_gpu(slices: Sequence[SliceName]) -> GpuType:
    return next((g for g in CATALOGUE.values() if all(g.profile(s) for s in slices)), CATALOGUE[_DEFAULT_GPU])


def _pool_remarks(
    pool: Pool, found: _Devices, settings: Mapping[str, str], *, sure: bool
) -> Iterator[Remark]:
    about = f"pool {pool.name}"
    if not sure:
        named = ", ".join(pool.slices or found.kinds)
        why = f"a guess from the GRES type {named}" if named else "a guess: the GPUs have no GRES type"
        yield Remark(about, f"{pool.gpu.name} is {why}")
    yield Remark(about, "Slurm knows no price: write what a GPU-hour costs")
    if any("spot" in partition.lower() for partition in found.partitions):
        yield Remark(
            about,
            "its name says spot: write  capacity: spot  if its nodes may vanish; then jobs must allow it",
        )
    if len(found.partitions) > 1:
        first, *others = found.partitions
        yield Remark(
            about,
            f"other partitions share its nodes ({first_few(others, _MOST)}), so GPUs are counted once; "
            f"Fairway's own jobs go to {first}",
        )
    if shared := shared_gpus(settings, found.partitions):
        names_of_shares = sorted({name for name, _ in shared})
        yield Remark(
            about,
            f"jobs can share its GPUs ({', '.join(f'{n} by {name}' for name, n in sorted(shared))}): each "
            "share is charged as its part of a GPU; where jobs shall only have shares, write  "
            f"slices: [shared-{min(n for _, n in shared)}]; AccountingStorageTRES must have "
            f"{','.join(f'gres/{name}' for name in names_of_shares)}",
        )
    missing = [f"gres/gpu:{k}" for k in found.kinds if k and not _is_accounted(k, found.partitions, settings)]
    if missing:
        yield Remark(
            about,
            f"AccountingStorageTRES lacks {first_few(missing, _MOST)}, so Slurm cannot limit these GPUs by "
            "type: add it in slurm.conf and restart slurmctld:  "
            f"AccountingStorageTRES=gres/gpu,{','.join(missing)}",
        )


def _is_accounted(kind: str, partitions: Iterable[str], settings: Mapping[str, str]) -> bool:
    return any(kind in _TYPED.findall(settings.get(f"partition/{p}/TRES", "")) for p in partitions)


def _partition_remarks(pools: Iterable[Pool], settings: Mapping[str, str]) -> Iterator[Remark]:
    """Yield the limits of each pool's partitions, which stay, and the partitions that are no pool."""
    governed: set[str] = set()
    for pool in pools:
        for partition in pool.place.partitions if isinstance(pool.place, SlurmPlace) else ():
            limits = _limits(partition, settings)
            if limits and partition not in governed:
                text = f"{' '.join(limits)}: has no word here and stays as it is"
                yield Remark(f"partition {partition}, pool {pool.name}", text)
            governed.add(partition)
    others = [
        key.split("/")[1] for key in settings if key.startswith("partition/") and key.endswith("/Nodes")
    ]
    without = sorted(name for name in _own(others) if name not in governed)
    if without:
        yield Remark(
            f"partition {first_few(without, _MOST)}", "no GPUs of a pool: no pool, and it stays as it is"
        )


def _limits(partition: str, settings: Mapping[str, str]) -> list[str]:
    found = []
    for name in PARTITION_PARAMETERS:
        value = settings.get(f"partition/{partition}/{name}")
        if value:
            found.append(f"{name}={_time(value) if name in _MINUTES else value}")
    return found


def _time(minutes: str) -> str:
    """Format minutes as slurm.conf has them: `2-00:00:00`."""
    days, rest = divmod(int(minutes), 1440)
    return f"{f'{days}-' if days else ''}{rest // 60:02}:{rest % 60:02}:00"


def device_count(pool: Pool, kind: str | None, settings: Mapping[str, str]) -> int:
    """Count the devices of a GRES type in a pool, each node once; None counts GPUs without a type."""
    place = pool.place
    if not isinstance(place, SlurmPlace):
        return 0
    if kind is not None:
        return gpu_types(settings, place.partitions).get(kind, 0)
    wanted = frozenset(place.partitions)
    groups = (group for group in node_groups(settings) if group.partitions & wanted)
    return sum(group.gpus for group in groups)


def _gpu(kind: str) -> tuple[GpuType, bool]:
    """Return the catalogue's GPU type that a GRES type means, and whether only one can be meant."""
    parts = set(re.split(r"[_\W]+", kind.lower()))
    similar = [gpu for name, gpu in CATALOGUE.items() if name.lower().partition("-")[0] in parts]
    exact = [gpu for gpu in similar if set(re.split(r"\W+", gpu.name.lower())) <= parts]
    best = exact or sorted(similar, key=lambda gpu: -gpu.memory_gb)
    return (best[0], len(best) == 1) if best else (CATALOGUE[_DEFAULT_GPU], False)


def _name(text: str) -> str:
    if is_name(text):
        return text
    return re.sub(r"[^a-z0-9]+", "-", f"p-{text}".lower()).strip("-")[:40].rstrip("-")
