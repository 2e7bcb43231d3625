"""The demo's people keep its clusters nearly full, with a queue that neither drains nor grows."""

from __future__ import annotations

from collections import Counter
from datetime import date
from statistics import mean, median

import pytest

from fairway.demo.fleet_text import fleet_text
from fairway.demo.jobs import KINDS, SLICE_KINDS
from fairway.demo.users import PlannedJob, Users
from fairway.files import parse_fleet
from fairway.model.errors import Refused
from fairway.model.names import PriorityName
from fairway.model.team import Supply
from fairway.simulate.cluster import JobRequest, SimState, Simulator, terms_of
from tests.tier import sized

FLEET = parse_fleet(fleet_text(date(2026, 11, 1)), "fleet.yaml")


class Clusters:
    """Both clusters in one simulator: pools never share anything."""

    def __init__(self) -> None:
        self.simulator = Simulator(FLEET.pools, terms_of(FLEET))
        self.refused: Counter[str] = Counter()

    def take(self, wanted: PlannedJob) -> None:
        for _ in range(wanted.tasks):
            try:
                self.simulator.submit(
                    JobRequest(
                        wanted.user,
                        wanted.supply.pool,
                        gpus=wanted.gpus,
                        nodes=wanted.nodes,
                        slice=wanted.supply.slice,
                        team=wanted.team,
                        seconds=wanted.seconds,
                        limit_seconds=wanted.limit_seconds,
                        priority=None if wanted.priority is None else PriorityName(wanted.priority),
                        tolerates_loss=wanted.spot,
                        exit_code=wanted.exit_code,
                    )
                )
            except Refused as refusal:
                self.refused[refusal.code] += 1

    def waiting(self) -> dict[Supply, int]:
        found: Counter[Supply] = Counter()
        for (state, _, supply, _, _), jobs in self.simulator.job_counts().items():
            if state is SimState.WAITING:
                found[supply] += jobs
        return dict(found)

    def held(self) -> int:
        top = [team.name for team in FLEET.teams if team.parent is None]
        supplies = [supply for pool in FLEET.pools for supply in pool.supplies]
        return sum(self.simulator.held_devices(s)[team] for s in supplies for team in top)


@pytest.mark.parametrize("speed", sized(ci=[20], nightly=[1, 20, 600]))
def test_the_load_is_steady(speed: float) -> None:
    crowd = Users(FLEET, speed, seed=20)
    clusters = Clusters()
    for wanted in crowd.initial_jobs():
        clusters.take(wanted)
    devices = sum(crowd.devices.values())
    assert clusters.held() > 0.85 * devices, "full from the beginning"
    full, queue = [], []
    beat = max(1.0, 60 / speed)  # a slow demo need not be played second by second
    for second in range(1, 601):
        for wanted in crowd.next_jobs(beat, clusters.waiting()):
            clusters.take(wanted)
        clusters.simulator.advance(second * beat)
        full.append(clusters.held() / devices)
        queue.append(sum(clusters.waiting().values()))
    assert mean(full[60:]) > 0.85
    assert min(full) > 0.6
    assert 10 < mean(queue[60:]) < 150
    assert max(queue) < 300
    assert 0.4 < mean(queue[60:330]) / mean(queue[330:]) < 2.5, "neither drains nor grows"
    asked = clusters.simulator.ended + sum(queue[-1:])
    assert sum(clusters.refused.values()) < 0.02 * asked, clusters.refused


def test_the_same_seed_asks_for_the_same() -> None:
    assert list(Users(FLEET, 20, seed=1).initial_jobs()) == list(Users(FLEET, 20, seed=1).initial_jobs())
    assert list(Users(FLEET, 20, seed=1).initial_jobs()) != list(Users(FLEET, 20, seed=2).initial_jobs())


def test_everything_there_is_to_see_is_asked_for() -> None:
    crowd = Users(FLEET, 20, seed=20)
    wanted = [job for _ in range(900) for job in crowd.next_jobs(1, {})]
    assert {job.supply for job in wanted} == set(crowd.devices)
    assert {job.team for job in wanted} == {team.name for team in FLEET.teams if team.members}
    assert {job.user for job in wanted} == {user for team in FLEET.teams for user in team.members}
    for seen in (
        [job.native for job in wanted],
        [job.nodes > 1 for job in wanted],
        [job.tasks > 1 for job in wanted],
        [job.exit_code > 0 for job in wanted],
        [job.limit_seconds < job.seconds for job in wanted],
        [job.cancelled_after is not None for job in wanted],
        [job.retries > 0 for job in wanted],
        [job.any_pool for job in wanted],
        [job.priority == "low" for job in wanted],
        [job.spot for job in wanted],
    ):
        assert 0 < sum(seen) < len(wanted)


def test_name_command_size_and_duration_fit_together() -> None:
    """A notebook with four GPUs, or a sweep of one task of 50 s with four, is not believable."""
    crowd = Users(FLEET, 20, seed=20)
    wanted = [job for _ in range(900) for job in crowd.next_jobs(1, {})]
    commands = {kind.name: kind.command for kind in (*KINDS, *SLICE_KINDS)}
    for job in wanted:
        kind = job.name.partition("-")[0]
        assert job.command == commands[kind]
        if kind in {"sweep", "notebook"}:
            assert (job.gpus, job.nodes) == (1, 1)
        if kind == "sweep":
            assert job.tasks >= 6
        assert job.limit_seconds % 60 == 0, "a time limit that somebody would write"
    finished = [job for job in wanted if not job.exit_code]
    sweeps = [job.seconds * 20 for job in finished if job.name.startswith("sweep")]
    assert 600 < median(sweeps) < 4 * 3600, "minutes to hours, on the clusters' clock"
    assert all(job.priority != "urgent" for job in wanted if job.name.startswith(("notebook", "debug")))
