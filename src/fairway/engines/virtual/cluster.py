"""Connect a simulator to a clock and to engine ids: one instance of a virtual cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Final

from fairway.model.job import EngineId, EngineName, Order, format_job_id
from fairway.model.names import UserName
from fairway.simulate.cluster.simulator import Simulator

_ID_COUNT: Final = 32**6
_MAX_SETTINGS: Final = 20_000
"""As many as ended jobs are kept."""


class ClusterInstance:
    """A virtual cluster from its creation until its server stops.

    The engine ids of its jobs contain its start time, so that the next instance of the same cluster, which
    starts empty, does not take the ids of old jobs for its own.
    """

    def __init__(self, simulator: Simulator, clock: Callable[[], float] | None, speed: float) -> None:
        """`clock` returns seconds since 1970. Without one, time passes only when `tick` is called."""
        self.simulator: Final = simulator
        self._clock: Final = clock
        self._speed: Final = speed
        self._clock_start: Final = 0.0 if clock is None else clock()
        self._simulator_start: Final = simulator.now
        self._last_tick: float | None = None if clock is None else self._clock_start
        self.id: Final = format_job_id(int(self._clock_start * 10) % _ID_COUNT)
        self._names: dict[EngineName, int] = {}
        self._prune_at = 1000
        self._script_settings: dict[tuple[UserName, str], Mapping[str, str]] = {}

    # time

    def sync(self) -> None:
        """Advance the simulator to the time of the clock."""
        if self._clock is not None:
            self.tick(self._clock())

    def tick(self, now: float) -> None:
        """Advance the simulator to `now`, in seconds; without a clock, the first call only sets the time."""
        if self._last_tick is not None and now > self._last_tick:
            self.simulator.advance(self.simulator.now + (now - self._last_tick) * self._speed)
        self._last_tick = now if self._last_tick is None else max(now, self._last_tick)

    def wall_time(self, at: float) -> datetime:
        """Convert a time of the simulator to wall-clock time."""
        return datetime.fromtimestamp(self._clock_start + (at - self._simulator_start) / self._speed, UTC)

    def seconds_until(self, at: float) -> float:
        """Return the wall-clock seconds until a time of the simulator."""
        return (at - self.simulator.now) / self._speed

    # ids and names of jobs

    def engine_id(self, number: int) -> EngineId:
        return EngineId(f"v{self.id}-{number}")

    def job_number(self, engine_id: EngineId) -> int | None:
        """Return the number of a job. None if it is of another instance or no longer in the history."""
        instance_id, _, number = engine_id.removeprefix("v").partition("-")
        if instance_id != self.id or not number.isdecimal() or not self.simulator.has_job(int(number)):
            return None
        return int(number)

    def find_by_name(self, name: EngineName) -> int | None:
        """Return the number of the job with this name, None if there is none or it left the history."""
        number = self._names.get(name)
        return number if number is not None and self.simulator.has_job(number) else None

    def register_name(self, name: EngineName, number: int) -> None:
        """Store the name of a job. Names of jobs that left the history are removed in batches."""
        if len(self._names) >= self._prune_at:
            self._names = {n: job for n, job in self._names.items() if self.simulator.has_job(job)}
            self._prune_at = 2 * len(self._names) + 1000
        self._names[name] = number

    # scripts of jobs

    def script_settings(self, order: Order) -> Mapping[str, str]:
        """Return the variables that `script` reads besides those of the job's environment."""
        return self._script_settings.get((order.user, order.spec.name), {})

    def set_script_settings(self, user: UserName, name: str, settings: Mapping[str, str]) -> None:
        """Set these variables for jobs of this user and name. The newest are kept."""
        if len(self._script_settings) >= _MAX_SETTINGS:
            del self._script_settings[next(iter(self._script_settings))]
        self._script_settings[user, name] = settings
