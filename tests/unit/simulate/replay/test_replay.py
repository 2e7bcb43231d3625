"""Replays of traces whose outcome can be worked out by hand, and what holds for all."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from types import MappingProxyType

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Cluster, SlurmConnection, SlurmPlace, VirtualPlace
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Grant, Limits, Supply
from fairway.model.trace import TraceJob
from fairway.simulate.replay import ReplayOptions, SizeClass, SpotAssumption, measure, replay
from tests.unit.simulate.replay.fleets import GPU, HOUR, LAB, fleet, job, pool, team

RED, BLUE = TeamName("red"), TeamName("blue")


def test_two_jobs_one_after_the_other() -> None:
    trace = [job(0, HOUR), job(0, HOUR)]

    result = replay(fleet(team("red")), trace, options=ReplayOptions(end=2 * HOUR))
    metrics = measure(result)

    assert [outcome.wait for outcome in result.outcomes()] == [0.0, HOUR]
    assert metrics.total.mean_wait == HOUR / 2
    assert metrics.total.p95_wait == HOUR
    assert metrics.total.slowdown == 1.5
    assert metrics.utilisation == 1.0
    assert metrics.gpu_hours == 16.0
    assert metrics.cost == Decimal(32), "8 GPUs for two hours at 2"
    assert metrics.teams[RED].cost == Decimal(32)


def test_the_time_to_start_a_job_counts_as_waiting_and_not_as_use() -> None:
    trace = [job(0, HOUR), job(0, HOUR)]

    options = ReplayOptions(end=2 * HOUR, start_seconds=60)
    result = replay(fleet(team("red")), trace, options=options)

    first, second = result.outcomes()
    assert (first.wait, second.wait) == (60.0, HOUR + 120)
    assert second.ended == 2 * HOUR + 120
    assert measure(result).utilisation == pytest.approx(1 - 120 / (2 * HOUR))


def test_a_job_that_is_preempted_before_it_runs_loses_nothing() -> None:
    """Blue gets all at once; red takes its guarantee back while the engine still starts blue's job."""
    teams = (team("red", guarantee=8), team("blue"))
    trace = [job(0, HOUR, team="blue"), job(30, HOUR)]

    metrics = measure(replay(fleet(*teams), trace, options=ReplayOptions(start_seconds=60)))

    assert metrics.preemptions == 1
    assert metrics.lost_gpu_hours == 0.0
    assert metrics.gpu_hours == pytest.approx(0.0), "measured until the last submission"


def test_a_preempted_job_waits_before_it_starts_again() -> None:
    """Blue holds all; red takes its guarantee back for ten seconds."""
    teams = (team("red", guarantee=8), team("blue"))
    trace = [job(0, HOUR, team="blue"), job(HOUR / 2, 10)]

    at_once, later = (
        max(outcome.ended or 0.0 for outcome in replay(fleet(*teams), trace, options=options).outcomes())
        for options in (ReplayOptions(), ReplayOptions(requeue_seconds=121))
    )

    assert (at_once, later) == (1.5 * HOUR + 10, 1.5 * HOUR + 121)


@pytest.mark.parametrize("engine", ["virtual", "slurm"])
def test_slurm_counts_what_a_team_uses_within_its_guarantee(engine: str) -> None:
    """Red uses its guarantee; then both want the node that is lent. Only on Slurm, red has used more."""
    teams = (team("red", guarantee=8), team("blue"))
    warm = [job(0, HOUR), job(0, 600, team="blue")]
    wanted = [job(1, HOUR), job(1, HOUR, team="blue")]
    lab = fleet(*teams, pools=(pool(nodes=2),))
    if engine == "slurm":
        connection = SlurmConnection("https://slurm:6820", "fairway", token_file="/token")
        lab = replace(lab, clusters=(Cluster(LAB, connection),))

    result = replay(lab, [*warm, *wanted])

    first = min(list(result.outcomes())[2:], key=lambda outcome: outcome.started or 0.0)
    assert first.team == (BLUE if engine == "slurm" else RED)


