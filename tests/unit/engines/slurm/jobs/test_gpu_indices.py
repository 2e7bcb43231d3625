"""Which GPUs a job has is asked once for each attempt, and a silent slurmrestd holds up nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fairway.engines.port import Unreachable
from fairway.engines.slurm.jobs.gpu_indices import (
    JOBS_A_STEP,
    GpuIndexReader,
    GresJob,
    GresJobReply,
    indices_of,
)
from tests.unit.engines.slurm.jobs.test_mirror import row


@pytest.mark.parametrize(
    ("nodes", "detail", "expected"),
    [
        ("gpu001", ("gpu:a100:2(IDX:6-7)",), {"gpu001": (6, 7)}),
        (
            "gpu[001-002]",
            ("gpu:a100:3(IDX:0-1,5)", "gpu:a100:1(IDX:3)"),
            {"gpu001": (0, 1, 5), "gpu002": (3,)},
        ),
        ("n1", ("gpu:(null):1(IDX:2)",), {"n1": (2,)}),
        ("n1", ("gpu:a100:1(IDX:2),gpu:v100:1(IDX:5)",), {"n1": (2, 5)}),
        ("mig001", ("gpu:1g.10gb:1(IDX:0)",), {}),
        ("n1", ("shard:a100:2(2/4,0/4)",), {}),
        ("n1", (), {}),
        ("n1", ("gpu:a100:0(IDX:)",), {}),
    ],
)
def test_indices(nodes: str, detail: tuple[str, ...], expected: dict[str, tuple[int, ...]]) -> None:
    assert indices_of(GresJob(1, 0, nodes, detail)) == expected


class Rest:
    """Answers as slurmrestd does."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.fails = False
        self.restarts = 0

    @asynccontextmanager
    async def time_limit(self, seconds: float) -> AsyncIterator[None]:
        yield

    async def get_typed(self, resource: str, kind: type[GresJobReply]) -> GresJobReply:
        if self.fails:
            raise Unreachable("SlurmUnreachable", "it is down", "wait")
        self.asked.append(resource)
        number = int(resource.removeprefix("job/"))
        gres = ("gpu:a100:2(IDX:2-3)",) * 2
        return kind(
            jobs=(
                GresJob(number, self.restarts, "gpu[001-002]", gres),
                GresJob(999, 0, "gpu001", ("gpu:a100:1(IDX:7)",)),
            )
        )


def reader(rest: Rest) -> tuple[GpuIndexReader, list[float]]:
    now = [0.0]
    return GpuIndexReader(rest, clock=lambda: now[0]), now  # type: ignore[arg-type]


async def test_a_task_is_asked_for_by_its_own_number_and_once() -> None:
    rest = Rest()
    indices, _ = reader(rest)
    task = row(jobarrayid="12_1", jobid="13")
    indices.want(task)
    assert indices.of(task) == {}
    assert await indices.step() == ["12_1"]
    assert indices.of(task) == {"gpu001": (2, 3), "gpu002": (2, 3)}
    indices.want(task)
    indices.want(row(jobid="14", state="PENDING"))
    indices.want(row(jobid="15", tres_alloc="cpu=2"))
    assert await indices.step() == ()
    assert rest.asked == ["job/13"]


async def test_nobody_is_asked_where_no_metrics_are_read() -> None:
    rest = Rest()
    indices = GpuIndexReader(rest, needed=False)  # type: ignore[arg-type]
    indices.want(row())
    assert await indices.step() == ()
    assert rest.asked == []


async def test_an_attempt_that_was_replaced_meanwhile_has_no_gpus() -> None:
    rest = Rest()
    indices, _ = reader(rest)
    indices.want(row())
    rest.restarts = 1
    assert await indices.step() == []
    assert indices.of(row()) == {}
    again = row(restartcnt="1")
    indices.want(again)
    assert await indices.step() == ["12"]
    indices.forget(again)
    assert indices.of(again) == {}


async def test_many_are_asked_for_some_at_a_time_and_again_after_a_failure() -> None:
    rest = Rest()
    indices, now = reader(rest)
    for number in range(120):
        indices.want(row(jobarrayid=str(number), jobid=str(number)))
    rest.fails = True
    assert await indices.step() == []
    rest.fails = False
    assert await indices.step() == ()  # not before its time
    now[0] = 10.0
    assert [len(await indices.step()) for _ in range(4)] == [JOBS_A_STEP, JOBS_A_STEP, 20, 0]
