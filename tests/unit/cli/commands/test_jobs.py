"""get jobs, describe, logs, cancel, hold, release and top: what people see, and what a server is asked."""

from __future__ import annotations

import csv
import io
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from fairway.cli.errors import run
from fairway.cli.output.format import table
from fairway.cli.output.gpu_use import gpu_lines
from fairway.cli.output.jobs import JobGroup, group_jobs, job_lines, jobs_view, why_lines
from fairway.cli.root import VERBS, root
from fairway.model.job import JobState, format_job_id
from fairway.views.gpu_use import use_text
from fairway.views.jobs import headline, timeline
from fairway.wire import jobs as wire
from fairway.wire.gpu_use import JobUse, Use
from tests.wire_jobs import wire_job

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
LONG = "a-name-of-exactly-forty-characters-long-"


def ago(seconds: int) -> str:
    return (NOW - timedelta(seconds=seconds)).strftime("%Y-%m-%dT%H:%M:%SZ")


def job(number: int = 1, state: str = "running", **other: Any) -> wire.Job:
    return wire.Job.model_validate(_job(number, state, **other))


def _job(number: int = 1, state: str = "running", **other: Any) -> dict[str, Any]:
    started = None if state in ("queued", "waiting", "held") else ago(90)
    plain: dict[str, Any] = {
        "id": format_job_id(number),
        "attempt_count": 0 if started is None else 1,
        "submitted_at": ago(7300),
        "started_at": started,
        "ended_at": None if state in ("queued", "waiting", "held", "running") else ago(30),
    }
    return wire_job(state, **(plain | other))


def detail(number: int = 1, state: str = "running", **other: Any) -> dict[str, Any]:
    more: dict[str, Any] = {
        "spec": None,
        "spec_note": "shown to its owner",
        "placement_reason": "hpc-a100 has 8 GPUs free, and is the only pool that fits",
        "engine_name": "train-fwabcd-0001-1",
        "submission": 1,
        "attempts": [],
        "events": [{"at": ago(7300), "kind": "submitted", "by": "alice", "text": ""}],
    }
    return _job(number, state, **(more | other))


def lines(groups: list[JobGroup], **options: Any) -> str:
    view = jobs_view(groups, NOW, **({"wide": False, "filtered": False, "more": False} | options))
    return "\n".join(table(view.columns, view.rows, 100))


def test_jobs_in_every_state() -> None:
    shown = [
        job(1),
        job(2, "waiting", reason="(Resources)"),
        job(3, "failed", exit_code=3, attempt_count=2),
        job(4, "done", slice="1g.10gb", pool="hpc-mig", gpus=1),
        job(5, "refused", code="NoSuchPartition", reason="invalid partition", started_at=None, team=None),
        job(6, "running", desired_state="cancel", nodes=2),
        job(7, "running", desired_state="hold", native=True, pool=None, user=""),
        job(8, "queued"),
    ]
    assert (
        lines(group_jobs(shown, {}))
        == """\
JOB   NAME   STATE          GPUS  POOL             TEAM  USER   AGE   RAN  NOTE
0001  train  running           8  hpc-a100         nlp   alice  2 h  90 s
0002  train  waiting           8  hpc-a100         nlp   alice  2 h     -  (Resources)
0003  train  failed            8  hpc-a100         nlp   alice  2 h  60 s  attempt 2, exit code 3
0004  train  finished          1  hpc-mig/1g.10gb  nlp   alice  2 h  60 s
0005  train  refused           8  hpc-a100               alice  2 h     -  invalid partition
0006  train  cancelling      2x8  hpc-a100         nlp   alice  2 h  90 s
0007  train  running, hold     8  (hpc)            nlp   -      2 h  90 s
0008  train  queued            8  hpc-a100         nlp   alice  2 h     -"""
    )
    view = jobs_view(group_jobs(shown, {}), NOW, wide=False, filtered=False, more=False)
    assert view.alarming == {2, 4}


def test_an_array_is_one_line() -> None:
    tasks = [job(9 - i, "waiting" if i < 4 else "running", array="0004", array_index=5 - i) for i in range(6)]
    groups = group_jobs([job(10), *tasks, job(1, "done")], {})
    assert [line.split()[:5] for line in lines(groups).split("\n")[1:]] == [
        ["000a", "train", "running", "8", "hpc-a100"],
        ["0004", "train", "x6", "2", "running,"],
        ["0001", "train", "finished", "8", "hpc-a100"],
    ]
    counted = wire.TaskCounts(tasks=9000, counts={JobState.WAITING: 8999, JobState.FAILED: 1})
    (whole,) = group_jobs(tasks, {"0004": counted})
    assert "train x9000  8999 waiting, 1 failed" in lines([whole])
    each = lines([JobGroup(task) for task in tasks])
    assert "0009  train[5]  waiting" in each


