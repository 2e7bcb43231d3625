"""The whole line of policy through a real server: plan, apply, history, refusals, on a virtual fleet."""

from __future__ import annotations

import codecs
import json
import os
import pty
import select
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.integration.server_process import FAIRWAY, Home, Server, temporary_home
from tests.waiting import until

pytestmark = pytest.mark.timeout(300)  # a thousand teams, and a command after the other beside other tests

FLEET = """\
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  east: { engine: virtual }
  west: { engine: virtual }
pools:
  east-a100: { cluster: east, gpu: A100-80GB, capacity: owned, price: 1.90, virtual: { nodes: 4 } }
  west-h100: { cluster: west, gpu: H100-80GB, capacity: reserved, price: 2.99, virtual: { nodes: 2 } }
teams:
  research:
    share: 60
    guarantee: { east-a100: 16, west-h100: 8 }
    borrow: { east-a100: 16 }
    teams:
      nlp: { guarantee: { east-a100: 8 }, members: [alice] }
  product: { share: 40, guarantee: { east-a100: 8 }, members: [bob] }
"""
RAISED = FLEET.replace("east-a100: 16, west", "east-a100: 24, west").replace("[bob]", "[bob, dana]")


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


@pytest.fixture
def served(home: Home, database_url: str) -> Iterator[tuple[Home, Server]]:
    (home.folder / "fleet.yaml").write_text(FLEET)
    arguments = ("-f", str(home.folder / "fleet.yaml"), "--listen", "127.0.0.1:0")
    server = home.start(*arguments, FAIRWAY_DATABASE_URL=database_url)
    yield home, server
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log


def file(home: Home, text: str, name: str = "next.yaml") -> str:
    path = home.folder / name
    path.write_text(text)
    return str(path)