def test_free_gpus_that_nothing_waiting_fits_on_are_fragmentation() -> None:
    """Two nodes with 5 of 8 held each: 6 are free for an hour, and a job of 4 waits."""
    trace = [job(0, HOUR, 5), job(0, HOUR, 5), job(0, HOUR, 4)]

    metrics = measure(
        replay(fleet(team("red"), pools=(pool(nodes=2),)), trace, options=ReplayOptions(end=HOUR))
    )

    assert metrics.fragmentation == pytest.approx(6 / 16)
    assert metrics.limited == 0.0


def test_free_gpus_beyond_a_limit_are_no_fragmentation() -> None:
    trace = [job(0, HOUR, 4), job(0, HOUR, 4)]

    metrics = measure(replay(fleet(team("red", borrow=4)), trace, options=ReplayOptions(end=HOUR)))

    assert metrics.limited == pytest.approx(0.5)
    assert metrics.fragmentation == 0.0


def test_work_of_a_preempted_job_is_lost() -> None:
    """Blue holds all; red takes its guarantee back after half an hour, and blue begins again."""
    teams = (team("red", guarantee=8), team("blue"))
    trace = [job(0, HOUR, team="blue"), job(HOUR / 2, HOUR)]

    result = replay(fleet(*teams), trace)
    metrics = measure(result)

    assert [outcome.attempts for outcome in result.outcomes()] == [2, 1]
    assert metrics.preemptions == metrics.teams[BLUE].preemptions == 1
    assert metrics.lost_gpu_hours == metrics.teams[BLUE].lost_gpu_hours == 4.0
    blue = next(outcome for outcome in result.outcomes() if outcome.team == BLUE)
    assert blue.wait == 0.0, "the wait is until the first start"
    assert blue.ended == 2.5 * HOUR


def test_jobs_that_cannot_be_replayed_are_counted_by_reason() -> None:
    trace = [job(0, HOUR, 16), job(0, HOUR, team="green"), job(1, HOUR, team="green"), job(2, HOUR, 1)]

    metrics = measure(replay(fleet(team("red")), trace))

    assert [(found.code, found.jobs) for found in metrics.left_out] == [
        ("UnknownTeam", 2),
        ("LargerThanPool", 1),
    ]
    assert metrics.left_out[1].gpu_hours == 16.0
    assert metrics.left_out_jobs + metrics.total.jobs == len(trace)


def test_a_job_without_a_pool_goes_where_it_fits_and_less_is_asked_for() -> None:
    pools = (pool(name="small", gpus=4), pool(name="big", gpus=8))
    red = replace(team("red"), grants=(Grant(Supply(PoolName("small"))), Grant(Supply(PoolName("big")))))
    trace = [job(0, HOUR, 8), job(1, HOUR, 2), job(2, HOUR, 2), job(3, HOUR, 1, pool="big")]

    result = replay(fleet(red, pools=pools), trace)

    assert [outcome.supply.pool for outcome in result.outcomes()] == ["big", "small", "small", "big"]


def test_a_partition_is_its_pool_and_the_size_is_handed_in() -> None:
    slurm = replace(pool(), place=SlurmPlace("long", other_partitions=("short",)))
    trace = [job(0, HOUR, 8, pool="short"), job(0, HOUR, 8, pool="long")]

    with pytest.raises(Refused, match="size of gpu is not known") as refused:
        replay(fleet(team("red"), pools=(slurm,)), trace)
    result = replay(fleet(team("red"), pools=(slurm,)), trace, {GPU: VirtualPlace(2, 8)})

    assert refused.value.code == "PoolSizeUnknown"
    assert [outcome.wait for outcome in result.outcomes()] == [0.0, 0.0]


