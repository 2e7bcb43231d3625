"""The location of each supply of a fleet on one Slurm cluster: its partition, its GRES type, its TRES."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.engines.slurm.nodes.devices import MIG_PROFILE, PERCENT, SHARING, devices_per_gpu
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.partition_settings import gpu_types, shared_gpus
from fairway.model.fleet import Capacity, Fleet, SlurmPlace
from fairway.model.team import Supply, Team

_TYPED: Final = re.compile(r"gres/gpu:([^,=]+)=\d+")


@dataclass(frozen=True, slots=True)
class SupplySite:
    """One supply on this cluster."""

    supply: Supply
    partitions: tuple[str, ...]
    """Every partition over its nodes; the first is where Fairway's own jobs go."""
    gres: str | None
    """The GRES type; None: the partition's GPUs have none, it is not known which, or jobs share them."""
    spot: bool = False
    tracked: bool = True
    """Whether AccountingStorageTRES has the type: Slurm stores no limit on one that it does not track."""
    shares: str | None = None
    """The GRES by which jobs share its GPUs, `shard` or `mps`; None: they do not."""

    @property
    def is_limited(self) -> bool:
        """Whether a limit can be set on its GPUs alone."""
        return self.gres is not None and self.tracked

    @property
    def partition(self) -> str:
        return self.partitions[0]

    @property
    def lent_partition(self) -> str:
        return names.lent_partition(self.partition)

    @property
    def tres(self) -> str:
        """The resource that limits on accounts count."""
        return f"{self.untyped}:{self.gres}" if self.gres else self.untyped

    @property
    def untyped(self) -> str:
        """The resource that guarantees count, of every type. Slurm never counts shares by type."""
        return f"gres/{self.shares or 'gpu'}"

    @property
    def kind(self) -> str:
        """What a request names: the GRES type of GPUs, empty if they have none, or the GRES of shares."""
        return self.shares or self.gres or ""


def sites(fleet: Fleet, cluster: str, settings: Mapping[str, str]) -> tuple[SupplySite, ...]:
    """Return every supply on the cluster, in file order. `settings` have types that the file lacks."""
    return tuple(
        SupplySite(
            supply,
            place.partitions,
            gres := None if pool.is_shared else _gres(place, supply, settings),
            pool.capacity is Capacity.SPOT,
            _is_tracked(settings.get(f"partition/{place.partition}/TRES", ""), gres),
            _shares(place, supply, settings) if pool.is_shared else None,
        )
        for pool in fleet.pools_of(cluster)
        if isinstance(place := pool.place, SlurmPlace)
        for supply in pool.supplies
    )


def _is_tracked(configured: str, gres: str | None) -> bool:
    """Return False if slurmctld counts the GPUs of a partition, but not by this type."""
    counted = {word.partition("=")[0] for word in configured.split(",")}
    return "gres/gpu" not in counted or f"gres/gpu:{gres}" in counted


def teams_here(fleet: Fleet, places: Iterable[SupplySite]) -> tuple[Team, ...]:
    """Return the teams that may hold something on the cluster, parents first. A child brings its parent."""
    supplies = {site.supply for site in places}
    here = {t.name for t in fleet.teams if any(g.supply in supplies and g.ceiling != 0 for g in t.grants)}
    for team in reversed(fleet.teams):
        if team.name in here and team.parent is not None:
            here.add(team.parent)
    return tuple(t for t in fleet.teams if t.name in here)


def partition_types(settings: Mapping[str, str], partition: str) -> tuple[str, ...]:
    """Return the GRES types of a partition's GPUs: those that are accounted for, or else of its nodes."""
    accounted = tuple(_TYPED.findall(settings.get(f"partition/{partition}/TRES", "")))
    return accounted or tuple(gpu_types(settings, (partition,)))


def is_profile(kind: str) -> bool:
    """Return whether a GRES type is a MIG profile."""
    return MIG_PROFILE.fullmatch(kind) is not None


def _shares(place: SlurmPlace, supply: Supply, settings: Mapping[str, str]) -> str:
    """Return the GRES by which jobs share the GPUs of a pool: the one that its nodes have most GPUs of.

    Where nothing is known of the nodes, a hundred shares a GPU are MPS, as Slurm has it by default.
    """
    found = shared_gpus(settings, place.partitions, place.gres)
    if found:
        return max(found, key=lambda how: (found[how], how))[0]
    accounted = settings.get(f"partition/{place.partition}/TRES", "")
    by_default = "mps" if devices_per_gpu(supply.slice) == PERCENT else "shard"
    return next((name for name in (by_default, *SHARING) if f"gres/{name}=" in accounted), by_default)


def _gres(place: SlurmPlace, supply: Supply, settings: Mapping[str, str]) -> str | None:
    types = tuple(dict.fromkeys(t for p in place.partitions for t in partition_types(settings, p)))
    if supply.slice is not None:
        named = [t for t in types if t == supply.slice or t.endswith(f"_{supply.slice}")]
        prefixed = f"{place.gres}_{supply.slice}"
        return prefixed if place.gres and prefixed in named else (named[0] if named else supply.slice)
    if place.gres is not None:
        return place.gres
    whole = [t for t in types if not is_profile(t)]
    return whole[0] if len(whole) == 1 else None