def test_the_longest_words_fit_100_columns() -> None:
    long = job(
        32**7,
        "waiting",
        name=LONG * 3,
        pool=LONG,
        slice="1g.10gb+me",
        team=LONG,
        user="somebody-with-a-long-login@institute.example.org",
        reason="QOSMaxGRESPerUser and then a whole sentence of an engine that likes to talk " * 3,
        nodes=10_000,
        gpus=1024,
    )
    assert all(len(line) <= 100 for line in lines([JobGroup(long)]).split("\n"))


def test_the_story_of_a_job() -> None:
    told = detail(
        state="running",
        attempt_count=2,
        nodes=2,
        devices=16,
        time_seconds=14_400,
        spec={
            "name": "train",
            "command": ["python", "train.py", "a b"],
            "env": {"LR": "3"},
            "retries": {"count": 2},
        },
        spec_note="",
        events=[
            {"at": ago(7300), "kind": "submitted", "by": "alice", "text": ""},
            {"at": ago(7299), "kind": "sent", "by": "", "text": "17"},
        ],
        attempts=[
            {
                "number": 1,
                "engine_id": "17",
                "started_at": ago(7200),
                "ended_at": ago(3600),
                "ending": "preempted",
                "nodes": ["n1", "n2"],
                "devices": 16,
                "exit_code": None,
                "signal": 15,
                "reason": "PREEMPTED",
            },
            {
                "number": 2,
                "engine_id": "17",
                "started_at": ago(90),
                "ended_at": None,
                "ending": None,
                "nodes": [f"n{i}" for i in range(6)],
                "devices": 16,
                "exit_code": None,
                "signal": None,
                "reason": "",
            },
        ],
    )
    shown = "\n".join(line.text for line in job_lines(wire.JobDetail.model_validate(told), None, NOW, 100))
    assert (
        shown
        == """\
train (0001) has been running for 90 s

  owner         alice, team nlp, priority normal
  GPUs          8 GPUs on each of 2 nodes, 16 in all
  time limit    4h
  where         cluster hpc; hpc-a100 has 8 GPUs free, and is the only pool that fits
  engine job    17 (train-fwabcd-0001-1)
  command       python train.py 'a b'
  environment   LR
  retries       2, the first after 30s

Timeline (UTC)
  09:58:20  submitted   by alice
  09:58:21  sent        17
  10:00:00  started     attempt 1 on n1, n2, 16 GPUs
  11:00:00  preempted   attempt 1 after 60 min, signal 15: PREEMPTED
  11:58:30  started     attempt 2 on n0, n1, n2, n3 and 2 more, 16 GPUs

Show its output with:  fairway logs 0001 -f"""
    )


@pytest.mark.parametrize("length", [0, 0.4])
def test_what_happened_in_one_second_is_told_in_order(length: float) -> None:
    def attempt(number: int, start: int, end: float) -> dict[str, Any]:
        none = dict.fromkeys(("exit_code", "signal"))
        ended = (NOW - timedelta(seconds=end)).isoformat()
        when = {"started_at": ago(start), "ended_at": ended, "ending": "failed", "reason": ""}
        return {"number": number, "engine_id": "17", "nodes": ["n1"], "devices": 8, **when, **none}

    events = [
        {"at": ago(at), "kind": kind, "by": "", "text": ""}
        for at, kind in ((9, "submitted"), (9, "sent"), (7, "retry"), (7, "sent"))
    ]
    told = detail(state="failed", events=events, attempts=[attempt(1, 9, 7), attempt(2, 7, 7 - length)])
    happened = timeline(wire.JobDetail.model_validate(told))
    assert [m.what for m in happened] == [
        "submitted", "sent", "started", "failed", "retry", "sent", "started", "failed",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "other", "said"),
    [
        ("waiting", {"reason": "(Priority)"}, "train (0001) has been waiting for 2 h: (Priority)"),
        ("failed", {"exit_code": 3}, "train (0001) failed 30 s ago with exit code 3"),
        ("refused", {"code": "X", "reason": "no"}, "train (0001) was refused 30 s ago: no"),
        ("held", {"desired_state": "hold"}, "train (0001) is on hold, submitted 2 h ago"),
        (
            "running",
            {"desired_state": "cancel"},
            "train (0001) has been running for 90 s, and is being cancelled",
        ),
        ("done", {"array_index": 7}, "train[7] (0001) finished 30 s ago"),
        ("lost", {"name": "\x1b[31mred"}, "[31mred (0001) was lost 30 s ago"),
    ],
)
def test_one_sentence(state: str, other: dict[str, Any], said: str) -> None:
    assert headline(job(1, state, **other), NOW) == said


class Playing:
    """Answers each path from a table, by lists in turn, and remembers what was asked."""

    def __init__(self) -> None:
        self.answers: dict[str, Any] = {}
        self.asked: list[tuple[str, Any]] = []
        playing = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                parts = urlsplit(self.path)
                playing.asked.append((parts.path, json.loads(body) if body else parse_qs(parts.query)))
                told = ({"/v1/clusters": page()} | playing.answers)[parts.path]
                told = told.pop(0) if isinstance(told, list) else told
                data = json.dumps(told).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)