def test_another_layout_of_slices_takes_more_jobs_at_a_time() -> None:
    small = SliceName("1g.10gb")
    mig = replace(pool(), slices=(small,), place=VirtualPlace(1, 1, {small: 2}))
    red = replace(team("red"), grants=(Grant(Supply(GPU, small)),))
    trace = [job(0, HOUR, 1, slice=small) for _ in range(4)]

    two = measure(replay(fleet(red, pools=(mig,)), trace, options=ReplayOptions(end=HOUR)))
    four = measure(
        replay(
            fleet(red, pools=(mig,)),
            trace,
            {GPU: VirtualPlace(1, 1, {small: 4})},
            options=ReplayOptions(end=HOUR),
        )
    )

    assert (two.total.mean_wait, four.total.mean_wait) == (HOUR / 2, 0.0)
    assert two.utilisation == four.utilisation == pytest.approx(1.0)
    assert two.gpu_hours == pytest.approx(1.0), "slices count as the part of a GPU that they are"


def test_a_job_is_cancelled_when_its_user_did_so_waiting_or_not() -> None:
    trace = [job(0, HOUR), job(0, 0, cancelled_after=600.0), job(0, HOUR)]

    result = replay(fleet(team("red")), trace)
    cancelled = list(result.outcomes())[1]

    assert (cancelled.started, cancelled.ended) == (None, 600.0)
    assert measure(result).total.never_started == 1


def test_what_ran_when_the_time_began_takes_its_gpus_and_is_not_counted() -> None:
    """One job runs since before the window, one has waited since before it."""
    trace = [job(-2 * HOUR, 2 * HOUR, started=-HOUR), job(-HOUR, HOUR, started=HOUR), job(0, HOUR)]

    result = replay(fleet(team("red")), trace, options=ReplayOptions(begin=0.0, end=3 * HOUR))
    metrics = measure(result)

    assert metrics.total.jobs == 1
    assert metrics.total.mean_wait == 2 * HOUR
    assert metrics.utilisation == 1.0
    assert metrics.gpu_hours == 24.0


def test_spot_nodes_are_lost_at_the_same_times_whatever_the_policy() -> None:
    options = ReplayOptions(
        spot_parts=MappingProxyType({GPU: 0.5}), spot=SpotAssumption(2 * HOUR, HOUR), end=100 * HOUR
    )
    trace = [job(n * HOUR, HOUR, 8) for n in range(100)]
    one = fleet(team("red"), pools=(pool(nodes=4),))
    other = fleet(team("red", guarantee=16), pools=(pool(nodes=4),))

    first = replay(one, trace, seed=1, options=options)
    again = measure(replay(other, trace, seed=1, options=options))
    second = replay(one, trace, seed=2, options=options)
    metrics = measure(first)

    assert first.gpu_seconds[GPU][1] < 16 * 100 * HOUR, "half of the nodes are gone at times"
    assert metrics.pools[GPU].available_gpu_hours == again.pools[GPU].available_gpu_hours
    assert first.gpu_seconds != second.gpu_seconds
    assert metrics.total.never_started == 0
    assert metrics.cost < measure(replay(one, trace, options=ReplayOptions(end=100 * HOUR))).cost
    usual, spot = (seconds / HOUR for seconds in first.gpu_seconds[GPU])
    assert usual == 1600
    assert metrics.cost == pytest.approx(Decimal(2) * (1600 + Decimal(spot) * Decimal("0.35")))


def test_a_pool_that_is_spot_refuses_jobs_that_do_not_tolerate_it() -> None:
    trace = [job(0, HOUR), job(0, HOUR, tolerates_loss=True)]

    metrics = measure(replay(fleet(team("red"), pools=(pool(capacity=Capacity.SPOT),)), trace))

    assert [(found.code, found.jobs) for found in metrics.left_out] == [("SpotNeedsTolerance", 1)]
    assert metrics.total.jobs == 1


