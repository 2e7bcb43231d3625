"""run and submit against a server that plays its part: what is sent and said, and that nothing doubles."""

from __future__ import annotations

import io
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from fairway.cli.errors import run
from fairway.cli.root import root
from fairway.client.contexts import Context, Contexts, write_contexts
from fairway.wire import jobs as wire
from tests.unit.cli.commands.test_jobs import detail

JOBS = Path(__file__).parents[4] / "examples/jobs"
FREE = {"cluster": "hpc", "pool": "hpc-a100", "slice": None, "why": "hpc-a100 has 8 GPUs free"}


class Playing:
    """Keeps jobs under their keys, as a server does; may lose an answer on the way."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, dict[str, Any]]] = []
        self.lost = 0
        self.dry_run: dict[str, Any] = {
            "could_run": True,
            "why": FREE["why"],
            "hint": "",
            "placement": FREE,
            "options": [FREE, FREE | {"pool": "hpc-mig", "slice": "1g.10gb", "why": "costs 0.20 an hour"}],
            "preview": "#!/bin/bash\nsrun python\x1b[31m train.py",
        }
        self.job = detail(state="failed", exit_code=3)
        self.log = {"attempt": 1, "text": "hello\n", "offset": 0, "next_offset": 6, "ended": True}
        playing = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["content-length"])))
                playing.asked.append((self.path, body))
                if playing.lost:
                    playing.lost -= 1
                    self.close_connection = True
                    self.connection.close()
                    return
                self._answer(playing.answer(self.path, body))

            def do_GET(self) -> None:
                self._answer(playing.log if "/log" in self.path else playing.job)

            def _answer(self, told: Any) -> None:
                data = json.dumps(told).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *_: object) -> None:
                return

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)

    def answer(self, path: str, body: dict[str, Any]) -> Any:
        if path.endswith("dry-run"):
            return self.dry_run
        jobs = [wire.JobSpec.model_validate(job) for job in body["jobs"]]
        kept = [
            {"id": f"8f{i:02}", "ids": [f"8f{i:02}"] * job.tasks, "name": job.name, "placement": FREE}
            for i, job in enumerate(jobs)
        ]
        return {"jobs": kept}

    @property
    def jobs(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.asked[-1][1]["jobs"]
        return found


@pytest.fixture
def playing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Playing]:
    made = Playing()
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    monkeypatch.setenv("FAIRWAY_URL", f"http://127.0.0.1:{made.server.server_port}")
    monkeypatch.setenv("FAIRWAY_TOKEN", "fw_x")
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def test_run_says_where_it_went_why_and_what_is_next(
    playing: Playing, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root, ["run", "--gpus", "A100-80GB:8", "--", "python", "train.py", "--lr", "3e-4"]) == 0
    shown = capsys.readouterr()
    assert shown.out == "train is job 8f00: hpc-a100 on hpc, because it has 8 GPUs free\n"
    assert shown.err == "\nFollow its output with:  fairway logs -f 8f00\n"
    (job,) = playing.jobs
    assert (job["name"], job["command"]) == ("train", ["python", "train.py", "--lr", "3e-4"])
    assert job["gpus"] == {"count": 8, "model": "A100-80GB", "memory_gb": None, "slice": None}


def test_a_dependency_is_named_by_id_engine_id_or_name(playing: Playing) -> None:
    words = ["--after", "train-llm:ended", "--after", "hpc/1542", "--after", "8f3k"]
    assert run(root, ["run", "--gpus", "1", *words, "--", "x"]) == 0
    expected = [(playing.job["id"], "ended"), (playing.job["id"], "ok"), ("8f3k", "ok")]
    assert [(a["job"], a["when"]) for a in playing.jobs[0]["after"]] == expected


@pytest.mark.parametrize(("exit_code", "ours"), [(3, 3), (137, 137), (None, 1), (-9, 1), (0, 1)])
def test_following_exits_with_the_exit_code_of_the_job(
    playing: Playing, capsys: pytest.CaptureFixture[str], exit_code: int | None, ours: int
) -> None:
    playing.job = detail(state="failed", exit_code=exit_code)
    assert run(root, ["run", "--gpus", "1", "--follow", "--", "x"]) == ours
    assert capsys.readouterr().out.endswith("hello\n")
    playing.job = detail(state="done", exit_code=0)
    assert run(root, ["run", "--gpus", "1", "--follow", "--", "x"]) == 0


def test_the_next_step_is_for_the_same_server(
    playing: Playing, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    url = f"http://127.0.0.1:{playing.server.server_port}"
    write_contexts(tmp_path / "config" / "config.yaml", Contexts("a", (Context("a", url), Context("b", url))))
    assert run(root, ["run", "--context", "b", "--gpus", "1", "--", "x"]) == 0
    assert capsys.readouterr().err == "\nFollow its output with:  fairway logs --context b -f 8f00\n"
    assert run(root, ["run", "--url", url, "--gpus", "1", "--", "x"]) == 0
    assert f"fairway logs --url {url} -f 8f00" in capsys.readouterr().err


def test_options_after_the_command_are_the_commands(playing: Playing) -> None:
    assert run(root, ["run", "--gpus", "1", "python", "x.py", "--gpus", "9", "-o", "json"]) == 0
    assert playing.jobs[0]["command"] == ["python", "x.py", "--gpus", "9", "-o", "json"]


def test_every_flag_reaches_the_server(playing: Playing, tmp_path: Path) -> None:
    flags = {
        "gpus": "40GB..:2", "name": "n", "team": "research", "priority": "urgent", "pool": "p", "nodes": "2",
        "cpus": "4", "memory": "8GB", "time": "1-00:00:00", "image": "a/b:1", "setup": "module load x",
        "workdir": "data", "array": "0-1", "retries": "2", "together": "rack", "tolerates": "spot",
        "after": "8f3k:ended", "env": "A=b=c", "as": "alice", "key": "once",
    }  # fmt: skip
    words = [word for name, value in flags.items() for word in (f"--{name}", value)]
    assert run(root, ["run", *words, "--hold", "--env", "B=", "--", "x"]) == 0
    _, asked = playing.asked[-1]
    assert (asked["as"], asked["key"], asked["hold"]) == ("alice", "once", True)
    assert asked["jobs"] == [
        {
            "name": "n", "command": ["x"], "script": None, "team": "research", "priority": "urgent",
            "gpus": {"count": 2, "model": None, "memory_gb": {"least": 40, "most": None}, "slice": None},
            "pool": "p", "nodes": 2, "cpus": 4, "memory_gb": 8, "time_seconds": 86400, "image": "a/b:1",
            "setup": "module load x", "env": {"A": "b=c", "B": ""}, "workdir": str(tmp_path / "data"),
            "array": [0, 1], "after": [{"job": "8f3k", "when": "ended"}],
            "retries": {"count": 2, "first_seconds": 30, "longest_seconds": 3600}, "tolerates": ["spot"],
            "together": True,
        }
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run", "--", "x"], "choose GPUs with --gpus"),
        (["run", "--gpus", "1"], "missing argument '-- COMMAND...'"),
        (["run", "--gpus", "8xA100", "--", "x"], "--gpus: 8xA100 does not say which GPUs (write A100:8)"),
        (
            ["run", "--gpus", "1", "--nodes", "no", "--time", "9", "--", "x"],
            "(add the unit, e.g.  9h  or  9m)",
        ),
        (["run", "--gpus", "1", "--env", "A", "--", "x"], "--env A has no value; use A=VALUE"),
        (
            ["run", "--gpus", "1", "--array", "0-1", "--follow", "--", "x"],
            "--follow needs exactly one job",
        ),
        (["run", "--gpus", "1", "--follow", "-o", "json", "--", "x"], "cannot be combined with -o json"),
        (["submit"], "name a file, or a job with --again"),
    ],
)
def test_used_wrongly(
    playing: Playing, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    assert run(root, arguments) == 64
    shown = capsys.readouterr()
    assert message in shown.err and shown.out == ""
    assert playing.asked == []


def test_an_answer_that_is_lost_makes_no_second_job(playing: Playing) -> None:
    playing.lost = 1
    assert run(root, ["run", "--gpus", "1", "--", "x"]) == 0
    keys = [asked["key"] for _, asked in playing.asked]
    assert len(keys) == 2 and len(set(keys)) == 1 and len(keys[0]) == 32


def test_trying_again_ends(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.lost = 100
    assert run(root, ["run", "--gpus", "1", "--", "x"]) == 1
    assert len(playing.asked) <= 3
    assert capsys.readouterr().err.startswith("error: cannot reach the server at ")


def test_two_runs_have_two_keys(playing: Playing) -> None:
    for _ in range(2):
        run(root, ["run", "--gpus", "1", "--", "x"])
    assert len({asked["key"] for _, asked in playing.asked}) == 2


def test_submit_takes_every_form_in_one_request(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    files = [str(JOBS / name) for name in ("several.yaml", "train.sh", "kubernetes-job.yaml", "sweep.yaml")]
    assert run(root, ["submit", *files]) == 0
    assert len(playing.asked) == 1
    assert [job["name"] for job in playing.jobs] == [
        "small-gpu",
        "large-gpu",
        "train-llm",
        "train-llm",
        "sweep",
    ]
    shown = capsys.readouterr()
    assert "sweep is array 8f04 of 100 tasks: hpc-a100 on hpc, because it has 8 GPUs free\n" in shown.out
    assert shown.err == "\nList them with:  fairway get jobs --mine\n"


def test_flags_count_before_the_file(playing: Playing) -> None:
    assert run(root, ["submit", str(JOBS / "train.yaml"), "--gpus", "H100:2", "--team", "product"]) == 0
    (job,) = playing.jobs
    assert (job["gpus"]["model"], job["team"], job["time_seconds"]) == ("H100", "product", 72 * 3600)


def test_an_earlier_job_is_submitted_again_with_what_flags_change(playing: Playing) -> None:
    spec = wire.JobSpec.model_validate(
        {"name": "train", "gpus": {"count": 8}, "command": ["python", "a b.py"]}
    )
    spec = spec.model_copy(update={"env": {"SEED": "1"}, "time_seconds": 7200})
    playing.job = detail(spec=spec.model_dump(mode="json"), spec_note="")
    assert run(root, ["submit", "--again", "train", "--time", "4h"]) == 0
    assert playing.jobs == [spec.model_copy(update={"time_seconds": 4 * 3600}).model_dump(mode="json")]


def test_a_job_without_a_spec_is_not_submitted_again(
    playing: Playing, capsys: pytest.CaptureFixture[str]
) -> None:
    playing.job = detail(spec=None, spec_note="it was submitted with sbatch")
    assert run(root, ["submit", "--again", "0001"]) == 1
    assert "0001 cannot be submitted again: it was submitted with sbatch" in capsys.readouterr().err
    assert playing.asked == []


def test_submit_from_a_pipe(playing: Playing, monkeypatch: pytest.MonkeyPatch) -> None:
    script = (JOBS / "train.sh").read_bytes()
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(script)))
    assert run(root, ["submit", "-"]) == 0
    assert playing.jobs[0]["script"] == script.decode()


def test_one_faulty_file_and_nothing_is_submitted(
    playing: Playing, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    bad = tmp_path / "bad.sh"
    bad.write_text("#!/bin/bash\n#SBATCH --exclusive\n#SBATCH --output=x\nx\n")
    assert run(root, ["submit", str(JOBS / "train.yaml"), str(bad)]) == 1
    shown = capsys.readouterr()
    assert playing.asked == [] and shown.out == ""
    assert "error: --exclusive is not supported" in shown.err
    assert f"{bad}:3:1  --output   x" in shown.err
    assert f"{bad}: 2 errors, nothing was submitted" in shown.err


def test_warnings_are_said_and_the_job_goes(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, ["run", "--gpus", "A100-80G", "--", "x"]) == 0
    assert "warning: A100-80G is no GPU type that Fairway knows" in capsys.readouterr().err
    assert playing.jobs[0]["gpus"]["model"] == "A100-80G"


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_output_for_programs(playing: Playing, capsys: pytest.CaptureFixture[str], output: str) -> None:
    assert run(root, ["run", "--gpus", "1", "-o", output, "--", "x"]) == 0
    shown = capsys.readouterr()
    assert shown.err == "" and "hpc-a100 has 8 GPUs free" in shown.out
    if output == "json":
        assert json.loads(shown.out)["jobs"][0]["id"] == "8f00"


def test_more_jobs_than_one_request_takes(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    sweep = str(JOBS / "sweep.yaml")
    assert run(root, ["submit", sweep, sweep, "--array", "0-5999"]) == 1
    assert capsys.readouterr().err.startswith("error: 12,000 jobs, counting array tasks, exceed")
    assert playing.asked == []


def test_a_held_job_says_how_to_release_it(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, ["run", "--gpus", "1", "--hold", "--", "x"]) == 0
    assert capsys.readouterr().err == "\nRelease it with:  fairway release 8f00\n"


def test_a_dry_run_shows_what_would_be_sent(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, ["submit", str(JOBS / "train.yaml"), "--dry-run", "--as", "alice"]) == 0
    assert capsys.readouterr().out == (
        "train-llm (A100-80GB:8 on 1 node) would go to hpc-a100 on hpc, because it has 8 GPUs free\n"
        "\n"
        "It would also fit on\n"
        "  hpc-mig/1g.10gb on hpc, which costs 0.20 an hour\n"
        "\n"
        "What hpc would get\n"
        "  #!/bin/bash\n"
        "  srun python[31m train.py\n"
        "\n"
        "Nothing was submitted.\n"
    )
    path, asked = playing.asked[-1]
    assert (path, asked["as"], len(playing.asked)) == ("/v1/jobs/dry-run", "alice", 1)


def test_a_dry_run_of_what_could_never_run(playing: Playing, capsys: pytest.CaptureFixture[str]) -> None:
    playing.dry_run |= {
        "could_run": False,
        "placement": None,
        "why": "no pool has B200",
        "hint": "ask for less",
    }
    assert run(root, ["run", "--gpus", "B200:8", "--nodes", "2", "--dry-run", "--", "x"]) == 1
    assert capsys.readouterr().out == (
        "x (B200:8 on 2 nodes) could never run: no pool has B200\n\nhint: ask for less\n"
    )
    assert run(root, ["run", "--gpus", "B200:8", "--dry-run", "-o", "json", "--", "x"]) == 1
    (told,) = json.loads(capsys.readouterr().out)
    assert told["job"]["name"] == "x" and told["answer"]["could_run"] is False


def test_the_schema_of_jobs(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, ["schema", "job"]) == 0
    assert json.loads(capsys.readouterr().out)["title"] == "Fairway job"


@pytest.mark.parametrize("name", ["train.yaml", "train.sh", "kubernetes-job.yaml"])
def test_check_knows_a_job_from_a_fleet(capsys: pytest.CaptureFixture[str], name: str) -> None:
    assert run(root, ["check", "-f", str(JOBS / name)]) == 0
    assert capsys.readouterr().out == f"{JOBS / name}: 1 job, no errors\n"


def test_check_of_a_faulty_job(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    bad = tmp_path / "job.yaml"
    bad.write_text((JOBS / "train.yaml").read_text().replace("gpus:", "gpu:"))
    assert run(root, ["check", "-f", str(bad), "-o", "json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["valid"], told["jobs"], told["faults"][0]["hint"]) == (False, [], "did you mean gpus?")
