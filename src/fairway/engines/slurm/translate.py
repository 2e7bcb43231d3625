"""Slurm's nodes in Fairway's words: values to values."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from fairway.engines.slurm.gres import parse_gres, shared_gpus
from fairway.engines.slurm.states import health
from fairway.engines.slurm.wire import WireNode
from fairway.model.fleet import Pool, SlurmPlace
from fairway.model.names import NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node
from fairway.model.team import Supply

# how NVIDIA writes a MIG profile, at the end of a GRES type: `1g.10gb`, `a100_3g.40gb`, `1g.12gb+me`
_PROFILE: Final = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:\+[a-z.]+)?)", re.IGNORECASE)
# 9999-12-31: beyond it, a number is no time
_LAST_SECOND: Final = 253_402_300_800

_health = lru_cache(maxsize=256)(health)


class Claims:
    """Which pool a node's devices belong to: its partition's, if the GRES type fits."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        # a cluster has many nodes and few kinds of them: like nodes share one value
        self.devices = lru_cache(maxsize=4096)(self._devices)
        self._places = [(pool, pool.place) for pool in pools if isinstance(pool.place, SlurmPlace)]

    @property
    def partitions(self) -> Mapping[str, PoolName]:
        """The partitions that pools name, with the first pool that names each."""
        return {place.partition: pool.name for pool, place in reversed(self._places)}

    def of(self, partitions: Collection[str], kind: str | None) -> tuple[PoolName | None, SliceName | None]:
        """The first pool that claims devices of a GRES type, and the slice they are."""
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
        """The only supply there, for devices whose type Slurm does not tell."""
        there = {
            supply
            for pool, place in self._places
            if place.partition in partitions
            for supply in pool.supplies
        }
        return there.pop() if len(there) == 1 else None

    def _devices(self, partitions: tuple[str, ...], gres: str, gres_used: str) -> tuple[Devices, ...]:
        """The GPUs of a node in these partitions, by type, from what it has and what of that is used."""
        totals, _ = _gpus(gres)
        used, shared = _gpus(gres_used)
        found = []
        for kind, total in sorted(totals.items(), key=lambda item: item[0] or ""):
            pool, slice_ = self.of(partitions, kind)
            in_use = min(total, used.get(kind, 0) + shared.get(kind, 0))
            found.append(Devices(pool, f"gpu:{kind}" if kind else "gpu", slice_, total, in_use))
        return tuple(found)


def node(wire: WireNode, claims: Claims) -> Node:
    """One machine. What runs on a node that is closed or lost still counts as in use."""
    how, words = _health(wire.state)
    reason = "" if how is Health.READY else _reason(wire, words)
    return Node(NodeName(wire.name), how, reason, claims.devices(wire.partitions, wire.gres, wire.gres_used))


def _is_slice(kind: str, profile: str, gres: str | None) -> bool:
    """Whether a GRES type is a profile: its bare name, or after the GPU's type, as NVML finds it."""
    if kind == profile:
        return True
    prefix, found, rest = kind.rpartition(f"_{profile}")
    return bool(found) and not rest and gres in (None, prefix)


def _gpus(text: str) -> tuple[dict[str | None, int], dict[str | None, int]]:
    """GPUs by type, and how many of them are shared out in parts (shards, MPS)."""
    whole: dict[str | None, int] = {}
    shared: dict[str | None, int] = {}
    for gres in parse_gres(text):
        if gres.name == "gpu":
            whole[gres.type] = whole.get(gres.type, 0) + gres.count
        elif gres.name in ("shard", "mps"):
            shared[gres.type] = shared.get(gres.type, 0) + shared_gpus(gres.detail)
    return whole, shared


def _reason(wire: WireNode, words: str) -> str:
    """The administrator's words, or Slurm's, with who said so and when."""
    said, who = wire.reason.strip(), wire.reason_set_by_user
    if not said:
        return f"{words}: {wire.reservation}" if "MAINTENANCE" in wire.state and wire.reservation else words
    if not who:
        return said
    seconds = wire.reason_changed_at.number if wire.reason_changed_at.set else 0
    if not 0 < seconds < _LAST_SECOND:
        return f"{said} ({who})"
    return f"{said} ({who}, {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC)"
