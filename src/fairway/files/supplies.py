"""What of a fleet's pools can be granted, by the name that grants use, and how much there is of it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.files import fleet_shape as fs
from fairway.files.faults import FaultCode, Faults, Spot
from fairway.files.records import Section
from fairway.files.spelling import did_you_mean, listed
from fairway.model.gpu import GpuType
from fairway.model.names import PoolName, SliceName
from fairway.model.team import Supply

GPUS_PER_NODE: Final = 8


@dataclass(frozen=True, slots=True)
class Stock:
    """One supply of a pool, and what is known of its size."""

    supply: Supply
    pool: Section
    most: int | None
    """There are never more of it; None: only the engine knows."""
    exact: bool
    """Whether there are just as many: slices that are cut on demand have only a bound."""
    gpu_part: float
    """What one device takes of a GPU: 1, or a slice's share of the memory."""


class Supplies:
    """Every supply of the fleet, in the order of the file; asked by the text that names one."""

    def __init__(self, file: Section, gpu_types: Mapping[str, GpuType]) -> None:
        self.pools: Final = {name: found.value for name, found in (file.get(fs.POOLS) or {}).items()}
        self.written: Final = frozenset(file.names_in(fs.POOLS))
        stocks = [stock for pool in self.pools.values() for stock in _stocks(pool, gpu_types)]
        self.stocks: Final = {stock.supply: stock for stock in stocks}
        self._by_text: Final = {str(stock.supply): stock.supply for stock in stocks}
        self.order: Final = {supply: i for i, supply in enumerate(self.stocks)}

    def named(self, text: str) -> Supply | None:
        """The supply that `text` names."""
        return self._by_text.get(text)

    def explain(self, text: str, spot: Spot, faults: Faults) -> None:
        """Report why `text` names no supply, unless its pool has a fault of its own."""
        if faults.full:
            faults.add(FaultCode.UNKNOWN_POOL, spot, "", hint="")  # counted, not shown
            return
        name, _, slice_ = text.partition("/")
        pool = self.pools.get(name)
        if name not in self.written:
            faults.add(
                FaultCode.UNKNOWN_POOL,
                spot,
                f"{name} is not a pool of this fleet",
                expected=f"one of {listed(self._by_text)}" if self._by_text else "a pool",
                hint=did_you_mean(text, self._by_text, "add it under pools, or name one that is there"),
            )
        elif pool is None or not pool.sound(fs.SLICES):
            return
        elif not slice_:
            slices = [str(supply) for supply in self.stocks if supply.pool == name]
            faults.add(
                FaultCode.SLICED_POOL,
                spot,
                f"the GPUs of pool {name} are cut into slices; whole ones cannot be granted",
                expected=f"one of {listed(slices)}",
                hint=f"name the slice:  {slices[0]}",
            )
        elif not pool.get(fs.SLICES):
            faults.add(
                FaultCode.WHOLE_POOL,
                spot,
                f"the GPUs of pool {name} are not cut into slices",
                expected=name,
                hint=f"grant whole GPUs:  {name}; or cut them:  slices: [{slice_}]",
            )
        else:
            have = [str(supply.slice) for supply in self.stocks if supply.pool == name]
            faults.add(
                FaultCode.UNKNOWN_SLICE,
                spot,
                f"the GPUs of pool {name} are not cut into {slice_}",
                expected=f"one of {listed(have)}",
                hint=did_you_mean(slice_, have, f"use one of {listed(have)}"),
            )


def _stocks(pool: Section, gpu_types: Mapping[str, GpuType]) -> Iterator[Stock]:
    gpus, exact = gpus_of(pool)
    place = pool.get(fs.VIRTUAL_PLACE)
    cut = (place.get(fs.SLICES_PER_GPU) if place else None) or {}
    name, gpu = PoolName(pool.name), gpu_types.get(pool.get(fs.GPU) or "")
    slices = pool.get(fs.SLICES)
    if not slices:
        yield Stock(Supply(name), pool, gpus, exact, 1)
        return
    for found in slices:
        profile = gpu.profile(found.value) if gpu else None
        part = float(gpu.fraction(profile)) if gpu and profile else 0.0
        counted = cut.get(found.value)
        each = counted.value if counted else profile.max_instances if profile else None
        most = gpus * each if gpus is not None and each is not None else None
        yield Stock(Supply(name, SliceName(found.value)), pool, most, exact and counted is not None, part)


def gpus_of(pool: Section) -> tuple[int | None, bool]:
    """How many GPUs the file says a pool has, and whether that is what it says and not just a part of it."""
    if not pool.sound(fs.POOL_GPUS, fs.VIRTUAL_PLACE, fs.SLICES):
        return None, False
    place = pool.get(fs.VIRTUAL_PLACE)
    nodes = place.get(fs.NODES) if place else None
    if place is not None and nodes is not None:
        return nodes * (place.get(fs.GPUS_PER_NODE) or GPUS_PER_NODE), True
    told = pool.get(fs.POOL_GPUS)
    return told, told is not None
