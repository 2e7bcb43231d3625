"""Variants of a trace, what really happened, and estimates over seeds."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.names import TeamName
from fairway.model.trace import TraceJob
from fairway.simulate.replay import (
    ReplayOptions,
    Scenario,
    SizeClass,
    estimate,
    run_scenario,
    variant,
)
from tests.unit.simulate.replay.fleets import HOUR, fleet, job, team

RED = TeamName("red")
TRACE = [job(hour * HOUR, HOUR, 1, user=f"user{hour % 3}") for hour in range(48)]


def test_seed_zero_is_the_trace_itself() -> None:
    assert variant(TRACE, 0, 0, 48 * HOUR) is TRACE


@given(st.integers(1, 1000))
def test_a_variant_moves_submissions_and_nothing_else(seed: int) -> None:
    moved = variant(TRACE, seed, 10 * HOUR, 40 * HOUR)

    assert [j.at for j in moved] == sorted(j.at for j in moved)
    assert [j for j in moved if j.at < 10 * HOUR] == TRACE[:10], "what is there at the beginning stays"
    assert [j for j in moved if j.at > 40 * HOUR] == TRACE[41:]
    inside = [j for j in moved if 10 * HOUR <= j.at <= 40 * HOUR]
    assert sorted(j.user for j in inside) == sorted(j.user for j in TRACE[10:41])
    assert moved == variant(TRACE, seed, 10 * HOUR, 40 * HOUR), "the same seed gives the same variant"
    assert moved != variant(TRACE, seed + 1, 10 * HOUR, 40 * HOUR)


def test_jobs_of_one_burst_move_together() -> None:
    burst = [job(12 * HOUR + 0.5 * n, HOUR, 1, user="alice") for n in range(20)]
    moved = variant(burst, 3, 0, 24 * HOUR)
    assert [after.at - before.at for before, after in pairwise(moved)] == pytest.approx([0.5] * 19)


def test_what_really_happened_is_measured_on_the_same_jobs() -> None:
    trace = [
        job(0, HOUR, started=0.0),
        job(0, HOUR, started=HOUR * 2, preemptions=1),
        job(1, HOUR, team="nobody", started=1.0),
        job(2, HOUR),
    ]
    run = run_scenario(
        Scenario("current", fleet(team("red")), options=ReplayOptions(0, 4 * HOUR)), trace, seed=0
    )

    found = run.observed
    assert found is not None
    assert found.total.jobs == 2, "neither the job that was left out nor the one whose start is not known"
    assert found.unknown == 1
    assert found.total.mean_wait == HOUR
    assert found.total.slowdown == 2.0
    assert found.preemptions == 1
    assert found.teams[RED].gpu_hours == found.gpu_hours == 16.0
    assert found.utilisation == pytest.approx(0.5)
    assert found.sizes[SizeClass.NODE].p95_wait == 2 * HOUR


def test_nothing_is_known_of_what_really_happened_without_starts() -> None:
    scenario = Scenario("current", fleet(team("red")))
    assert run_scenario(scenario, [job(0, HOUR)], seed=0).observed is None


def test_a_variant_has_no_past() -> None:
    scenario = Scenario("current", fleet(team("red")))
    assert run_scenario(scenario, [job(0, HOUR, started=0.0)], seed=1).observed is None


def test_an_empty_trace_runs() -> None:
    empty: list[TraceJob] = []
    assert run_scenario(Scenario("current", fleet(team("red"))), empty, seed=0).metrics.total.jobs == 0


def test_an_estimate_is_a_mean_with_its_interval() -> None:
    assert estimate([3.0]).margin is None
    found = estimate([1.0, 2.0, 3.0])
    assert found.mean == 2.0
    assert found.margin == pytest.approx(4.303 / 3**0.5)
    assert estimate([5.0] * 40).margin == 0.0
