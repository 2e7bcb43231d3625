"""Servers that only answer and servers that only look after clusters, real processes on one ledger."""

from __future__ import annotations

import json
import re
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.integration.server_process import Home, temporary_home
from tests.waiting import until

FLEET = str(Path(__file__).parents[2] / "examples" / "quickstart.yaml")
ANYWHERE = ("--listen", "127.0.0.1:0")

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


def ask(url: str, path: str, token: str = "") -> tuple[int, str]:
    asked = urllib.request.Request(f"{url}{path}")
    if token:
        asked.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(asked, timeout=20) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as refused:
        return refused.code, refused.read().decode()


def ledger(home: Home, url: str, *words: str) -> subprocess.CompletedProcess[str]:
    return home.fairway("ledger", *words, FAIRWAY_DATABASE_URL=url)


def test_one_answers_while_two_others_share_the_loops(home: Home, empty_database_url: str) -> None:
    given = {"FAIRWAY_DATABASE_URL": empty_database_url, "FAIRWAY_MIGRATE": "no"}
    assert ledger(home, empty_database_url, "upgrade").returncode == 0
    token = ledger(home, empty_database_url, "admin", "root").stdout.strip()
    api = home.start(*ANYWHERE, FAIRWAY_SERVE="api", **given)
    controls = [home.start("-f", FLEET, *ANYWHERE, FAIRWAY_SERVE="loops", **given) for _ in range(2)]

    def gpus() -> list[object]:
        status, body = ask(api.url, "/v1/pools", token)
        assert status == 200, body
        return [pool["gpus"] for pool in json.loads(body)["items"] if pool["gpus"]]

    assert len(until(gpus, 60, "what the control saw, told by the API")) == 2

    for path, answer in (
        ("/healthz", 200),
        ("/readyz", 200),
        ("/metrics", 200),
        ("/v1/pools", 404),
        ("/", 404),
    ):
        assert ask(controls[0].url, path, token)[0] == answer, path
    assert ask(controls[0].url, "/metrics")[0] == 401
    assert "looks after fleet quickstart" in controls[0].log
    assert "fairway_loop_lease_held{" not in ask(api.url, "/metrics", token)[1]

    def held() -> list[set[str]]:
        """The loops of each. Asked one after the other: what moves meanwhile may be both's, or nobody's."""
        told = [ask(control.url, "/metrics", token)[1] for control in controls]
        return [
            set(re.findall(r"^fairway_loop_lease_held(\{.*\}) 1\.0$", text, re.MULTILINE)) for text in told
        ]

    until(lambda: len(set().union(*held())) > 5, 60, "every loop has somebody")
    before = held()
    controls.pop(before.index(max(before, key=len))).process.kill()
    until(lambda: held()[0] >= set().union(*before), 60, "the other took over")
    assert [server.stop() for server in (api, *controls)] == [0, 0]
    assert not home.token_file.exists()  # nobody would look for it on a disk that goes with the pod


def test_a_server_waits_for_tables_that_somebody_else_makes(home: Home, empty_database_url: str) -> None:
    given = {"FAIRWAY_DATABASE_URL": empty_database_url, "FAIRWAY_MIGRATE": "no", "FAIRWAY_SERVE": "api"}
    server = home.launch(*ANYWHERE, **given)
    until(lambda: "LedgerNotMigrated" in server.log, 60, "it says what it waits for")
    assert "fairway ledger upgrade" in server.log
    done = ledger(home, empty_database_url, "upgrade")
    assert "Schema version: none → " in done.stderr
    server.wait_started()
    assert ask(server.url, "/readyz")[0] == 200
    assert server.stop() == 0
    with psycopg.connect(empty_database_url) as connection:
        connection.execute("UPDATE ledger_version SET version_num = '9999'")  # a newer release was here
    rolled_back = home.start(*ANYWHERE, **given)
    assert "a newer Fairway's" in rolled_back.log
    assert ask(rolled_back.url, "/readyz")[0] == 200
    assert rolled_back.stop() == 0


def test_the_verb_says_where_the_tables_are(home: Home, empty_database_url: str) -> None:
    asked = ledger(home, empty_database_url, "version")
    assert (asked.returncode, asked.stdout) == (0, "none\n")
    newest = re.search(r"→ (\d{4})", ledger(home, empty_database_url, "upgrade").stderr)
    assert newest is not None
    assert ledger(home, empty_database_url, "version").stdout == f"{newest[1]}\n"
    assert "already" in ledger(home, empty_database_url, "upgrade").stderr
    refused = ledger(home, empty_database_url, "downgrade", "--to", "3", "--force")
    assert refused.returncode == 1
    assert "step 0004 cannot be undone" in refused.stderr
    assert "hint:" in refused.stderr
    back = ledger(home, empty_database_url, "downgrade", "--to", "4", "--force")
    assert back.stderr == f"Schema version: {newest[1]} → 0004\n"
    late = ledger(home, empty_database_url, "admin", "dana")
    assert late.returncode == 1
    assert "older than this Fairway" in late.stderr
    nobody = home.fairway("ledger", "version")
    assert nobody.returncode == 1
    assert "FAIRWAY_DATABASE_URL" in nobody.stderr
    assert ledger(home, empty_database_url, "downgrade", "--to", "latest").returncode == 64
