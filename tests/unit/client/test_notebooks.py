"""Jobs and reports in a Python session: what is shown, data frames, and the wait for many jobs."""

from __future__ import annotations

import asyncio
import io
import sys
import traceback
from collections import Counter
from decimal import Decimal
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

import polars as pl
import pytest

import fairway
from fairway import AsyncClient, Client
from fairway.client.lists import ItemList
from fairway.client.progress import progress_of, progress_text
from fairway.client.requests import job_spec
from fairway.client.waiting import JobNotFinished, JobsWait
from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.job import JobState
from fairway.wire import costs as cost_wire
from fairway.wire import fleet as fleet_wire
from fairway.wire import jobs as wire
from fairway.wire import tables
from tests.unit.cli.output.test_report import COST, EFFICIENCY, USAGE, WASTE
from tests.unit.client.test_jobs import KEPT, PLACE, PROBLEM, Playing, detail, playing
from tests.wire_jobs import wire_job

__all__ = ["playing"]

RUNNING = {"amount": "12.4", "currency": "USD", "about": False, "per_hour": "3.5", "device_seconds": 9}
NASTY = "<script>alert(1)</script>"


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (1, {"count": 1, "model": None}),
        ("4", {"count": 4, "model": None}),
        ("A100:2", {"count": 2, "model": "A100"}),
    ],
)
def test_gpus_are_a_number_or_a_text(given: int | str, asked: dict[str, object]) -> None:
    """Fault 13: `gpus=1` was refused with pydantic's words."""
    spec = job_spec(["true"], gpus=given)
    assert {"count": spec.gpus.count, "model": spec.gpus.model} == asked
    assert spec.name == "true"


def test_a_misspelt_keyword_is_corrected() -> None:
    """Fault 13: `gpu="1"` was "Extra inputs are not permitted"."""
    with pytest.raises(PermanentError) as caught:
        job_spec(["true"], gpu="1")  # type: ignore[call-arg]
    assert (caught.value.message, caught.value.hint) == ("a job has no field gpu", "did you mean gpus?")
    printed = "".join(traceback.format_exception(caught.value))
    assert "hint: did you mean gpus?" in printed, "Python prints the hint too"
    with pytest.raises(PermanentError) as caught:
        job_spec(["true"], qqq=1)  # type: ignore[call-arg]
    assert "use one of name, gpus, team" in caught.value.hint


def test_jobs_show_as_a_table(playing: Playing) -> None:
    """`client.jobs()` was `<itertools.islice object at …>`."""
    page = {"items": [wire_job(cost=RUNNING), wire_job("done", id="8f3m", name=NASTY)], "next_cursor": None}
    playing.script = [(200, page)] * 4
    with Client(playing.target) as client:
        assert repr(client) == f"<Client of {playing.target.url}>"
        found = client.jobs(user="alice")
        assert not playing.asked, "nothing is read before somebody looks"
        heading, first, second = repr(found).split("\n")
        assert heading.split()[:4] == ["JOB", "NAME", "STATE", "GPUS"]
        assert "8f3k" in first and "12.40 USD so far, 3.50 USD per hour" in first
        assert NASTY in second
        html = found._repr_html_()
        assert html.count("<tr>") == 3
        assert NASTY not in html and "&lt;script&gt;" in html
        assert [job.id for job in found] == [job.id for job in found] == ["8f3k", "8f3m"], "again and again"


def test_a_list_that_cannot_be_read_shows_that(playing: Playing) -> None:
    playing.script = [(503, PROBLEM)] * 3 + [(403, PROBLEM)]
    with Client(playing.target) as client:
        assert repr(client.jobs()) == "(not readable now: C)"
        closed = client.jobs()
        assert closed._repr_html_() == "(not readable now: C)"
    assert repr(closed) == "(not readable: the client is closed)"


def test_long_lists_show_their_beginning() -> None:
    jobs = ItemList([wire.Job(**wire_job(id=f"{n:04}")) for n in range(80)])
    assert len(repr(jobs).split("\n")) == 1 + tables.MAX_SHOWN + 1
    assert "to_df() has all of them" in repr(jobs) and "to_df() has all of them" in jobs._repr_html_()
    assert len(jobs.to_df()) == 80
    assert repr(ItemList[wire.Job]()) == "[]"


