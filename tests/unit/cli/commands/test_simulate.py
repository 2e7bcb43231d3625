"""`fairway simulate` on a trace, as a user sees it."""

from __future__ import annotations

import json
import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairway.cli.commands.simulate import simulate
from fairway.cli.shared import simulations
from fairway.model.errors import FairwayError

EXAMPLES = Path(__file__).parents[4] / "examples/what-if"
FLEET, TRACE = str(EXAMPLES / "fleet.yaml"), str(EXAMPLES / "jobs.csv")
SLURM = "{engine: slurm, url: https://hpc:6820, credentials: {token_file: /etc/fairway/hpc.token}}"
VIRTUAL, PLACE = "virtual: { nodes: 8, gpus_per_node: 8 }", "slurm: { partition: gpu }"
SWEEP = "teams.*.borrow.hpc-a100=16,unlimited"


def run(*arguments: str) -> Result:
    return CliRunner().invoke(simulate, arguments, env={"COLUMNS": "100"})


def tables(*arguments: str) -> str:
    done = run("-f", FLEET, "--trace", TRACE, *arguments)
    assert done.exit_code == 0, done.exception
    return done.stdout


def data(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(tables("-o", "json", *arguments))
    return found


def test_the_current_file_stands_beside_what_really_happened() -> None:
    found = data()
    real, current = found["scenarios"]
    assert (real["kind"], current["kind"]) == ("observed", "current")
    assert real["waits"]["jobs"] == current["waits"]["jobs"] == found["jobs"] == 721
    assert real["waits"]["p95_wait"]["mean"] == pytest.approx(current["waits"]["p95_wait"]["mean"], rel=0.1)
    assert real["utilisation"]["mean"] == pytest.approx(current["utilisation"]["mean"], abs=0.02)


def test_a_slow_engine_makes_every_job_wait() -> None:
    _, quick = data()["scenarios"]
    _, slow = data("--start-seconds", "600")["scenarios"]
    assert slow["waits"]["median_wait"]["mean"] >= quick["waits"]["median_wait"]["mean"] + 600


def test_tables_fit_the_width_and_name_the_best_scenario() -> None:
    shown = tables("--sweep", SWEEP, "--seeds", "2")
    assert max(map(len, shown.split("\n\n721 jobs")[0].splitlines())) <= 100
    for title in ("Waiting times", "Use of the GPUs", "P95 wait by team", "P95 wait by GPUs of the job"):
        assert f"{title}\n" in shown
    assert "shortest p95 wait that is no less fair: teams.*.borrow.hpc-a100=unlimited" in shown
    assert "means of 2 seeds" in shown


def test_a_sweep_compares_each_point_with_the_current_file() -> None:
    found = data("--sweep", "teams.*.borrow.hpc-a100=8,unlimited")
    _, _, same, better = found["scenarios"]
    assert same["p95_wait_change"]["mean"] == 0.0, "the file has 8 already"
    assert better["settings"] == ["teams.*.borrow.hpc-a100=unlimited"]
    assert better["p95_wait_change"]["mean"] < -0.5
    assert better["cost"] == same["cost"]


def test_another_file_is_compared(tmp_path: Path) -> None:
    changed = tmp_path / "larger.yaml"
    changed.write_text(Path(FLEET).read_text().replace("nodes: 8", "nodes: 12"))
    done = run("-f", str(changed), "--against", FLEET, "--trace", TRACE, "-o", "json")
    _, current, larger = json.loads(done.stdout)["scenarios"]
    assert larger["name"] == "larger.yaml"
    assert larger["pools"][0]["nodes"] == 12
    assert larger["waits"]["mean_wait"]["mean"] < current["waits"]["mean_wait"]["mean"]
    assert larger["cost"]["mean"] == pytest.approx(1.5 * current["cost"]["mean"])


def test_some_days_of_a_trace() -> None:
    found = data("--from", "2026-10-28", "--days", "3")
    assert found["begin"].startswith("2026-10-28T00:00") and found["end"].startswith("2026-10-31T00:00")
    assert 0 < found["jobs"] < 400


def test_seeds_give_intervals_and_processes_the_same_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    alone = data("--sweep", SWEEP, "--seeds", "2")
    assert alone["scenarios"][1]["waits"]["p95_wait"]["margin"] > 0
    monkeypatch.setattr(simulations, "_FEW_JOBS", 0)
    assert data("--sweep", SWEEP, "--seeds", "2") == alone
    assert multiprocessing.active_children() == []


def test_an_error_in_a_process_reaches_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(simulations, "_FEW_JOBS", 0)
    unsized = tmp_path / "unsized.yaml"
    unsized.write_text(
        Path(FLEET).read_text().replace("\n    engine: virtual", f" {SLURM}").replace(VIRTUAL, PLACE)
    )
    done = run("-f", str(unsized), "--trace", TRACE, "--sweep", "half_life=1d,2d")
    assert isinstance(done.exception, FairwayError)
    assert done.exception.code == "PoolSizeUnknown"
    assert "--nodes hpc-a100=16x8" in done.exception.hint
    assert multiprocessing.active_children() == []


def test_one_html_file_without_scripts(tmp_path: Path) -> None:
    out = tmp_path / "study.html"
    done = run("-f", FLEET, "--trace", TRACE, "--sweep", SWEEP, "--out", str(out))
    assert done.stderr == f"wrote {out}\n"
    page = out.read_text()
    assert "<script" not in page and "http" not in page.replace("http-equiv", "")
    assert page.count("<svg viewBox") >= 6
    assert "teams.*.borrow.hpc-a100=unlimited" in page
    assert "free, and nothing waited" in page


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (("--sweep", "half_live=1d"), "InvalidOverride"),
        (("--nodes", "cpu=16x8"), "InvalidOverride"),
        (("--spot", "hpc-a100=2"), "InvalidOverride"),
        (("--from", "2027-01-01"), "NothingToReplay"),
    ],
)
def test_errors_have_a_code_and_a_hint(arguments: tuple[str, ...], code: str) -> None:
    done = run("-f", FLEET, "--trace", TRACE, *arguments)
    assert isinstance(done.exception, FairwayError)
    assert done.exception.code == code
    assert done.exception.hint


@pytest.mark.parametrize(
    "arguments", [("--format", "csv"), ("--out", "study.txt"), ("--from", "soon"), ("--days", "0")]
)
def test_usage_errors(arguments: tuple[str, ...]) -> None:
    assert run("-f", FLEET, "--trace", TRACE, *arguments).exit_code == 2
