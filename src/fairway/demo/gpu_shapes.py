"""Draw what the demo's jobs do with their GPUs: most work well, some wait for data, some GPUs stay unused.

The means follow published traces (Acme, see `docs/guides/demo.md`). Each user has habits, so that a report by
user has something to say: a few hold GPUs that do little, and notebooks are left open overnight.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Final
from zlib import crc32

from fairway.model.fleet import Pool
from fairway.model.names import UserName
from fairway.model.team import Supply

IDLE_WATTS: Final = 62.0
_WATTS: Final = {"A100-80GB": 400.0, "H100-80GB": 700.0, "L40S": 350.0}


@dataclass(frozen=True, slots=True)
class GpuShape:
    """Means of a job's used GPUs while it works, and how much of them, and of its time, it uses."""

    engine: float
    sm: float
    tensor: float
    dram: float
    memory: float
    """Part of a device's memory."""
    works: float = 1.0
    """Part of its time after which nobody works on it any more."""
    used: float = 1.0
    """Part of its GPUs that it uses, at least one."""
    pcie: float = 4e8
    """Bytes a second."""

    def watts(self, limit: float) -> float:
        """Return the power of a used GPU whose limit is `limit`."""
        return IDLE_WATTS + (limit - IDLE_WATTS) * min(1.0, 0.25 * self.engine + 0.85 * self.sm)

    def used_devices(self, devices: int) -> int:
        """Return how many of its devices a job uses."""
        return max(1, round(devices * self.used))


def _kinds() -> dict[str, GpuShape]:
    return {
        "debug": GpuShape(0.28, 0.14, 0.03, 0.08, 0.15),
        "eval": GpuShape(0.74, 0.46, 0.16, 0.30, 0.35),
        "train": GpuShape(0.84, 0.60, 0.27, 0.40, 0.60),
        "finetune": GpuShape(0.91, 0.68, 0.36, 0.44, 0.78),
        "pretrain": GpuShape(0.96, 0.74, 0.42, 0.47, 0.88),
        "notebook": GpuShape(0.13, 0.07, 0.02, 0.04, 0.22, works=0.35),
        "sweep": GpuShape(0.70, 0.42, 0.12, 0.28, 0.30),
        "embed": GpuShape(0.52, 0.30, 0.10, 0.25, 0.25),
    }


_BY_KIND: Final = _kinds()
_TRAINING: Final = ("train", "finetune", "pretrain")
_HABITS: Final = ("good", "good", "good", "good", "waits", "good", "small", "good", "fp32", "good")
WASTER: Final = UserName("quinn")
"""Requests four GPUs for finetuning and uses one, with little of its memory."""


def habit(user: UserName) -> str:
    """Return how a user works, the same every time."""
    return "few" if user == WASTER else _HABITS[crc32(user.encode()) % len(_HABITS)]


def draw_shape(random: Random, kind: str, user: UserName) -> GpuShape:
    """Draw what a job of this kind and user does."""
    base = _BY_KIND.get(kind, _BY_KIND["train"])
    engine, sm, tensor = base.engine, base.sm, base.tensor
    used, memory, pcie, works = base.used, base.memory, base.pcie, base.works
    if kind in _TRAINING:
        match habit(user):
            case "waits":  # for data that too few workers decode
                engine, sm, tensor, pcie = 0.36, 0.22, 0.09, 1.1e9
            case "small":  # kernels, for batches of one
                engine, sm, tensor = 0.88, 0.14, 0.03
            case "fp32":
                tensor = 0.002
            case "few":
                used, memory = 0.25, 0.11
    pace = random.uniform(0.88, 1.08)
    if kind == "notebook":
        works = min(1.0, random.random() * 2 * works)
        pace = random.uniform(0.2, 2.0)
    return GpuShape(
        min(0.99, engine * pace),
        min(0.95, sm * pace),
        min(0.9, tensor * pace),
        min(0.9, base.dram * pace),
        min(0.97, memory * random.uniform(0.8, 1.15)),
        works,
        used,
        pcie,
    )


def device_memory_mib(pool: Pool, supply: Supply) -> float:
    """Return the memory of one device of a supply."""
    profile = None if supply.slice is None else pool.gpu.profile(supply.slice)
    return pool.gpu.memory_gb * 1024.0 if profile is None else float(profile.memory_mib)


def watts_limit(pool: Pool) -> float:
    """Return the power limit of a pool's GPUs."""
    return _WATTS.get(pool.gpu.name, 400.0)
