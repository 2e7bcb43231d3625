"""The pipeline of CI: order, overlap, the first failure, budgets, and tests that pass only when retried."""

from __future__ import annotations

import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from ci.pipeline import PROBE_SECONDS, CpuTicks, Outcome, Pipeline, Stage, before
from ci.report import TestTime, read_times, slowest_table, stage_table, write_json
from ci.stages import CI, NIGHTLY, labs

ROOT = Path(__file__).parents[3]


class Run:
    """A pipeline of small shell commands."""

    def __init__(self, folder: Path, *stages: Stage) -> None:
        self.said: list[str] = []
        self.pipeline = Pipeline(stages, folder / "ci", self.said.append)
        self.passed = self.pipeline.run()
        self.ended = [outcome.stage.name for outcome in self.pipeline.outcomes]

    def outcome(self, name: str) -> Outcome:
        return next(one for one in self.pipeline.outcomes if one.stage.name == name)


def test_a_stage_waits_for_those_it_needs_and_for_no_other(tmp_path: Path) -> None:
    meet = f"touch {tmp_path}/%s; until [ -e {tmp_path}/%s ]; do sleep 0.05; done"
    run = Run(
        tmp_path,
        Stage("last", f"cat {tmp_path}/a {tmp_path}/b", 60, after=("a", "b")),
        Stage("a", meet % ("a", "b"), 60),
        Stage("b", meet % ("b", "a"), 60),
    )
    assert run.passed
    assert run.ended[-1] == "last"
    assert set(run.ended[:2]) == {"a", "b"}


STARTS_A_SERVER = """
import subprocess, time
import pytest

@pytest.fixture
def server():
    server = subprocess.Popen(["sleep", "300"], start_new_session=True)
    open("server.pid", "w").write(str(server.pid))
    yield
    server.kill()
    server.wait()

def test_something(server):
    time.sleep(300)
"""


def test_tests_that_are_told_to_end_end_what_they_started(tmp_path: Path) -> None:
    """When one stage fails, the servers that tests of the others have started go too."""
    (tmp_path / "test_it.py").write_text(STARTS_A_SERVER)
    pid = tmp_path / "server.pid"
    pytest_here = (
        f"cd {tmp_path} && PYTHONPATH={ROOT} {sys.executable} -m pytest -p tests.conftest -n 0 test_it.py"
    )
    run = Run(
        tmp_path,
        Stage("tests", pytest_here, 300),
        Stage("fails", f"for _ in $(seq 1800); do [ -s {pid} ] && break; sleep 0.1; done; false", 300),
    )
    assert run.ended == ["fails"]
    assert not Path("/proc", pid.read_text()).exists()


def test_the_first_failure_ends_the_rest(tmp_path: Path) -> None:
    began = time.monotonic()
    run = Run(
        tmp_path,
        Stage("fails", "echo so it is; false; echo never", 60),
        Stage("long", "sleep 300", 600),
        Stage("next", "true", 60, after=("fails",)),
    )
    assert not run.passed
    assert run.ended == ["fails"]
    assert run.outcome("fails").code == 1
    assert "so it is" in run.said
    assert time.monotonic() - began < 60


def test_an_unknown_dependency_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="gone"):
        Run(tmp_path, Stage("a", "true", 60, after=("gone",)))


def test_a_stage_far_over_its_budget_fails_the_run(tmp_path: Path) -> None:
    run = Run(tmp_path, Stage("slow", "sleep 1", 0.001), Stage("in time", "true", 60))
    assert not run.passed
    assert [one.over_budget for one in (run.outcome("slow"), run.outcome("in time"))] == [True, False]
    slow, in_time, total = stage_table([run.outcome("slow"), run.outcome("in time")], 3723)[1:]
    assert "more than 50 %, the run fails" in slow
    assert "over" not in in_time
    assert total.split() == ["total", "62:03"]


def test_a_little_over_budget_is_said_and_passes() -> None:
    outcome = Outcome(Stage("unit", "true", 100), seconds=149)
    assert not outcome.over_budget
    assert "over its budget by 49 %" in stage_table([outcome], 149)[1]


def test_time_that_the_host_gave_to_others_is_not_the_stages() -> None:
    assert CpuTicks(all=200, stolen=150).stolen_since(CpuTicks(all=100, stolen=110)) == 0.4
    outcome = Outcome(Stage("unit", "true", 100), seconds=200, stolen=0.4)
    assert outcome.own_seconds == 120
    assert not outcome.over_budget
    assert CpuTicks.now().all > CpuTicks.now().stolen


