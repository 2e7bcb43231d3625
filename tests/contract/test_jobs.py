"""One job.yaml, every engine: what a person sees of a job must not depend on where it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterator

import pytest
import pytest_asyncio

from fairway.client.http import ServerRefused
from fairway.explain.reasons import REASONS
from fairway.model.job import ENDED_JOBS, Ending, JobState
from tests.contract.job_line import JobLine, job_line
from tests.scenarios.conftest import engine_params
from tests.tier import sized
from tests.waiting import Deadline

pytestmark = [pytest.mark.asyncio(loop_scope="module"), pytest.mark.timeout(600)]


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=engine_params())
async def opened(
    request: pytest.FixtureRequest, make_database: Callable[[str | None], str], migrated_url: str
) -> AsyncIterator[JobLine]:
    async with job_line(request.param, make_database(migrated_url)) as line:
        yield line


@pytest.fixture
def line(opened: JobLine) -> Iterator[JobLine]:
    """What a test left running, it having failed, would make the next ones fail too."""
    yield opened
    opened.clear()


def script(*lines: str) -> str:
    return "\n".join(("#!/bin/bash", *lines)) + "\n"


async def test_output_is_read_while_it_runs_and_the_exit_code_after(line: JobLine) -> None:
    file = line.file(name="talk", script=script("echo first line", "sleep 15", "echo last line"))
    (made,) = line.shown("submit", str(file))["jobs"]
    following = line.start("logs", "-f", made["id"])
    assert following.stdout is not None
    assert "first line" in following.stdout.readline()
    assert line.job(made["id"]).state is JobState.RUNNING, "what it printed came before it ended"
    told, said = following.communicate(timeout=90)
    assert following.returncode == 0, said
    assert "last line" in told
    job = line.until(made["id"], JobState.DONE)
    assert job.exit_code == 0
    (attempt,) = job.attempts
    assert attempt.ending is Ending.DONE
    assert attempt.nodes
    assert attempt.devices == 1
    assert attempt.ended_at is not None
    assert 14 <= (attempt.ended_at - attempt.started_at).total_seconds() <= 25


async def test_a_failure_has_its_exit_code(line: JobLine) -> None:
    word = line.submit(name="fails", script=script("echo so far", "exit 3"))
    assert line.until(word, JobState.FAILED).exit_code == 3
    assert "so far" in line.client().log(word).text


async def test_an_array(line: JobLine) -> None:
    size = sized(ci=25, nightly=100)
    word = line.submit(
        name="many", array=f"0-{size - 1}", script=script("echo task $FAIRWAY_ARRAY_INDEX", "exit 0")
    )
    deadline = Deadline(400)
    while True:
        tasks = list(line.client().jobs(array=word))
        if all(task.state in ENDED_JOBS for task in tasks):
            break
        assert not deadline.passed, [task.state for task in tasks]
        await asyncio.sleep(0.5)
    assert sorted(int(str(task.array_index)) for task in tasks) == list(range(size))
    assert {task.state for task in tasks} == {JobState.DONE}
    names = [str(line.job(task.id).engine_name) for task in tasks]
    assert len(set(names)) == size
    assert set(line.native.count(names).values()) == {1}, "each task is one engine job"
    assert f"task {size - 1}" in line.client().log(tasks[0].id).text or line.engine == "virtual"
    table = line.run("get", "jobs", "--name", "many", "--all").stdout
    assert table.count("many") == 1, "an array is one line"


async def test_a_dependency_waits_and_a_broken_one_ends(line: JobLine) -> None:
    first = line.submit(name="first", script=script("sleep 4"))
    second = line.submit(name="second", script=script("exit 0"), after=[first])
    assert line.job(second).state is JobState.QUEUED
    before, after = line.until(first, JobState.DONE), line.until(second, JobState.DONE)
    assert before.ended_at is not None
    assert after.attempts[0].started_at >= before.ended_at
    broken = line.submit(name="broken", script=script("exit 1"))
    never = line.submit(name="never", script=script("exit 0"), after=[broken])
    line.until(broken, JobState.FAILED)
    job = line.until(never, JobState.CANCELLED)
    assert job.code == "DependencyFailed"
    assert job.attempts == []


async def test_cancel_ends_what_runs_and_what_waits(line: JobLine) -> None:
    running = line.submit(name="runs", script=script("sleep 600"))
    line.until(running, JobState.RUNNING)  # sent together, either might be let in first
    large = line.submit(name="waits", gpus=8, script=script("sleep 600"))
    line.until(large, JobState.WAITING, JobState.RUNNING)
    line.run("cancel", running, large)
    job = line.until(running, JobState.CANCELLED)
    assert job.attempts[-1].ending is Ending.CANCELLED
    assert job.attempts[-1].ended_at is not None
    assert line.until(large, JobState.CANCELLED).ended_at is not None


async def test_hold_and_release(line: JobLine) -> None:
    blocker = line.submit(name="blocker", gpus=8, nodes=line.nodes, script=script("sleep 600"))
    line.until(blocker, JobState.RUNNING)
    waiting = line.submit(name="patient", gpus=8, script=script("exit 0"))
    line.until(waiting, JobState.WAITING)
    line.client().hold([waiting])
    line.until(waiting, JobState.HELD)
    line.client().cancel([blocker])
    line.until(blocker, JobState.CANCELLED)
    await asyncio.sleep(3)
    assert line.job(waiting).state is JobState.HELD
    line.client().release([waiting])
    line.until(waiting, JobState.DONE)


async def test_a_waiting_job_is_changed_in_place(line: JobLine) -> None:
    blocker = line.submit(name="blocker", gpus=8, nodes=line.nodes, script=script("sleep 600"))
    line.until(blocker, JobState.RUNNING)
    waiting = line.submit(name="smaller", gpus=8, script=script("sleep 2"))
    before = line.until(waiting, JobState.WAITING)
    changed = line.shown("resize", waiting, "--gpus", "7")
    assert (changed["requested"], changed["changes"]) == (
        True,
        [{"name": "GPUs", "before": "8", "after": "7"}],
    )
    line.run("set-time", waiting, "20m")
    line.run("set-priority", waiting, "low", code=None if line.engine.startswith("kubernetes") else 0)
    deadline = Deadline(60)
    while (now := line.job(waiting)).gpus != 7 or now.time_seconds != 1200:
        assert not deadline.passed, now
        await asyncio.sleep(0.2)
    assert (now.state, now.engine_id) == (JobState.WAITING, before.engine_id), "it keeps its place"
    with pytest.raises(ServerRefused, match="running"):
        line.client().change(blocker, gpus=2)
    with pytest.raises(ServerRefused, match="may not"):
        line.client("carol").change(waiting, gpus=1)
    line.client().cancel([blocker])
    over = line.until(waiting, JobState.DONE)
    assert over.attempts[0].devices == 7, "the engine gave what was changed"
    assert [event.text for event in over.events if event.kind == "refused"] == []


async def test_what_would_help_is_accepted_and_helps(line: JobLine) -> None:
    blocker = line.submit(name="blocker", gpus=6, nodes=line.nodes, script=script("sleep 600"), time="10d")
    line.until(blocker, JobState.RUNNING)
    waiting = line.submit(name="large", gpus=8, nodes=line.nodes, script=script("sleep 600"))
    line.until(waiting, JobState.WAITING)
    deadline = Deadline(150)  # what has just begun may end at once, as far as the model knows
    while not (helps := line.client().why(waiting).alternatives):
        assert not deadline.passed, line.client().why(waiting)
        await asyncio.sleep(1)
    best = helps[0]
    assert best.kind == "resize"
    assert best.starts_now, best
    assert line.client("carol").why(waiting).alternatives == [], "she may not change it"
    shown = line.run("why", waiting).stdout
    assert "What would help" in shown and best.command in shown
    line.run(*best.command.split()[1:])
    job = line.until(waiting, JobState.RUNNING, within=60)
    assert job.attempts[0].devices == best.gpus * best.nodes


async def test_what_waits_says_why_by_a_code_and_in_the_engines_words(line: JobLine) -> None:
    blocker = line.submit(name="blocker", gpus=8, nodes=line.nodes, script=script("sleep 600"))
    line.until(blocker, JobState.RUNNING)
    waiting = line.submit(name="patient", gpus=8, script=script("exit 0"))
    deadline = asyncio.get_running_loop().time() + 60
    while not (job := line.job(waiting)).code:  # engines look at their limits in their next pass
        assert asyncio.get_running_loop().time() < deadline, job
        await asyncio.sleep(0.2)
    assert job.code in REASONS and job.engine_reason, job
    assert line.client().why(waiting).reasons[0].code in REASONS
    line.client().cancel([blocker])
    over = line.until(waiting, JobState.DONE)
    assert over.code == ""


async def test_made_held_it_waits_for_its_release(line: JobLine) -> None:
    file = line.file(name="kept-back", script=script("exit 0"))
    (made,) = line.shown("submit", "--hold", str(file))["jobs"]
    await asyncio.sleep(3)
    assert line.job(made["id"]).state is JobState.HELD
    line.client().release([made["id"]])
    line.until(made["id"], JobState.DONE)


async def test_a_failed_job_comes_back(line: JobLine) -> None:
    word = line.submit(
        name="again",
        retries={"count": 2, "first": "1s"},
        env={"VIRTUAL_SECONDS": "1", "VIRTUAL_EXIT": "7,0"},  # of `[`, which a virtual job does not know
        script=script("echo attempt $FAIRWAY_ATTEMPT", '[ "$FAIRWAY_ATTEMPT" -ge 2 ] || exit 7'),
    )
    job = line.until(word, JobState.DONE, within=90)
    first, second = job.attempts
    assert (first.ending, second.ending) == (Ending.FAILED, Ending.DONE)
    assert first.exit_code == 7
    assert first.ended_at is not None
    assert second.started_at > first.ended_at
    assert first.engine_id != second.engine_id


async def test_a_time_limit_ends_it(line: JobLine) -> None:
    word = line.submit(name="slow", time=line.shortest_limit, script=script("sleep 900"))
    job = line.until(word, JobState.TIMED_OUT, within=240)
    assert job.attempts[-1].ending is Ending.TIMED_OUT


async def test_a_native_job_is_seen_at_once(line: JobLine) -> None:
    if line.engine == "virtual":
        pytest.skip("a virtual cluster lives inside the server: it has no tools of its own")
    engine_id = line.native.submit("alice", 120)
    submitted = time.monotonic()
    while not (
        found := [
            j for j in line.client().jobs(native=True, most=20) if (j.engine_id or "").startswith(engine_id)
        ]
    ):
        assert time.monotonic() - submitted < 5, "two seconds, and more for a machine that does other things"
        await asyncio.sleep(0.1)
    (job,) = found
    assert job.team == "research"
    assert job.user == "alice"
    assert (job.project, job.labels) == ("llm", {"experiment": "e1"})
    seen = line.until(job.id, JobState.RUNNING, within=60)
    assert seen.attempts[0].devices == 1
    line.client("admin").cancel([job.id])
    over = line.until(job.id, JobState.CANCELLED)
    assert (over.project, over.labels) == ("llm", {"experiment": "e1"}), "the engine's records may lack them"


async def test_a_job_has_its_project_and_labels(line: JobLine) -> None:
    labels = {"experiment": "e2", "note": "x"}
    word = line.submit(name="labelled", project="vision", labels=labels, script=script("sleep 2"))
    job = line.until(word, JobState.DONE)
    assert (job.project, job.labels) == ("vision", {"experiment": "e2"})
    assert job.spec is not None
    assert job.spec.labels == labels
    (found,) = line.shown("get", "jobs", "--project", "vision", "--label", "experiment=e2")
    assert found["id"] == word
    assert line.shown("get", "jobs", "--project", "vision", "--label", "experiment=e3") == []
    report = line.client("admin").report_usage(by=["project", "label:experiment"], window="today")
    assert ["vision", "e2"] in [row.labels for row in report.rows]


async def test_others_may_look_and_not_touch(line: JobLine) -> None:
    word = line.submit(name="mine", script=script("sleep 600"))
    assert line.client("carol").job(word).spec is None, "commands and environments are not for all eyes"
    for person in ("carol", "bob"):
        other = line.client(person)
        for verb in (other.cancel, other.hold, other.release):
            with pytest.raises(ServerRefused, match="may not"):
                verb([word])
        with pytest.raises(ServerRefused, match="may not"):
            other.log(word)
    line.client().cancel([word])
    line.until(word, JobState.CANCELLED)
