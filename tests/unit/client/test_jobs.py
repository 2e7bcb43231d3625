"""Jobs by the client: sync and async ask the same, and what was asked twice was made once."""

from __future__ import annotations

import asyncio
import inspect
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

import fairway
from fairway import AsyncClient, Client, JobSpec
from fairway.client.async_client import AsyncJobHandle
from fairway.client.client import JobHandle
from fairway.client.contexts import Context, Contexts, Target, config_file, write_contexts
from fairway.client.log_follower import LogFollower
from fairway.client.requests import job_spec
from fairway.client.waiting import JobNotFinished
from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.job import JobState
from fairway.wire import jobs as wire
from tests.wire_jobs import wire_job

PROBLEM = {
    "type": "t",
    "title": "t",
    "status": 503,
    "detail": "d",
    "code": "C",
    "hint": "h",
    "request_id": "1",
}
PLACE = {"cluster": "lab", "pool": "lab-a100", "slice": None, "why": "it is free"}
KEPT = {"jobs": [{"id": "8f3k", "ids": ["8f3k"], "name": "train", "placement": PLACE}]}


def detail(state: str = "running", **other: Any) -> dict[str, Any]:
    more: dict[str, Any] = {"spec": None, "spec_note": "", "placement_reason": "", "engine_name": None}
    return wire_job(state, **more, submission=1, attempts=[], events=[], **other)


def part(text: str, offset: int, *, attempt: int = 1, ended: bool = False) -> dict[str, Any]:
    size = len(text.encode())
    return {"attempt": attempt, "text": text, "offset": offset, "next_offset": offset + size, "ended": ended}


class Playing:
    """Answers what stands in its script, in order, and remembers what it was asked."""

    def __init__(self) -> None:
        self.script: list[tuple[int, Any]] = []
        self.asked: list[tuple[str, str, Any]] = []
        playing = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                playing.asked.append((self.command, self.path, json.loads(body) if body else None))
                status, told = playing.script.pop(0)
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.target = Target(f"http://127.0.0.1:{self.server.server_port}", "fw_x")


@pytest.fixture
def playing() -> Iterator[Playing]:
    made = Playing()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


SPEC = JobSpec(name="train", command=["python", "train.py"])


def test_a_submit_whose_answer_was_lost_is_asked_again_under_the_same_key(playing: Playing) -> None:
    playing.script = [(503, PROBLEM), (502, "not Fairway's"), (201, KEPT)]
    with Client(playing.target) as client:
        (kept,) = client.submit(SPEC, as_user="bob", hold=True)
    assert kept.id == "8f3k"
    assert [(m, p) for m, p, _ in playing.asked] == [("POST", "/v1/jobs")] * 3
    bodies = [body for _, _, body in playing.asked]
    assert bodies[0] == bodies[1] == bodies[2]
    assert (bodies[0]["as"], bodies[0]["hold"]) == ("bob", True)
    assert len(bodies[0]["key"]) == 32


def test_every_submit_has_a_key_of_its_own(playing: Playing) -> None:
    playing.script = [(201, KEPT)] * 3
    with Client(playing.target) as client:
        client.submit(SPEC)
        client.submit(SPEC)
        client.submit(SPEC, key="mine")
    keys = [body["key"] for _, _, body in playing.asked]
    assert len(set(keys)) == 3
    assert keys[2] == "mine"


def test_filters_and_pages(playing: Playing) -> None:
    playing.script = [
        (200, {"items": [wire_job(), wire_job()], "next_cursor": "abc"}),
        (200, {"items": [wire_job(), wire_job()], "next_cursor": "def"}),
    ]
    at = datetime(2026, 1, 2, tzinfo=UTC)
    with Client(playing.target) as client:
        found = list(client.jobs(most=3, team="nlp", states=["open", "failed"], native=False, since=at))
    assert len(found) == 3
    first = "/v1/jobs?team=nlp&state=open&state=failed&native=false&since=2026-01-02T00%3A00%3A00Z&limit=3"
    assert [path for _, path, _ in playing.asked] == [first, f"{first}&cursor=abc"]