def test_limits_and_priorities_of_the_fleet_hold() -> None:
    red = replace(team("red"), limits=Limits(job_gpus=4), priorities=(PriorityName("normal"),))
    trace = [job(0, HOUR, 8), job(0, HOUR, 4, priority=PriorityName("urgent")), job(0, HOUR, 4)]

    metrics = measure(replay(fleet(red), trace))

    assert {found.code for found in metrics.left_out} == {"JobTooLarge", "PriorityNotAllowed"}


def test_users_of_the_trace_need_be_no_members() -> None:
    trace = [job(0, HOUR, user=UserName("ann")), job(0, HOUR, 1, team="", user=UserName("bob"))]
    red = replace(team("red"), members=(UserName("bob"),))

    assert measure(replay(fleet(red), trace)).total.jobs == 2


def test_fairness_compares_service_with_what_shares_give() -> None:
    """Each team wants everything all the time; a ceiling leaves blue a quarter of its half."""
    trace = [job(0, 10 * HOUR, 1, team=name) for _ in range(8) for name in ("red", "blue")]
    options = ReplayOptions(end=HOUR)

    equal = measure(replay(fleet(team("red"), team("blue")), trace, options=options))
    unequal = measure(replay(fleet(team("red"), team("blue", borrow=1)), trace, options=options))

    assert equal.fairness == pytest.approx(1.0, abs=0.02)
    assert unequal.teams[BLUE].service == pytest.approx(0.25)
    assert unequal.teams[RED].service == pytest.approx(7 / 4)
    assert unequal.fairness == pytest.approx((0.25 + 1.75) ** 2 / (2 * (0.25**2 + 1.75**2)))


_JOBS = st.builds(
    lambda at, seconds, gpus, nodes, team: TraceJob(at, seconds, gpus, nodes, team=TeamName(team)),
    st.integers(0, 5000),
    st.integers(1, 3000),
    st.integers(1, 9),
    st.integers(1, 3),
    st.sampled_from(["red", "blue", "green"]),
)


@given(st.lists(_JOBS, max_size=40), st.integers(0, 3))
def test_nothing_is_lost_from_sight(jobs: list[TraceJob], seed: int) -> None:
    """Every job is counted once, every GPU-hour is used, unused or lost, and the same seed gives the same."""
    trace = sorted(jobs, key=lambda found: found.at)
    teams = (team("red", guarantee=4, share=2), team("blue", borrow=12))
    options = ReplayOptions(end=100_000.0, samples=50)
    small = fleet(*teams, pools=(pool(nodes=2),))

    metrics = measure(replay(small, trace, seed=seed, options=options))

    assert metrics == measure(replay(small, trace, seed=seed, options=options))
    assert metrics.total.jobs + metrics.left_out_jobs == len(trace)
    assert metrics.total.jobs == sum(stats.jobs for stats in metrics.sizes.values())
    assert metrics.total.jobs == sum(stats.waits.jobs for stats in metrics.teams.values())
    assert metrics.total.never_started == 0
    asked = sum(j.devices * j.seconds / HOUR for j in trace) - sum(f.gpu_hours for f in metrics.left_out)
    assert metrics.gpu_hours == pytest.approx(asked + metrics.lost_gpu_hours)
    assert metrics.gpu_hours == pytest.approx(sum(found.gpu_hours for found in metrics.teams.values()))
    assert 0.0 <= metrics.utilisation + metrics.fragmentation + metrics.limited <= 1.1
    assert 0.0 < metrics.fairness <= 1.0 + 1e-9
    assert set(metrics.sizes) <= set(SizeClass)


def test_a_job_that_was_cancelled_while_it_waited_may_start_and_end_at_its_limit() -> None:
    """Here it starts at once, and its limit is shorter than its user's patience."""
    trace = [job(0, 0, cancelled_after=2 * HOUR, limit_seconds=HOUR), job(0, HOUR)]

    (cancelled, after) = replay(fleet(team("red")), trace).outcomes()

    assert (cancelled.wait, cancelled.ended) == (0.0, HOUR)
    assert after.wait == HOUR
