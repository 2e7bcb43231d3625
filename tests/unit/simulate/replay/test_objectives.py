"""Replays are judged by objectives, grow with the demand, and tell what they held beyond some GPUs."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.files import parse_fleet
from fairway.files.traces.read import read_trace
from fairway.model.fleet import Capacity, Fleet
from fairway.model.names import PoolName, TeamName, UserName
from fairway.model.slo import DAY, DeliveredWithin, Slo, StartsWithin
from fairway.model.trace import TraceJob
from fairway.policy.slo import Counts
from fairway.simulate.capacity import SizeSearch, meets, monthly_cost, price_by_kind, with_nodes
from fairway.simulate.replay import ReplayOptions, RunResult, Scenario, replay, run_scenario, sizes_of
from fairway.simulate.replay.growth import grown
from fairway.simulate.replay.objectives import count_objectives, held_beyond
from tests.tier import examples

EXAMPLES = Path(__file__).parents[4] / "examples/what-if"
POOL = PoolName("hpc-a100")
RESEARCH = Slo("research", StartsWithin(3600), Decimal("0.95"), team=TeamName("research"))
SMALL = Slo("small", StartsWithin(600), Decimal("0.95"), gpus=4)
HOURS = Slo("hours", DeliveredWithin(Decimal(10**6), DAY), Decimal("0.9"), team=TeamName("product"))


@pytest.fixture(scope="module")
def fleet() -> Fleet:
    return parse_fleet((EXAMPLES / "fleet.yaml").read_text(), "fleet.yaml")


@pytest.fixture(scope="module")
def trace() -> list[TraceJob]:
    return list(read_trace(EXAMPLES / "jobs.csv"))


@pytest.fixture(scope="module")
def result(fleet: Fleet, trace: list[TraceJob]) -> RunResult:
    return replay(fleet, trace)


def test_starts_are_judged_as_the_waits_of_the_replay(result: RunResult) -> None:
    found = count_objectives(result, [RESEARCH, SMALL])
    outcomes = list(result.outcomes())
    for slo, of in (
        (RESEARCH, [o for o in outcomes if o.team == "research"]),
        (SMALL, [o for o in outcomes if o.job.devices <= 4]),
    ):
        assert isinstance(slo.promise, StartsWithin)
        bound = slo.promise.seconds
        good = sum(o.wait is not None and o.wait <= bound for o in of)
        # A job that was cancelled in time is no event.
        ended = sum(o.started is None and o.ended is not None and o.ended - o.submitted <= bound for o in of)
        assert found[slo.name] == Counts(good, len(of) - good - ended)
        assert found[slo.name].bad > 0


def test_gpu_hours_are_good_if_they_were_held_within_the_time(fleet: Fleet) -> None:
    jobs = [TraceJob(0, 2 * 3600, 8, team=TeamName("product"), limit_seconds=2 * 3600)]
    waits = TraceJob(1, 3600, 64, team=TeamName("product"), limit_seconds=3600)
    assert count_objectives(replay(fleet, jobs), [HOURS])["hours"] == Counts(good=8 * 2 * 3600)
    late = replace(jobs[0], seconds=2 * DAY, limit_seconds=None)
    # A day of it was delivered in a day; the job that waits for a place is more than its team may hold.
    assert count_objectives(replay(fleet, [late, waits]), [HOURS])["hours"] == Counts(good=8 * DAY)


def test_what_was_held_beyond_some_gpus_is_the_area_above_them(result: RunResult) -> None:
    spans = [
        (max(o.started, o.ended - o.job.seconds), o.ended, o.job.devices)  # attempts before are not kept
        for o in result.outcomes(counted=False)
        if o.started is not None and o.ended is not None
    ]
    whole = sum(n * max(0.0, min(end, result.end) - max(start, result.begin)) for start, end, n in spans)
    assert held_beyond(result, {POOL: 0.0})[POOL] == pytest.approx(whole / 3600)
    moments = [result.begin + 900 * (n + 0.5) for n in range(int((result.end - result.begin) / 900))]
    held = [sum(n for start, end, n in spans if start <= at < end) for at in moments]
    for gpus in (30.0, 50.0):
        area = sum(max(0.0, n - gpus) for n in held) / 4
        assert held_beyond(result, {POOL: gpus})[POOL] == pytest.approx(area, rel=0.05)
    assert held_beyond(result, {POOL: 64.0})[POOL] == 0


@settings(max_examples=examples(60))
@given(st.floats(0, 4), st.floats(0, 4))
def test_a_larger_demand_contains_every_smaller_one(less: float, more: float) -> None:
    less, more = sorted((less, more))
    jobs = [TraceJob(n * 700.0, 60, user=UserName(f"u{n % 3}"), name=f"j{n}") for n in range(400)]
    begin, end = 0.0, jobs[-1].at
    small, large = (Counter(grown(jobs, factor, begin, end)) for factor in (less, more))
    assert small <= large
    assert small.total() == pytest.approx(400 * less, abs=60)
    assert all(begin <= job.at <= end for job in large)


def test_growth_keeps_arrays_together_and_the_time_of_day(trace: list[TraceJob]) -> None:
    begin, end = trace[0].at, trace[-1].at
    assert grown(trace, 1.0, begin, end) is trace
    array = [replace(trace[5], at=trace[5].at // 600 * 600, name=f"task-{n}") for n in range(20)]
    for factor in (0.5, 1.3, 2.7):
        names = Counter(job.name for job in grown(array, factor, begin, end))
        assert len(set(names.values())) <= 1  # all or none, equally often
    doubled = grown(trace, 2.0, begin, end)
    assert len(doubled) == 2 * len(trace)
    assert sum(job.devices for job in doubled) == 2 * sum(job.devices for job in trace)
    seconds = Counter(round((job.at - begin) % DAY) for job in doubled)
    assert set(seconds.values()) <= {2 * n for n in range(1, 200)}


def test_a_scenario_grows_and_is_judged(fleet: Fleet, trace: list[TraceJob]) -> None:
    judged = replace(fleet, slos=(RESEARCH,))
    usual, more = (
        run_scenario(Scenario("s", judged, options=ReplayOptions(growth=g, beyond={POOL: 32})), trace, 0)
        for g in (1.0, 1.5)
    )
    parts = [run.objectives["research"].compliance for run in (usual, more)]
    assert parts[0] is not None and parts[1] is not None and parts[0] > parts[1]
    assert usual.beyond[POOL] < more.beyond[POOL]
    assert usual.observed is not None and more.observed is None


# --- sizes ------------------------------------------------------------------------------------------------


@given(st.integers(1, 300), st.integers(1, 400), st.integers(1, 40), st.integers(1, 600))
def test_the_search_finds_the_least_size_that_meets(current: int, most: int, least: int, needed: int) -> None:
    search, tried = SizeSearch(current, most, least), 0
    while (size := search.next_size()) is not None:
        assert size >= least
        search.tell(size, meets=size >= needed)
        tried += 1
        assert tried < 25
    if needed > max(most, current, least):
        assert search.found is None
    else:
        assert search.found == max(needed, least)


def test_objectives_are_met_if_all_are() -> None:
    targets = {"a": Decimal("0.95"), "b": Decimal("0.5")}
    assert meets({"a": Counts(95, 5), "b": Counts()}, targets)
    assert not meets({"a": Counts(94, 6), "b": Counts(9)}, targets)


def test_limits_of_teams_grow_with_the_pool_unless_they_are_kept(fleet: Fleet) -> None:
    sizes = sizes_of(fleet)

    def grants(nodes: int, *, keep: bool) -> list[tuple[int, int | None]]:
        changed, places = with_nodes(fleet, sizes, POOL, nodes, keep_limits=keep)
        assert places[POOL].nodes == nodes
        return [(team.grants[0].guarantee, team.grants[0].ceiling) for team in changed.teams]

    usual = [(32, 40), (24, 32), (8, 16)]
    assert grants(8, keep=False) == grants(12, keep=True) == usual
    assert grants(12, keep=False) == [(48, 60), (36, 48), (12, 24)]
    assert grants(3, keep=False) == grants(3, keep=True) == [(12, 15), (9, 12), (3, 6)]
    for nodes in range(1, 30):
        assert sum(g for g, _ in grants(nodes, keep=False)) <= nodes * 8


def test_costs_are_those_of_the_same_type_of_gpu(fleet: Fleet) -> None:
    (owned,) = fleet.pools
    cloud = [
        replace(owned, name=PoolName(f"c{n}"), capacity=kind)
        for n, kind in enumerate((Capacity.ON_DEMAND, Capacity.ON_DEMAND, Capacity.RESERVED))
    ]
    h100 = replace(cloud[0], name=PoolName("h100"), gpu=replace(owned.gpu, name="H100"))
    prices = {p.name: Decimal(n + 2) for n, p in enumerate((owned, *cloud, h100))}
    found = price_by_kind([owned, *cloud, h100], owned, prices)
    assert found == {Capacity.OWNED: 2, Capacity.ON_DEMAND: 3, Capacity.RESERVED: 5}
    cost = monthly_cost(found, 8, 100.5)
    assert (cost.buy, cost.reserve, cost.burst) == (Decimal("11688.0"), Decimal("29220.0"), Decimal("301.5"))
    assert monthly_cost({Capacity.OWNED: Decimal(2)}, 8, 100).burst is None
