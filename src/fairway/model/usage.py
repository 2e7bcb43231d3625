"""Define usage and capacity records: devices held over time, and devices present. Seconds since the epoch."""

from __future__ import annotations

from dataclasses import dataclass

from fairway.model.team import Supply


@dataclass(frozen=True, slots=True)
class AttemptUsage:
    """Devices held by one attempt, with times by its engine's clock."""

    holder: int
    """The ledger's id of a job's class: cluster, pool, slice, team, user and priority together."""
    devices: int
    start: int
    end: int
    """For a running attempt, the time up to which it is metered."""


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """Devices that one attempt of a job held so far."""

    devices: int
    start: int
    end: int
    """For a running attempt, now."""
    running: bool


@dataclass(frozen=True, slots=True)
class UsagePiece:
    """A usage row: devices held within one hour. Rows are append-only; a correction has negative devices."""

    hour: int
    """The start of its hour. Hours are those of the fleet's time zone, so that every day begins with one."""
    holder: int
    start: int
    end: int
    devices: int
    """Negative in a correction of devices that were not held after all."""

    @property
    def device_seconds(self) -> int:
        return self.devices * (self.end - self.start)


@dataclass(frozen=True, slots=True)
class CapacitySample:
    """The devices of one supply of a pool at one point in time.

    `drained` and `down` devices are neither in use nor available; `fragmented` ones are free.
    """

    supply: Supply
    total: int
    drained: int = 0
    down: int = 0
    fragmented: int = 0
    gpus: int = 0
    """GPUs behind it: the total, or for slices the number of GPUs that the whole pool's slices are cut from,
    counted with its first supply (see `cost.rates`)."""
