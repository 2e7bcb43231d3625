"""Who held what from when to when, and what there was to be held. Whole seconds since 1970, UTC."""

from __future__ import annotations

from dataclasses import dataclass

from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class Holding:
    """Devices that one attempt held, by its engine's clock."""

    holder: int
    """The ledger's number for cluster, pool, slice, team, user and priority together (a job's class)."""
    devices: int
    start: int
    end: int
    """Of one that still runs: up to where it is metered."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A usage row: devices held within one hour. Rows are only ever added; a correction takes away."""

    hour: int
    """When its hour began. Hours are those of the fleet's time zone: a day begins with one everywhere."""
    holder: int
    start: int
    end: int
    devices: int
    """Negative in a correction: that much was not held after all."""

    @property
    def device_seconds(self) -> int:
        return self.devices * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class Shelf:
    """What a pool has of one kind of device at one moment.

    `drained` and `down` are devices that nobody holds and nobody can get; `fragmented` ones are free.
    """

    supply: Supply
    total: int
    drained: int = 0
    down: int = 0
    fragmented: int = 0
    gpus: int = 0
    """GPUs behind it: the total, or of slices how many GPUs they are cut from (of the pool as a whole: see
    `cost.slicing`)."""
