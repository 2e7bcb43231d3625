"""plan, apply, adopt, render and import against a server that plays its part, without a terminal."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairway.cli.errors import run
from fairway.cli.root import root
from fairway.cli.shared import apply_progress
from fairway.cli.shared.plan_file import read_plan
from fairway.model.errors import FairwayError
from fairway.policy.objects import Action
from fairway.policy.removals import RemovalKind
from fairway.wire import policy as wire
from tests.unit.cli.output.test_plan import RAISED, change, cluster, plan
from tests.unit.cli.output.test_policy import DONE, STOPPED
from tests.waiting import until


class Playing:
    """Answers each (method, path) from a table, and remembers what was sent."""

    def __init__(self) -> None:
        self.answers: dict[str, tuple[int, Any]] = {}
        self.asked: list[tuple[str, Any]] = []
        playing = self

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("content-length", 0)))
                key = f"{self.command} {self.path.partition('?')[0]}"
                playing.asked.append((key, json.loads(body) if body else None))
                status, told = ({"GET /v1/clusters": (200, {"items": []})} | playing.answers)[key]
                data = json.dumps(told).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_POST = answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def plans(self, made: wire.Plan) -> None:
        self.answers["POST /v1/plans"] = (200, made.model_dump(mode="json"))

    def applies(self, ended: wire.ApplyDetail) -> None:
        told = ended.model_dump(mode="json")
        self.answers["POST /v1/applies"] = self.answers["POST /v1/adoptions"] = (202, told)
        self.answers["GET /v1/applies/12"] = self.answers["GET /v1/applies/12/progress"] = (200, told)

    def sent(self, key: str) -> list[Any]:
        return [body for asked, body in self.asked if asked == key]


@pytest.fixture
def playing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Playing]:
    made = Playing()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("FAIRWAY_URL", f"http://127.0.0.1:{made.server.server_port}")
    monkeypatch.setenv("FAIRWAY_TOKEN", "fw_x")
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.setattr(apply_progress, "_EVERY_SECONDS", 0.01)
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


@pytest.fixture
def fleet(tmp_path: Path) -> Path:
    file = tmp_path / "fleet.yaml"
    file.write_text("name: acme\n")
    return file


Said = Callable[[], tuple[str, str]]


@pytest.fixture
def said(capsys: pytest.CaptureFixture[str]) -> Said:
    def read() -> tuple[str, str]:
        shown = capsys.readouterr()
        return shown.out, shown.err

    return read


NO_CHANGES = plan(cluster("hpc"))
FORCEABLE = {
    "code": "TeamHasJobs",
    "message": "product has 3 running jobs",
    "hint": "drain it",
    "forceable": True,
}
FINAL = {
    "code": "InTheWay",
    "message": "qos x is not Fairway's",
    "hint": "fairway adopt hpc qos/x",
    "forceable": False,
}


def objecting(*objections: dict[str, object]) -> wire.Plan:
    return plan(cluster("hpc", change(Action.DELETE, "account", "product"), objections=list(objections)))


@pytest.mark.parametrize(("made", "code"), [(NO_CHANGES, 0), (RAISED, 2)])
def test_exit_codes_that_ci_can_use(
    playing: Playing, fleet: Path, made: wire.Plan, code: int, said: Said
) -> None:
    playing.plans(made)
    assert run(root, ["plan", "-f", str(fleet), "--detailed-exitcode"]) == code
    assert run(root, ["plan", "-f", str(fleet)]) == 0
    assert playing.sent("POST /v1/plans")[0] == {
        "fleet": "name: acme\n",
        "source": str(fleet),
        "cluster": None,
    }


def test_an_error_is_1_even_so(playing: Playing, fleet: Path, tmp_path: Path, said: Said) -> None:
    failure = wire.ClusterFailure(cluster="cloud", code="Unreachable", message="no answer", hint="look at it")
    playing.plans(RAISED.model_copy(update={"failures": [failure]}))
    out = tmp_path / "plan.json"
    assert run(root, ["plan", "-f", str(fleet), "--detailed-exitcode", "--out", str(out)]) == 1
    shown, error = said()
    assert shown.startswith("acme: 3 changes")
    assert "error: cannot plan cloud: no answer" in error and "--cluster hpc" in error
    assert not out.exists()


def test_a_plan_is_kept_for_its_owner_and_read_again(
    playing: Playing, fleet: Path, tmp_path: Path, said: Said
) -> None:
    playing.plans(RAISED)
    out = tmp_path / "kept.json"
    assert run(root, ["plan", "-f", str(fleet), "--out", str(out)]) == 0
    assert said()[1].endswith(f"\nApply exactly this with:  fairway apply {out}\n")
    assert out.stat().st_mode & 0o777 == 0o600
    kept = read_plan(out)
    assert (kept.text, kept.plan) == ("name: acme\n", RAISED)
    assert kept.fingerprints == {"hpc": "f" * 64, "cloud": "f" * 64}
    assert run(root, ["plan", "-f", str(fleet), "--out", str(tmp_path)]) == 0
    assert len(list(tmp_path.glob("plan-????.json"))) == 1


def test_json_is_whole_and_alone(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(RAISED)
    assert run(root, ["plan", "-f", str(fleet), "-o", "json"]) == 0
    assert json.loads(said()[0]) == RAISED.model_dump(mode="json")


def test_apply_a_plan_file_sends_its_fleet_and_fingerprints(
    playing: Playing, fleet: Path, tmp_path: Path, said: Said
) -> None:
    playing.plans(RAISED)
    playing.applies(DONE)
    out = tmp_path / "kept.json"
    run(root, ["plan", "-f", str(fleet), "--out", str(out)])
    fleet.write_text("name: changed-since\n")
    assert run(root, ["apply", str(out)]) == 0
    assert playing.sent("POST /v1/applies") == [
        {
            "fleet": "name: acme\n",
            "source": str(fleet),
            "fingerprints": {"hpc": "f" * 64, "cloud": "f" * 64},
            "force": False,
            "reprice_past": False,
            "confirmed": [],
        }
    ]
    assert "  hpc: done, 2 of 2 changes made in 3 s\n  recorded as:  fairway history 12\n" in said()[0]
    assert len(playing.sent("POST /v1/plans")) == 1  # it was not planned anew
    assert run(root, ["apply", str(out), "--cluster", "cloud"]) == 0
    assert playing.sent("POST /v1/applies")[1]["fingerprints"] == {"cloud": "f" * 64}
    assert run(root, ["apply", str(out), "--cluster", "elsewhere"]) == 1
    assert "the plan has no cluster elsewhere" in said()[1]


def test_a_refusal_says_what_was_done_and_exits_1(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(RAISED)
    playing.applies(STOPPED)
    assert run(root, ["apply", "-f", str(fleet), "--yes"]) == 1
    shown = said()[0]
    assert "hpc: stopped, 1 of 13 changes made" in shown and "not made: 12 changes" in shown
    assert "PlanOutdated" in shown


def test_nobody_is_asked_off_a_terminal(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(RAISED)
    assert run(root, ["apply", "-f", str(fleet)]) == 1
    assert "error: confirmation is needed, but there is no terminal" in said()[1]
    assert playing.sent("POST /v1/applies") == []


def test_nothing_to_apply(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(NO_CHANGES)
    assert run(root, ["apply", "-f", str(fleet)]) == 0
    assert said()[1].endswith("nothing to apply\n")


@pytest.mark.parametrize(
    ("made", "arguments", "sent"),
    [
        (objecting(FORCEABLE), [], False),
        (objecting(FORCEABLE), ["--force"], True),
        (objecting(FINAL), ["--force"], False),
        (objecting(FORCEABLE, FINAL), ["--force"], False),
    ],
)
def test_objections(
    playing: Playing, fleet: Path, said: Said, made: wire.Plan, arguments: list[str], sent: bool
) -> None:
    playing.plans(made)
    playing.applies(DONE)
    assert run(root, ["apply", "-f", str(fleet), "--yes", *arguments]) == (0 if sent else 1)
    assert bool(playing.sent("POST /v1/applies")) is sent
    if not sent:
        assert "error: not applied: " in said()[1]


CLOUD = wire.Removal(
    kind=RemovalKind.CLUSTER,
    name="cloud",
    what="",
    value="",
    detail="pool cloud-a100",
    gpus=72,
    running=41,
    waiting=0,
    recent=0,
    needs_force=True,
)
NLP = CLOUD.model_copy(
    update={"kind": RemovalKind.BUDGET, "name": "nlp", "value": "120,000 a month", "gpus": None, "detail": ""}
)
REMOVING = RAISED.model_copy(update={"removals": [CLOUD, NLP]})


PAST = wire.Objection(
    code="ClosedMonthWouldChange",
    message="October 2026 is closed: its statement would change by -12.00 EUR",
    hint="date it in an open month",
    forceable=False,
)
CURRENCY = wire.Objection(code="CurrencyWouldChange", message="EUR", hint="put it back", forceable=True)
REPRICING = RAISED.model_copy(update={"objections": [PAST]})


@pytest.mark.parametrize(
    ("objections", "arguments", "sent"),
    [
        ([PAST], ["--force"], False),
        ([PAST], ["--reprice-past"], True),
        ([PAST, CURRENCY], ["--reprice-past"], False),
        ([PAST, CURRENCY], ["--reprice-past", "--force"], True),
    ],
)
def test_a_closed_month_changes_on_request(
    playing: Playing, fleet: Path, objections: list[wire.Objection], arguments: list[str], sent: bool
) -> None:
    playing.plans(RAISED.model_copy(update={"objections": objections}))
    playing.applies(DONE)
    assert run(root, ["apply", "-f", str(fleet), "--yes", *arguments]) == (0 if sent else 1)
    assert [body["reprice_past"] for body in playing.sent("POST /v1/applies")] == [True] * sent


def test_a_plan_names_the_option_for_a_closed_month(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(REPRICING)
    assert run(root, ["plan", "-f", str(fleet)]) == 0
    out, err = said()
    assert "  needs --reprice-past: October 2026 is closed: its statement would change by -12.00 EUR\n" in out
    assert "(on " not in out.partition("needs --reprice-past")[2].partition("hint")[0]
    assert f"fairway apply -f {fleet} --reprice-past" in err
    assert run(root, ["apply", "-f", str(fleet), "--yes"]) == 1
    assert "error: not applied: October 2026 is closed: " in said()[1]


def test_a_plan_begins_with_what_it_removes(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(REMOVING)
    assert run(root, ["plan", "-f", str(fleet)]) == 0
    out, err = said()
    lines = out.splitlines()
    assert lines[2:5] == [
        "  removes cluster cloud: 72 GPUs, 41 running jobs no longer tracked; pool cloud-a100",
        "  removes budget of nlp (120,000 a month)",
        "    confirm with --force, or by typing: cloud, nlp",
    ]
    assert f"If you want all of these changes:  fairway apply -f {fleet} --force" in err


@pytest.mark.parametrize(
    ("arguments", "confirmed"),
    [
        ([], None),
        (["--remove", "cloud"], None),
        (["--remove", "cloud", "--remove", "nlp"], ["cloud", "nlp"]),
        (["--force"], []),
    ],
)
def test_what_is_removed_must_be_confirmed(
    playing: Playing, fleet: Path, said: Said, arguments: list[str], confirmed: list[str] | None
) -> None:
    playing.plans(REMOVING)
    playing.applies(DONE)
    assert run(root, ["apply", "-f", str(fleet), "--yes", *arguments]) == (1 if confirmed is None else 0)
    sent = playing.sent("POST /v1/applies")
    if confirmed is None:
        assert not sent and "error: not applied: the plan removes 1 cluster and 1 budget" in said()[1]
    else:
        assert sent[0]["confirmed"] == confirmed


def test_names_are_typed_on_a_terminal(
    playing: Playing, fleet: Path, said: Said, monkeypatch: pytest.MonkeyPatch
) -> None:
    playing.plans(REMOVING)
    playing.applies(DONE)
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    typed = iter(["cloud", "nlq", "cloud", "nlp"])
    monkeypatch.setattr("click.prompt", lambda *_, **__: next(typed))
    assert run(root, ["apply", "-f", str(fleet)]) == 1
    assert "you typed nlq, not nlp" in said()[1] and not playing.sent("POST /v1/applies")
    assert run(root, ["apply", "-f", str(fleet)]) == 0
    assert playing.sent("POST /v1/applies")[0]["confirmed"] == ["cloud", "nlp"]


def test_a_partial_file_removes_nothing_even_with_force(playing: Playing, fleet: Path, said: Said) -> None:
    refused = CLOUD.model_copy(update={"refused": True})
    playing.plans(RAISED.model_copy(update={"removals": [refused]}))
    assert run(root, ["apply", "-f", str(fleet), "--force", "--yes"]) == 1
    assert "the fleet file is partial, and removes 1 cluster" in said()[1]
    assert not playing.sent("POST /v1/applies")


def file_of(text: str) -> dict[str, object]:
    return {
        "revision": 4,
        "created_at": "2026-11-15T10:22:00Z",
        "created_by": "dana",
        "digest": "d",
        "applied_to": [],
        "text": text,
    }


def test_get_fleet_prints_the_file_as_it_was_written(playing: Playing, said: Said) -> None:
    text = "name: acme  # mine\nteams: {}\n"
    playing.answers["GET /v1/fleet"] = playing.answers["GET /v1/revisions/4"] = (200, file_of(text))
    for arguments in ([], ["--revision", "4"], ["-o", "yaml"]):
        assert run(root, ["get", "fleet", *arguments]) == 0
        out, err = said()
        assert out == text and err == "revision 4, written 2026-11-15 10:22Z by dana\n"
    assert run(root, ["get", "fleet", "-o", "json"]) == 0
    assert json.loads(said()[0])["text"] == text


def test_get_revisions(playing: Playing, said: Said) -> None:
    row = file_of("") | {"applied_to": ["cloud", "hpc"]}
    del row["text"]
    playing.answers["GET /v1/revisions"] = (200, {"items": [row], "next_cursor": None})
    assert run(root, ["get", "revisions"]) == 0
    assert "cloud, hpc" in said()[0]


def test_rollback_plans_an_old_revision_and_applies_it(playing: Playing, said: Said) -> None:
    playing.answers["GET /v1/revisions/4"] = (200, file_of("name: acme\n"))
    playing.plans(REMOVING)
    playing.applies(DONE)
    assert run(root, ["rollback", "4", "--yes"]) == 1  # what has come since is removed: it must be confirmed
    assert "removes cluster cloud" in said()[0] and not playing.sent("POST /v1/applies")
    assert run(root, ["rollback", "4", "--yes", "--remove", "cloud", "--remove", "nlp"]) == 0
    (sent,) = playing.sent("POST /v1/applies")
    assert (sent["fleet"], sent["source"]) == ("name: acme\n", "revision 4")


STOPPED_ON_CLOUD = wire.StoppedApply(
    apply=4,
    cluster="cloud",
    revision=3,
    total=37,
    done=34,
    code="Refused",
    message="LocalQueue main points elsewhere",
    hint="delete it, then apply again",
    stopped_at=datetime(2026, 11, 15, 10, 22, tzinfo=UTC),
    live=["nlp"],
    partly_live=["research"],
    not_live=["ads"],
)


@pytest.mark.parametrize("listed", ["teams", "drift"])
def test_after_a_stopped_apply_nothing_is_called_as_applied(
    playing: Playing, said: Said, listed: str
) -> None:
    page: dict[str, object] = {"items": [], "next_cursor": None}
    for path in ("teams", "drift", "clusters"):
        playing.answers[f"GET /v1/{path}"] = (200, page)
    stopped = [STOPPED_ON_CLOUD.model_dump(mode="json")]
    playing.answers["GET /v1/stopped-applies"] = (200, page | {"items": stopped})
    assert run(root, ["get", listed]) == 0
    shown = " ".join("".join(said()).split())
    assert "apply 4 stopped on cloud after 34 of 37 changes: LocalQueue main points elsewhere" in shown
    assert "live: nlp; partly live: research; not live: ads" in shown and "fairway history 4" in shown
    assert "no teams yet" not in shown and "as it was applied" not in shown


def test_a_plan_names_an_apply_that_stopped(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(RAISED.model_copy(update={"stopped": [STOPPED_ON_CLOUD]}))
    assert run(root, ["plan", "-f", str(fleet)]) == 0
    assert "apply 4 stopped on cloud after 34 of 37 changes" in said()[0]


def test_leaving_does_not_stop_it(playing: Playing, fleet: Path) -> None:
    playing.plans(RAISED)
    told = DONE.model_dump(mode="json") | {"state": "running"}
    for row in told["clusters"]:
        row |= {"state": "running", "done": 1, "current": "qos a"}
    playing.answers["POST /v1/applies"] = (202, told)
    playing.answers["GET /v1/applies/12/progress"] = (200, told)
    watching = subprocess.Popen(
        [sys.executable, "-m", "fairway.cli", "apply", "-f", str(fleet), "--yes"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    until(lambda: len(playing.sent("GET /v1/applies/12/progress")) >= 2, 30, "following")
    watching.send_signal(signal.SIGINT)
    shown, error = watching.communicate(timeout=20)
    assert watching.returncode == 130
    assert "hpc: 1 of 2 changes made\n" in error
    assert error.endswith("\nThe server continues with apply 12. Follow it with:  fairway history 12\n")
    assert "done" not in shown


def test_a_server_that_restarts_meanwhile(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(RAISED)
    playing.applies(DONE)
    running = DONE.model_dump(mode="json") | {"state": "running"}
    playing.answers["POST /v1/applies"] = (202, running)
    playing.answers["GET /v1/applies/12/progress"] = (503, {})

    def come_back() -> None:
        until(lambda: len(playing.sent("GET /v1/applies/12/progress")) >= 4, 30, "asking again")
        playing.applies(DONE)

    back = threading.Thread(target=come_back)
    back.start()
    assert run(root, ["apply", "-f", str(fleet), "--yes"]) == 0
    back.join()
    assert said()[1].count("the apply continues, retrying") == 1


def test_json_of_an_apply_is_its_record_alone(playing: Playing, fleet: Path, said: Said) -> None:
    playing.plans(RAISED)
    playing.applies(DONE)
    assert run(root, ["apply", "-f", str(fleet), "--yes", "-o", "json"]) == 0
    shown, error = said()
    assert json.loads(shown)["id"] == 12
    assert "acme: 3 changes on 2 clusters" in error


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"format": "fairway/plan/v9"}', '{"format": "fairway/plan/v1"}']
)
def test_what_is_no_plan(text: str, tmp_path: Path) -> None:
    file = tmp_path / "x.json"
    file.write_text(text)
    with pytest.raises(FairwayError) as caught:
        read_plan(file)
    assert caught.value.code == "NotAPlan"
    assert ("create it again" in caught.value.hint) == ("v9" in text or "v1" in text)


@pytest.mark.parametrize(
    "arguments",
    [
        ["apply"],
        ["apply", "plan.json", "-f", "fleet.yaml"],
        ["plan"],
        ["adopt", "hpc"],
        ["adopt", "hpc", "qos"],
        ["adopt", "hpc", "qos/"],
        ["adopt", "hpc", "qos/x", "--all-in-the-way"],
        ["adopt", "hpc", "--all-in-the-way"],
        ["history", "0"],
        ["history", "x"],
        ["render", "slurm", "-f", "x"],
    ],
)
def test_usage(arguments: list[str]) -> None:
    assert run(root, arguments) == 64


def test_adopt(playing: Playing, fleet: Path, said: Said) -> None:
    playing.applies(DONE)
    assert run(root, ["adopt", "hpc", "qos/research_own", "association/research/alice"]) == 0
    way = [{"kind": "qos", "name": "x"}, {"kind": "account", "name": "y"}]
    playing.plans(plan(cluster("hpc", in_the_way=way)))
    assert run(root, ["adopt", "hpc", "--all-in-the-way", "-f", str(fleet)]) == 0
    assert playing.sent("POST /v1/adoptions") == [
        {
            "cluster": "hpc",
            "objects": [
                {"kind": "qos", "name": "research_own"},
                {"kind": "association", "name": "research/alice"},
            ],
        },
        {"cluster": "hpc", "objects": way},
    ]
    playing.plans(NO_CHANGES)
    assert run(root, ["adopt", "hpc", "--all-in-the-way", "-f", str(fleet)]) == 0
    assert said()[1].endswith("no object on hpc conflicts with the fleet file\n")


def test_faults_of_the_file_are_shown_as_check_shows_them(playing: Playing, fleet: Path, said: Said) -> None:
    fault = {
        "where": "teams.x.share",
        "message": "share must be a number",
        "file": {
            "line": 3,
            "column": 7,
            "path": "teams.x.share",
            "found": "many",
            "source": "fleet.yaml",
            "severity": "error",
            "code": "FaultOfTheFuture",
            "expected": "a number",
            "hint": "write share: 2",
            "related": [{"line": 9, "column": 1, "path": "teams.y", "found": "z"}],
        },
    }
    playing.answers["POST /v1/plans"] = (
        422,
        {
            "type": "t",
            "title": "t",
            "status": 422,
            "detail": "fleet.yaml has 2 errors",
            "code": "InvalidFile",
            "hint": "h",
            "request_id": "1",
            "faults": [fault],
        },
    )
    assert run(root, ["plan", "-f", str(fleet)]) == 1
    assert said()[1] == (
        "error: share must be a number\n"
        "  fleet.yaml:3:7  teams.x.share   many\n"
        "  fleet.yaml:9:1  teams.y         z\n"
        "\nhint: write share: 2\n\n"
        "fleet.yaml has 2 errors\n"
    )


def test_render_writes_only_into_its_folder(
    playing: Playing, fleet: Path, tmp_path: Path, said: Said
) -> None:
    arguments = ["render", "slurm", "-f", str(fleet), "--cluster", "hpc"]
    files = {"job_submit.lua": "-- lua\n"}
    playing.answers["POST /v1/renders"] = (200, {"cluster": "hpc", "files": files})
    assert run(root, arguments) == 0
    assert said()[0] == "# job_submit.lua\n-- lua\n\n"
    out = tmp_path / "etc"
    assert run(root, [*arguments, "--out", str(out)]) == 0
    assert (out / "job_submit.lua").read_text() == "-- lua\n"
    assert run(root, [*arguments, "--out", str(out)]) == 0  # it is the same
    (out / "job_submit.lua").write_text("-- the site's own\n")
    said()
    assert run(root, [*arguments, "--out", str(out)]) == 1
    assert "already has job_submit.lua with other content" in said()[1]
    assert (out / "job_submit.lua").read_text() == "-- the site's own\n"
    assert run(root, [*arguments, "--out", str(out), "--overwrite"]) == 0
    assert (out / "job_submit.lua").read_text() == "-- lua\n"
    for name in ("../evil", "/etc/evil", "a/b", "..", ""):
        playing.answers["POST /v1/renders"] = (200, {"cluster": "hpc", "files": {name: "x"}})
        assert run(root, [*arguments, "--out", str(out)]) == 1
    assert {p.name for p in tmp_path.rglob("*evil*")} == set()


def test_import_keeps_what_is_there(playing: Playing, tmp_path: Path, said: Said) -> None:
    playing.answers["POST /v1/imports"] = (200, {"cluster": "hpc", "fleet": "name: hpc\n", "remarks": 2})
    assert run(root, ["import", "hpc"]) == 0
    shown, error = said()
    assert shown == "name: hpc\n" and "review its 2 comments" in error
    out = tmp_path / "f.yaml"
    assert run(root, ["import", "hpc", "--out", str(out)]) == 0
    assert out.read_text() == "name: hpc\n" and "price" not in said()[1]
    nodes = "virtual: { nodes: 1, gpus_per_node: 4 }"
    free = "".join(
        f"  {name}: {{ cluster: hpc, gpu: L40S, capacity: owned, price: {price}, {nodes} }}\n"
        for name, price in (("a", 0), ("b", 1.9))
    )
    fleet = f"name: acme\ncurrency: USD\nclusters: {{ hpc: {{ engine: virtual }} }}\npools:\n{free}"
    fleet = f"apiVersion: fairway/v1alpha1\nkind: Fleet\n{fleet}"
    playing.answers["POST /v1/imports"] = (200, {"cluster": "hpc", "fleet": fleet, "remarks": 0})
    assert run(root, ["import", "hpc", "--out", str(tmp_path / "free.yaml")]) == 0
    error = said()[1]
    assert "hint: a has no price yet, so cost would be 0" in error
    assert "hint: the cluster has no teams yet" in error and "guarantee: { a: 4 }" in error
    assert out.read_text() == "name: hpc\n"
    out.write_text("mine")
    assert run(root, ["import", "hpc", "--out", str(out)]) == 1
    assert out.read_text() == "mine" and f"{out} exists" in said()[1]
    assert run(root, ["import", "hpc", "--out", str(out), "--overwrite"]) == 0


def test_a_file_that_cannot_be_sent(tmp_path: Path, said: Said) -> None:
    bad = tmp_path / "latin.yaml"
    bad.write_bytes(b"name: \xff")
    (tmp_path / "empty.yaml").write_text("\n")
    for file in (bad, tmp_path / "none.yaml", tmp_path, tmp_path / "empty.yaml"):
        assert run(root, ["plan", "-f", str(file)]) == 1
        assert "\n\nhint: " in said()[1]