def test_a_slow_machine_is_given_more_time_and_a_fast_one_no_less() -> None:
    stage = Stage("unit", "true", 100)
    slow = Outcome(stage, seconds=200, probes=[PROBE_SECONDS, 3 * PROBE_SECONDS])
    assert slow.slowness == pytest.approx(2)
    assert not slow.over_budget
    assert "2.0x" in stage_table([slow], 200)[1]
    assert Outcome(stage, seconds=151, probes=[PROBE_SECONDS / 2]).over_budget
    both = Outcome(stage, seconds=200, stolen=0.5, probes=[2 * PROBE_SECONDS])
    assert both.own_seconds == pytest.approx(100)  # the same slowness is not counted twice


def test_the_speed_of_the_machine_is_probed_while_stages_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ci.pipeline.HEARTBEAT_SECONDS", 0.2)
    run = Run(tmp_path, Stage("a", "sleep 2", 60))
    assert run.outcome("a").probes
    assert all(0 < seconds < 5 for seconds in run.outcome("a").probes)


FLAKY = """
import pathlib
def test_fails_once():
    mark = pathlib.Path(__file__).with_name("seen")
    seen = mark.exists()
    mark.touch()
    assert seen
def test_passes():
    pass
"""


@pytest.fixture
def inside(tmp_path: Path) -> Iterator[Path]:
    """A folder inside the checkout: ids of tests outside it cannot be run again."""
    folder = Path("build") / f"ci-test-{os.getpid()}"
    folder.mkdir(parents=True)
    yield folder
    shutil.rmtree(folder)


def stage_of_tests(folder: Path, text: str) -> Stage:
    (folder / "test_some.py").write_text(text)
    return Stage("tests", f"{sys.executable} -m pytest {folder}/test_some.py", 60)


def test_a_test_that_passes_when_retried_is_reported_as_flaky(inside: Path) -> None:
    run = Run(inside, stage_of_tests(inside, FLAKY))
    assert run.passed
    (test,) = run.outcome("tests").flaky
    assert test.endswith("::test_fails_once")


def failing(*tests: str) -> Stage:
    """A stage that ends as pytest does when these tests failed."""
    failed = json.dumps(dict.fromkeys(tests, True))
    cache = "${PYTEST_ADDOPTS##*cache_dir=}/v/cache"
    return Stage("tests", f"mkdir -p {cache}; echo '{failed}' > {cache}/lastfailed; false", 60)


def test_a_test_that_fails_twice_fails_the_run(inside: Path) -> None:
    run = Run(inside, failing("tests/unit/ci/test_gone.py::test_gone"))
    assert not run.passed
    assert run.outcome("tests").flaky == ["tests/unit/ci/test_gone.py::test_gone"]


def test_a_stage_may_have_any_name(tmp_path: Path) -> None:
    split = "import os, shlex; shlex.split(os.environ['PYTEST_ADDOPTS'])"
    assert Run(tmp_path, Stage("the lab's own", f'python3 -c "{split}"', 60)).passed


def test_many_failures_are_not_retried(tmp_path: Path) -> None:
    run = Run(tmp_path, failing("t::1", "t::2", "t::3", "t::4"))
    assert not run.passed
    assert run.outcome("tests").flaky == []


def test_times_are_read_shown_and_written(tmp_path: Path) -> None:
    rows = [
        {
            "test": f"t::{n}",
            "setup": 0.5,
            "call": float(n),
            "call_cpu": n / 2,
            "why": "rare" if n == 29 else "",
        }
        for n in range(30)
    ]
    (tmp_path / "s.jsonl").write_text("\n".join(map(json.dumps, rows)))
    times = read_times("s", tmp_path / "s.jsonl")
    assert times[3] == TestTime(
        "t::3", "s", {"setup": 0.5, "call": 3.0, "teardown": 0.0},
        {"setup": 0.0, "call": 1.5, "teardown": 0.0}, "",
    )  # fmt: skip
    table = slowest_table(times)
    assert "t::29" in table[1]
    assert "why: rare" in table[2]
    assert len(table) == 1 + 20 + 1
    write_json(tmp_path / "all.json", [Outcome(Stage("s", "true", 60), seconds=3)], times, 4)
    written = json.loads((tmp_path / "all.json").read_text())
    assert [test["test"] for test in written["tests"][:2]] == ["t::29", "t::28"]
    assert written["stages"][0]["budget_seconds"] == 60


@pytest.mark.parametrize("stages", [CI, NIGHTLY], ids=["ci", "nightly"])
def test_stages_that_share_a_lab_never_run_at_the_same_time(stages: tuple[Stage, ...]) -> None:
    for lab in labs(stages):
        sharing = [stage.name for stage in stages if lab in dict(stage.environment).values()]
        for one, next_one in itertools.pairwise(sharing):
            assert one in before(stages, next_one)


def test_nightly_has_every_stage() -> None:
    assert {stage.name for stage in CI} <= {stage.name for stage in NIGHTLY}
