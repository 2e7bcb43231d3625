"""What GPUs did goes to the jobs that held them, and never more than they held."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.model.gpu_use import Device, Holding, JobDevices, MetricCode, Window
from fairway.model.job import JobId
from fairway.telemetry.attribution import Holders, Reading, Sample, ambiguous, attribute

WINDOW = Window(1_200_000, 1_200_600)
INTERVAL = 15.0
GPU = Device("n1", "0")


@dataclass(frozen=True)
class Run:
    """A job on GPUs of one node, busy at a constant ratio."""

    job: int
    gpus: tuple[int, ...]
    since: float
    until: float
    busy: float

    def has(self, gpu: int, at: float) -> bool:
        return gpu in self.gpus and self.since <= at < self.until


def _times(offset: float) -> list[float]:
    return [WINDOW.start + offset + n * INTERVAL for n in range(int(WINDOW.seconds / INTERVAL))]


def _served(runs: Sequence[Run], gpus: int, offset: float) -> dict[Device, list[Sample]]:
    """Every sample of a node, with the names of those who hold the GPU; an idle one shows 0."""
    served: dict[Device, list[Sample]] = {}
    for gpu in range(gpus):
        for at in _times(offset):
            holding = [run for run in runs if run.has(gpu, at)]
            busy = sum(run.busy for run in holding) / max(1, len(holding))
            names = tuple(str(run.job) for run in holding)
            served.setdefault(Device("n1", str(gpu)), []).append(
                Sample(at, names, {MetricCode.ENGINE: busy, MetricCode.MEMORY: 1000.0 * busy})
            )
    return served


def _readings(served: Mapping[Device, Sequence[Sample]], *, named: bool) -> list[Reading]:
    """What Prometheus makes of it: counts and means by device and holder."""
    readings = []
    for device, samples in served.items():
        names = {name for s in samples for name in (s.holders if named and s.holders else ("",))}
        for name in sorted(names):
            own = [s for s in samples if (name in s.holders if name else not (named and s.holders))]
            means = {
                code: sum(s.values[code] for s in own) / len(own)
                for code in (MetricCode.ENGINE, MetricCode.MEMORY)
            }
            readings.append(
                Reading(device, name, len(own), means, max(s.values[MetricCode.MEMORY] for s in own))
            )
    return readings


def _holdings(runs: Sequence[Run], *, named: bool) -> list[Holding]:
    return [
        Holding(
            JobId(run.job),
            len(run.gpus),
            run.since,
            run.until,
            frozenset({str(run.job)}) if named else frozenset(),
            {} if named else {"n1": run.gpus},
        )
        for run in runs
    ]


def _attributed(runs: Sequence[Run], gpus: int, *, named: bool, offset: float = 7.0) -> JobDevices:
    served = _served(runs, gpus, offset)
    readings = _readings(served, named=named)
    holders = Holders(_holdings(runs, named=named), WINDOW)
    divided = ambiguous(readings, holders, INTERVAL)
    samples = {
        device: tuple(Sample(s.at, s.holders if named else (), s.values) for s in served[device])
        for device in divided
    }
    return attribute(readings, samples, holders, INTERVAL)


def _measured(found: JobDevices, job: int) -> float:
    return sum(sums.measured for sums in found.get(JobId(job), {}).values())


def _busy(found: JobDevices, job: int) -> float:
    return sum(s.integrals.get(MetricCode.ENGINE, 0.0) for s in found.get(JobId(job), {}).values())


@st.composite
def _schedules(draw: st.DrawFn) -> list[Run]:
    """Jobs that follow each other on four GPUs, with gaps, some of them beyond the window."""
    runs: list[Run] = []
    job = 1
    for gpus in draw(st.sampled_from([((0, 1, 2, 3),), ((0, 1), (2, 3)), ((0,), (1,), (2, 3))])):
        at = float(WINDOW.start - draw(st.integers(0, 500)))
        while at < WINDOW.end:
            until = at + 900 - draw(st.integers(0, 899))
            runs.append(Run(job, gpus, at, until, draw(st.floats(0, 1))))
            job += 1
            at = until + draw(st.integers(0, 200))
    return runs


@given(_schedules(), st.booleans(), st.floats(0, 14.9))
def test_each_job_gets_its_own_within_one_scrape(runs: list[Run], named: bool, offset: float) -> None:
    found = _attributed(runs, 4, named=named, offset=offset)
    for run in runs:
        held = max(0.0, min(run.until, WINDOW.end) - max(run.since, WINDOW.start)) * len(run.gpus)
        measured = _measured(found, run.job)
        assert measured <= held + 1e-6
        assert held - measured <= INTERVAL * len(run.gpus) + 1e-6
        assert abs(_busy(found, run.job) - run.busy * measured) < 1e-6


@given(_schedules(), st.floats(0, 14.9))
def test_labels_and_indices_give_the_same(runs: list[Run], offset: float) -> None:
    named = _attributed(runs, 4, named=True, offset=offset)
    by_index = _attributed(runs, 4, named=False, offset=offset)
    for run in runs:
        assert math.isclose(_measured(named, run.job), _measured(by_index, run.job), abs_tol=1e-6)
        assert math.isclose(_busy(named, run.job), _busy(by_index, run.job), abs_tol=1e-6)


@given(st.integers(2, 4), st.lists(st.integers(0, 599), min_size=8, max_size=8))
def test_a_shared_gpu_is_counted_once(jobs: int, moments: list[int]) -> None:
    """Whoever holds a GPU at the same time gets an equal part of each sample."""
    runs = [
        Run(n + 1, (0,), WINDOW.start + min(a, b), WINDOW.start + max(a, b) + 1, 0.5)
        for n, (a, b) in enumerate(zip(moments[:jobs], moments[4 : 4 + jobs], strict=True))
    ]
    found = _attributed(runs, 1, named=True)
    covered = sum(any(run.has(0, at) for run in runs) for at in _times(7.0)) * INTERVAL
    # Two that overlap for less than a scrape are not told apart.
    assert sum(_measured(found, run.job) for run in runs) <= covered + (jobs - 1) * INTERVAL + 1e-6


def test_two_jobs_on_one_gpu_all_the_time_get_half_each() -> None:
    runs = [Run(1, (0,), 0, 2e9, 0.8), Run(2, (0,), 0, 2e9, 0.8)]
    found = _attributed(runs, 1, named=True)
    assert _measured(found, 1) == _measured(found, 2) == WINDOW.seconds / 2


def test_a_silent_exporter_is_not_idle() -> None:
    holders = Holders([Holding(JobId(1), 1, 0, 2e9, frozenset({"1"}))], WINDOW)
    half = Reading(GPU, "1", 20, {MetricCode.ENGINE: 0.6})
    (sums,) = attribute([half], {}, holders, INTERVAL)[JobId(1)].values()
    assert sums.measured == 300
    assert sums.idle == 0
    assert holders.held[JobId(1)] == 600


def test_a_gpu_that_nobody_of_the_ledger_holds_counts_for_nobody() -> None:
    holders = Holders([Holding(JobId(1), 1, 0, 2e9, frozenset({"1"}), {"n1": (1,)})], WINDOW)
    stranger = Reading(GPU, "77", 40, {MetricCode.ENGINE: 0.6})
    free = Reading(Device("n1", "3"), "", 40, {MetricCode.ENGINE: 0.0})
    assert attribute([stranger, free], {}, holders, INTERVAL) == {}


def test_a_requeued_job_has_two_holdings_of_one_name() -> None:
    first = Holding(JobId(1), 1, WINDOW.start, WINDOW.start + 100, frozenset({"1"}))
    second = Holding(JobId(1), 1, WINDOW.start + 400, 2e9, frozenset({"1"}))
    holders = Holders([first, second], WINDOW)
    found = attribute([Reading(GPU, "1", 20, {MetricCode.ENGINE: 1.0})], {}, holders, INTERVAL)
    assert _measured(found, 1) == 300 == holders.held[JobId(1)]


@pytest.mark.parametrize("missing", [MetricCode.SM, MetricCode.ENGINE])
def test_a_metric_that_is_not_exported_has_no_seconds(missing: MetricCode) -> None:
    holders = Holders([Holding(JobId(1), 1, 0, 2e9, frozenset({"1"}))], WINDOW)
    means = {code: 0.5 for code in MetricCode if code is not missing}
    (sums,) = attribute([Reading(GPU, "1", 40, means)], {}, holders, INTERVAL)[JobId(1)].values()
    assert missing not in sums.seconds
    assert sums.seconds[MetricCode.TENSOR] == 600


def test_a_name_that_an_epilog_left_behind_says_nothing() -> None:
    """The job that is named has ended; the engine says who holds the GPU now."""
    holders = Holders([Holding(JobId(2), 1, 0, 2e9, frozenset({"2"}), {"n1": (0,)})], WINDOW)
    stale = Reading(GPU, "1", 40, {MetricCode.ENGINE: 0.6})
    assert ambiguous([stale], holders, INTERVAL) == set()
    assert _measured(attribute([stale], {}, holders, INTERVAL), 2) == 600


def test_a_name_that_is_missing_for_a_while() -> None:
    """The prolog of the second job failed: its half has no name, and the engine knows whose it is."""
    middle = WINDOW.start + 300
    first = Holding(JobId(1), 1, 0, middle, frozenset({"1"}), {"n1": (0,)})
    second = Holding(JobId(2), 1, middle, 2e9, frozenset({"2"}), {"n1": (0,)})
    holders = Holders([first, second], WINDOW)
    readings = [
        Reading(GPU, "1", 20, {MetricCode.ENGINE: 1.0}),
        Reading(GPU, "", 20, {MetricCode.ENGINE: 0.5}),
    ]
    assert ambiguous(readings, holders, INTERVAL) == {GPU}
    samples = [
        Sample(at, ("1",) if at < middle else (), {MetricCode.ENGINE: 1.0 if at < middle else 0.5})
        for at in _times(7)
    ]
    found = attribute(readings, {GPU: samples}, holders, INTERVAL)
    assert (_measured(found, 1), _measured(found, 2)) == (300, 300)
    assert (_busy(found, 1), _busy(found, 2)) == (300, 150)


def test_a_name_that_was_given_again_is_divided_by_time() -> None:
    """A pod of a set has the name of the one before it."""
    middle = WINDOW.start + 300
    holders = Holders(
        [
            Holding(JobId(1), 1, 0, middle, frozenset({"ns/web-0"})),
            Holding(JobId(2), 1, middle, 2e9, frozenset({"ns/web-0"})),
        ],
        WINDOW,
    )
    reading = Reading(GPU, "ns/web-0", 40, {MetricCode.ENGINE: 0.5})
    assert ambiguous([reading], holders, INTERVAL) == {GPU}
    samples = [Sample(at, ("ns/web-0",), {MetricCode.ENGINE: 0.5}) for at in _times(7)]
    found = attribute([reading], {GPU: samples}, holders, INTERVAL)
    assert (_measured(found, 1), _measured(found, 2)) == (300, 300)


@pytest.mark.parametrize("change", [None, WINDOW.start + 300.0])
def test_the_slices_of_a_board_share_its_power(change: float | None) -> None:
    """Whether a slice has one holder or, sample by sample, two."""
    slices = {"1": "3g.40gb", "2": "3g.40gb", "3": "1g.10gb"}
    holdings = [Holding(JobId(2), 1, WINDOW.start, WINDOW.end, frozenset({"2"}))]
    names = {"1": ("1",), "2": ("2",), "3": ("",)}
    if change is None:
        holdings.append(Holding(JobId(1), 1, WINDOW.start, WINDOW.end, frozenset({"1"})))
    else:
        # A name that was given again.
        holdings.append(Holding(JobId(1), 1, WINDOW.start, change, frozenset({"1"})))
        holdings.append(Holding(JobId(3), 1, change, WINDOW.end, frozenset({"1"})))
    means = {MetricCode.ENGINE: 0.5, MetricCode.POWER: 350.0}
    readings = [
        Reading(Device("n1", "0", instance), name, WINDOW.seconds / INTERVAL, means, profile=profile)
        for instance, profile in slices.items()
        for name in names[instance]
    ]
    holders = Holders(holdings, WINDOW)
    devices = ambiguous(readings, holders, INTERVAL)
    assert devices == (set() if change is None else {Device("n1", "0", "1")})
    samples = {device: [Sample(at, ("1",), means) for at in _times(0)] for device in devices}
    jobs = attribute(readings, samples, holders, INTERVAL)
    joules = {
        job: sum(use.integrals[MetricCode.POWER] for use in devices.values()) for job, devices in jobs.items()
    }
    share = 350.0 * WINDOW.seconds * 3 / 7
    expected = {1: share, 2: share} if change is None else {1: share / 2, 2: share, 3: share / 2}
    assert joules == pytest.approx(expected)
