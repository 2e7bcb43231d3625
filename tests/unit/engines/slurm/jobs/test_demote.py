"""Jobs give way on Slurm: what is sent, what is refused, and what is left alone."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from fairway.engines.port import NOT_RESUMABLE, RequeueRequest
from fairway.engines.slurm.jobs.demote import NICE, RESUMES, lower, lowered_jobs, requeue
from fairway.engines.slurm.policy.intervene import SlurmIntervener
from fairway.engines.slurm.policy.preemption import RunningJob, WaitingJob
from fairway.model.errors import Refused
from fairway.model.fleet import Fleet
from fairway.model.job import EngineId

FLEET = Fleet("acme", "USD", (), ())
STARTED = 1_800_000_000
LATER = datetime.fromtimestamp(STARTED + 3600, UTC)


def job(number: int = 7, **more: Any) -> dict[str, Any]:
    return {
        "job_id": number,
        "job_state": ["RUNNING"],
        "start_time": {"number": STARTED},
        "array_job_id": {"number": 0},
        "comment": "",
        "requeue": True,
        "restart_cnt": 2,
        "partition": "gpu",
        **more,
    }


class Rest:
    """Answers as slurmrestd does; `latest` has the API that requeues."""

    def __init__(self, *jobs: dict[str, Any], latest: bool = False) -> None:
        self.jobs = {str(one["job_id"]): one for one in jobs}
        self.latest = latest
        self.sent: list[tuple[str, Any]] = []

    async def get_if_served(self, path: str) -> Any:
        *_, kind, number = path.removesuffix("/requeue").split("/")
        assert kind == "job"
        if path.endswith("/requeue"):
            if self.latest:
                self.sent.append((path, None))
            return {} if self.latest else None
        found = self.jobs.get(number)
        return None if found is None else {"jobs": [found]}

    async def request(self, method: str, path: str, body: Any = None) -> Any:
        assert method == "POST"
        self.sent.append((path, body))


def ask(number: int = 7, *, resumes: bool = True, begin: bool = True) -> RequeueRequest:
    return RequeueRequest(EngineId(str(number)), LATER, resumes=resumes, begin=begin)


async def send(rest: Rest, *asked: RequeueRequest) -> dict[EngineId, Refused]:
    return dict(await requeue(rest, asked, lambda p: f"{p}-lent", lambda: 0.0))  # type: ignore[arg-type]


async def test_a_running_job_is_lowered() -> None:
    rest = Rest(job())
    assert await lower(rest, [EngineId("7"), EngineId("8")], FLEET) == {}  # type: ignore[arg-type]
    assert rest.sent == [("/slurm/v0.0.42/job/7", {"nice": NICE, "admin_comment": "fairway:low"})]


async def test_the_task_that_stands_for_its_array_is_not_lowered() -> None:
    rest = Rest(job(array_job_id={"number": 7}))
    refused = await lower(rest, [EngineId("7")], FLEET)  # type: ignore[arg-type]
    assert refused[EngineId("7")].code == "TaskOfArray"
    assert rest.sent == []


async def test_a_job_is_requeued_by_the_api_or_by_a_small_job_that_looks_once_more() -> None:
    rest = Rest(job(), latest=True)
    assert await send(rest, ask()) == {}
    assert rest.sent == [("/slurm/v0.0.45/job/7/requeue", None)]
    rest = Rest(job())
    assert await send(rest, ask()) == {}
    ((path, body),) = rest.sent
    assert path == "/slurm/v0.0.42/job/submit"
    assert body["script"] == (
        "#!/bin/sh\nscontrol show job 7 | grep -q 'Restarts=2 ' && scontrol requeue 7\n"
    )
    assert (body["job"]["partition"], body["job"]["deadline"]) == ("gpu-lent", 90)


@pytest.mark.parametrize(
    ("one", "asked"),
    [
        (job(job_state=["PENDING"]), ask()),
        (job(start_time={"number": STARTED + 3601}), ask()),
        (job(), ask(begin=False)),
        (job(8), ask()),
    ],
)
async def test_what_does_not_run_or_runs_anew_is_left_alone(
    one: dict[str, Any], asked: RequeueRequest
) -> None:
    rest = Rest(one)
    assert await send(rest, asked) == {}
    assert rest.sent == []


async def test_a_job_must_say_that_it_can_resume() -> None:
    rest = Rest(job(), latest=True)
    assert (await send(rest, ask(resumes=False)))[EngineId("7")].code == NOT_RESUMABLE
    assert rest.sent == []
    rest = Rest(job(comment=f"mine {RESUMES}"), latest=True)
    assert await send(rest, ask(resumes=False)) == {}
    rest = Rest(job(requeue=False), latest=True)
    assert "--no-requeue" in (await send(rest, ask()))[EngineId("7")].message


async def test_lowered_jobs_are_known_by_their_nice_value() -> None:
    class Commands:
        async def run(self, name: str, words: list[str]) -> bytes:
            assert (name, words[-1]) == ("squeue", "--format=%A|%y")
            return f"7|{NICE}\n8|0\n9|{NICE}\n".encode()

    assert await lowered_jobs(Commands(), "nlp") == {7, 9}  # type: ignore[arg-type]


async def test_where_room_is_made_lowered_jobs_go_first() -> None:
    async def lowered(account: str) -> set[int]:
        assert account == "nlp"
        return {1}

    waiting = WaitingJob(9, 100, "nlp", "ada", "gpu", gpus=1)
    large, small = RunningJob(1, 50, 10, {"n1": 4}), RunningJob(2, 50, 20, {"n1": 1})
    intervener = SlurmIntervener(Rest(), lowered=lowered)  # type: ignore[arg-type]
    assert await intervener._select(waiting, [large, small]) == (large,)
    assert await intervener._select(WaitingJob(9, 100, "nlp", "ada", "gpu", gpus=5), [large, small]) != (
        large,
    )
    without = SlurmIntervener(Rest())  # type: ignore[arg-type]
    assert await without._select(waiting, [large, small]) == (small,)
