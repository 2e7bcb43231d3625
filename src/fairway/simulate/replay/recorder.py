"""Record what happens to the jobs of a replay, in columns: a million jobs take about 60 MB."""

from __future__ import annotations

from array import array
from math import isnan, nan
from typing import Final

from fairway.simulate.cluster.jobs import SimEnding
from fairway.simulate.replay.fair import FairDivision

LOSSES: Final = frozenset((SimEnding.RECLAIMED, SimEnding.OUTRANKED, SimEnding.NODE_LOST, SimEnding.EVICTED))
"""Endings of attempts after which the job waits again, and what it had done is lost."""


class Recorder:
    """Observes a Simulator. A cell is one team on one supply: `supply * teams + team`."""

    def __init__(self, jobs: int, teams: int, supplies: int, begin: float, end: float) -> None:
        self.begin: Final = begin
        self.end: Final = end
        self.teams: Final = teams
        self.cell: Final = array("i", [-1]) * jobs
        """By the job's place in the trace; -1: it was left out."""
        self.devices: Final = array("i", [0]) * jobs
        self.submitted: Final = array("d", [nan]) * jobs
        self.first_start: Final = array("d", [nan]) * jobs
        """The first start; not a number: it never started."""
        self.ended: Final = array("d", [nan]) * jobs
        self.attempts: Final = array("i", [0]) * jobs
        self._since: Final = array("d", [nan]) * jobs
        """The start of the attempt that runs."""
        self._place: Final = array("q")
        """By the number that the Simulator gives a job, less one: its place in the trace."""
        cells = teams * supplies
        self.held: Final = [0] * cells
        self.wanted: Final = [0] * cells
        """Devices of jobs that run or wait."""
        self.device_seconds: Final = [0.0] * cells
        """Within the measured time."""
        self.preemptions: Final = [0] * cells
        self.node_losses: Final = [0] * cells
        self.lost_seconds: Final = [0.0] * cells
        """Device-seconds of attempts that ended before the job did."""
        self.supply_held: Final = [0] * supplies
        self.supply_wanted: Final = [0] * supplies

    def arrive(self, place: int, cell: int, devices: int, at: float) -> None:
        """Note a job before it is submitted: it may start within the call."""
        self._place.append(place)
        self.cell[place] = cell
        self.devices[place] = devices
        self.submitted[place] = at
        self.wanted[cell] += devices
        self.supply_wanted[cell // self.teams] += devices

    def withdraw(self, place: int) -> None:
        """Forget a job that was refused."""
        self._place.pop()
        self._leave(self.cell[place], self.devices[place])
        self.cell[place] = -1

    def give_up(self, place: int, at: float) -> None:
        """Note that a job was cancelled while it waited."""
        self.ended[place] = at
        self._leave(self.cell[place], self.devices[place])

    def _leave(self, cell: int, devices: int) -> None:
        self.wanted[cell] -= devices
        self.supply_wanted[cell // self.teams] -= devices

    def runs(self, place: int) -> bool:
        return not isnan(self._since[place])

    # called by the Simulator

    def started(self, number: int, at: float) -> None:
        place = self._place[number - 1]
        if not self.attempts[place]:
            self.first_start[place] = at
        self.attempts[place] += 1
        self._since[place] = at
        cell, devices = self.cell[place], self.devices[place]
        self.held[cell] += devices
        self.supply_held[cell // self.teams] += devices

    def stopped(self, number: int, at: float, ending: SimEnding) -> None:
        place = self._place[number - 1]
        cell, devices = self.cell[place], self.devices[place]
        self.held[cell] -= devices
        self.supply_held[cell // self.teams] -= devices
        since, self._since[place] = self._since[place], nan
        self._add(cell, devices, since, at)
        if ending in LOSSES:
            if at >= self.begin:
                self.lost_seconds[cell] += devices * max(0.0, at - since)  # it may not run yet
                if ending is SimEnding.NODE_LOST:
                    self.node_losses[cell] += 1
                else:
                    self.preemptions[cell] += 1
        else:
            self.ended[place] = at
            self._leave(cell, devices)

    def finish(self, at: float) -> None:
        """Count what runs at the end of the replay."""
        for place, since in enumerate(self._since):
            if not isnan(since):
                self._add(self.cell[place], self.devices[place], since, at)

    def _add(self, cell: int, devices: int, since: float, until: float) -> None:
        inside = (until if until < self.end else self.end) - (since if since > self.begin else self.begin)
        if inside > 0.0:
            self.device_seconds[cell] += devices * inside


class SupplySamples:
    """Sums of one supply over the samples, in device-seconds: why free devices were free, and fair shares."""

    def __init__(self, teams: int) -> None:
        self.available = 0.0
        """Of nodes that were there; exact, not sampled."""
        self.fragmented = 0.0
        """Free while a job waited that its limits let start: too few in one place, or held back for it."""
        self.limited = 0.0
        """Free while every waiting job was at a limit of its team or user."""
        self.fair: Final = [0.0] * teams
        """What each team would have held by shares alone, while something waited."""
        self.received: Final = [0.0] * teams
        """What it held meanwhile."""

    def add(
        self,
        seconds: float,
        free: float,
        available: float,
        held: list[int],
        wanted: list[int],
        division: FairDivision,
        *,
        startable: bool,
    ) -> None:
        """Add a sample that represents `seconds`, of a time when something waits."""
        if startable:
            self.fragmented += free * seconds
        else:
            self.limited += free * seconds
        for team, part in enumerate(division.ideal(available, wanted)):
            if part:
                self.fair[team] += part * seconds
                self.received[team] += held[team] * seconds
