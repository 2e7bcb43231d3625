"""Reports as people ask for them: a real server, a virtual cluster, jobs that run, and the command line."""

from __future__ import annotations

import csv
import io
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import polars as pl
import pytest

from tests.integration.server_process import Home, temporary_home
from tests.waiting import until

pytestmark = pytest.mark.timeout(600)  # many starts of the command line, each a second or more

FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: EUR
cost: { idle: by-guarantee }
clusters:
  lab: { engine: virtual, overhead: { power: 300 } }
pools:
  lab-a100:
    cluster: lab
    gpu: A100-80GB
    capacity: owned
    price: 36.00
    virtual: { nodes: 2, gpus_per_node: 8 }
  lab-mig:
    cluster: lab
    gpu: A100-80GB
    slices: [1g.10gb]
    capacity: owned
    price: 36.00
    virtual: { nodes: 1, gpus_per_node: 2, slices_per_gpu: { 1g.10gb: 7 } }
  lab-spot:
    cluster: lab
    gpu: A100-80GB
    capacity: spot
    price: 1.10
    virtual: { nodes: 1, gpus_per_node: 1 }
teams:
  research:
    guarantee: { lab-a100: 8 }
    borrow: { lab-mig/1g.10gb: unlimited }
    members: [alice]
  product:
    guarantee: { lab-a100: 8 }
    members: [bob]