def test_a_notebook_needs_one_line(playing: Playing, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("FAIRWAY_URL", "FAIRWAY_TOKEN", "FAIRWAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path))
    write_contexts(config_file(), Contexts("lab", (Context("lab", playing.target.url),)))
    playing.script = [
        (201, KEPT),
        (200, {"states": {"8f3k": "waiting"}}),
        (200, {"states": {"8f3k": "done"}}),
        (200, detail("done")),
        (200, part("hello\n", 0, ended=True)),
        (200, part("", 6, ended=True)),
        (200, {"changed": ["8f3k"], "unchanged": []}),
    ]
    run = Client().run(["python", "train.py"], gpus="H100:8", time="2h")
    assert repr(run) == "<job 8f3k train on lab-a100>"
    assert run.wait(timeout_seconds=10).state is JobState.DONE
    assert "".join(run.log()) == "hello\n"
    assert run.cancel().changed == ["8f3k"]
    sent = playing.asked[0][2]["jobs"][0]
    assert sent["gpus"] == {"count": 8, "model": "H100", "memory_gb": None, "slice": None}
    assert sent["time_seconds"] == 7200
    assert sent["name"] == "python"


def test_waiting_ends(playing: Playing) -> None:
    playing.script = [(201, KEPT), *[(200, {"states": {"8f3k": "waiting"}})] * 9]
    with Client(playing.target) as client:
        run = client.run(["true"])
        with pytest.raises(JobNotFinished, match=r"not finished after 0.3 s: 8f3k \(waiting\)"):
            run.wait(timeout_seconds=0.3)


def test_both_clients_have_the_same_verbs() -> None:
    def verbs(client: type) -> dict[str, Any]:
        return {n: f for n, f in inspect.getmembers(client, inspect.isfunction) if not n.startswith("_")}

    for sync, twins in ((Client, AsyncClient), (JobHandle, AsyncJobHandle)):
        one, other = verbs(sync), verbs(twins)
        assert set(one) == set(other)
        for name, verb in one.items():
            twin = inspect.signature(other[name], eval_str=True)
            said = inspect.signature(verb, eval_str=True)
            assert list(said.parameters.values()) == list(twin.parameters.values()), name


def test_async_asks_the_same(playing: Playing) -> None:
    async def use() -> list[Any]:
        async with AsyncClient(playing.target) as client:
            run = await client.run("python train.py", name="train", retries=2)
            text = "".join([piece async for piece in run.log(follow=True)])
            listed = [j async for j in client.jobs(most=1, user="alice")]
            counts = await client.job_counts()
            return [run.id, text, len(listed), counts, (await client.cancel(["8f3k"])).unchanged]

    playing.script = [
        (503, PROBLEM),
        (201, KEPT),
        (200, part("a", 0)),
        (200, part("", 1)),
        (200, detail("done")),
        (200, part("b", 1, ended=True)),
        (200, part("", 2, ended=True)),
        (200, {"items": [wire_job(), wire_job()], "next_cursor": "x"}),
        (200, {"counts": []}),
        (200, {"changed": [], "unchanged": ["8f3k"]}),
    ]
    assert asyncio.run(use()) == ["8f3k", "ab", 1, [], ["8f3k"]]
    assert playing.asked[0][2]["jobs"][0]["script"] == "#!/bin/bash\npython train.py\n"
    assert playing.asked[0] == playing.asked[1]


def log(text: str, offset: int, **other: Any) -> wire.LogPart:
    return wire.LogPart(**part(text, offset, **other))


def test_following_goes_on_with_the_next_attempt() -> None:
    follower = LogFollower("8f3k", None, 0, follow=True)
    paths = []

    def asked() -> str:
        call = follower.next_request()
        assert call is not None
        paths.append(dict(call.params))
        return call.path

    assert asked() == "/v1/jobs/8f3k/log"
    assert not follower.advance(log("", 0, attempt=0))  # not started yet
    assert follower.needs_job
    assert follower.delay_for(wire.Job(**wire_job("waiting", attempt_count=0))) > 0
    asked()
    assert follower.advance(log("one", 0))
    asked()
    assert not follower.advance(log("", 3, ended=True))
    assert follower.delay_for(wire.Job(**wire_job("running", attempt_count=2))) == 0
    asked()
    assert follower.advance(log("two", 0, attempt=2))
    asked()
    assert not follower.advance(log("", 3, attempt=2, ended=True))
    assert follower.delay_for(wire.Job(**wire_job("done", attempt_count=2))) == 0
    asked()
    assert not follower.advance(log("", 3, attempt=2, ended=True))
    assert follower.next_request() is None
    assert [(p.get("attempt"), p["offset"]) for p in paths] == [
        (None, "0"), (None, "0"), ("1", "3"), ("2", "0"), ("2", "3"), ("2", "3"),
    ]  # fmt: skip


def test_following_is_patient_but_not_for_ever() -> None:
    error = TemporaryError("Gone", "away", "wait")
    follower = LogFollower("8f3k", None, 0, follow=True)
    waited = 0.0
    with pytest.raises(TemporaryError):
        for _ in range(1000):
            waited += follower.retry_delay(error)
    assert 300 <= waited < 303
    with pytest.raises(TemporaryError):
        LogFollower("8f3k", None, 0, follow=False).retry_delay(error)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"gpus": "8xA100"}, "InvalidGpus"),
        ({"time": "soon"}, "InvalidTime"),
        ({"nodes": 0}, "InvalidRequest"),
        ({"gpu": 1}, "UnknownField"),
        ({"gpus": True}, "InvalidRequest"),
        ({"gpus": 0}, "InvalidGpus"),
    ],
)
def test_what_makes_no_sense_is_said_without_a_server(fields: Any, code: str) -> None:
    with pytest.raises(PermanentError) as caught:
        job_spec(["true"], **fields)
    assert caught.value.code == code
    assert caught.value.hint


