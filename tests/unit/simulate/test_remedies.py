"""Remedies: what is offered helps in the model by a clear amount, and what does not is not offered."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fairway.model.job import JobId
from fairway.model.job_change import JobChange
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName
from fairway.model.team import Supply
from fairway.simulate.cluster import NodeSnapshot
from fairway.simulate.remedies import Candidate, focused, remedies, smaller_sizes
from fairway.simulate.restore import restore
from fairway.simulate.snapshot import ClusterSnapshot, RunningJob, WaitingJob
from tests.tier import examples
from tests.unit.simulate.test_restore import LAB, PLAIN, SUPPLY, pool, request
from tests.unit.simulate.test_starts import NOW, Predictor

JOB = JobId(100)
NAMES = (NodeName("n0"), NodeName("n1"))


def busy(
    waiting: tuple[WaitingJob, ...], held: tuple[int, ...] = (6, 8), limit: float = 7200.0
) -> ClusterSnapshot:
    """Two nodes with 8 GPUs each, of which `held` are taken for two hours."""
    return ClusterSnapshot(
        LAB,
        NOW,
        (pool(nodes=2),),
        PLAIN,
        tuple(NodeSnapshot(name, SUPPLY, 8) for name in NAMES),
        tuple(
            RunningJob(JobId(n + 1), request("b", gpus, limit_seconds=limit), NOW - 300, NOW, (NAMES[n],))
            for n, gpus in enumerate(held)
            if gpus
        ),
        waiting,
    )


def job(gpus: int, number: int = JOB, limit: float | None = 3600.0) -> WaitingJob:
    return WaitingJob(JobId(number), request("c", gpus, limit_seconds=limit), NOW - 50 + number / 1000)


def sized(one: WaitingJob, gpus: int) -> Candidate:
    return Candidate(JobChange(gpus=gpus), replace(one.request, gpus=gpus))


def test_what_starts_now_is_first_and_what_changes_nothing_is_not_offered() -> None:
    one = job(8)
    found = remedies(busy((one,)), JOB, [sized(one, 7), sized(one, 4), sized(one, 2)], Predictor())
    assert [remedy.candidate.change.gpus for remedy in found] == [2]
    (best,) = found
    assert best.starts_now
    assert (best.within, best.expected, best.sooner) == (0.0, 0.0, 7200.0)


def test_a_job_that_starts_anyway_needs_no_remedy() -> None:
    one = job(2)
    assert remedies(busy((one,)), JOB, [sized(one, 1)], Predictor()) == []
    assert remedies(busy((one,)), JobId(7), [sized(one, 1)], Predictor()) == []


def test_a_shorter_limit_fits_before_the_job_that_waits_for_more() -> None:
    """GPUs are free until the first job can start, which needs both nodes."""
    large = WaitingJob(JobId(50), request("c", 8, nodes=2, limit_seconds=3600.0), NOW - 3600)
    one = job(2, limit=10_000.0)
    candidates = [
        Candidate(JobChange(time_seconds=seconds), replace(one.request, limit_seconds=float(seconds)))
        for seconds in (9000, 7000)
    ]
    found = remedies(busy((large, one)), JOB, candidates, Predictor())
    assert [remedy.candidate.change.time_seconds for remedy in found] == [7000]
    assert found[0].starts_now


def test_another_cluster_is_played_with_the_job_at_the_end_of_its_queue() -> None:
    one = job(8)
    cloud = Supply(PoolName("cloud"))

    def elsewhere(held: int, waiting: tuple[WaitingJob, ...] = ()) -> Candidate:
        there = replace(
            busy(waiting, (held, held), limit=600.0),
            cluster=ClusterName("cloud"),
        )
        return Candidate(JobChange(pool=cloud.pool), one.request, there)

    found = remedies(busy((one,)), JOB, [elsewhere(0), elsewhere(8)], Predictor())
    assert [(remedy.within, remedy.starts_now) for remedy in found] == [(0.0, True), (600.0, False)]
    queue = tuple(job(8, number) for number in range(200, 210))
    assert remedies(busy((one,)), JOB, [elsewhere(8, queue)], Predictor()) == [], "others are before it"


def test_with_a_higher_priority_a_job_is_before_all_that_came_later() -> None:
    """Both nodes are free after two hours; without the change, three jobs of an hour are before it."""
    low, normal = PriorityName("low"), PriorityName("normal")
    one = replace(job(8, 1100), request=replace(job(8).request, priority=low), submitted=NOW - 900)
    queue = tuple(
        replace(job(8, number), request=replace(job(8).request, priority=normal), submitted=NOW - 600)
        for number in (200, 201, 202)
    )
    higher = Candidate(JobChange(priority=normal), replace(one.request, priority=normal))
    (found,) = remedies(busy((*queue, one), (8, 8)), one.job, [higher], Predictor())
    assert (found.within, found.sooner) == (7200.0, 3600.0)


def test_only_the_jobs_of_its_supply_and_the_nearest_before_it_are_played() -> None:
    others = tuple(job(8, number) for number in range(200, 260))
    elsewhere = WaitingJob(JobId(300), replace(request("c", 1), pool=PoolName("other")), NOW)
    one = job(8, 400)
    whole = busy((*others, elsewhere, one, job(8, 500)))
    small = focused(whole, one, most=10)
    assert [w.job for w in small.waiting] == [*range(251, 260), 400]
    assert elsewhere not in focused(whole, one).waiting
    assert len(focused(whole, one).waiting) == 62


def test_sizes_that_are_worth_a_try() -> None:
    assert list(smaller_sizes(request("c", 8, nodes=4))) == [
        JobChange(gpus=4),
        JobChange(gpus=2),
        JobChange(gpus=1),
        JobChange(nodes=2),
        JobChange(nodes=1),
    ]
    assert list(smaller_sizes(request("c", 1))) == []


@settings(max_examples=examples(200), deadline=None)
@given(
    held=st.tuples(st.integers(0, 8), st.integers(0, 8)),
    gpus=st.lists(st.integers(1, 8), min_size=1, max_size=6),
    asked=st.integers(0, 5),
    smaller=st.integers(1, 8),
)
def test_where_everything_is_known_a_remedy_starts_within_the_stated_time(
    held: tuple[int, int], gpus: list[int], asked: int, smaller: int
) -> None:
    """Played once more with the true run times, in a simulator that knows of no forecasts."""
    queue = tuple(job(n, 100 + place) for place, n in enumerate(gpus))
    one = queue[asked % len(queue)]
    snapshot = busy(queue, held)
    for remedy in remedies(snapshot, one.job, [sized(one, smaller)], Predictor(), futures=5):
        changed = replace(one, request=remedy.candidate.request)
        waiting = tuple(changed if w.job == one.job else w for w in queue)
        restored = restore(
            replace(snapshot, waiting=waiting), lambda job: float(job.request.limit_seconds or 0)
        )
        number = next(n for n, job_id in restored.waiting.items() if job_id == one.job)
        restored.simulator.advance(NOW + remedy.within)
        assert restored.simulator.attempts(number), remedy
