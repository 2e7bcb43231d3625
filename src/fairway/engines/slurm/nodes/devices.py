"""Parse the GPUs of a node from its GRES strings, and match them to pools. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fairway.engines.slurm.nodes.hostlist import split_list
from fairway.model.fleet import Pool, SlurmPlace
from fairway.model.names import PoolName, SliceName
from fairway.model.observation import Devices
from fairway.model.team import Supply

_COUNT: Final = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)

_MULTIPLES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

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


def parse_gres(text: str) -> tuple[Gres, ...]:
    """Parse a GRES string, in its order. `""`, `(null)` and `N/A` list nothing."""
    # `(null)` is also the type of GPUs that have none: `gpu:(null):2(IDX:0-1)`
    parts = (part.strip() for part in split_list(text.replace("(null)", ""), "()"))
    return tuple(_entry(part) for part in parts if part not in ("", "N/A"))


def shared_gpus(detail: str) -> int:
    """Count GPUs that are partly shared, from a shard's or MPS's `used/all` for each GPU.

    Slurm does not count them as used GPUs, yet gives none of them to a job that wants a whole one.
    """
    pairs = (pair.partition("/") for pair in detail.split(","))
    return sum(1 for used, slash, _ in pairs if slash and used.strip().isdigit() and int(used))


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
        """Return the pool of devices of a GRES type, and their slice. None: no pool, or whole GPUs."""
        profile = MIG_PROFILE.fullmatch(kind or "")
        for pool, place in self._places:
            if not any(name in partitions for name in place.partitions):
                continue
            if pool.slices:
                for slice_ in pool.slices:
                    if kind is not None and _is_slice(kind, slice_, place.gres):
                        return pool.name, slice_
            elif place.gres == kind or (place.gres is None and not profile):
                return pool.name, None
        return None, SliceName(profile[1]) if profile else None

    def only_supply(self, partitions: Collection[str]) -> Supply | None:
        """Return the supply of devices of unreported type. Returns None if there is not exactly one."""
        pools = [pool for pool, place in self._places if any(p in partitions for p in place.partitions)]
        supplies = {supply for pool in pools for supply in pool.supplies}
        return supplies.pop() if len(supplies) == 1 else None

    def _devices(self, partitions: tuple[str, ...], gres: str, gres_used: str) -> tuple[Devices, ...]:
        """Return the GPUs of a node in these partitions, by type, from its GRES and used GRES."""
        totals, _ = _gpus(gres)
        used, shared = _gpus(gres_used)
        found = []
        for kind, total in sorted(totals.items(), key=lambda item: item[0] or ""):
            pool, slice_ = self.match(partitions, kind)
            in_use = min(total, used.get(kind, 0) + shared.get(kind, 0))
            found.append(Devices(pool, f"gpu:{kind}" if kind else "gpu", slice_, total, in_use))
        return tuple(found)


def _is_slice(kind: str, profile: str, gres: str | None) -> bool:
    """Return whether a GRES type is a profile: its bare name, or after the GPU's type, as NVML finds it."""
    if kind == profile:
        return True
    prefix, found, rest = kind.rpartition(f"_{profile}")
    return bool(found) and not rest and gres in (None, prefix)


def _gpus(text: str) -> tuple[dict[str | None, int], dict[str | None, int]]:
    """Count GPUs by type, and how many of them are shared (shards, MPS)."""
    whole: dict[str | None, int] = {}
    shared: dict[str | None, int] = {}
    for gres in parse_gres(text):
        if gres.name == "gpu":
            whole[gres.type] = whole.get(gres.type, 0) + gres.count
        elif gres.name in ("shard", "mps"):
            shared[gres.type] = shared.get(gres.type, 0) + shared_gpus(gres.detail)
    return whole, shared
