"""What people read of a service: its replicas, in lists, in `describe` and in `why`."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from fairway.cli.output.jobs import JobGroup, job_lines, jobs_view
from fairway.client.records import Record
from fairway.explain.reasons import REASONS
from fairway.views.jobs import gpus_text, headline, note, state_text, timeline
from fairway.views.why import build_why
from fairway.web.pages.jobs.timeline import draw_timeline
from fairway.wire import jobs as wire
from tests.unit.views.test_why import NOW, job
from tests.wire_jobs import wire_job

MINUTE = timedelta(minutes=1)


def replica(number: int, start: int, end: int | None = None, ending: str | None = None) -> dict[str, Any]:
    """One that started and ended so many minutes ago."""
    return {
        **dict.fromkeys(wire.Attempt.model_fields),
        "number": number,
        "engine_id": "serving/deployment/llm/1a2b3c4d",
        "started_at": NOW - start * MINUTE,
        "ended_at": None if end is None else NOW - end * MINUTE,
        "ending": ending,
        "nodes": [f"gpu{number:03}"],
        "devices": 2,
        "reason": "",
        "replica": f"llm-{number}",
    }


def service(state: str = "running", replicas: int = 2, **other: Any) -> wire.JobDetail:
    """Three replicas of two GPUs are wanted; one was preempted."""
    attempts = [replica(1, 60, 10, "preempted"), replica(2, 50), replica(3, 5)]
    plain = {
        "name": "llm",
        "kind": "Deployment",
        "service": True,
        "gpus": 2,
        "nodes": 3,
        "devices": 2 * replicas,
        "replicas": replicas,
        "native": True,
        "spec_note": "the job was submitted outside Fairway",
        "attempt_count": 3,
        "attempts": attempts[: replicas + 1],
        "submitted_at": NOW - 60 * MINUTE,
        "started_at": NOW - 60 * MINUTE,
    }
    return job(state, **plain | other)


def test_a_list_shows_the_kind_and_the_replicas_that_run() -> None:
    lacks = service(code="NotEnoughFree", reason="insufficient quota", engine_reason="insufficient quota")
    assert state_text(lacks) == "running, 2/3 replicas"
    assert gpus_text(lacks) == "3x2"
    assert note(lacks) == "insufficient quota"  # and not "attempt 3"
    assert note(service(nodes=2)) == ""
    off = service("held", 0, nodes=0, reason="scaled to 0", attempts=[])
    assert (state_text(off), gpus_text(off), note(off)) == ("on hold", "0", "scaled to 0")
    assert state_text(service("waiting", 0)) == "waiting, 0/3 replicas"
    assert state_text(service(service=False, kind="")) == "running, 2/3 pods"


def test_the_column_of_kinds_is_there_if_a_row_has_one() -> None:
    batch = JobGroup(job("running"))
    for groups, shown in (([batch], False), ([batch, JobGroup(service())], True)):
        view = jobs_view(groups, NOW, wide=False, filtered=False, more=False)
        text = "\n".join(" ".join(row) for row in view.rows)
        assert ("Deployment" in text) is shown


def test_describe_lists_replicas_and_how_many_there_were() -> None:
    found = service(attempt_count=4000, reason="insufficient quota", code="NotEnoughFree")
    lines = [line.text for line in job_lines(found, None, NOW, None)]
    assert lines[0] == "llm (8f3k) has been running for 60 min with 2 of 3 replicas: insufficient quota"
    assert "  kind          Deployment, a service" in lines
    assert "  GPUs          2 GPUs in each of 3 replicas, 6 in all" in lines
    assert "  replicas      2 of 3 running" in lines
    at = lines.index("Replicas (3 of 4000; those that run first, then the newest)")
    assert lines[at + 1 : at + 4] == [
        "  llm-3  gpu003  running for 5 min",
        "  llm-2  gpu002  running for 50 min",
        "  llm-1  gpu001  preempted after 50 min, 10 min ago",
    ]
    assert any(entry.text.startswith("replica llm-1 on gpu001, 2 GPUs") for entry in timeline(found))
    assert headline(service(nodes=2), NOW).endswith("has been running for 60 min with 2 of 2 replicas")


def test_describe_lists_twenty_replicas_at_most() -> None:
    many = [replica(n, 100 - n) for n in range(1, 31)]
    found = service(replicas=30, nodes=30, attempts=many, attempt_count=30)
    lines = [line.text for line in job_lines(found, None, NOW, None)]
    assert sum(line.startswith("  llm-") for line in lines) == 20
    assert sum(entry.what == "started" for entry in timeline(found)) == 20


def test_why_names_the_replicas_that_cannot_start() -> None:
    found = service(code="NotEnoughFree", reason="insufficient quota", engine_reason="insufficient quota")
    why = build_why(found, [], "", NOW)
    assert why.nodes == ["gpu002", "gpu003"]
    assert why.reasons[0].text == f"1 replica cannot start. {REASONS['NotEnoughFree'].means}"
    assert build_why(service(nodes=2), [], "", NOW).reasons == []


def test_the_drawing_adds_up_what_replicas_hold_at_once() -> None:
    drawing = draw_timeline(service(), NOW)
    assert drawing is not None
    assert [(s.kind, s.title) for s in drawing.segments] == [("runs", "replicas ran for 60 min")]
    titles = [held.title for held in drawing.held]
    assert titles == [
        "2 held by 1 replica for 10 min",
        "4 held by 2 replicas for 40 min",
        "2 held by 1 replica for 5 min",
        "4 held by 2 replicas for 5 min",
    ]
    assert drawing.max_devices == 6  # of the replicas it wants
    idle = service("waiting", 0, attempts=[replica(1, 60, 10, "done")], attempt_count=1)
    drawing = draw_timeline(idle, NOW)
    assert drawing is not None
    assert [s.kind for s in drawing.segments] == ["runs", "waits"]


def test_an_answer_of_an_older_server_has_no_kind() -> None:
    older = Record({k: v for k, v in wire_job("running").items() if k not in ("kind", "service", "replicas")})
    view = jobs_view([JobGroup(older)], NOW, wide=True, filtered=False, more=False)  # type: ignore[arg-type]
    assert len(view.rows) == 1