def test_jobs_become_a_data_frame() -> None:
    jobs = ItemList([wire.Job(**wire_job(cost=RUNNING)), wire.Job(**wire_job("waiting", id="8f3m"))])
    frame = jobs.to_df()
    assert isinstance(frame, pl.DataFrame)
    assert frame["cost_amount"].to_list() == [12.4, None]
    assert frame["state"].to_list() == ["running", "waiting"]
    assert frame["submitted_at"].dtype.is_temporal()


@pytest.mark.parametrize("report", [COST, USAGE, WASTE, EFFICIENCY], ids=lambda r: type(r).__name__)
def test_reports_show_as_tables_and_become_data_frames(report: cost_wire.Document) -> None:
    rows, _ = report.table()
    frame = report.to_df()
    assert len(frame) == len(rows)
    assert frame.columns[: len(report.by)] == [label.value for label in report.by]
    html = report._repr_html_()
    assert html.count("<tr>") == 1 + len(rows) + 1
    assert "<td" in html and ">total</td>" in html
    assert repr(report).startswith(f"<{type(report).__name__.removesuffix('Report')} by ")


def test_secrets_are_not_shown() -> None:
    at = "2026-01-01T00:00:00Z"
    made = fleet_wire.MadeToken.model_validate(
        {
            "name": "t",
            "role": "member",
            "user": "ada",
            "created_at": at,
            "created_by": "root",
            "secret": "fw_s",
        }
        | dict.fromkeys(("expires_at", "revoked_at", "last_used_at"))
    )
    assert made.secret == "fw_s"
    for shown in (repr(made), made._repr_html_(), repr(ItemList([made])), str(ItemList([made]).to_df())):
        assert "ada" in shown and "fw_s" not in shown
    assert made.model_dump()["secret"] == "fw_s"


def test_without_polars_pandas_is_used_and_without_both_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    installed = {"pandas"}
    monkeypatch.setattr(tables, "find_spec", lambda name: find_spec("json") if name in installed else None)
    pandas = ModuleType("pandas")
    pandas.DataFrame = lambda data: ("pandas", data)  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "pandas", pandas)
    assert tables.data_frame([{"a": 1}, {"b": 2}]) == ("pandas", {"a": [1, None], "b": [None, 2]})
    installed.clear()
    with pytest.raises(PermanentError) as caught:
        tables.data_frame([])
    assert (caught.value.code, caught.value.hint) == ("NoDataFrames", "pip install polars")


def test_a_handle_has_state_cost_and_actions(playing: Playing) -> None:
    changed = (200, {"changed": ["8f3k"], "unchanged": []})
    playing.script = [(201, KEPT), (200, detail(cost=RUNNING)), (200, detail(cost=RUNNING)), changed, changed]
    playing.script += [changed, (200, detail(name=NASTY)), (403, PROBLEM)]
    with Client(playing.target) as client:
        run = client.run(["python", "train.py"], gpus=1)
        assert run.state is JobState.RUNNING
        cost = run.cost()
        assert cost is not None
        assert (cost.amount, str(cost)) == (Decimal("12.4"), "12.40 USD so far, 3.50 USD per hour")
        run.hold()
        run.release()
        run.cancel()
        html = run._repr_html_()
        assert NASTY not in html and "running" in html
        assert run._repr_html_() == ""
    assert [path for method, path, _ in playing.asked if method == "POST"][1:] == [
        "/v1/jobs/hold",
        "/v1/jobs/release",
        "/v1/jobs/cancel",
    ]