def run(home: Home, code: int, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    done = home.fairway(*arguments, **environment)
    assert done.returncode == code, (arguments, done.stdout, done.stderr)
    return done


def shown(home: Home, *arguments: str) -> Any:
    return json.loads(run(home, 0, *arguments, "-o", "json").stdout)


def token(home: Home, role: str) -> dict[str, str]:
    made = run(home, 0, "token", "create", f"a-{role}", "--role", role)
    return {"FAIRWAY_TOKEN": made.stdout.strip(), "FAIRWAY_URL": server_url(home)}


def server_url(home: Home) -> str:
    contexts: list[dict[str, str]] = shown(home, "context", "list")
    return contexts[0]["url"]


@pytest.mark.timeout(240)
def test_plan_apply_and_no_changes(served: tuple[Home, Server]) -> None:
    home, _ = served
    fleet, kept = str(home.folder / "fleet.yaml"), str(home.folder / "plan.json")

    first = run(home, 2, "plan", "-f", fleet, "--detailed-exitcode", "--out", kept)
    assert first.stdout.startswith("acme: a new fleet, 3 teams on 2 clusters\n")
    assert "\n  + nlp in research\n" in first.stdout
    assert "\n  Nothing that runs is touched.\n" in first.stdout
    assert first.stderr == f"\nApply exactly this with:  fairway apply {kept}\n"
    assert Path(kept).stat().st_mode & 0o777 == 0o600
    assert max(map(len, first.stdout.splitlines())) <= 100

    applied = run(home, 0, "apply", kept)
    assert "  east: done, " in applied.stdout and "  west: done, " in applied.stdout
    assert applied.stdout.endswith("  recorded as:  fairway history 1\n")

    again = run(home, 0, "plan", "-f", fleet, "--detailed-exitcode")
    assert again.stdout.startswith("acme: no changes\n")
    assert run(home, 0, "apply", "-f", fleet).stderr.endswith("nothing to apply\n")
    teams = {t["name"]: t for t in shown(home, "get", "teams")}
    assert teams["nlp"]["parent"] == "research" and teams["nlp"]["members"] == ["alice"]
    assert {g["supply"]: g["guarantee"] for g in teams["research"]["grants"]} == {
        "east-a100": 16,
        "west-h100": 8,
    }
    assert shown(home, "get", "drift") == [] and shown(home, "get", "interventions") == []

    # a plan that was read, and a cluster that moved on since
    raised = file(home, RAISED)
    late = str(home.folder / "late.json")
    read = run(home, 2, "plan", "-f", raised, "--detailed-exitcode", "--out", late)
    assert "    ~ guarantee on east-a100       16 → 24\n" in read.stdout
    assert "    + member                       dana\n" in read.stdout
    run(home, 0, "apply", "-f", file(home, FLEET.replace("share: 40", "share: 50"), "other.yaml"), "--yes")
    refused = run(home, 1, "apply", late)
    assert "east: refused, nothing was changed" in refused.stdout
    assert "PlanOutdated" in refused.stdout and "hint: plan again" in refused.stdout
    run(home, 0, "apply", "-f", raised, "--yes")
    run(home, 0, "plan", "-f", raised, "--detailed-exitcode")

    history = shown(home, "history")
    assert [(a["id"], a["state"]) for a in history] == [(4, "done"), (3, "refused"), (2, "done"), (1, "done")]
    detail = shown(home, "history", "4")
    words = {(s["team"], s["what"], s["before"], s["after"]) for s in detail["diff"]}
    assert ("research", "guarantee on east-a100", "16", "24") in words
    assert all(c["made"] for cluster in detail["clusters"] for c in cluster["changes"])
    assert "by admin" in run(home, 0, "history", "4").stdout
    imported = run(home, 0, "import", "east").stdout
    assert "guarantee: { east-a100: 24 }" in imported and "dana" in imported


def test_one_cluster_at_a_time(served: tuple[Home, Server]) -> None:
    home, _ = served
    fleet = str(home.folder / "fleet.yaml")
    run(home, 0, "apply", "-f", fleet, "--yes", "--cluster", "west")
    run(home, 0, "plan", "-f", fleet, "--cluster", "west", "--detailed-exitcode")
    run(home, 2, "plan", "-f", fleet, "--detailed-exitcode")
    assert [c["cluster"] for a in shown(home, "history") for c in a["clusters"]] == ["west"]
    missing = run(home, 1, "plan", "-f", fleet, "--cluster", "north")
    assert "the fleet has no cluster 'north'" in missing.stderr


def test_faults_are_shown_as_check_shows_them(served: tuple[Home, Server]) -> None:
    home, _ = served
    bad = file(
        home, FLEET.replace("east-a100: 16, west", "east-a100: 99, west").replace("share: 40", "share: x")
    )
    checked = run(home, 1, "check", "-f", bad)
    for verb in (["plan", "-f", bad], ["apply", "-f", bad, "--yes"]):
        planned = run(home, 1, *verb)
        assert planned.stdout == ""
        assert planned.stderr.split("\n\n")[:-1] == checked.stderr.split("\n\n")[:-1]


def test_who_may(served: tuple[Home, Server]) -> None:
    home, server = served
    fleet = str(home.folder / "fleet.yaml")
    run(home, 0, "apply", "-f", fleet, "--yes")
    viewer, operator = token(home, "viewer"), token(home, "operator")
    for verb in (["history"], ["history", "1"], ["get", "drift"], ["get", "teams"], ["get", "interventions"]):
        run(home, 0, *verb, **viewer)
    for verb in (["plan", "-f", fleet], ["apply", "-f", fleet, "--yes"], ["import", "east"]):
        assert "this needs operator" in run(home, 1, *verb, **viewer).stderr
    run(home, 0, "plan", "-f", fleet, **operator)
    # An operator cannot have the server open files of its choice, or send what is in them anywhere.
    lure = FLEET.replace(
        "  east: { engine: virtual }",
        "  east: { engine: slurm, url: https://evil.example, credentials: { token_file: admin.token } }",
    ).replace("virtual: { nodes: 4 }", "slurm: { partition: gpu }")
    told = run(home, 1, "plan", "-f", file(home, lure), **operator).stderr
    assert "east is reached in another way, or has other folders, than the server's fleet says" in told
    assert "this needs admin" in told
    assert "evil.example" not in server.log


def test_a_team_with_a_thousand_others(served: tuple[Home, Server]) -> None:
    home, _ = served
    start = FLEET[: FLEET.index("teams:")]
    teams = "".join(
        f"  team-{i:04}: {{ share: {i + 1}, borrow: {{ east-a100: unlimited }}, members: [user-{i:04}] }}\n"
        for i in range(1000)
    )
    many = file(home, start + "teams:\n" + teams)
    planned = run(home, 0, "plan", "-f", many)
    assert planned.stdout.startswith("acme: a new fleet, 1000 teams on 2 clusters\n")
    assert len(planned.stdout.splitlines()) < 80
    applied = run(home, 0, "apply", "-f", many, "--yes")
    assert "east: done" in applied.stdout
    run(home, 0, "plan", "-f", many, "--detailed-exitcode")
    assert len(shown(home, "get", "teams")) == 1000


class Terminal:
    """`fairway` on a terminal of its own."""

    def __init__(self, home: Home, *arguments: str) -> None:
        self.parent, child = pty.openpty()
        self.process = subprocess.Popen(
            [*FAIRWAY, *arguments],
            env=home.environment | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "50"},
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
        )
        os.close(child)
        self.text = ""
        self.decoder = codecs.getincrementaldecoder("utf-8")()

    def read(self) -> str:
        while select.select([self.parent], [], [], 0)[0]:
            try:
                self.text += self.decoder.decode(os.read(self.parent, 65536))
            except OSError:  # the other end is closed
                break
        return self.text

    def until(self, words: str) -> None:
        until(lambda: words in self.read(), 30, repr(words))

    def type(self, text: str) -> None:
        os.write(self.parent, text.encode())

    def end(self) -> int:
        code = self.process.wait(30)
        self.read()
        os.close(self.parent)
        assert "Traceback" not in self.text
        return code


def test_on_a_terminal_it_asks(served: tuple[Home, Server]) -> None:
    home, _ = served
    fleet = str(home.folder / "fleet.yaml")
    no = Terminal(home, "apply", "-f", fleet)
    no.until("Apply this? [y/N]")
    no.type("n\n")
    assert no.end() == 130
    assert shown(home, "history") == []
    yes = Terminal(home, "apply", "-f", fleet)
    yes.until("Apply this? [y/N]")
    yes.type("y\n")
    assert yes.end() == 0
    assert "east: done" in yes.text and "fairway history 1" in yes.text
    assert "\x1b[32m" in yes.text  # what is new is green
