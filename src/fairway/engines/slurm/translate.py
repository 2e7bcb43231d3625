"""Slurm's nodes in Fairway's words: values to values."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Final

from fairway.engines.slurm.gres import parse_gres, shared_gpus
from fairway.engines.slurm.states import health
from fairway.engines.slurm.wire import WireNode
from fairway.model.fleet import Pool, SlurmPlace
from fairway.model.names import NodeName, PoolName, SliceName
from fairway.model.observation import Devices, Health, Node

# how NVIDIA writes a MIG profile, at the end of a GRES type: `1g.10gb`, `a100_3g.40gb`, `1g.12gb+me`
_PROFILE: Final = re.compile(r"(?:.*_)?(\d+g\.\d+gb(?:\+[a-z.]+)?)", re.IGNORECASE)


class Claims:
    """Which pool a node's devices belong to: its partition's, if the GRES type fits."""

    def __init__(self, pools: Sequence[Pool]) -> None:
        self._of_partition: dict[str, list[tuple[Pool, SlurmPlace]]] = {}
        for pool in pools:
            if isinstance(pool.place, SlurmPlace):
                self._of_partition.setdefault(pool.place.partition, []).append((pool, pool.place))

    @property
    def partitions(self) -> Mapping[str, PoolName]:
        """The partitions that pools name, with the first pool that names each."""
        return {name: claims[0][0].name for name, claims in self._of_partition.items()}

    def of(self, partitions: Iterable[str], kind: str | None) -> tuple[PoolName | None, SliceName | None]:
        """The pool that claims devices of a GRES type, and the slice they are; the file's order decides."""
        for partition in partitions:
            for pool, place in self._of_partition.get(partition, ()):
                if pool.slices:
                    for profile in pool.slices:
                        if kind is not None and _is_slice(kind, profile, place.gres):
                            return pool.name, profile
                elif place.gres is None or place.gres == kind:
                    return pool.name, None
        profile_like = _PROFILE.fullmatch(kind or "")
        return None, SliceName(profile_like[1]) if profile_like else None


def node(wire: WireNode, claims: Claims) -> Node:
    """One machine. What runs on a node that is closed or lost still counts as in use."""
    how, words = health(wire.state)
    reason = "" if how is Health.READY else _reason(wire, words)
    return Node(NodeName(wire.name), how, reason, _devices(wire, claims))


def _is_slice(kind: str, profile: str, gres: str | None) -> bool:
    """Whether a GRES type is a profile: its bare name, or after the GPU's type, as NVML finds it."""
    if kind == profile:
        return True
    prefix, found, rest = kind.rpartition(f"_{profile}")
    return bool(found) and not rest and gres in (None, prefix)


def _devices(wire: WireNode, claims: Claims) -> tuple[Devices, ...]:
    totals, _ = _gpus(wire.gres)
    used, shared = _gpus(wire.gres_used)
    found = []
    for kind, total in sorted(totals.items(), key=lambda item: item[0] or ""):
        pool, slice_ = claims.of(wire.partitions, kind)
        in_use = min(total, used.get(kind, 0) + shared.get(kind, 0))
        found.append(Devices(pool, f"gpu:{kind}" if kind else "gpu", slice_, total, in_use))
    return tuple(found)


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
    said = wire.reason.strip() or words
    if not wire.reason or not wire.reason_set_by_user:
        return said
    who = wire.reason_set_by_user
    if not wire.reason_changed_at.set or not wire.reason_changed_at.number:
        return f"{said} ({who})"
    when = datetime.fromtimestamp(wire.reason_changed_at.number, UTC)
    return f"{said} ({who}, {when:%Y-%m-%d %H:%M} UTC)"