@pytest.fixture
def playing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Playing]:
    made = Playing()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path))
    monkeypatch.setenv("FAIRWAY_URL", f"http://127.0.0.1:{made.server.server_port}")
    monkeypatch.setenv("FAIRWAY_TOKEN", "fw_x")
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def page(*jobs: dict[str, Any], cursor: str | None = None) -> dict[str, Any]:
    return {"items": list(jobs), "next_cursor": cursor}


WHOAMI = {
    "name": "t",
    "role": "member",
    "user": "alice",
    "expires_at": None,
    "server_version": "1",
    "fleet": "acme",
}


def test_get_jobs_asks_for_what_was_said(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/whoami": WHOAMI, "/v1/jobs": page()}
    states = ["--state", "open", "--state", "failed", "--state", "finished", "--state", "on-hold"]
    flags = ["--mine", *states, "--team", "nlp", "--ours", "--since", "2h"]
    assert run(root, ["get", "jobs", *flags]) == 0
    path, query = playing.asked[-1]
    assert path == "/v1/jobs"
    assert (query["user"], query["state"]) == (["alice"], ["open", "failed", "done", "held"])
    assert (query["team"], query["native"]) == (["nlp"], ["false"])
    since = datetime.fromisoformat(query["since"][0])
    assert 7190 < (datetime.now(UTC) - since).total_seconds() < 7260
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err == "no jobs match\n\nhint: remove filters:  fairway get jobs\n"


def test_get_jobs_searches_names_and_days(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/jobs": page()}
    assert run(root, ["get", "jobs", "--search", "eval", "--window", "last-week"]) == 0
    query = playing.asked[-1][1]
    assert (query["search"], query["window"]) == (["eval"], ["last-week"])
    assert capsys.readouterr().err.startswith("no jobs match")
    assert run(root, ["get", "jobs", "--since", "2h", "--window", "last-week"]) == 64
    assert "give --window or --since and --before" in capsys.readouterr().err


def test_nothing_yet_says_what_to_do(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/jobs": page()}
    assert run(root, ["get", "jobs"]) == 0
    shown = capsys.readouterr()
    assert shown.err.startswith("no jobs yet\n\nhint: submit one:  fairway run")


def test_more_than_fit_are_said_to_be_there(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    tasks = [_job(100 - i, "waiting", array="0002", array_index=99 - i) for i in range(3)]
    playing.answers = {
        "/v1/jobs": page(_job(200), *tasks, _job(1), cursor="more"),
        "/v1/jobs/0002/tasks": {"tasks": 99, "counts": {"waiting": 90, "running": 9}},
    }
    assert run(root, ["get", "jobs", "--limit", "2"]) == 0
    shown = capsys.readouterr()
    assert "train x99  9 running, 90 wait" in shown.out  # ages grow with the date, and columns with them
    assert shown.err == "\nShowing the newest 2 rows. Show more with  --limit 20  or  --all\n"


def test_json_is_every_job(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/jobs": page(_job(2, array="0001", array_index=1), _job(1, array="0001"))}
    assert run(root, ["get", "jobs", "-o", "json"]) == 0
    assert [j["id"] for j in json.loads(capsys.readouterr().out)] == ["0002", "0001"]


@pytest.mark.parametrize("words", [["job", "0001"], ["0001"], ["jobs", "0001"]])
def test_describe(playing: Playing, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/jobs/0001": detail()}
    assert run(root, ["describe", *words]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("train (0001) has been running for ")
    assert "command       not shown: shown to its owner" in shown


def test_why_of_a_pool_lists_reasons_by_gpu_hours(
    playing: Playing, capsys: pytest.CaptureFixture[str]
) -> None:
    reasons = [
        {
            "code": "TeamAtCeiling",
            "text": "The team and its subteams use all GPUs that they may borrow.",
            "hint": "wait for a job of the team to end",
            "jobs": 12,
            "devices": 96,
            "gpu_hours": 1234.5,
            "largest": ["0001", "0002"],
        }
    ]
    playing.answers = {"/v1/waits": {"reasons": reasons}}
    assert run(root, ["why", "--pool", "hpc-a100", "--team", "nlp"]) == 0
    shown = capsys.readouterr()
    assert shown.out.splitlines()[0].split() == ["REASON", "JOBS", "GPUS", "GPU-HOURS", "LARGEST", "MEANING"]
    assert shown.out.splitlines()[1].split()[:4] == ["TeamAtCeiling", "12", "96", "1,234.5"]
    assert "TeamAtCeiling: wait for a job of the team to end" in shown.err
    playing.answers = {"/v1/waits": {"reasons": []}}
    assert run(root, ["why", "--team", "nlp"]) == 0
    assert "no jobs of team nlp are waiting" in "".join(capsys.readouterr())
    for wrong in ([], ["0001", "--pool", "hpc-a100"]):
        assert run(root, ["why", *wrong]) == 64


def test_why(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    reason = {
        "code": "TeamAtCeiling",
        "text": "The team uses all GPUs of this pool of this pool.",
        "hint": "wait for a job of the team to end",
        "engine": "AssocGrpGRES",
    }
    found = {
        **{key: _job(1, "waiting")[key] for key in ("id", "name", "state", "cluster", "pool", "slice")},
        **{key: _job(1, "waiting")[key] for key in ("submitted_at", "started_at", "ended_at")},
        "summary": "train (0001) has been waiting for 2 h for 8 GPUs of hpc-a100",
        "nodes": [],
        "reasons": [reason],
    }
    playing.answers = {"/v1/jobs/0001/why": found}
    assert run(root, ["why", "0001"]) == 0
    assert capsys.readouterr().out == (
        "train (0001) has been waiting for 2 h for 8 GPUs of hpc-a100\n\n"
        "  blocked by    The team uses all GPUs of this pool of this pool. "
        "(TeamAtCeiling; the engine reports: AssocGrpGRES)\n\n"
        "hint: wait for a job of the team to end\n"
    )
    assert run(root, ["why", "0001", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["reasons"] == [reason]
    narrow = why_lines(wire.Why.model_validate(found), 60)
    assert max(len(line.text) for line in narrow) <= 60 and len(narrow) > 4


@pytest.mark.parametrize("words", [[], ["job"], ["0001", "0002"]])
def test_describe_wants_one(playing: Playing, words: list[str]) -> None:
    playing.answers = {"/v1/jobs/job": {}}
    assert run(root, ["describe", *words]) != 0


def part(text: str, offset: int, attempt: int = 1, *, ended: bool = False) -> dict[str, Any]:
    size = len(text.encode())
    return {"attempt": attempt, "text": text, "offset": offset, "next_offset": offset + size, "ended": ended}


def test_logs_of_what_is_there(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/jobs/0001/log": [part("hällo\n", 0), part("world", 7), part("", 12)]}
    assert run(root, ["logs", "0001", "--attempt", "1", "--node", "2"]) == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("hällo\nworld", "")
    assert playing.asked[0][1] == {"attempt": ["1"], "node": ["2"], "offset": ["0"]}


def test_logs_follow_to_the_end(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {
        "/v1/jobs/0001/log": [
            part("", 0, 0),
            part("one\n", 0),
            part("", 4, ended=True),
            part("two\n", 0, 2),
            part("", 4, 2, ended=True),
            part("", 4, 2, ended=True),
        ],
        "/v1/jobs/0001": [
            detail(state="waiting"),
            detail(attempt_count=2),
            detail(state="failed", attempt_count=2, exit_code=1),
            detail(state="failed", attempt_count=2, exit_code=1),
        ],
    }
    assert run(root, ["logs", "-f", "0001"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "one\ntwo\n"
    assert shown.err.startswith("attempt 2\ntrain (0001) failed")


@pytest.mark.parametrize(
    ("verb", "changed", "unchanged", "said"),
    [
        ("cancel", ["0001", "0002"], [], "Cancelling 0001, 0002\n"),
        ("hold", ["0001"], ["0002"], "Holding 0001\n0002 is already on hold or finished\n"),
        ("release", [], ["0001", "0002"], "0001, 0002 are not on hold\n"),
        ("cancel", ["0001", "0002", "0003"], [], "Cancelling 0001, 0002, 0003\n"),
        (
            "cancel",
            ["0008", "0009"],
            ["0002"],
            "Cancelling 0008, 0009\n0002 is already cancelled or finished\n",
        ),
    ],
)
def test_changing(
    playing: Playing,
    verb: str,
    changed: list[str],
    unchanged: list[str],
    said: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    playing.answers = {f"/v1/jobs/{verb}": {"changed": changed, "unchanged": unchanged}}
    assert run(root, [verb, "0001", "0002", "0001"]) == 0
    assert playing.asked == [(f"/v1/jobs/{verb}", {"jobs": ["0001", "0002"]})]
    assert capsys.readouterr().out == said


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        (["move", "0001", "--pool", "cloud"], {"pool": "cloud"}),
        (["resize", "0001", "--gpus", "4"], {"gpus": 4}),
        (["resize", "0001", "--gpus", "8", "--nodes", "2"], {"gpus": 8, "nodes": 2}),
        (["set-time", "0001", "1d12h"], {"time_seconds": 129_600}),
        (["set-priority", "0001", "low"], {"priority": "low"}),
    ],
)
def test_changing_a_job_that_waits(
    playing: Playing, words: list[str], asked: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    place = {"cluster": "hpc", "pool": "hpc-a100", "slice": None, "why": "it has room"}
    changed = [{"name": "GPUs", "before": "8", "after": "4"}, {"name": "nodes", "before": "1", "after": "2"}]
    answer = {"id": "0001", "requested": True, "changes": changed, "placement": place}
    nothing = {"pool": None, "gpus": None, "nodes": None, "time_seconds": None, "priority": None}
    playing.answers = {"/v1/jobs/0001/change": [answer, answer, answer | {"changes": [], "requested": False}]}
    assert run(root, words) == 0
    assert playing.asked == [("/v1/jobs/0001/change", nothing | asked | {"dry_run": False})]
    assert capsys.readouterr().out == "Changing 0001: GPUs 8 → 4, nodes 1 → 2\n"
    assert run(root, [*words, "--dry-run"]) == 0
    assert playing.asked[1][1] == nothing | asked | {"dry_run": True}
    assert capsys.readouterr().out == "0001 can be changed: GPUs 8 → 4, nodes 1 → 2\n"
    assert run(root, words) == 0
    assert capsys.readouterr().out == "0001 is so already\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["resize", "0001"], "give --gpus, --nodes or both"),
        (["resize", "0001", "--gpus", "0"], "0 is not in the range"),
        (["set-time", "0001", "soon"], "'soon' is not a duration"),
        (["move", "0001"], "missing option '--pool'"),
    ],
)
def test_a_change_says_what(
    playing: Playing, words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root, words) == 64
    assert said in capsys.readouterr().err
    assert playing.asked == []


@pytest.mark.parametrize(
    ("flags", "states"),
    [(["--mine"], ["open"]), (["--mine", "--state", "waiting", "--name", "train"], ["queued", "waiting"])],
)
def test_all_jobs_of_the_caller_are_cancelled_after_a_confirmation(
    playing: Playing,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    flags: list[str],
    states: list[str],
) -> None:
    two = page(_job(1, "waiting"), _job(2, "waiting"))
    changed = {"changed": ["0001", "0002"], "unchanged": []}
    playing.answers = {"/v1/whoami": WHOAMI, "/v1/jobs": two, "/v1/jobs/cancel": changed}
    monkeypatch.setattr("sys.stdin", io.StringIO("n\n"))
    assert run(root, ["cancel", *flags]) != 0
    query = playing.asked[-1][1]
    assert (query["user"], query["state"]) == (["alice"], states)
    assert query.get("name") == (["train"] if "--name" in flags else None)
    assert "0001, 0002\nCancelling these 2 jobs. Continue?" in capsys.readouterr().err
    assert run(root, ["cancel", *flags, "--yes"]) == 0
    assert playing.asked[-1] == ("/v1/jobs/cancel", {"jobs": ["0001", "0002"]})


def test_an_array_in_several_states_is_not_cancelled_by_its_first_task(
    playing: Playing, capsys: pytest.CaptureFixture[str]
) -> None:
    tasks = [_job(n, "waiting", array="0001") for n in (1, 2)]
    playing.answers = {
        "/v1/whoami": WHOAMI,
        "/v1/jobs": [page(*tasks), page(*tasks, _job(3, "running", array="0001"))],
        "/v1/jobs/cancel": {"changed": ["0002"], "unchanged": []},
    }
    assert run(root, ["cancel", "--mine", "--state", "waiting", "--yes"]) == 0
    assert playing.asked[-1] == ("/v1/jobs/cancel", {"jobs": ["0002"]})
    assert "0001 is not included" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--mine", "0001"], ["0001", "--state", "waiting"], ["--name", "x"]])
def test_change_wants_jobs_or_mine(playing: Playing, words: list[str]) -> None:
    assert run(root, ["hold", *words]) == 64
    assert playing.asked == []


def test_count_sends_totals_and_says_what_was_new(
    playing: Playing, capsys: pytest.CaptureFixture[str]
) -> None:
    told = {"job": "0001", "counts": {"steps": 120_000, "tokens": 7}, "added": {"steps": 5000, "tokens": 0}}
    playing.answers = {"/v1/jobs/hpc%2F1542/counts": told}
    assert run(root, ["count", "hpc/1542", "steps=120_000", "tokens=7"]) == 0
    assert playing.asked == [("/v1/jobs/hpc%2F1542/counts", {"steps": 120_000, "tokens": 7})]
    assert capsys.readouterr().out == "0001 has done 120,000 steps, 7 tokens; new: 5,000 steps\n"
    playing.answers = {"/v1/jobs/0001/counts": told | {"added": {"steps": 0}}}
    assert run(root, ["count", "0001", "steps=7", "-o", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["counts"]["steps"] == 120_000
    assert run(root, ["count", "0001", "steps=7"]) == 0
    assert capsys.readouterr().out == "0001 has done 120,000 steps, 7 tokens; nothing new\n"


@pytest.mark.parametrize(
    "words",
    [
        ["0001"], ["0001", "steps"], ["0001", "steps="], ["0001", "Steps=1"], ["0001", "steps=-1"],
        ["0001", "steps=1.5"], ["0001", "steps=9999999999999999"], ["0001", "steps=1", "steps=2"],
        ["0001", "=1"], ["0001", f"{'s' * 32}=1"],
    ],
)  # fmt: skip
def test_count_wants_units_with_totals(playing: Playing, words: list[str]) -> None:
    assert run(root, ["count", *words]) == 64
    assert playing.asked == []


def test_describe_shows_what_a_job_has_done(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/jobs/0001": detail(counts={"steps": 120_000})}
    assert run(root, ["describe", "0001"]) == 0
    assert "120,000 steps" in capsys.readouterr().out


COST_ROW = {
    "kind": None, "gpu_hours": "80", "usage": "109.6", "idle": "0", "overhead": "0", "total": "109.6",
}  # fmt: skip
COUNTED = {"count": 80_000, "per_unit": "1.37"}


def cost_of_units() -> dict[str, Any]:
    return {
        "fleet": "acme",
        "currency": "USD",
        "window": {
            "first_day": "2026-10-01", "last_day": "2026-10-01", "start": ago(0), "end": ago(0),
            "timezone": "UTC",
        },
        "by": ["team"],
        "of_teams": None,
        "per": "1000:steps",
        "rows": [COST_ROW | COUNTED | {"labels": ["nlp"]}, COST_ROW | {"labels": ["vision"]}],
        "total": COST_ROW | COUNTED | {"labels": [], "gpu_hours": "160", "usage": "219.2", "total": "219.2"},
    }  # fmt: skip


def test_report_cost_has_the_cost_of_a_unit(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.answers = {"/v1/reports/cost": cost_of_units()}
    assert run(root, ["report", "cost", "--per", "1000:steps"]) == 0
    assert playing.asked[-1][1]["per"] == ["1000:steps"]
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].split() == ["TEAM", "GPU-HOURS", "TOTAL", "USD", "%", "COUNT", "USD/1,000", "STEPS"]
    assert shown[1].split() == ["nlp", "80.00", "109.60", "50.0", "80,000", "1.3700"]
    assert shown[2].split() == ["vision", "80.00", "109.60", "50.0", "-", "-"]
    assert run(root, ["report", "cost", "--per", "1000:steps", "-o", "csv"]) == 0
    rows = list(csv.DictReader(io.StringIO(capsys.readouterr().out)))
    assert [(row["count"], row["per_unit"], row["per"]) for row in rows] == [
        ("80000", "1.37", "1000:steps"),
        ("", "", "1000:steps"),
    ]
    assert run(root, ["report", "cost", "--per", "1000:steps", "-o", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [row["count"] for row in found["rows"]] == [80_000, None]
    assert found["rows"][1]["per_unit"] is None
    asked = len(playing.asked)
    for wrong in ("Steps", "steps:1000", "0:steps", "label:"):
        assert run(root, ["report", "cost", "--per", wrong]) == 64
    assert len(playing.asked) == asked


def test_top_once(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    seen = {
        "total": 32,
        "in_use": 24,
        "free": 8,
        "unhealthy": 0,
        "nodes": 4,
        "nodes_drained": 0,
        "nodes_down": 0,
    }
    pool = {"name": "hpc-a100", "reachable": True, "observed_at": ago(1), "age_seconds": 1, "cluster": "hpc"}
    pool |= {"gpu": "A100-80GB", "slice_kinds": [], "capacity": "owned", "price_per_gpu_hour": "1.90"}
    pool |= {"currency": "USD", "gpus": seen, "slices": []}

    def counted(team: str | None, state: str, jobs: int, devices: int) -> dict[str, Any]:
        where = {"cluster": "hpc", "team": team, "pool": "hpc-a100", "slice": None}
        return {**where, "state": state, "jobs": jobs, "devices": devices}

    counts = [
        counted("nlp", "running", 2, 16),
        counted(None, "running", 1, 8),
        counted("nlp", "waiting", 4, 32),
    ]
    playing.answers = {
        "/v1/whoami": WHOAMI,
        "/v1/pools": page(pool),
        "/v1/jobs/counts": {"counts": counts},
        "/v1/jobs": [page(_job(3), _job(2)), page(_job(9, "waiting", array="0006", array_index=3))],
        "/v1/use/now": {"supplies": []},
    }
    assert run(root, ["top", "--once"]) == 0
    shown = capsys.readouterr().out.split("\n")
    assert shown[0].startswith("acme  ")
    assert "24 of 32 GPUs and slices in use   3 jobs running   4 jobs waiting for 32" in shown[0]
    assert shown[3] == "hpc-a100  A100-80GB     32      24     8      32  nlp 16+32, others 8"
    assert [line.split()[:3] for line in shown[6:9]] == [
        ["0003", "train", "running"],
        ["0002", "train", "running"],
        ["0006", "train", "x1"],
    ]
    assert shown[9] == "… 4 more jobs;  fairway get jobs --state open --all"
    now = {"pool": "hpc-a100", "slice": None, "at": ago(300), "measured_gpus": 16.0, "busy_gpus": 9.6}
    playing.answers["/v1/use/now"] = {"supplies": [now | {"idle_gpus": 2}]}
    playing.answers["/v1/jobs"] = [page(_job(3, use=use()), _job(2)), page()]
    assert run(root, ["top", "--once"]) == 0
    shown = capsys.readouterr().out.split("\n")
    assert shown[2:5] == [
        "POOL      GPU        TOTAL  IN USE  BUSY  FREE  WANTED  TEAMS: HOLD+WANT",
        "hpc-a100  A100-80GB     32      24   10*     8      32  nlp 16+32, others 8",
        "* not all GPUs in use were measured",
    ]
    assert shown[6].split() == ["JOB", "NAME", "STATE", "GPUS", "POOL", "TEAM", "USER", "FOR", "BUSY", "%"]
    assert shown[7].endswith("93")


@pytest.mark.parametrize(
    "verb",
    ["cancel", "describe", "hold", "logs", "move", "release", "resize", "set-priority", "set-time", "top"],
)
def test_the_new_verbs_show_examples(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert verb in VERBS
    assert run(root, [verb, "--help"]) == 0
    assert "Examples:" in capsys.readouterr().out


def use(**other: Any) -> dict[str, Any]:
    return {
        "held_gpu_seconds": 28_800.0,
        "measured_gpu_seconds": 21_600.0,
        "unmeasured_gpu_seconds": 7_200.0,
        "idle_gpu_seconds": 2_880.0,
        "engine": 0.61,
        "latest": {"at": ago(600), "gpus": 8, "engine": 0.934},
        **other,
    }


def gpu(index: int, engine: float, **other: Any) -> dict[str, Any]:
    means = {"engine": engine, "sm": 0.5, "dram": 0.25, "memory_mib": 41_000.0, "power_watts": 402.4}
    plain: dict[str, Any] = {
        "node": "gpu-node-with-a-long-name-0017",
        "gpu": str(index),
        "instance": "",
        "measured_gpu_seconds": 3600.0,
        "idle_gpu_seconds": 360.0,
        "latest": {"at": ago(600), **means},
        "mark": None,
        "mark_text": "",
    }
    return means | plain | other


def test_the_wide_list_has_what_was_measured() -> None:
    shown = [job(1, use=use(sm=0.4, memory_peak_mib=41_000.0, power_watts=301.0)), job(2)]
    view = jobs_view(group_jobs(shown, {}), NOW, wide=True, filtered=False, more=False)
    heading, first, second = table(view.columns, view.rows, None)
    assert heading.endswith("PRIORITY  ENGINE JOB  BUSY %  IDLE %  PEAK GIB")
    assert first.split()[-3:] == ["61", "13", "40"]
    assert second.endswith("17"), "no metrics of its cluster are read"
    plain = jobs_view(group_jobs([job(2)], {}), NOW, wide=True, filtered=False, more=False)
    assert "BUSY" not in table(plain.columns, plain.rows, None)[0]


def test_the_cost_of_jobs_is_in_the_wide_list_and_in_describe() -> None:
    running = {"amount": "12.4", "currency": "USD", "about": False, "per_hour": "3.5"}
    ended = {"amount": "1412.40", "currency": "USD", "about": True, "per_hour": None}
    shown = [job(1, cost=running), job(2, "done", cost=ended), job(3, "waiting")]
    view = jobs_view(group_jobs(shown, {}), NOW, wide=True, filtered=False, more=False)
    heading, *rows = table(view.columns, view.rows, None)
    assert heading.split()[-3:] == ["ENGINE", "JOB", "COST"]
    assert [row.rpartition("  ")[2].strip() for row in rows] == ["12.40 USD", "about 1,412.40 USD", "17"]
    plain = jobs_view(group_jobs(shown, {}), NOW, wide=False, filtered=False, more=False)
    assert "COST" not in table(plain.columns, plain.rows, None)[0]
    more = {"spec": None, "spec_note": "", "placement_reason": "", "engine_name": None}
    for one, line in (
        (shown[0], "  cost          12.40 USD so far, 3.50 USD per hour"),
        (shown[1], "  cost          about 1,412.40 USD"),
    ):
        detail = one.model_dump() | more | {"submission": 1, "attempts": [], "events": []}
        lines = [text.text for text in job_lines(wire.JobDetail.model_validate(detail), None, NOW, 100)]
        assert line in lines


def test_what_the_gpus_of_a_job_did_fits_100_columns() -> None:
    lagging = gpu(3, 0.0, mark="lags", mark_text="engine 0 % busy, the others 93 %")
    gone = gpu(0, 0.9, node="n2", latest=None, memory_mib=7_300.0)
    found = JobUse.model_validate(
        {
            "id": "8f3k",
            "use": use(),
            "gpus": [lagging, gpu(0, 0.934), gone],
            "gpus_in_all": 40,
            "hours": [],
            "windows": [],
        }
    )
    shown = [line.text for line in gpu_lines(found, 100)]
    assert all(len(line) <= 100 for line in shown), shown
    assert shown == [
        "GPUs (% of the time: last five minutes / whole job; 3 of 40)",
        "  NODE                            GPU  ENGINE     SM  TENSOR   DRAM    GIB     WATT  IDLE  NOTE",
        "  gpu-node-with-a-long-name-0017    3     0/0  50/50     -/-  25/25  40/40  402/402    10  lags",
        "  gpu-node-with-a-long-name-0017    0   93/93  50/50     -/-  25/25  40/40  402/402    10",
        "  n2                                0    -/90   -/50     -/-   -/25  -/7.1    -/402    10  earlier",
        "  gpu-node-with-a-long-name-0017 GPU 3 lags: engine 0 % busy, the others 93 %",
    ]
    told = detail(1, use=use())
    text = "\n".join(line.text for line in job_lines(wire.JobDetail.model_validate(told), None, NOW, None))
    assert (
        "GPU use       engine busy 61 % of the time, 93 % in the last five minutes measured,"
        " 10 % of 8.0 GPU-hours idle, 25 % not measured" in text
    )
    silent = use(measured_gpu_seconds=0.0, idle_gpu_seconds=0.0, engine=None, latest=None)
    assert use_text(Use.model_validate(silent)) == "not measured"


def advised(state: str = "done") -> dict[str, Any]:
    """The answer to `why` of a job that used its GPUs badly."""
    told = _job(1, state)
    return {
        **{key: told[key] for key in ("id", "name", "state", "cluster", "pool", "slice")},
        **{key: told[key] for key in ("submitted_at", "started_at", "ended_at")},
        "summary": "train (0001) is done 2 h ago; it ran 3 h on gpu001",
        "nodes": ["gpu001"],
        "reasons": [],
        "use": use(latest=None, memory_peak_mib=9_300.0, energy_joules=7_560_000.0),
        "cost": {"amount": "16.00", "currency": "USD", "about": False},
        "diagnosis": {
            "code": "CpuBound",
            "text": "The GPUs wait for data that the CPU prepares.",
            "evidence": ["GPU engine busy 25 % of the time (threshold 50 %)"],
            "confidence": "high",
            "hint": "more cores:  --cpus 32",
        },
        "right_size": {
            "pattern": "train-*",
            "jobs": 12,
            "request": "--gpus 1g.10gb",
            "saved_gpu_hours": 90.0,
            "saved_money": "412.00",
            "saved_wait_seconds": 10_800.0,
            "text": "your last 12 train-* jobs used 9 of 80 GB; --gpus 1g.10gb would have saved 412.00 USD",
        },
    }


ADVICE = """
It held 8.0 GPU-hours, 16.00 USD. GPUs: engine busy 61 % of the time, 10 % of 8.0 GPU-hours idle, 25
  % not measured; at most 9.1 GiB of memory on one; 2.1 kWh.

The GPUs wait for data that the CPU prepares. (CpuBound, high confidence)
  GPU engine busy 25 % of the time (threshold 50 %)
hint: more cores:  --cpus 32

Next time: your last 12 train-* jobs used 9 of 80 GB; --gpus 1g.10gb would have saved 412.00 USD.
"""


def test_advice_fits_100_columns() -> None:
    lines = why_lines(wire.Why.model_validate(advised()), 100)
    assert "\n".join(line.text for line in lines[1:]) == ADVICE.rstrip("\n")


def test_a_job_that_runs_has_no_summary_yet() -> None:
    lines = why_lines(wire.Why.model_validate(advised("running")), None)
    assert not any("It held" in line.text for line in lines)
    assert any("CpuBound" in line.text for line in lines)


def test_the_end_of_a_followed_log_says_what_it_used(
    playing: Playing, capsys: pytest.CaptureFixture[str]
) -> None:
    playing.answers = {
        "/v1/jobs/0001/log": [part("one\n", 0), part("", 4, ended=True), part("", 4, ended=True)],
        "/v1/jobs/0001": detail(state="done", attempt_count=1, use=use()),
        "/v1/jobs/0001/why": advised(),
    }
    assert run(root, ["logs", "-f", "0001"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "one\n"
    assert "It held 8.0 GPU-hours, 16.00 USD." in shown.err
    assert "(CpuBound, high confidence)" in shown.err
    assert "Next time: your last 12 train-* jobs" in shown.err


def test_describe_says_what_limits_a_job(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    of_gpus = {"id": "0001", "use": use(), "gpus": [], "gpus_in_all": 0, "hours": [], "windows": []}
    playing.answers = {
        "/v1/jobs/0001": detail(state="done", attempt_count=1, use=use()),
        "/v1/jobs/0001/use": of_gpus,
        "/v1/jobs/0001/why": advised(),
    }
    assert run(root, ["describe", "0001"]) == 0
    assert "(CpuBound, high confidence)" in capsys.readouterr().out
