"""The chart on a real cluster: installed, killed, upgraded by a migration and rolled back, no row lost."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from fairway.ledger import Ledger
from tests.deploy.conftest import NEXT_STEP, head
from tests.deploy.release import NAME, PARTS, Release
from tests.unit.ledger.usage_samples import Book, Class, Row
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.kubernetes, pytest.mark.timeout(900)]

FIGURES = Path(__file__).parents[2] / "build" / "deploy.json"
JOBS = 2000
LASTING = (
    "api_token",
    "attempt",
    "fleet_revision",
    "job",
    "job_class",
    "usage",
    "usage_day",
    "usage_hour",
    "usage_team_day",
)
"""Tables whose rows only ever come; the others show the present moment, which goes on."""


@pytest.fixture(scope="module")
def installed(release: Release) -> Release:
    started = time.monotonic()
    release.change("install", "1")
    release.until_ready()
    release.figures["install_seconds"] = time.monotonic() - started
    return release


@pytest.fixture(scope="module")
def token(installed: Release) -> str:
    return installed.fairway("ledger", "admin", "admin").strip()


def rows(url: str) -> dict[str, list[str]]:
    """Every row of the tables that last, by the columns that both releases know."""
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        found: dict[str, list[str]] = {}
        for table in LASTING:
            # When a token was last used is of the moment, too.
            named = connection.execute(
                "SELECT string_agg(quote_ident(column_name), ',') FROM information_schema.columns"
                " WHERE table_name = %s AND column_name NOT IN ('next_release', 'last_used_at')",
                (table,),
            ).fetchone()
            assert named is not None
            asked = f"SELECT ROW({named[0]})::text FROM {table} ORDER BY 1"
            found[table] = [row[0] for row in connection.execute(asked)]
        return found


async def fill(url: str) -> None:
    """Jobs that were run and metered last month."""
    ledger = await Ledger.connect(url)
    book = Book(url.replace("+psycopg", ""))
    hour = 1_790_000_000 // 3600 * 3600
    used = [Row(Class(), hour + n % 500 * 3600, 3600, 2, job=1_000_000 + n) for n in range(JOBS)]
    await book.add(ledger, used)
    for number in range(JOBS):
        book.attempt(1_000_000 + number, hour, hour + 3600, devices=2)
    book.close()
    await ledger.close()


def test_the_pods_serve_and_see_the_cluster_they_are_in(installed: Release, token: str) -> None:
    assert installed.get("/v1/whoami", token)["fleet"] == "acme"

    def seen() -> Any:
        (pool,) = installed.get("/v1/pools", token)["items"]
        return pool["gpus"]

    assert until(seen, 60, "the real node's GPUs")["total"] == 8


def test_who_answers_runs_no_loops_and_who_runs_loops_answers_nobody(installed: Release, token: str) -> None:
    for part, held in (("server", False), ("control", True)):
        status, text = installed._answer(part, "/metrics", token)
        assert status == 200
        assert (b"fairway_loop_lease_held{" in text) is held
    assert installed.status("control", "/metrics") == 401  # metrics need a token there, too
    assert [installed.status(part, "/v1/pools", token) for part in PARTS] == [200, 404]


def test_a_server_asks_control_about_the_cluster(installed: Release, token: str) -> None:
    """It has no kubeconfig: what it tells of the cluster, control read there."""
    imported = installed.post("/v1/imports", token, {"cluster": "cloud"})
    assert "cloud" in imported["fleet"]
    code = "import os; print(os.path.exists('/etc/fairway/credentials'))"
    seen = {
        part: installed.kubectl("exec", f"deploy/{NAME}-fairway-{part}", "--", "python3", "-c", code).strip()
        for part in PARTS
    }
    assert seen == {"server": "False", "control": "True"}


def test_a_container_may_do_next_to_nothing(installed: Release) -> None:
    code = (
        "import os, pathlib\n"
        "words = dict(l.split(':\\t', 1) for l in open('/proc/1/status').read().splitlines())\n"
        "print(os.getuid(), words['CapEff'], words['NoNewPrivs'], words['Seccomp'])\n"
        "try:\n    pathlib.Path('/opt/x').write_text('')\n"
        "except OSError as error:\n    print(error.strerror)\n"
    )
    for part in PARTS:
        said = installed.kubectl("exec", f"deploy/{NAME}-fairway-{part}", "--", "python3", "-c", code)
        assert said.split("\n")[:2] == ["10001 0000000000000000 1 2", "Read-only file system"]


@pytest.mark.parametrize("part", PARTS)
def test_a_killed_server_comes_back(installed: Release, token: str, part: str) -> None:
    before = installed.restarts(part)
    killed = time.monotonic()
    installed.kill(part)
    until(lambda: installed.status(part, "/readyz") != 200, 20, "the port is dead")
    until(lambda: installed.status(part, "/readyz") == 200, 180, f"{part} answers again", pause=0.2)
    installed.figures[f"{part}_back_seconds"] = time.monotonic() - killed
    until(lambda: installed.restarts(part) == before + 1, 30, "the kubelet tells of the restart")
    assert installed.get("/v1/pools", token)["items"]


async def test_upgrade_and_rollback_of_a_migration_lose_no_row(
    installed: Release, token: str, ledger_url: str
) -> None:
    await fill(ledger_url)
    before = rows(ledger_url)
    assert len(before["job"]) >= JOBS

    started = time.monotonic()
    installed.change("upgrade", "2")
    installed.until_ready()
    installed.figures["upgrade_seconds"] = time.monotonic() - started
    assert installed.fairway("ledger", "version").strip() == NEXT_STEP
    upgraded = rows(ledger_url)
    assert upgraded == before

    # The release before goes on beside the newer tables; only then are they taken back, by who knows them.
    started = time.monotonic()
    installed.helm("rollback", NAME, "1", "--wait")
    installed.until_ready()
    installed.figures["rollback_seconds"] = time.monotonic() - started
    assert installed.get("/v1/pools", token)["items"]
    told = installed.fairway("ledger", "downgrade", "--to", head(), check=False)
    assert "LedgerNewer" in told or "a newer Fairway" in told
    assert f"{NEXT_STEP} → {head()}" in installed.downgrade("2", head())
    assert installed.fairway("ledger", "version").strip() == head()
    back = rows(ledger_url)
    assert back == before
    assert all(installed.status(part, "/readyz") == 200 for part in PARTS)
    assert installed.get("/v1/pools", token)["items"]

    counted = [sum(map(len, found.values())) for found in (before, upgraded, back)]
    named = ("rows_before", "rows_upgraded", "rows_rolled_back")
    installed.figures.update(zip(named, counted, strict=True))
    FIGURES.parent.mkdir(exist_ok=True)
    FIGURES.write_text(json.dumps(installed.figures, indent=2) + "\n")