def test_the_package_opens_its_door_only_when_asked() -> None:
    for name in fairway.__all__:
        assert getattr(fairway, name) is not None
    assert set(fairway.__all__) <= set(dir(fairway))
    with pytest.raises(AttributeError):
        _ = fairway.Nothing
    code = "import sys, fairway; print('httpx2' in sys.modules, 'pydantic' in sys.modules)"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert shown.stdout == "False False\n"


def test_counts_are_sent_alike_and_again_after_a_lost_answer(playing: Playing) -> None:
    told = {"job": "8f3k", "counts": {"steps": 120_000}, "added": {"steps": 5}}
    playing.script = [(503, PROBLEM), (200, told), (201, KEPT), (200, told)] + [(200, told)] * 2

    async def ask() -> None:
        async with AsyncClient(playing.target) as client:
            assert (await client.count("8f3k", steps=120_000)).added == {"steps": 5}

    with Client(playing.target) as client:
        assert client.count("hpc/1542", steps=120_000, id=1).counts == {"steps": 120_000}
        client.run(["true"]).count(steps=7)
        with pytest.raises(PermanentError) as caught:
            client.count("8f3k", steps=-1)
        assert "steps=120000" in caught.value.hint
        for wrong in ({}, {"Steps": 1}, {f"u{n}": 1 for n in range(5)}):
            with pytest.raises(PermanentError):
                client.count("8f3k", **wrong)
    asyncio.run(ask())
    counted = [(path, body) for _, path, body in playing.asked if path.endswith("/counts")]
    assert counted == [
        *[("/v1/jobs/hpc%2F1542/counts", {"steps": 120_000, "id": 1})] * 2,
        ("/v1/jobs/8f3k/counts", {"steps": 7}),
        ("/v1/jobs/8f3k/counts", {"steps": 120_000}),
    ]
