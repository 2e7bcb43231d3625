"""`fairway plan-capacity` on a trace, as a user sees it."""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from fairway.cli.commands.plan_capacity import plan_capacity
from fairway.files import parse_fleet
from fairway.files.traces.read import read_trace
from fairway.model.errors import FairwayError
from fairway.model.names import PoolName
from fairway.model.slo import Slo, StartsWithin
from fairway.simulate.capacity import with_nodes
from fairway.simulate.replay import ReplayOptions, Scenario, run_scenario, sizes_of

EXAMPLES = Path(__file__).parents[4] / "examples/what-if"
TRACE = str(EXAMPLES / "jobs.csv")
SLOS = """
slos:
  research-starts: { team: research, starts_within: 1h, target: 95% }
  never: { starts_within: 1m, target: 99.999% }
"""
POOL = PoolName("hpc-a100")


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "fleet.yaml"
    path.write_text((EXAMPLES / "fleet.yaml").read_text() + SLOS)
    return str(path)


def run(*arguments: str) -> Result:
    return CliRunner().invoke(plan_capacity, arguments, env={"COLUMNS": "100"})


def data(*arguments: str) -> dict[str, Any]:
    done = run(*arguments, "--trace", TRACE, "-o", "json")
    assert done.exit_code == 0, done.exception
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def test_each_month_has_the_fewest_nodes_that_meet_the_objective(file: str) -> None:
    found = data("-f", file, "--slo", "research-starts", "--growth", "10%/month", "--months", "2")
    months = found["months"]
    assert [one["month"] for one in months] == [0, 1, 2]
    assert [round(one["demand"], 2) for one in months] == [1, 1.1, 1.21]
    nodes = [one["nodes"] for one in months]
    assert nodes == sorted(nodes) and nodes[0] > 8
    assert [one["more_gpus"] for one in months] == [8 * (n - 8) for n in nodes]

    # As replays of the sizes beside it say, apart from the search.
    fleet = parse_fleet(Path(file).read_text(), "fleet.yaml")
    slo = Slo("s", StartsWithin(3600), Decimal("0.95"), team=fleet.teams[0].name)
    jobs = list(read_trace(Path(TRACE)))
    good: list[float] = []
    for size in (nodes[0] - 1, nodes[0]):
        sized, places = with_nodes(fleet, sizes_of(fleet), POOL, size, keep_limits=False)
        options = ReplayOptions(jobs[0].at, jobs[-1].at)
        scenario = Scenario("s", replace(sized, slos=(slo,)), places, options)
        good.append(run_scenario(scenario, jobs, 0).objectives["s"].compliance or 0.0)
    assert good[0] < 0.95 <= good[1]
    assert months[0]["objectives"][0]["compliance"] == pytest.approx(good[1])


def test_the_table_fits_and_costs_are_of_the_gpus_beyond_the_present_ones(file: str) -> None:
    done = run("-f", file, "--trace", TRACE, "--slo", "research-starts", "--months", "0")
    assert done.exit_code == 0, done.exception
    heading, row, *rest = done.stdout.splitlines()
    assert heading.split()[:7] == ["POOL", "MONTH", "DEMAND", "NODES", "GPUS", "MORE", "GOOD"]
    more = int(row.split()[5])
    assert row.split()[7].replace(",", "") == f"{Decimal('1.90') * more * Decimal('730.5'):.0f}"
    assert max(map(len, done.stdout.splitlines())) <= 100
    assert "research-starts: 95% of jobs of research start within 1h, over 30d" in rest


def test_kept_limits_may_keep_any_size_from_meeting_it(file: str) -> None:
    found = data("-f", file, "--slo", "research-starts", "--months", "0", "--keep-limits")
    (month,) = found["months"]
    assert month["nodes"] is None and month["buy"] is None and month["tried"] > 8
    assert month["objectives"][0]["compliance"] < 0.95 and not found["limits_grow"]
    done = run("-f", file, "--trace", TRACE, "--slo", "research-starts", "--months", "0", "--keep-limits")
    assert "no number of nodes of hpc-a100 meets the objectives" in done.stdout


def test_a_page_has_a_plot_and_the_months(file: str, tmp_path: Path) -> None:
    out = tmp_path / "capacity.html"
    done = run(
        *("-f", file, "--trace", TRACE, "--slo", "research-starts", "--months", "1", "--out", str(out))
    )
    assert done.exit_code == 0, done.exception
    page = out.read_text()
    assert "GPUs of hpc-a100 that meet the objectives" in page and "<svg" in page and "<script" not in page


def test_what_is_wrong_is_said(file: str, tmp_path: Path) -> None:
    for arguments, code in (
        (("-f", file, "--slo", "unknown"), "NoSuchSlo"),
        (("-f", str(EXAMPLES / "fleet.yaml")), "NoSuchSlo"),
        (("-f", file, "--pool", "unknown"), "InvalidOverride"),
    ):
        error = run(*arguments, "--trace", TRACE).exception
        assert isinstance(error, FairwayError) and error.code == code
    for growth in ("5", "500%", "x%/month"):
        assert run("-f", file, "--trace", TRACE, "--growth", growth).exit_code == 2
    assert run("-f", file, "--trace", TRACE, "--out", str(tmp_path / "plan.txt")).exit_code == 2
