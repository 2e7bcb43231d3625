"""Forecasts of starts: what is certain is exact, what is not is a range, variants meet equal chance."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import inf, log

import pytest

from fairway.model.job import JobId
from fairway.model.names import NodeName
from fairway.simulate.cluster import ClusterTerms, NodeSnapshot
from fairway.simulate.run_times import JobTraits, RunTimeDistribution
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob
from fairway.simulate.starts import first_in_line, forecast_starts, quantile
from tests.unit.simulate.test_restore import LAB, PLAIN, SUPPLY, pool, request, team

NOW = 10_000.0


@dataclass(frozen=True)
class Fixed:
    """A run time that is certain: the limit of the job."""

    seconds: float
    samples: int = 0
    source: str = "the time limit"

    def quantile(self, part: float) -> float:
        return self.seconds


@dataclass(frozen=True)
class Exponential:
    """What is left does not depend on what has passed."""

    mean: float
    elapsed: float
    samples: int = 30
    source: str = "jobs of a test"

    def quantile(self, part: float) -> float:
        return self.elapsed - self.mean * log(1 - part) + 0.001


class Predictor:
    """Knows the limit, or nothing but a mean of an hour."""

    def predict(self, traits: JobTraits, elapsed: float = 0.0) -> RunTimeDistribution:
        limit = traits.limit_seconds
        return Exponential(3600.0, elapsed) if limit is None else Fixed(max(limit, elapsed + 0.001))


def snapshot(
    waiting: int, nodes: int = 1, limit: float | None = None, running_limit: float | None = None
) -> ClusterSnapshot:
    """Each node runs a job that takes it whole, since 100 s; the waiting ones want a whole one too."""
    named = [NodeName(f"n{n}") for n in range(nodes)]
    return ClusterSnapshot(
        LAB,
        NOW,
        (pool(nodes=nodes),),
        PLAIN,
        tuple(NodeSnapshot(name, SUPPLY, 8) for name in named),
        tuple(
            RunningJob(
                JobId(n + 1), request("b", 8, limit_seconds=running_limit), NOW - 300, NOW - 100, (name,)
            )
            for n, name in enumerate(named)
        ),
        tuple(
            WaitingJob(JobId(100 + n), request("c", 8, limit_seconds=limit), NOW - 50 + n)
            for n in range(waiting)
        ),
    )


def test_what_is_certain_is_exact() -> None:
    found = forecast_starts(snapshot(3, limit=600.0, running_limit=400.0), Predictor())
    starts = [(f.earliest, f.expected, f.latest, f.started) for f in found.values()]
    first = NOW + 300
    assert starts == [(at, at, at, 1.0) for at in (first, first + 600, first + 1200)]


def test_what_is_not_certain_is_a_range_around_the_mean() -> None:
    found = forecast_starts(snapshot(1), Predictor(), futures=400)[JobId(100)]
    assert found.earliest == pytest.approx(NOW + 3600 * -log(0.9), abs=150)
    assert found.expected == pytest.approx(NOW + 3600 * log(2), abs=400)
    assert found.latest == pytest.approx(NOW + 3600 * log(10), abs=1800)
    assert (found.started, found.futures) == (1.0, 400)
    assert (found.samples, found.source) == (30, "jobs of a test")


def test_a_start_beyond_the_horizon_is_not_forecast() -> None:
    found = forecast_starts(
        snapshot(3, limit=600.0, running_limit=400.0), Predictor(), horizon=800.0, futures=20
    )
    assert [f.expected for f in found.values()] == [NOW + 300, None, None]
    assert [f.started for f in found.values()] == [1.0, 0.0, 0.0]


def test_few_events_cover_the_first_of_the_queue_and_say_nothing_of_the_rest() -> None:
    whole = forecast_starts(snapshot(50, 5), Predictor(), futures=20, seed=3)
    part = forecast_starts(snapshot(50, 5), Predictor(), futures=20, seed=3, max_events=20 * 15)
    known = [job for job, f in part.items() if f.expected is not None]
    assert known and known == [JobId(100 + n) for n in range(len(known))]
    assert len(known) < 25
    assert all(part[job].expected == whole[job].expected for job in known)


def test_the_same_seed_gives_the_same_forecast_and_another_one_another() -> None:
    base = snapshot(5, 2)
    first, again = (forecast_starts(base, Predictor(), seed=1) for _ in range(2))
    assert first == again
    assert first != forecast_starts(base, Predictor(), seed=2)


def test_a_variant_meets_the_same_chance() -> None:
    """Without the last of the queue, those ahead of it start as before, in every future."""
    base = snapshot(6, 2)
    less = replace(base, waiting=base.waiting[:-1])
    all_, fewer = (forecast_starts(one, Predictor(), seed=5) for one in (base, less))
    assert all(fewer[job] == all_[job] for job in fewer)


def test_new_jobs_that_come_as_they_did_lately_delay_jobs_without_a_guarantee() -> None:
    base = snapshot(0, limit=600.0, running_limit=400.0)
    lately = tuple(
        WaitingJob(JobId(1000 + n), request("c", 8, limit_seconds=600.0), NOW - 3600 + n * 900.0)
        for n in range(4)
    )
    mine = WaitingJob(JobId(100), request("b", 8, limit_seconds=60.0), NOW - 20)
    entitled = ClusterTerms((team("b"), team("c", 8)))
    alone = replace(base, waiting=(mine,), terms=entitled)
    busy = replace(alone, arrivals=lately, arrival_seconds=3600.0)
    without, with_ = (
        forecast_starts(one, Predictor(), futures=40, horizon=36_000.0)[JobId(100)] for one in (alone, busy)
    )
    assert without.latest == NOW + 300
    assert with_.earliest == NOW + 300
    assert with_.latest is None or with_.latest > NOW + 300


def test_a_job_that_can_never_run_has_no_start_but_the_reason() -> None:
    base = snapshot(1)
    never = WaitingJob(JobId(200), request("c", 9), NOW)
    found = forecast_starts(replace(base, waiting=(*base.waiting, never)), Predictor())[JobId(200)]
    assert (found.expected, found.started) == (None, 0.0)
    assert "has no 1 nodes with 9 devices each" in found.refused


def test_where_no_job_can_ever_start_nothing_is_played() -> None:
    base = snapshot(0)
    never = WaitingJob(JobId(200), request("c", 9), NOW)
    found = forecast_starts(replace(base, waiting=(never,)), Predictor())
    assert [(f.expected, bool(f.refused)) for f in found.values()] == [(None, True)]


def test_only_jobs_that_were_asked_for_are_forecast_and_the_rest_still_counts() -> None:
    base = snapshot(4, limit=600.0, running_limit=400.0)
    found = forecast_starts(base, Predictor(), asked=[JobId(101)])
    assert {job: f.expected for job, f in found.items()} == {JobId(101): NOW + 900}


def test_of_a_long_queue_the_first_of_each_team_remain_in_their_order() -> None:
    teams = "aaaaaabbbc"
    queue = tuple(WaitingJob(JobId(n), request(t), NOW) for n, t in enumerate(teams))
    base = replace(snapshot(0), waiting=queue)
    assert [int(job.job) for job in first_in_line(base, 5).waiting] == [0, 1, 6, 7, 9]
    assert first_in_line(base, 10) is base


@pytest.mark.parametrize(
    ("times", "part", "value"),
    [
        ([1.0, 2.0, 3.0], 0.5, 2.0),
        ([1.0, 2.0, 3.0, 4.0], 0.5, 2.5),
        ([1.0, 2.0, inf], 0.5, 2.0),
        ([1.0, inf, inf], 0.5, None),
        ([1.0, 1.0, inf, inf], 0.5, None),
        ([5.0], 0.1, 5.0),
        ([1.0, 2.0], 0.9, 2.0),
        ([inf, inf], 0.1, None),
    ],
)
def test_quantiles_know_that_later_may_be_never(times: list[float], part: float, value: float | None) -> None:
    assert quantile(times, part) == value
