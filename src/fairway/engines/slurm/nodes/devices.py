"""Which GPUs a node has, from its GRES strings, and which pool's they are. Pure."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final

from fairway.model.fleet import Pool, SlurmPlace
from fairway.model.names import PoolName, SliceName
from fairway.model.observation import Devices
from fairway.model.team import Supply

_COUNT: Final = re.compile(r"(\d+)([KMGTP]?)", re.IGNORECASE)

_MULTIPLES: Final = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40, "P": 2**50}

# `gpu:a100:no_consume:8` is a flag between type and count, not a part of the type
_FLAGS: Final = frozenset({"no_consume"})

# how NVIDIA writes a MIG profile, at the end of a GRES type: `1g.10gb`, `a100_3g.40gb`, `1g.12gb+me`
_PROFILE: Final = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:\+[a-z.]+)?)", re.IGNORECASE)


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
    # `(null)` also stands for a type that was never given: `gpu:(null):2(IDX:0-1)`
    return tuple(_entry(part) for part in _split(text.replace("(null)", "")) if part not in ("", "N/A"))


def shared_gpus(detail: str) -> int:
    """Count GPUs that are partly shared, from a shard's or MPS's `used/all` for each GPU.

    Slurm does not count them as used GPUs, yet gives none of them to a job that wants a whole one.
    """
    pairs = (pair.partition("/") for pair in detail.split(","))
    return sum(1 for used, slash, _ in pairs if slash and used.strip().isdigit() and int(used))


def _split(text: str) -> Iterator[str]:
    """Split at commas, except inside parentheses."""
    depth = start = 0
    for i, char in enumerate(text):
        if char == "(":
            depth += 1
        elif char == ")":
            depth -= 1
        elif char == "," and depth == 0:
            yield text[start:i].strip()
            start = i + 1
    if last := text[start:].strip():
        yield last


def _entry(part: str) -> Gres:
    words, _, detail = part.partition("(")
    name, *rest = words.split(":")
    count = 1
    if rest and (number := _COUNT.fullmatch(rest[-1])):
        count = int(number[1]) * _MULTIPLES[number[2].upper()]
        rest.pop()
    kind = ":".join(word for word in rest if word not in _FLAGS)
    return Gres(name, kind or None, count, detail.removesuffix(")"))


class Claims:
    """Maps a node's devices to a pool: its partition's, if the GRES type matches."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        # a cluster has many nodes and few kinds of them: like nodes share one value
        self.devices = lru_cache(maxsize=4096)(self._devices)
        self._places = [(pool, pool.place) for pool in pools if isinstance(pool.place, SlurmPlace)]

    @property
    def partitions(self) -> Mapping[str, PoolName]:
        """The partitions that pools name, with the first pool that names each."""
        return {place.partition: pool.name for pool, place in reversed(self._places)}

    def of(self, partitions: Collection[str], kind: str | None) -> tuple[PoolName | None, SliceName | None]:
        """Return the pool that claims devices of a GRES type, and their slice.

        None: no pool, or whole GPUs.
        """
        profile = _PROFILE.fullmatch(kind or "")
        for pool, place in self._places:
            if place.partition not in partitions:
                continue
            if pool.slices:
                for slice_ in pool.slices:
                    if kind is not None and _is_slice(kind, slice_, place.gres):
                        return pool.name, slice_
            elif place.gres == kind or (place.gres is None and not profile):
                return pool.name, None
        return None, SliceName(profile[1]) if profile else None

    def only(self, partitions: Collection[str]) -> Supply | None:
        """Return the only supply in these partitions, for devices of unreported type.

        None: not exactly one.
        """
        there = {
            supply
            for pool, place in self._places
            if place.partition in partitions
            for supply in pool.supplies
        }
        return there.pop() if len(there) == 1 else None

    def _devices(self, partitions: tuple[str, ...], gres: str, gres_used: str) -> tuple[Devices, ...]:
        """Return the GPUs of a node in these partitions, by type, from its GRES and used GRES."""
        totals, _ = _gpus(gres)
        used, shared = _gpus(gres_used)
        found = []
        for kind, total in sorted(totals.items(), key=lambda item: item[0] or ""):
            pool, slice_ = self.of(partitions, kind)
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
