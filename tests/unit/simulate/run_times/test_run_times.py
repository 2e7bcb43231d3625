"""Run times learnt from finished jobs: what is predicted before and while a job runs."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.names import TeamName, UserName
from fairway.simulate.run_times import FinishedRun, Histogram, JobGroup, JobTraits, RunTimes, keys_of
from fairway.simulate.run_times.distribution import FLAT, updated
from fairway.simulate.run_times.histogram import BINS

HOUR = 3600.0
DAY = 24 * HOUR
ALICE, NLP = UserName("alice"), TeamName("nlp")
TRAIN = JobTraits(ALICE, NLP, "train-1", 8)
EVAL = JobTraits(ALICE, NLP, "eval-1", 1)
OTHER = JobTraits(UserName("bob"), TeamName("vision"), "prepare", 1)


def learnt(*runs: tuple[JobTraits, float], times: int = 1) -> RunTimes:
    model = RunTimes()
    for _ in range(times):
        for traits, seconds in runs:
            model.learn(FinishedRun(traits, seconds))
    return model


def test_without_history_only_the_limit_is_known() -> None:
    forecast = RunTimes().predict(replace(TRAIN, limit_seconds=HOUR))
    assert (forecast.samples, forecast.source) == (0, "")
    assert forecast.quantile(0.99) == HOUR
    assert 0 < forecast.quantile(0.1) < HOUR
    assert RunTimes().predict(TRAIN).quantile(0.99) > DAY


def test_a_user_s_jobs_of_a_name_are_told_apart() -> None:
    model = learnt((TRAIN, 20 * HOUR), (EVAL, 300.0), times=20)
    train = model.predict(replace(TRAIN, name="train-2"))
    evaluate = model.predict(replace(EVAL, name="eval-2"))
    assert train.quantile(0.5) == pytest.approx(20 * HOUR, rel=0.2)
    assert evaluate.quantile(0.5) == pytest.approx(300, rel=0.2)
    assert (train.samples, train.source) == (20, "jobs of alice named train-* of this size")


@pytest.mark.parametrize(
    ("traits", "source"),
    [
        (replace(TRAIN, name="new"), "jobs of alice of this size"),
        (replace(TRAIN, name="new", devices=64), "jobs of alice"),
        (replace(TRAIN, user=UserName("carol")), "jobs of team nlp named train-*"),
        (replace(TRAIN, user=UserName("carol"), name="new"), "jobs of team nlp of this size"),
        (OTHER, "all jobs"),
        (replace(OTHER, devices=8), "all jobs of this size"),
    ],
)
def test_without_jobs_like_it_wider_groups_count(traits: JobTraits, source: str) -> None:
    forecast = learnt((TRAIN, 20 * HOUR), times=10).predict(traits)
    assert (forecast.samples, forecast.source) == (10, source)
    assert forecast.quantile(0.9) > 10 * HOUR


def test_recent_jobs_weigh_more() -> None:
    model = learnt((TRAIN, HOUR), times=100)
    for _ in range(100):
        model.learn(FinishedRun(TRAIN, 10 * HOUR))
    assert model.predict(TRAIN).quantile(0.5) == pytest.approx(10 * HOUR, rel=0.3)


def test_a_prediction_follows_what_is_learnt_after_it() -> None:
    model = learnt((TRAIN, HOUR), times=3)
    assert model.predict(TRAIN).samples == 3
    model.learn(FinishedRun(TRAIN, HOUR))
    assert model.predict(TRAIN).samples == 4


def test_a_forecast_names_the_narrowest_group_with_a_few_jobs() -> None:
    model = learnt((TRAIN, HOUR), times=10)
    new = replace(TRAIN, name="new")
    for samples, source in ((10, "jobs of alice of this size"), (11, "jobs of alice of this size")):
        forecast = model.predict(new)
        assert (forecast.samples, forecast.source) == (samples, source)
        model.learn(FinishedRun(new, HOUR))
    model.learn(FinishedRun(new, HOUR))
    assert model.predict(new).source == "jobs of alice named new of this size"


def test_a_job_that_ran_on_is_compared_with_those_that_ran_as_long() -> None:
    model = learnt((TRAIN, 600.0), (TRAIN, 700.0), (TRAIN, 20 * HOUR), times=10)
    assert model.predict(TRAIN).quantile(0.5) < 0.5 * HOUR
    assert model.predict(TRAIN, HOUR).quantile(0.5) == pytest.approx(20 * HOUR, rel=0.3)


def test_jobs_that_reached_their_limit_count_as_at_least_as_long() -> None:
    """If they counted as ended there, a longer limit would seem to free the GPUs just as early."""
    cut_off, ended = RunTimes(), RunTimes()
    for _ in range(30):
        cut_off.learn(FinishedRun(TRAIN, 2 * HOUR, timed_out=True))
        ended.learn(FinishedRun(TRAIN, 2 * HOUR))
    longer = replace(TRAIN, limit_seconds=DAY)
    assert ended.predict(longer).quantile(0.5) == pytest.approx(2 * HOUR, rel=0.3)
    assert cut_off.predict(longer).quantile(0.5) > 6 * HOUR
    assert cut_off.predict(replace(TRAIN, limit_seconds=HOUR)).quantile(0.3) == HOUR


def test_jobs_that_reached_their_limit_are_followed_no_further() -> None:
    """Two end at 100 s, one reaches its limit at 200 s, one ends at 400 s: nobody is known to end later."""
    seen = Histogram()
    for seconds, cut_off in ((100.0, False), (100.0, False), (200.0, True), (400.0, False)):
        seen.learn(seconds, cut_off=cut_off, memory=10)
    parts = updated(FLAT, seen, 1e-6)
    assert sum(parts[:22]) == pytest.approx(0.5, abs=0.001)
    assert sum(parts[25:28]) == pytest.approx(0.5, abs=0.001)


def test_a_job_that_outlived_everything_known_runs_on_for_a_while() -> None:
    model = learnt((TRAIN, 600.0), times=30)
    assert 10 * DAY < model.predict(TRAIN, 10 * DAY).quantile(0.5) < 40 * DAY
    assert model.predict(TRAIN, 100 * DAY).quantile(0.5) == 150 * DAY
    late = model.predict(replace(TRAIN, limit_seconds=DAY), DAY + 30)
    assert late.quantile(0.5) == DAY + 31


def test_the_least_recently_used_groups_are_dropped() -> None:
    model = RunTimes(max_keys=40)  # five groups that all have, and five of each user
    for number in range(50):
        model.learn(FinishedRun(replace(OTHER, user=UserName(f"user-{number}")), HOUR))
    kept = {key for key, _ in model.histograms()}
    first, last = (
        {key for _, key in keys_of(JobGroup.of(replace(OTHER, user=UserName(u))))}
        for u in ("user-0", "user-49")
    )
    assert len(kept) == 40
    assert last <= kept
    assert first & kept == first & last
    again = replace(OTHER, user=UserName("user-46"))
    model.learn(FinishedRun(again, HOUR))
    for number in range(50, 55):
        model.learn(FinishedRun(replace(OTHER, user=UserName(f"user-{number}")), HOUR))
    kept = {key for key, _ in model.histograms()}
    assert {key for _, key in keys_of(JobGroup.of(again))} <= kept
    assert not {key for _, key in keys_of(JobGroup.of(replace(again, user=UserName("user-47"))))} <= kept


@given(
    st.lists(st.tuples(st.floats(0, 1e8), st.booleans()), max_size=60),
    st.floats(0, 1e8),
    st.one_of(st.none(), st.floats(1, 1e8)),
)
def test_quantiles_grow_and_lie_between_what_has_passed_and_the_limit(
    runs: list[tuple[float, bool]], elapsed: float, limit: float | None
) -> None:
    model = RunTimes()
    for seconds, timed_out in runs:
        model.learn(FinishedRun(TRAIN, seconds, timed_out))
    forecast = model.predict(replace(TRAIN, limit_seconds=limit), elapsed)
    found = [forecast.quantile(part / 20) for part in range(21)]
    assert found == sorted(found)
    assert all(seconds > elapsed for seconds in found)
    assert limit is None or elapsed + 1 >= limit or found[-1] <= limit


def test_ranges_contain_as_many_jobs_as_they_say() -> None:
    random = Random(5)
    model, contained = RunTimes(), 0
    for number in range(2000):
        seconds = random.lognormvariate(8, 1.5)
        if number >= 500:
            forecast = model.predict(TRAIN)
            contained += forecast.quantile(0.1) <= seconds <= forecast.quantile(0.9)
        model.learn(FinishedRun(TRAIN, seconds))
    assert 0.75 <= contained / 1500 <= 0.86


@given(st.lists(st.tuples(st.floats(0, 1e8), st.booleans()), max_size=400))
def test_a_histogram_is_stored_in_few_bytes(runs: list[tuple[float, bool]]) -> None:
    histogram = Histogram()
    for seconds, cut_off in runs:
        histogram.learn(seconds, cut_off=cut_off, memory=250)
    stored = histogram.encode()
    again = Histogram.decode(stored)
    assert len(stored) <= 6 + 3 * 2 * BINS
    assert again.count == len(runs)
    assert again.ended == pytest.approx(histogram.ended, abs=1 / 256)
    assert again.cut == pytest.approx(histogram.cut, abs=1 / 256)
    assert again.encode() == stored


@pytest.mark.parametrize(
    "data", [b"", b"\x02" + 5 * b"\0", b"\x01" + 5 * b"\0" + b"\x50\0\1", b"\x01" + 6 * b"\0"]
)
def test_other_bytes_are_no_histogram(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"a histogram|no histogram"):
        Histogram.decode(data)
