"""What a cluster's pools have at one moment, told apart by why nobody uses it. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.model.fleet import Pool
from fairway.model.names import SliceName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.model.usage import Shelf

WANT_OF_ROOM: Final = (
    r"^(Resources|Priority)$"
    r"|[0-9]+/[0-9]+ nodes are available"
    r"|[Tt]opology .*fit"
    r"|devices are free in all|no rack has|are kept for"
)
"""A regular expression for an engine's words of a job that would start if there were room for it: Slurm's
reasons, kube-scheduler's and Kueue's sentences, the virtual engine's. Who waits for a limit or a quota does
not wait for room."""


@dataclass(frozen=True, slots=True)
class Held:
    """Devices of one supply on one node."""

    supply: Supply
    total: int
    in_use: int
    unhealthy: int = 0


@dataclass(frozen=True, slots=True)
class Alike:
    """Nodes that have the same health and the same devices in the same use, and how many they are."""

    health: Health
    devices: tuple[Held, ...]
    count: int = 1


@dataclass(frozen=True, slots=True)
class Known:
    """A shelf as it is written, and up to when."""

    shelf: Shelf
    metered_to: int


@dataclass(frozen=True, slots=True)
class Closed:
    """A shelf that was so from `start` to `end`."""

    shelf: Shelf
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class Turn:
    """What is to be written: stretches that are over, what there is now, what is no more."""

    closed: tuple[Closed, ...]
    now: tuple[Known, ...]
    gone: tuple[Supply, ...]


Behind = Callable[[Pool, Mapping[SliceName, int]], int]
"""How many GPUs the slices of one node of a pool are cut from; `cost.slicing` knows."""


def fragmented(nodes: Iterable[Alike], waiting: Mapping[Supply, int]) -> dict[Supply, int]:
    """Free devices on nodes where nothing that waits fits, by supply.

    `waiting`: the least that any job which waits for room there asks for on each node. A supply nobody waits
    for has none: what is free there is idle.
    """
    found: dict[Supply, int] = {}
    for alike in nodes:
        for held in alike.devices:
            free = _free(alike.health, held)
            if free < waiting.get(held.supply, 0):
                found[held.supply] = found.get(held.supply, 0) + free * alike.count
    return found


def shelves(
    pools: Sequence[Pool], nodes: Sequence[Alike], waiting: Mapping[Supply, int], behind: Behind
) -> tuple[Shelf, ...]:
    """Each supply that these pools have devices of, by name."""
    of_no_use = fragmented(nodes, waiting)
    known = {pool.name: pool for pool in pools}
    sums: dict[Supply, list[int]] = {}
    for alike in nodes:
        for held in alike.devices:
            if held.supply.pool in known:
                row = sums.setdefault(held.supply, [0, 0, 0])
                for i, n in enumerate(_states(alike.health, held)):
                    row[i] += n * alike.count
    made = [
        Shelf(supply, total, drained, down, of_no_use.get(supply, 0))
        for supply, (total, drained, down) in sorted(
            sums.items(), key=lambda item: (item[0].pool, item[0].slice or "")
        )
    ]
    gpus = {name: _gpus(pool, nodes, behind) for name, pool in known.items()}
    # The pool's GPUs are counted once, with its first supply: they are not of one kind of slice.
    return tuple(replace(shelf, gpus=gpus.pop(shelf.supply.pool, 0)) for shelf in made)


def turn(known: Sequence[Known], seen: Sequence[Shelf], at: int, hour: int) -> Turn | None:
    """What to write at `at`, in the hour that began at `hour`; None: nothing changed and no hour ended.

    What was last seen holds until something else is. What stays as it was is closed by full hours.
    """
    now = {shelf.supply: shelf for shelf in seen}
    closed: list[Closed] = []
    kept: list[Known] = []
    for old in known:
        shelf = now.pop(old.shelf.supply, None)
        end = max(old.metered_to, hour if shelf == old.shelf else at)
        if end > old.metered_to:
            closed.append(Closed(old.shelf, old.metered_to, end))
        if shelf is not None and (end > old.metered_to or shelf != old.shelf):
            kept.append(Known(shelf, end))
    kept += [Known(shelf, at) for shelf in now.values()]
    there = {shelf.supply for shelf in seen}
    gone = tuple(old.shelf.supply for old in known if old.shelf.supply not in there)
    if not closed and not kept and not gone:
        return None
    return Turn(tuple(closed), tuple(kept), gone)


def _free(health: Health, held: Held) -> int:
    if health is not Health.READY:
        return 0
    return max(0, held.total - held.in_use - held.unhealthy)


def _states(health: Health, held: Held) -> tuple[int, int, int]:
    """Total, drained, down: of what nobody holds."""
    unheld = max(0, held.total - held.in_use)
    match health:
        case Health.DRAINED:
            return held.total, unheld, 0
        case Health.DOWN:
            return held.total, 0, unheld
        case _:
            return held.total, 0, min(unheld, held.unhealthy)


def _gpus(pool: Pool, nodes: Iterable[Alike], behind: Behind) -> int:
    """GPUs of a pool: told by the file or, of slices, the fewest they can be cut from."""
    if pool.slices and pool.gpus is not None:
        return pool.gpus
    total = 0
    for alike in nodes:
        mine = [held for held in alike.devices if held.supply.pool == pool.name]
        slices = {held.supply.slice: held.total for held in mine if held.supply.slice is not None}
        whole = sum(held.total for held in mine if held.supply.slice is None)
        total += (whole + (behind(pool, slices) if slices else 0)) * alike.count
    return total
