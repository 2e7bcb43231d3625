"""One life of a virtual cluster: its simulator, the clock it follows, and how its jobs are called outside."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

from fairway.engines.virtual.simulator.simulator import Simulator
from fairway.model.job import EngineId, EngineName, format_job_id

_MARKS: Final = 32**6


class Life:
    """From the moment a cluster is made until its server forgets it.

    The ids of its jobs carry the moment it began: a cluster made anew, with nothing of the old one in its
    memory, never takes an old job's id for one of its own.
    """

    def __init__(self, simulator: Simulator, clock: Callable[[], float] | None, speed: float) -> None:
        """`clock`: seconds since 1970 that the cluster follows; None: it moves only when it is told."""
        self.simulator: Final = simulator
        self._clock: Final = clock
        self._speed: Final = speed
        self._began: Final = 0.0 if clock is None else clock()
        self._began_at: Final = simulator.now
        self._ticked: float | None = None if clock is None else self._began
        self.mark: Final = format_job_id(int(self._began * 10) % _MARKS)
        self._names: dict[EngineName, int] = {}
        self._swept_at = 1000

    # time

    def follow(self) -> None:
        """Let the cluster's clock catch up."""
        if self._clock is not None:
            self.tick(self._clock())

    def tick(self, now: float) -> None:
        """Let the cluster's clock follow another, in seconds; without its own, the first sets the watch."""
        if self._ticked is not None and now > self._ticked:
            self.simulator.advance(self.simulator.now + (now - self._ticked) * self._speed)
        self._ticked = now if self._ticked is None else max(now, self._ticked)

    def moment(self, at: float) -> datetime:
        """A moment of the simulator as the clock outside showed it."""
        return datetime.fromtimestamp(self._began + (at - self._began_at) / self._speed, UTC)

    def seconds_until(self, at: float) -> float:
        """How long until a moment of the simulator, by the clock outside."""
        return (at - self.simulator.now) / self._speed

    # what jobs are called

    def engine_id(self, number: int) -> EngineId:
        return EngineId(f"v{self.mark}-{number}")

    def number(self, engine_id: EngineId) -> int | None:
        """None: of another life, or of none."""
        mark, _, number = engine_id.removeprefix("v").partition("-")
        return int(number) if mark == self.mark and number.isdecimal() else None

    def named(self, name: EngineName) -> int | None:
        """The job made under a name, ended ones too, as long as they are remembered."""
        number = self._names.get(name)
        return number if number is not None and self.simulator.remembers(number) else None

    def name(self, name: EngineName, number: int) -> None:
        """Keep what a job is called. Names of jobs that the simulator forgot go, many at a time."""
        if len(self._names) >= self._swept_at:
            self._names = {n: job for n, job in self._names.items() if self.simulator.remembers(job)}
            self._swept_at = 2 * len(self._names) + 1000
        self._names[name] = number
