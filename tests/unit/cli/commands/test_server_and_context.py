"""`context`, `token` and `logs`, where no server is needed."""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairway.cli.commands.server import parse_address
from fairway.cli.commands.token import parse_lifetime
from fairway.cli.errors import run
from fairway.cli.root import root
from fairway.cli.shared.local_context import announce
from fairway.cli.shared.log import hide_secrets
from fairway.client.contexts import Context, Contexts, config_file, read_contexts, write_contexts
from fairway.server import StartedServer


@pytest.fixture(autouse=True)
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FAIRWAY_URL", "FAIRWAY_TOKEN", "FAIRWAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path / "config"))
    return tmp_path / "config"


def fairway(*arguments: str, stdin: str = "") -> Result:
    return CliRunner().invoke(root, arguments, input=stdin, catch_exceptions=False, standalone_mode=True)


def test_contexts_over_their_life(tmp_path: Path) -> None:
    token = tmp_path / "prod.token"
    token.write_text("fw_prod\n")
    empty = fairway("context", "list")
    assert (empty.exit_code, empty.stdout) == (0, "")
    assert empty.stderr.startswith("no contexts yet\n\nhint: add one:  fairway context add")

    added = fairway("context", "add", "prod", "--url", "https://fw.example/", "--token-file", str(token))
    assert (added.stdout, added.stderr) == ("", "added prod\n")
    second = fairway("context", "add", "lab", "--url", "http://127.0.0.1:8470")
    assert second.stderr == "added lab; switch to it with:  fairway context use lab\n"
    assert fairway("context", "use", "lab").stderr == "using lab\n"
    shown = fairway("context", "list").stdout.splitlines()
    assert shown[0].split() == ["USED", "CONTEXT", "URL", "TOKEN", "FILE"]
    assert shown[1].split() == ["*", "lab", "http://127.0.0.1:8470", "-"]
    listed = json.loads(fairway("context", "list", "-o", "json").stdout)
    assert [(c["name"], c["url"], c["current"]) for c in listed] == [
        ("lab", "http://127.0.0.1:8470", True),
        ("prod", "https://fw.example", False),
    ]
    assert fairway("context", "remove", "lab").exit_code == 0
    assert read_contexts(config_file()).current is None


def test_a_token_from_stdin_is_kept_privately(config: Path) -> None:
    fairway("context", "add", "prod", "--url", "https://fw.example", "--token-file", "-", stdin="fw_piped\n")
    kept = config / "prod.token"
    assert kept.read_text() == "fw_piped\n"
    assert kept.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["context", "use", "nobody"], "there is no context nobody (contexts: none yet)"),
        (["context", "remove", "nobody"], "there is no context nobody"),
        (["context", "add", "No Name", "--url", "http://x"], "'No Name' is not a valid name of a context"),
        (["context", "add", "x", "--url", "x"], "'x' is not the URL of a server"),
        (
            ["context", "add", "x", "--url", "http://x", "--token-file", "/none"],
            "cannot read the token in /none",
        ),
        (["get", "pools", "--context", "nobody"], "there is no context nobody"),
    ],
)
def test_mistakes(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(root, arguments) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith(f"error: {message}")
    assert "\n\nhint: " in shown.err


def test_a_failed_add_changes_nothing(config: Path) -> None:
    assert run(root, ["context", "add", "x", "--url", "http://x", "--token-file", "/none"]) == 1
    assert not config.exists()


def started(tmp_path: Path, *, made: bool = True) -> StartedServer:
    file = tmp_path / "admin.token"
    file.write_text("fw_x\n")
    return StartedServer("http://127.0.0.1:8470", "acme", file, made)


def test_the_first_server_becomes_the_current_context(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    announce(started(tmp_path), None)
    assert capsys.readouterr().err == (
        "fairway serves fleet acme on http://127.0.0.1:8470\n"
        f"created an admin token in {tmp_path}/admin.token and the context local\n"
    )
    assert read_contexts(config_file()) == Contexts(
        "local", (Context("local", "http://127.0.0.1:8470", f"{tmp_path}/admin.token"),)
    )


def test_a_server_does_not_take_over_what_the_user_chose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    mine = Contexts("prod", (Context("prod", "https://fw.example"),))
    write_contexts(config_file(), mine)
    announce(started(tmp_path), None)
    assert "switch to it with:  fairway context use local" in capsys.readouterr().err
    assert read_contexts(config_file()).current == "prod"

    taken = Contexts("local", (Context("local", "https://other.example", "/elsewhere"),))
    write_contexts(config_file(), taken)
    announce(started(tmp_path), None)
    assert "the context local belongs to another server" in capsys.readouterr().err
    assert read_contexts(config_file()) == taken


def test_local_follows_the_server_to_another_port(tmp_path: Path) -> None:
    announce(started(tmp_path), None)
    announce(StartedServer("http://127.0.0.1:9999", "acme", tmp_path / "admin.token", False), None)
    assert read_contexts(config_file()).get("local").url == "http://127.0.0.1:9999"


@pytest.mark.parametrize(
    ("text", "seconds"), [("5m", 300), ("12h", 43200), ("90d", 7_776_000), ("4w", 2_419_200)]
)
def test_durations(text: str, seconds: int) -> None:
    assert parse_lifetime(text) == seconds


@pytest.mark.parametrize("text", ["", "0d", "90", "-1d", "1.5h", "1y", "9999999999d", "١d"])
def test_what_is_no_duration(text: str) -> None:
    assert run(root, ["token", "create", "x", "--role", "viewer", "--expires", text]) == 64


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("8470", ("127.0.0.1", 8470)),
        (":8470", ("127.0.0.1", 8470)),
        ("0.0.0.0:1", ("0.0.0.0", 1)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_addresses(text: str, address: tuple[str, int]) -> None:
    assert parse_address(text) == address


def test_logs_hide_what_looks_like_a_secret() -> None:
    event = {
        "event": "sent fw_" + "a" * 43,
        "url": "postgresql://me:hunter2@db/x",
        "jwt": "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiJ4In0.c2ln",
        "fine": "fw_short http://127.0.0.1:8470/v1",
        "number": 3,
    }
    hidden = hide_secrets(logging.getLogger(), "info", event)
    assert hidden == {
        "event": "sent ***",
        "url": "postgresql***db/x",
        "jwt": "***",
        "fine": "fw_short http://127.0.0.1:8470/v1",
        "number": 3,
    }


@pytest.mark.parametrize("shape", ["text", "json"])
def test_logs_go_to_stderr_without_locals(shape: str) -> None:
    code = (
        "import logging, structlog\n"
        "from fairway.cli.shared.log import configure_logs\n"
        f"configure_logs('info', {shape!r})\n"
        "log = structlog.get_logger('fairway.x')\n"
        "log.debug('too quiet'); log.info('heard', node='n1')\n"
        "logging.getLogger('some.library').warning('a library says %s', 'so')\n"
        "logging.getLogger('httpx2').info('GET http://secret')\n"
        "def f(hunter2='hunter' + '3'): 1 / 0\n"
        "try: f()\n"
        "except ZeroDivisionError: log.exception('broke')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == ""
    assert "heard" in done.stderr and "n1" in done.stderr
    assert "a library says so" in done.stderr and "ZeroDivisionError" in done.stderr
    assert (
        "too quiet" not in done.stderr and "http://secret" not in done.stderr and "hunter3" not in done.stderr
    )
    if shape == "json":
        assert [json.loads(line)["event"] for line in done.stderr.splitlines()] == [
            "heard",
            "a library says so",
            "broke",
        ]