def test_waiting_for_many_asks_once_for_all(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    array = {"id": "8f3m", "ids": ["8f3m", "8f3n"], "name": "sweep", "placement": PLACE}
    playing.script = [
        (201, {"jobs": [KEPT["jobs"][0], array]}),
        (200, {"states": {"8f3k": "running", "8f3m": "done", "8f3n": "waiting"}}),
        *[(503, PROBLEM)] * 3,
        (200, {"states": {"8f3k": "done", "8f3n": "failed"}}),
        *((200, detail("done", id=job)) for job in ("8f3k", "8f3m", "8f3n")),
    ]
    with Client(playing.target) as client:
        submitted = client.submit([job_spec(["a"]), job_spec(["b"], array=range(2))])
        finished = client.wait_all(submitted)
    assert [job.id for job in finished] == ["8f3k", "8f3m", "8f3n"]
    assert playing.asked[1][1] == "/v1/jobs/states?id=8f3k&id=8f3m&id=8f3n"
    assert playing.asked[5][1] == "/v1/jobs/states?id=8f3k&id=8f3n", "what has finished is not asked again"
    assert capsys.readouterr().err.split("\n")[:-1] == [
        "1 of 3 jobs finished; 1 waiting, 1 running",
        "3 of 3 jobs finished, 1 failed",
    ]


def test_async_waits_alike(playing: Playing) -> None:
    async def use() -> list[Any]:
        async with AsyncClient(playing.target) as client:
            run = await client.run(["true"])
            state = await run.state
            cost = await run.cost()
            (finished,) = await client.wait_all([run], progress=False)
            listed = await client.jobs(most=2)
            return [state, str(cost), finished.state, len(listed), len(await client.jobs(most=2).to_df())]

    page = {"items": [wire_job(), wire_job()], "next_cursor": None}
    playing.script = [
        (201, KEPT),
        (200, detail()),
        (200, detail(cost=RUNNING)),
        (200, {"states": {"8f3k": "done"}}),
        (200, detail("done")),
        (200, page),
        (200, page),
    ]
    shown = "12.40 USD so far, 3.50 USD per hour"
    assert asyncio.run(use()) == [JobState.RUNNING, shown, JobState.DONE, 2, 2]
    assert "await it" in repr(AsyncClient(playing.target).jobs())


def test_a_wait_is_patient_with_the_server_and_ends_at_its_timeout() -> None:
    wait = JobsWait([f"{n:04}" for n in range(1200)], 5.0)
    assert [len(request.params) for request in wait.requests()] == [500, 500, 200]
    wait.advance({f"{n:04}": JobState.DONE for n in range(1190)})
    assert len(wait.open) == 10
    assert wait.delay(1.0) > 0
    assert wait.delay(4.99) == pytest.approx(0.01)
    with pytest.raises(JobNotFinished, match=r"1190 \(unknown\), .* and 5 more"):
        wait.delay(5.0)
    assert issubclass(fairway.JobNotFinished, fairway.TemporaryError)
    assert issubclass(fairway.TemporaryError, fairway.FairwayError)
    error = TemporaryError("Gone", "away", "wait")
    waited = 0.0
    with pytest.raises(TemporaryError, match="away"):
        for _ in range(1000):
            waited += wait.retry_delay(error)
    assert 300 <= waited < 303


def test_progress_in_a_terminal_a_notebook_and_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    states = Counter({JobState.DONE: 2, JobState.FAILED: 1, JobState.RUNNING: 1})
    assert progress_text(4, states) == "3 of 4 jobs finished, 1 failed; 1 running"
    assert progress_text(1, Counter({JobState.DONE: 1})) == "1 of 1 job finished"
    out = io.StringIO()
    with progress_of(4, wanted=True, out=out) as shown:
        shown.show(states)
        shown.show(states)
    assert out.getvalue() == "3 of 4 jobs finished, 1 failed; 1 running\n"
    out.isatty = lambda: True  # type: ignore[method-assign]
    with progress_of(4, wanted=True, out=out) as shown:
        shown.show(states)
    with progress_of(4, wanted=False, out=out) as shown:
        shown.show(states)
    displayed: list[tuple[str, dict[str, str]]] = []

    def display(data: dict[str, str], **_: object) -> object:
        displayed.append(("new", data))
        return SimpleNamespace(update=lambda data, **_: displayed.append(("again", data)))

    ipython, in_display = ModuleType("IPython"), ModuleType("IPython.display")
    ipython.get_ipython = lambda: SimpleNamespace(kernel=1)  # type: ignore[attr-defined]
    in_display.display = display  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", in_display)
    with progress_of(4, wanted=True) as shown:
        shown.show(states)
        shown.show(states)
    assert [kind for kind, _ in displayed] == ["new", "again"]
    assert '<progress value="3" max="4"' in displayed[0][1]["text/html"]
