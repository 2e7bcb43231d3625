"""A real server with its embedded PostgreSQL, from the first start to the last Ctrl-C."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest
import yaml

from tests.integration.server_process import FAIRWAY, Home, Server, temporary_home
from tests.waiting import until

QUICKSTART = Path(__file__).parents[3] / "examples" / "quickstart.yaml"
UNREACHABLE = """
  dark:
    engine: slurm
    url: http://127.0.0.1:9
    credentials: {{ jwt_key_file: {key} }}
"""
DARK_POOL = """
  dark-a100:
    cluster: dark
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    slurm: { partition: gpu, gres: a100 }
"""


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


@pytest.fixture(scope="module")
def shared() -> Iterator[tuple[Home, Server]]:
    """A server with the quickstart and a Slurm cluster that nobody answers for."""
    with temporary_home() as home:
        key = home.folder / "jwt.key"
        key.write_bytes(b"k" * 32)
        text = QUICKSTART.read_text()
        text = text.replace("\nclusters:\n", "\nclusters:" + UNREACHABLE.format(key=key))
        text = text.replace("\nteams:\n", DARK_POOL + "\nteams:\n")
        file = home.folder / "fleet.yaml"
        file.write_text(text)
        server = home.start("-f", str(file), "--listen", "127.0.0.1:0")
        until(lambda: all_observed(home), 30, "the first look at every cluster")
        yield home, server
        assert server.stop() == 0, server.log


def all_observed(home: Home) -> bool:
    shown = home.fairway("get", "clusters", "-o", "json")
    return shown.returncode == 0 and all(c["reachable"] is not None for c in json.loads(shown.stdout))


def test_first_start(shared: tuple[Home, Server]) -> None:
    home, server = shared
    assert f"created an admin token in {home.token_file} and the context local" in server.log
    assert home.token_file.stat().st_mode & 0o777 == 0o600
    token = home.token_file.read_text().strip()
    assert token not in server.log
    contexts = json.loads(home.fairway("context", "list", "-o", "json").stdout)
    assert contexts == [
        {
            "name": "local",
            "url": server.url,
            "token_file": str(home.token_file),
            "ca_file": None,
            "current": True,
        }
    ]


def test_clusters_in_every_format(shared: tuple[Home, Server]) -> None:
    home, _ = shared
    clusters = json.loads(home.fairway("get", "clusters", "-o", "json").stdout)
    as_yaml = yaml.safe_load(home.fairway("get", "clusters", "-o", "yaml").stdout)
    moving = dict.fromkeys(("age_seconds", "observed_at"))  # it goes on observing meanwhile
    assert [c | moving for c in as_yaml] == [c | moving for c in clusters]
    dark, lab = clusters
    assert (dark["name"], lab["name"]) == ("dark", "lab")
    assert (lab["reachable"], lab["gpus"]["total"], lab["gpus"]["free"], lab["reason"]) == (
        True,
        40,
        40,
        None,
    )
    assert (dark["reachable"], dark["gpus"], dark["observed_at"]) == (False, None, None)
    assert dark["reason"]["code"] and dark["reason"]["message"] and dark["reason"]["hint"]
    assert dark["since"].endswith("Z")

    shown = home.fairway("get", "clusters")
    assert re.search(r"^dark +slurm +unreachable +\d+ s +- +- +- +- +never !$", shown.stdout, re.MULTILINE)
    assert re.search(r"^lab +virtual \S+ +reachable .* 40 +0 +40 +0 ", shown.stdout, re.MULTILINE)
    assert "dark has been unreachable for" in shown.stderr
    assert dark["reason"]["message"] in shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr
    wide = home.fairway("get", "clusters", "-o", "wide").stdout
    assert dark["reason"]["code"] in wide and "lab-a100, lab-spot" in wide


def test_pools_in_every_format(shared: tuple[Home, Server]) -> None:
    home, _ = shared
    pools = {p["name"]: p for p in json.loads(home.fairway("get", "pools", "-o", "json").stdout)}
    assert list(pools) == ["dark-a100", "lab-a100", "lab-spot"]
    gpus = {"total": 32, "in_use": 0, "free": 32, "unhealthy": 0}
    assert pools["lab-a100"]["gpus"] == gpus | {"nodes": 4, "nodes_drained": 0, "nodes_down": 0, "waiting": 0}
    assert pools["dark-a100"]["gpus"] is None
    assert pools["lab-spot"]["price_per_gpu_hour"] == "0.55"
    names = [p["name"] for p in yaml.safe_load(home.fairway("get", "pools", "-o", "yaml").stdout)]
    assert names == list(pools)
    shown = home.fairway("get", "pools").stdout
    assert re.search(r"^lab-a100 +lab +A100-80GB +owned +32 +0 +32 +0 +0 +\d+ s$", shown, re.MULTILINE)
    assert max(len(line) for line in shown.splitlines()) <= 100
    assert "1.90" in home.fairway("get", "pools", "-o", "wide").stdout
    only = json.loads(home.fairway("get", "pools", "--cluster", "lab", "-o", "json").stdout)
    assert [p["name"] for p in only] == ["lab-a100", "lab-spot"]


def test_nodes_in_every_format(shared: tuple[Home, Server]) -> None:
    home, _ = shared
    nodes = json.loads(home.fairway("get", "nodes", "-o", "json").stdout)
    assert len(nodes) == 6
    assert sum(d["total"] for n in nodes for d in n["devices"]) == 40
    assert len(yaml.safe_load(home.fairway("get", "nodes", "--pool", "lab-spot", "-o", "yaml").stdout)) == 2
    assert len(home.fairway("get", "nodes").stdout.splitlines()) == 7
    assert "KIND" in home.fairway("get", "nodes", "-o", "wide").stdout
    none = home.fairway("get", "nodes", "--health", "down")
    assert (none.returncode, none.stdout) == (0, "")
    assert none.stderr == "no node fits\n\nhint: remove filters:  fairway get nodes\n"


def test_tokens(shared: tuple[Home, Server]) -> None:
    home, server = shared
    made = home.fairway("token", "create", "grafana", "--role", "viewer", "--expires", "90d")
    assert made.returncode == 0, made.stderr
    assert re.fullmatch(r"fw_[A-Za-z0-9_-]{43}\n", made.stdout)
    assert "It is not shown again" in made.stderr and made.stdout.strip() not in made.stderr
    viewer = {"FAIRWAY_URL": server.url, "FAIRWAY_TOKEN": made.stdout.strip()}
    assert home.fairway("get", "pools", **viewer).returncode == 0
    refused = home.fairway("token", "list", **viewer)
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.startswith("error: token grafana has the role viewer, this needs admin\n\nhint: ")
    assert re.search(r"^grafana +viewer +grafana +live ", home.fairway("token", "list").stdout, re.MULTILINE)
    assert home.fairway("token", "revoke", "grafana").returncode == 0
    gone = home.fairway("get", "pools", **viewer)
    assert gone.stderr.startswith("error: this token is unknown, expired or revoked")
    last = home.fairway("token", "revoke", "admin")
    assert last.stderr.startswith("error: admin is the last valid token with the role admin")
    assert made.stdout.strip() not in server.log


def test_a_token_is_not_sent_to_another_server(shared: tuple[Home, Server]) -> None:
    home, server = shared
    other = server.url.replace("127.0.0.1", "localhost")
    refused = home.fairway("get", "pools", "--url", other)
    assert refused.stderr.startswith("error: a token is required")


def test_kill_9_and_again(home: Home) -> None:
    listen = ("--listen", "127.0.0.1:0")
    first = home.start("-f", str(QUICKSTART), *listen)
    token = home.token_file.read_text()
    first.send(signal.SIGKILL)
    first.wait()
    assert home.processes(), "the embedded PostgreSQL outlives a kill -9; the next server joins it"

    again = home.start(*listen)  # without the file: the fleet is in the ledger
    assert "created an admin token" not in again.log
    assert home.token_file.read_text() == token
    until(lambda: json.loads(home.fairway("get", "clusters", "-o", "json").stdout)[0]["reachable"], 20)
    assert again.stop(signal.SIGINT) == 0
    assert until(lambda: not home.processes(), 10, "the end of every process")
    assert "Traceback" not in again.log


def kill_postgres(home: Home) -> int:
    """Kill the embedded PostgreSQL; its process id."""
    postmaster = int((home.state / "postgres" / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(postmaster, signal.SIGKILL)
    return postmaster


def test_a_ledger_that_dies_is_started_again(home: Home) -> None:
    server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
    until(lambda: home.fairway("get", "pools").stdout, 20)
    with httpx2.Client(base_url=server.url, timeout=30) as http:
        kill_postgres(home)
        until(lambda: "the embedded PostgreSQL runs again" in server.log, 30, "its restart")
        until(lambda: http.get("/readyz").status_code == 200, 20, "the ledger")
    assert home.fairway("get", "pools").stdout
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log
    assert until(lambda: not home.processes(), 10, "the end of every process")


def test_a_ledger_that_dies_and_cannot_start_again(home: Home) -> None:
    server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
    until(lambda: home.fairway("get", "pools").stdout, 20)
    data = home.state / "postgres" / "data"
    with httpx2.Client(base_url=server.url, timeout=30) as http:
        assert http.get("/readyz").status_code == 200
        kill_postgres(home)
        data.rename(data.with_name("moved"))
        until(
            lambda: http.get("/readyz").json().get("code") == "EmbeddedEndsAgain",
            40,
            "the end of its restarts",
        )
        assert http.get("/readyz").status_code == 503
        assert http.get("/healthz").status_code == 200
    assert not data.exists(), "an empty ledger is no substitute"
    failed = home.fairway("get", "pools")
    assert failed.returncode == 1
    assert failed.stderr.startswith("error: the server cannot use its ledger now\n\nhint: ")
    assert server.stop() == 0, server.log
    assert "Traceback" not in server.log
    assert until(lambda: not home.processes(), 10, "the end of every process")


def test_a_server_without_a_fleet(home: Home) -> None:
    server = home.start("--listen", "127.0.0.1:0")
    assert "fairway serves without a fleet (add one with -f FILE) on http" in server.log
    for what in ("clusters", "pools", "nodes"):
        shown = home.fairway("get", what)
        assert (shown.returncode, shown.stdout) == (0, "")
        assert shown.stderr.startswith(f"no {what} yet\n\nhint: ")
        assert home.fairway("get", what, "-o", "json").stdout == "[]\n"
    assert server.stop() == 0


@pytest.mark.parametrize("moment", [0.3, 1.5, 2.5])
def test_stopped_while_it_starts(home: Home, moment: float) -> None:
    server = home.launch("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
    time.sleep(moment)
    server.send(signal.SIGTERM)
    code = server.wait(30)
    # Before its first line of Python runs, SIGTERM ends it in the system's way.
    assert code in (0, -signal.SIGTERM), server.log
    assert until(lambda: not home.processes(), 10, "the end of every process")
    assert "Traceback" not in server.log


def test_a_second_ctrl_c_ends_it_at_once(home: Home) -> None:
    server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
    host, port = server.url.removeprefix("http://").split(":")
    stuck = subprocess.Popen(  # an open request keeps a graceful stop waiting
        [
            "bash",
            "-c",
            f"exec 3<>/dev/tcp/{host}/{port}; printf 'POST /v1/tokens HTTP/1.1\\r\\n' >&3; sleep 60",
        ]
    )
    try:
        time.sleep(0.5)
        server.send(signal.SIGINT)
        time.sleep(0.2)
        server.send(signal.SIGINT)
        started = time.monotonic()
        assert server.wait(10) in (0, 130), server.log
        assert time.monotonic() - started < 5
    finally:
        stuck.kill()
        stuck.wait()
    assert until(lambda: not home.processes(), 10, "the end of every process")


def check_refused(home: Home, arguments: list[str], what: str, hint: str, **environment: str) -> None:
    failed = home.fairway("server", *arguments, **environment)
    assert failed.returncode == 1, failed.stderr
    error = next(line for line in failed.stderr.splitlines() if line.startswith("error: "))
    assert what in error, failed.stderr
    assert hint in failed.stderr.rpartition("\n\nhint: ")[2], failed.stderr
    assert "\n\nhint: " in failed.stderr
    assert "Traceback" not in failed.stderr and "hunter2" not in failed.stderr
    assert not home.processes()


def test_a_port_in_use(home: Home, shared: tuple[Home, Server]) -> None:
    taken = shared[1].url.removeprefix("http://")
    arguments = ["-f", str(QUICKSTART), "--listen", taken]
    check_refused(home, arguments, f"cannot listen on {taken}: Address already in use", "--listen 127.0.0.1:")


def test_fleet_files_that_cannot_be_used(home: Home) -> None:
    broken = home.folder / "broken.yaml"
    broken.write_text(QUICKSTART.read_text().replace("capacity: spot", "capacity: spots"))
    check_refused(home, ["-f", str(broken)], "spots", "spot")
    check_refused(home, ["-f", str(home.folder / "none.yaml")], "none.yaml", "")


def test_a_door_that_must_not_open(home: Home) -> None:
    fleet = ["-f", str(QUICKSTART)]
    key, cert = home.folder / "key.pem", home.folder / "cert.pem"
    key.write_text("no key")
    cert.write_text("no certificate")
    check_refused(
        home, [*fleet, "--listen", "0.0.0.0:0"], "0.0.0.0 is reachable from other hosts", "--tls-cert"
    )
    check_refused(home, [*fleet, "--tls-cert", str(cert)], "TLS needs both", "--tls-key")
    both = ["--tls-cert", str(cert), "--tls-key", str(key)]
    check_refused(home, [*fleet, *both], f"cannot use {cert}", "openssl")


def test_no_database_and_bad_settings(home: Home) -> None:
    fleet = ["-f", str(QUICKSTART), "--listen", "127.0.0.1:0"]
    url = "postgresql://u:hunter2@127.0.0.1:9/x"
    check_refused(home, fleet, "127.0.0.1:9", "", FAIRWAY_DATABASE_URL=url)
    check_refused(home, fleet[:2], "FAIRWAY_LISTEN_PORT must be", "", FAIRWAY_LISTEN_PORT="many")
    assert home.fairway("server", "--listen", "here").returncode == 64


def test_tls(home: Home) -> None:
    key, cert = home.folder / "key.pem", home.folder / "cert.pem"
    certificate = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 1"
    names = ["-subj", "/CN=fairway", "-addext", "subjectAltName=IP:127.0.0.1"]
    files = ["-keyout", str(key), "-out", str(cert)]
    subprocess.run([*certificate.split(), *names, *files], check=True, capture_output=True)
    both = ("--tls-cert", str(cert), "--tls-key", str(key))
    server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0", *both)
    assert server.url.startswith("https://")
    shown = home.fairway("get", "pools", "-o", "json")
    assert len(json.loads(shown.stdout)) == 2, shown.stderr
    (home.folder / "config" / "config.yaml").unlink()
    token = {"FAIRWAY_URL": server.url, "FAIRWAY_TOKEN_FILE": str(home.token_file)}
    untrusted = home.fairway("get", "pools", **token)
    assert untrusted.returncode == 1 and "certificate" in untrusted.stderr.lower()
    assert server.stop() == 0


def test_watch_appends_and_survives_a_restart(home: Home) -> None:
    server = home.start("-f", str(QUICKSTART), "--listen", "127.0.0.1:0")
    listen = server.url.removeprefix("http://")
    out = home.folder / "watch.out"
    with out.open("wb") as stdout:
        watching = subprocess.Popen(
            [*FAIRWAY, "get", "pools", "--watch", "--every", "0.2", "-o", "json"],
            env=home.environment,
            stdout=stdout,
            stderr=subprocess.PIPE,
            text=True,
        )

    def lines() -> list[str]:
        return out.read_text().splitlines()

    until(lambda: len(lines()) >= 3)
    assert server.stop() == 0
    seen = len(lines())
    again = home.start("--listen", listen)
    until(lambda: len(lines()) >= seen + 3, 30, "watching on")
    assert all(json.loads(line)[0]["name"] == "lab-a100" for line in lines())
    watching.send_signal(signal.SIGINT)
    _, said = watching.communicate(timeout=10)
    assert watching.returncode == 130
    assert said.count("retrying") == 1, said
    assert again.stop() == 0


def test_watch_in_place_on_a_terminal(shared: tuple[Home, Server]) -> None:
    home, _ = shared
    parent, child = pty.openpty()
    watching = subprocess.Popen(
        [*FAIRWAY, "get", "clusters", "--watch", "--every", "0.3"],
        env=home.environment | {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "30"},
        stdin=child,
        stdout=child,
        stderr=child,
        start_new_session=True,
    )
    os.close(child)
    shown = b""

    def refreshed() -> bool:
        nonlocal shown
        while select.select([parent], [], [], 0)[0]:
            shown += os.read(parent, 65536)
        return shown.count(b"CLUSTER") >= 3

    until(refreshed, 20, "three refreshes")
    watching.send_signal(signal.SIGINT)
    assert watching.wait(10) == 130
    os.close(parent)
    text = shown.decode()
    assert "\x1b[1A" in text  # the cursor goes up: the table is drawn over itself
    assert "dark has been unreachable for" in text
    assert "\x1b[33m" in text or "33m" in text  # what needs an eye is yellow
    assert "Traceback" not in text


def test_an_admin_signs_somebody_out(shared: tuple[Home, Server]) -> None:
    home, server = shared
    made = home.fairway("token", "create", "olga-laptop", "--role", "operator", "--user", "olga")
    with httpx2.Client(base_url=server.url, headers={"Accept": "text/html"}) as browser:
        assert browser.post("/sign-in", data={"token": made.stdout.strip()}).status_code == 303
        assert browser.get("/teams").status_code == 200
        listed = home.fairway("session", "list", "--user", "olga")
        assert re.search(r"^olga +operator +token olga-laptop ", listed.stdout, re.MULTILINE), listed
        ended = home.fairway("session", "revoke", "--user", "olga")
        assert (ended.returncode, ended.stderr.strip()) == (0, "Ended 1 session of olga")
        assert browser.get("/teams").status_code == 303
    assert "nobody is signed in" in home.fairway("session", "list", "--user", "olga").stderr
