"""Parse the GPUs of a node from its GRES strings, and match them to pools. Pure."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Final

from fairway.engines.slurm.nodes.hostlist import split_list
from fairway.model.fleet import Pool, SlurmPlace
from fairway.model.gpu import replicas_of
from fairway.model.names import PoolName, SliceName
from fairway.model.observation import Devices
from fairway.model.team import Supply

_COUNT: Final = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)

_MULTIPLES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

PERCENT: Final = 100
"""The shares of a GPU by MPS, unless slurm.conf has another number."""
SHARING: Final = ("shard", "mps")
"""The GRES by which several jobs share a GPU. A job has either these or whole GPUs, never both."""

# `gpu:a100:no_consume:8` is a flag between type and count, not a part of the type
_FLAGS: Final = frozenset({"no_consume"})

MIG_PROFILE: Final = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:\+[a-z.]+)?)", re.IGNORECASE)
"""A GRES type that ends with a MIG profile, as NVIDIA writes it: `1g.10gb`, `a100_3g.40gb`, `1g.12gb+me`."""


@dataclass(frozen=True, slots=True)
class Gres:
    """Devices of one name and type on a node."""

    name: str
    type: str | None
    count: int
    detail: str = ""
    """The text in parentheses: `S:0-1`, `IDX:0-3`, or `2/4,0/4` for what is shared of each GPU."""


@dataclass(frozen=True, slots=True)
class NodeShares:
    """How the GPUs of one type on a node are shared: each is `per_gpu` shards, or as many percent of MPS."""

    type: str | None
    per_gpu: int


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse a GRES string, in its order. `""`, `(null)` and `N/A` list nothing."""
    # `(null)` is also the type of GPUs that have none: `gpu:(null):2(IDX:0-1)`
    parts = (part.strip() for part in split_list(text.replace("(null)", ""), "()"))
    return tuple(_entry(part) for part in parts if part not in ("", "N/A"))


def shares_of(detail: str) -> tuple[tuple[int, int], ...]:
    """Parse the `used/all` of each GPU in the detail of shards or MPS; a GPU that is used whole has `-/all`.

    Slurm does not count GPUs with used shares as used, yet gives none of them to a job that wants it whole.
    """
    pairs = (pair.strip().partition("/") for pair in detail.split(","))
    return tuple(
        (int(used) if used.isdecimal() else 0, int(all_)) for used, _, all_ in pairs if all_.isdecimal()
    )


def shares_per_gpu(gres: str, gres_used: str = "") -> dict[str, NodeShares]:
    """Return how the GPUs of a node are shared, by the name of the GRES: shards, MPS, or neither."""
    found: dict[str, NodeShares] = {}
    gpus = _gpus(gres)
    for entry in parse_gres(gres):
        if entry.name in SHARING and entry.count:
            details = (
                e.detail for e in parse_gres(gres_used) if (e.name, e.type) == (entry.name, entry.type)
            )
            of_gpus = [all_ for _, all_ in shares_of(next(details, ""))]
            # Slurm divides the count among the GPUs, unless gres.conf has one for each.
            each = max(of_gpus, default=0) or math.ceil(entry.count / (gpus.get(entry.type) or 1))
            found.setdefault(entry.name, NodeShares(entry.type, each))
    return found


def _entry(part: str) -> Gres:
    listed, _, detail = part.partition("(")
    name, *rest = listed.split(":")
    count = 1
    if rest and (number := _COUNT.fullmatch(rest[-1])):
        count = int(number[1]) * _MULTIPLES[number[2].upper()]
        rest.pop()
    kind = ":".join(field for field in rest if field not in _FLAGS)
    return Gres(name, kind or None, count, detail.removesuffix(")"))


class PoolMatcher:
    """Finds the pool of a node's devices: the one of its partition, if the GRES type matches."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        # a cluster has many nodes and few kinds of them: like nodes share one value
        self.devices = lru_cache(maxsize=4096)(self._devices)
        self._places = [(pool, pool.place) for pool in pools if isinstance(pool.place, SlurmPlace)]

    @property
    def partitions(self) -> Mapping[str, PoolName]:
        """The partitions that pools name, with the first pool that names each."""
        return {name: pool.name for pool, place in reversed(self._places) for name in place.partitions}

    def match(
        self, partitions: Collection[str], kind: str | None
    ) -> tuple[PoolName | None, SliceName | None]:
        """Return the pool of devices of a GRES type, and their slice. None: no pool, or whole GPUs.

        In a pool of shared GPUs, each GPU is as many devices of its slice as can share it.
        """
        profile = MIG_PROFILE.fullmatch(kind or "")
        for pool, place in self._places:
            if not any(name in partitions for name in place.partitions):
                continue
            if pool.slices and not pool.is_shared:
                for slice_ in pool.slices:
                    if kind is not None and _is_slice(kind, slice_, place.gres):
                        return pool.name, slice_
            elif place.gres == kind or (place.gres is None and not profile):
                return pool.name, pool.slices[0] if pool.slices else None
        return None, SliceName(profile[1]) if profile else None

    def only_supply(self, partitions: Collection[str]) -> Supply | None:
        """Return the supply of devices of unreported type. Returns None if there is not exactly one."""
        pools = [pool for pool, place in self._places if any(p in partitions for p in place.partitions)]
        supplies = {supply for pool in pools for supply in pool.supplies}
        return supplies.pop() if len(supplies) == 1 else None

    def _devices(self, partitions: tuple[str, ...], gres: str, gres_used: str) -> tuple[Devices, ...]:
        """Return the GPUs of a node in these partitions, by type, from its GRES and used GRES."""
        used = _gpus(gres_used)
        shares: dict[str | None, list[tuple[int, int]]] = {}
        for entry in parse_gres(gres_used):
            if entry.name in SHARING:
                shares.setdefault(entry.type, []).extend(shares_of(entry.detail))
        found = []
        for kind, gpus in sorted(_gpus(gres).items(), key=lambda item: item[0] or ""):
            pool, slice_ = self.match(partitions, kind)
            each = devices_per_gpu(slice_)
            in_use = used.get(kind, 0) * each
            in_use += sum(math.ceil(Fraction(n * each, all_)) for n, all_ in shares.get(kind, ()) if all_)
            name = f"gpu:{kind}" if kind else "gpu"
            found.append(Devices(pool, name, slice_, gpus * each, min(gpus * each, in_use)))
        return tuple(found)


def devices_per_gpu(slice_: SliceName | None) -> int:
    """Return how many devices a GPU is in a pool of this slice; MIG slices are devices of their own."""
    return (replicas_of(slice_) if slice_ else None) or 1


def _is_slice(kind: str, profile: str, gres: str | None) -> bool:
    """Return whether a GRES type is a profile: its bare name, or after the GPU's type, as NVML finds it."""
    if kind == profile:
        return True
    prefix, found, rest = kind.rpartition(f"_{profile}")
    return bool(found) and not rest and gres in (None, prefix)


def _gpus(text: str) -> dict[str | None, int]:
    """Count GPUs by type."""
    found: dict[str | None, int] = {}
    for gres in parse_gres(text):
        if gres.name == "gpu":
            found[gres.type] = found.get(gres.type, 0) + gres.count
    return found