"""


@dataclass(frozen=True)
class Place:
    """A server with jobs that ran."""

    home: Home
    tokens: dict[str, str]

    def fairway(self, *arguments: str, token: str | None = None, exit_code: int = 0) -> str:
        chosen = {"FAIRWAY_TOKEN": self.tokens[token]} if token else {}
        done = self.home.fairway(*arguments, **chosen)
        assert done.returncode == exit_code, done.stderr
        return done.stdout if exit_code == 0 else done.stderr

    def json(self, *arguments: str, token: str | None = None) -> Any:
        return json.loads(self.fairway(*arguments, "-o", "json", token=token))


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    with temporary_home() as home:
        file = home.folder / "fleet.yaml"
        file.write_text(FLEET)
        server = home.start("-f", str(file), "--listen", "127.0.0.1:0")
        home.environment["FAIRWAY_URL"] = server.url
        home.environment["FAIRWAY_TOKEN_FILE"] = str(home.token_file)
        assert home.fairway("apply", "-f", str(file), "--yes").returncode == 0
        tokens = {}
        for name, role in (("alice", "member"), ("bob", "lead"), ("money", "viewer")):
            made = home.fairway("token", "create", name, "--role", role)
            assert made.returncode == 0, made.stderr
            tokens[name] = made.stdout.strip()
        found = Place(home, tokens)
        for user, gpus, pool in (
            ("alice", "8", "lab-a100"),
            ("bob", "4", "lab-a100"),
            ("alice", "1g.10gb:3", "lab-mig"),
        ):
            sent = home.fairway(
                *(
                    "run",
                    "--as",
                    user,
                    "--gpus",
                    gpus,
                    "--pool",
                    pool,
                    "--name",
                    f"of-{user}",
                    "--",
                    "sleep",
                    "2",
                )
            )
            assert sent.returncode == 0, sent.stderr
        until(
            lambda: len(json.loads(home.fairway("get", "jobs", "--state", "done", "-o", "json").stdout)) == 3,
            60,
            "three jobs to end",
        )
        yield found
        assert server.stop() == 0, server.log


def device_seconds(place: Place, user: str, pool: str) -> int:
    """By the attempts themselves."""
    total = 0
    for job in json.loads(place.fairway("get", "jobs", "--user", user, "--pool", pool, "-o", "json")):
        began, ended = (job[key][:19] for key in ("started_at", "ended_at"))
        seconds = time.mktime(time.strptime(ended, "%Y-%m-%dT%H:%M:%S")) - time.mktime(
            time.strptime(began, "%Y-%m-%dT%H:%M:%S")
        )
        total += int(seconds) * job["devices"]
    return total


def test_usage_is_what_the_attempts_held(place: Place) -> None:
    wanted = {
        ("research", "lab-a100"): device_seconds(place, "alice", "lab-a100"),
        ("product", "lab-a100"): device_seconds(place, "bob", "lab-a100"),
        ("research", "lab-mig"): device_seconds(place, "alice", "lab-mig"),
    }
    assert all(wanted.values())

    def told() -> dict[tuple[str, ...], int]:
        report = place.json("report", "usage", "--by", "team,pool", "--window", "2d")
        return {tuple(row["labels"]): row["device_seconds"] for row in report["rows"]}

    until(lambda: told() == wanted, 60, f"usage to be {wanted}")
    slices = place.json("report", "usage", "--by", "team,slice", "--window", "2d")
    (mig,) = [row for row in slices["rows"] if row["labels"][1] == "1g.10gb"]
    assert mig["slice_seconds"] == wanted["research", "lab-mig"]


def test_each_shape_says_the_same(place: Place) -> None:
    # What alice used is over; what nobody uses grows while we look.
    asked = ("report", "cost", "--window", "2d", "--by", "team,pool", "--user", "alice")
    folder = place.home.folder
    report = place.json(*asked)
    total = Decimal(report["total"]["total"])
    assert total > 0
    assert abs(sum(Decimal(r["total"]) for r in report["rows"]) - total) < Decimal("0.0005")
    rows = list(csv.DictReader(io.StringIO(place.fairway(*asked, "-o", "csv"))))
    assert abs(sum(Decimal(r["total"]) for r in rows) - total) < Decimal("0.0005")
    place.fairway(*asked, "--out", str(folder / "cost.parquet"))
    assert abs(Decimal(pl.read_parquet(folder / "cost.parquet")["total"].sum()) - total) < Decimal("0.0005")
    place.fairway(*asked, "--out", str(folder / "cost.html"))
    page = (folder / "cost.html").read_text()
    cents = sum(Decimal(report["total"][c]).quantize(Decimal("0.01")) for c in ("usage", "idle", "overhead"))
    assert f"{cents:,}" in page and "<svg" in page and "http" not in page
    table = place.fairway("report", "cost", "--window", "2d", "--by", "team,pool")
    assert max(map(len, table.splitlines())) <= 100
    assert "TOTAL" in table


def test_members_see_their_own(place: Place) -> None:
    own = place.json("report", "cost", "--window", "2d", token="alice")
    assert {row["labels"][0] for row in own["rows"]} == {"research"}
    refused = place.fairway("report", "cost", "--team", "research", token="bob", exit_code=1)
    assert "not your team" in refused and "hint:" in refused
    assert "product" in place.fairway("report", "cost", "--window", "2d", token="money")
    assert "lab-a100" in place.fairway("report", "waste", "--window", "2d", token="alice")


def test_a_month_cannot_be_closed_before_it_is_over(place: Place) -> None:
    month = time.strftime("%Y-%m", time.gmtime())
    said = place.fairway("report", "chargeback", "--month", month)
    assert "total research" in said
    refused = place.fairway("report", "chargeback", "--month", month, "--close", "--yes", exit_code=1)
    assert "not over" in refused
    denied = place.fairway(
        "report", "chargeback", "--month", "2020-01", "--close", "--yes", token="bob", exit_code=1
    )
    assert "operator" in denied
    asked = place.fairway("report", "chargeback", "--month", "2020-01", "--close", exit_code=64)
    assert "--yes" in asked


def test_a_focus_file(place: Place) -> None:
    folder = place.home.folder
    place.fairway("export", "focus", "--window", "2d", "--out", str(folder / "focus.csv"))
    place.fairway("export", "focus", "--window", "2d", "--out", str(folder / "focus.parquet"))
    with (folder / "focus.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert {"BilledCost", "EffectiveCost", "ChargePeriodStart"} <= set(rows[0])
    frame = pl.read_parquet(folder / "focus.parquet")
    assert len(frame) >= len(rows) > 0
    assert frame["EffectiveCost"].dtype == pl.Decimal(38, 12)
    total = sum((Decimal(r["EffectiveCost"]) for r in rows), Decimal(0))
    assert total == total.quantize(Decimal("0.01"))  # whole cents, for it sums to the report's
    assert not list(folder.glob(".*part"))


def test_prices_and_points(place: Place) -> None:
    points = place.home.folder / "points.csv"
    points.write_text("at,per_gpu_hour\n2026-01-01T00:00:00Z,1.25\n2026-01-02T00:00:00Z,1.5\n")
    place.fairway("price", "points", "lab-spot", str(points))
    assert "1.5" in place.fairway("price", "list")
    points.write_text("when,what\n")
    assert "at,per_gpu_hour" in place.fairway("price", "points", "lab-spot", str(points), exit_code=1)
    denied = place.fairway("price", "points", "lab-spot", "/dev/null", token="alice", exit_code=1)
    assert "at,per_gpu_hour" in denied  # the file is looked at first


def test_nothing_there_says_what_to_do(place: Place) -> None:
    done = place.home.fairway("report", "usage", "--window", "2020-01")
    assert (done.returncode, done.stdout) == (0, "")
    assert "no usage" in done.stderr and "hint:" in done.stderr
