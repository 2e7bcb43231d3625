"""One job.yaml, every engine: what a person sees of a job must not depend on where it runs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable

import pytest
import pytest_asyncio

from tests.contract.job_line import ENDED, JobLine, job_line
from tests.scenarios.conftest import engine_params

pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=engine_params())
async def line(
    request: pytest.FixtureRequest, make_database: Callable[[str | None], str], migrated_url: str
) -> AsyncIterator[JobLine]:
    async with job_line(request.param, make_database(migrated_url)) as opened:
        yield opened


def script(*lines: str) -> str:
    return "\n".join(("#!/bin/bash", *lines)) + "\n"


async def test_output_is_read_while_it_runs_and_the_exit_code_after(line: JobLine) -> None:
    word = line.submit(name="talk", script=script("echo first line", "sleep 6", "echo last line"))
    following = line.start("logs", "-f", word)
    line.until(word, "running", within=60)
    began = time.monotonic()
    assert following.stdout is not None
    assert "first line" in following.stdout.readline()
    assert time.monotonic() - began < 6, "what it printed came before it ended"
    told, said = following.communicate(timeout=60)
    assert following.returncode == 0, said
    assert "last line" in told
    job = line.until(word, "done")
    assert job["exit_code"] == 0
    (attempt,) = job["attempts"]
    assert attempt["ending"] == "done"
    assert attempt["nodes"]
    assert attempt["devices"] == 1


async def test_a_failure_has_its_exit_code(line: JobLine) -> None:
    word = line.submit(name="fails", script=script("echo so far", "exit 3"))
    job = line.until(word, "failed")
    assert job["exit_code"] == 3
    assert "so far" in line.run("logs", word).stdout


async def test_an_array_of_a_hundred(line: JobLine) -> None:
    word = line.submit(name="many", array="0-99", script=script("echo task $FAIRWAY_ARRAY_INDEX", "exit 0"))
    tasks: list[dict[str, object]] = []
    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        tasks = line.shown("get", "jobs", "--array", word, "--tasks", "--all")
        if all(task["state"] in ENDED for task in tasks):
            break
        await asyncio.sleep(1)
    assert sorted(int(str(task["array_index"])) for task in tasks) == list(range(100))
    assert {task["state"] for task in tasks} == {"done"}
    names = [str(line.job(str(task["id"]))["engine_name"]) for task in tasks[:5]]
    assert set(line.native.count(names).values()) == {1}
    table = line.run("get", "jobs", "--name", "many", "--all").stdout
    assert table.count("many") == 1, "an array is one line"


async def test_a_dependency_waits_and_a_broken_one_ends(line: JobLine) -> None:
    first = line.submit(name="first", script=script("sleep 3"))
    second = line.submit(name="second", script=script("exit 0"), after=[first])
    assert line.job(second)["state"] == "queued"
    before, after = line.until(first, "done"), line.until(second, "done")
    assert after["attempts"][0]["started_at"] >= before["attempts"][0]["ended_at"]
    broken = line.submit(name="broken", script=script("exit 1"))
    never = line.submit(name="never", script=script("exit 0"), after=[broken])
    line.until(broken, "failed")
    job = line.until(never, "cancelled")
    assert job["code"] == "DependencyFailed"
    assert job["attempts"] == []


async def test_cancel_ends_what_runs_and_what_waits(line: JobLine) -> None:
    running = line.submit(name="runs", script=script("sleep 600"))
    large = line.submit(name="waits", gpus=8, script=script("sleep 600"))
    line.until(running, "running")
    line.run("cancel", running, large)
    job = line.until(running, "cancelled")
    assert job["attempts"][-1]["ending"] == "cancelled"
    assert job["attempts"][-1]["ended_at"]
    assert line.until(large, "cancelled")["ended_at"]


async def test_hold_and_release(line: JobLine) -> None:
    word = line.submit(name="held", script=script("exit 0"), after=[])
    line.until(word, "done")
    blocker = line.submit(name="blocker", gpus=8, script=script("sleep 600"))
    line.until(blocker, "running")
    waiting = line.submit(name="patient", gpus=8, script=script("exit 0"))
    line.until(waiting, "waiting")
    line.run("hold", waiting)
    line.until(waiting, "held")
    line.run("cancel", blocker)
    line.until(blocker, "cancelled")
    await asyncio.sleep(3)
    assert line.job(waiting)["state"] == "held"
    line.run("release", waiting)
    line.until(waiting, "done")


async def test_a_failed_job_comes_back(line: JobLine) -> None:
    word = line.submit(
        name="again",
        retries={"count": 2, "first": "1s"},
        env={"FAIRWAY_VIRTUAL_EXIT": "7,0"},
        script=script("echo attempt $FAIRWAY_ATTEMPT", '[ "$FAIRWAY_ATTEMPT" -ge 2 ] || exit 7'),
    )
    job = line.until(word, "done", within=90)
    assert [a["ending"] for a in job["attempts"]] == ["failed", "done"]
    assert job["attempts"][0]["exit_code"] == 7
    assert job["attempts"][1]["started_at"] > job["attempts"][0]["ended_at"]


async def test_a_time_limit_ends_it(line: JobLine) -> None:
    word = line.submit(name="slow", time=line.shortest_limit, script=script("sleep 900"))
    job = line.until(word, "timed-out", within=200)
    assert job["attempts"][-1]["ending"] == "timed-out"


async def test_a_native_job_is_seen_at_once(line: JobLine) -> None:
    if line.engine == "virtual":
        pytest.skip("a virtual cluster lives inside the server: it has no tools of its own")
    engine_id = line.native.submit("alice", 20)
    submitted = time.monotonic()
    while time.monotonic() - submitted < 10:
        found = [j for j in line.shown("get", "jobs", "--native") if j["engine_id"] == engine_id]
        if found:
            break
    (job,) = found
    assert time.monotonic() - submitted < 5  # two seconds, and a start of the command line
    assert job["team"] == "research"
    assert job["native"]
    seen = line.until(job["id"], "running", within=30)
    assert seen["attempts"][0]["devices"] == 1
    line.run("cancel", job["id"], by="admin")
    line.until(job["id"], "cancelled", within=60)


async def test_others_may_look_and_not_touch(line: JobLine) -> None:
    word = line.submit(name="mine", script=script("sleep 600"))
    assert line.run("describe", "job", word, by="carol").returncode == 0
    for verb in ("cancel", "hold", "release", "logs"):
        refused = line.run(verb, word, by="carol", code=None)
        assert refused.returncode == 1, verb
        assert "hint:" in refused.stderr
    assert line.run("cancel", word, by="bob", code=None).returncode == 1, "a member acts on their own jobs"
    line.run("cancel", word)
    line.until(word, "cancelled")
