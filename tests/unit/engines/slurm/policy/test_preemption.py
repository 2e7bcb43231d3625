"""Which job makes place for an urgent one of its own team."""

from __future__ import annotations

import pytest

from fairway.engines.slurm.policy.preemption import RunningJob, WaitingJob, select_victims

URGENT, NORMAL, LOW = 100, 50, 10


def waits(gpus: int, nodes: int = 1) -> WaitingJob:
    return WaitingJob(99, URGENT, "product", "bob", "gpu", gpus, nodes)


def runs(job: int, rank: int = NORMAL, started: int = 0, **gpus: int) -> RunningJob:
    return RunningJob(job, rank, started, gpus)


@pytest.mark.parametrize(
    ("waiting", "running", "victims"),
    [
        (waits(8), [], []),
        (waits(8), [runs(1, a=8)], [1]),
        (waits(8), [runs(1, rank=URGENT, a=8)], []),  # urgent ones spare each other
        (waits(4), [runs(1, a=8), runs(2, b=4)], [2]),  # the smallest that is enough
        (waits(4), [runs(1, started=5, a=4), runs(2, started=9, b=4)], [2]),  # the youngest
        (waits(4), [runs(1, started=9, a=4), runs(2, rank=LOW, started=5, b=4)], [2]),  # the lowest
        (waits(4), [runs(1, a=4), runs(2, b=4)], [2]),  # in the same second: the later one
        (waits(8), [runs(1, a=4), runs(2, b=4)], []),  # on two nodes: would not fit
        (waits(8), [runs(1, a=4), runs(2, a=4), runs(3, b=4)], [1, 2]),
        (waits(16, nodes=2), [runs(1, a=8), runs(2, b=8), runs(3, c=8)], [2, 3]),
        (waits(16, nodes=2), [runs(1, a=8, b=8)], [1]),
        (waits(16, nodes=2), [runs(1, a=8)], []),
        (waits(2), [runs(1, a=8, b=8), runs(2, c=3)], [2]),
    ],
)
def test_the_least_is_taken(waiting: WaitingJob, running: list[RunningJob], victims: list[int]) -> None:
    assert sorted(job.id for job in select_victims(waiting, running)) == victims
