"""The listener of `fairway login`, and the commands `login` and `logout` against a scripted server."""

from __future__ import annotations

import hashlib
import threading
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import httpx2
import pytest
from click.testing import CliRunner

from fairway.cli.commands import login as command
from fairway.cli.root import root
from fairway.client.contexts import Context, Contexts, config_file, read_contexts, write_contexts
from fairway.client.login import BrowserListener, LoginSecret
from fairway.model.errors import PermanentError
from tests.unit.client.test_jobs import PROBLEM, Playing, playing

__all__ = ["playing"]

TOKEN = {
    "name": "login-1",
    "role": "member",
    "user": "ada",
    "created_at": "2026-01-01T00:00:00Z",
    "created_by": "fairway login",
    "expires_at": "2026-01-01T12:00:00Z",
    "revoked_at": None,
    "last_used_at": None,
}
BEGUN = {"code": "WDJB-MJHT", "path": "/login", "expires_in_seconds": 600, "poll_seconds": 0.01}


def test_the_challenge_is_the_hash_of_a_secret_that_is_not_shown() -> None:
    secret = LoginSecret.new()
    digest = hashlib.sha256(secret.verifier.encode()).digest()
    assert secret.challenge == urlsafe_b64encode(digest).decode().rstrip("=")
    assert len(secret.challenge) == 43 and secret.verifier not in repr(secret)
    assert LoginSecret.new() != secret


def test_the_listener_takes_a_code_from_this_machine_alone() -> None:
    with BrowserListener() as listener, httpx2.Client(trust_env=False) as http:
        url = f"http://127.0.0.1:{listener.port}"
        assert listener.code(0.01) is None
        assert http.get(f"{url}/?code=abc", headers={"Host": "evil.test"}).status_code == 404, "DNS rebinding"
        for path in ("/", "/other?code=abc", "/?code=", f"/?code={'x' * 200}"):
            assert http.get(url + path).status_code == 404
        assert http.post(url, content=b"code=abc").status_code == 501
        assert listener.code(0.01) is None
        answer = http.get(f"{url}/?code=abc")
        assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
        assert "close this page" in answer.text
        assert listener.code(5) == "abc"
        many = [http.get(f"{url}/?code=x").status_code for _ in range(12)]
        assert many[:10] == [200] * 10 and many[-1] == 404, "bounded"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("FAIRWAY_URL", "FAIRWAY_TOKEN", "FAIRWAY_TOKEN_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path))
    return tmp_path


def run(*args: str) -> Any:
    return CliRunner().invoke(root, args, catch_exceptions=True)


def test_sign_in_with_a_code_and_sign_out(playing: Playing, folder: Path) -> None:
    playing.script = [
        (201, BEGUN),
        (200, {"token": None}),
        (200, {"token": TOKEN | {"secret": "fw_secret"}}),
        (200, TOKEN),
    ]
    done = run("login", playing.target.url, "--device")
    assert done.exit_code == 0, done.output
    assert f"{playing.target.url}/login" in done.output and "WDJB-MJHT" in done.output
    assert "as ada (member) until 2026-01-01T12:00:00Z; the context is server-127-0-0-1" in done.output
    sent = [body for _, path, body in playing.asked if path == "/v1/logins/redeem"]
    secret = LoginSecret(sent[0]["verifier"])
    assert playing.asked[0][2]["challenge"] == secret.challenge and playing.asked[0][2]["port"] is None
    contexts = read_contexts(config_file())
    file = folder / "server-127-0-0-1.token"
    assert contexts.current == "server-127-0-0-1"
    assert contexts.get(contexts.current).token_file == str(file)
    assert file.read_text() == "fw_secret\n" and file.stat().st_mode & 0o777 == 0o600
    out = run("logout")
    assert out.exit_code == 0, out.output
    assert playing.asked[-1][:2] == ("POST", "/v1/logout")
    assert not file.exists()
    left = read_contexts(config_file())
    assert left.get("server-127-0-0-1").token_file is None


def test_sign_in_in_the_browser(playing: Playing, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The browser brings a wrong code first, as any page could."""
    opened: list[str] = []

    def browse(address: str) -> bool:
        opened.append(address)
        port = playing.asked[0][2]["port"]

        def visit() -> None:
            with httpx2.Client(trust_env=False) as http:
                for code in ("wrong", "right"):
                    http.get(f"http://127.0.0.1:{port}/?code={code}")

        threading.Thread(target=visit).start()
        return True

    monkeypatch.setattr(command, "has_browser", lambda: True)
    monkeypatch.setattr("webbrowser.open", browse)
    playing.script = [
        (201, BEGUN | {"path": "/login?request=WDJB-MJHT", "poll_seconds": 5}),
        (200, {"token": None}),
        (200, {"token": TOKEN | {"secret": "fw_secret"}}),
    ]
    write_contexts(config_file(), Contexts("prod", (Context("prod", playing.target.url),)))
    done = run("login")
    assert done.exit_code == 0, done.output
    assert opened == [f"{playing.target.url}/login?request=WDJB-MJHT"]
    assert [body["code"] for _, path, body in playing.asked if path == "/v1/logins/redeem"] == [
        "wrong",
        "right",
    ]
    assert (folder / "prod.token").read_text() == "fw_secret\n"


def test_a_sign_in_that_is_refused_changes_nothing(playing: Playing, folder: Path) -> None:
    playing.script = [(201, BEGUN), (404, PROBLEM | {"status": 404, "code": "LoginEnded"})]
    done = run("login", playing.target.url, "--device")
    assert done.exit_code != 0
    assert read_contexts(config_file()) == Contexts()
    assert list(folder.iterdir()) == []


def test_a_token_that_was_given_is_not_revoked_by_signing_out(playing: Playing, folder: Path) -> None:
    given = folder / "mine"
    given.write_text("fw_x\n")
    write_contexts(config_file(), Contexts("prod", (Context("prod", playing.target.url, str(given)),)))
    done = run("logout")
    assert isinstance(done.exception, PermanentError)
    assert done.exception.code == "NotALogin"
    assert given.exists() and not playing.asked


def test_signing_out_without_the_server_deletes_the_token_and_says_so(playing: Playing, folder: Path) -> None:
    file = folder / "prod.token"
    file.write_text("fw_x\n")
    write_contexts(config_file(), Contexts("prod", (Context("prod", playing.target.url, str(file)),)))
    playing.script = [(503, PROBLEM)]
    done = run("logout")
    assert "deleted here but not revoked" in done.output
    assert done.exit_code != 0 and not file.exists()


def test_a_server_that_is_not_encrypted_gets_no_sign_in(folder: Path) -> None:
    done = run("login", "http://fairway.example.org")
    assert isinstance(done.exception, PermanentError)
    assert done.exception.code == "NotEncrypted"


@pytest.mark.parametrize(
    ("environment", "platform", "found"),
    [
        ({}, "darwin", True),
        ({"SSH_CONNECTION": "1"}, "darwin", False),
        ({}, "linux", False),
        ({"DISPLAY": ":0"}, "linux", True),
        ({"WAYLAND_DISPLAY": "w"}, "linux", True),
        ({"DISPLAY": ":0", "SSH_CONNECTION": "1"}, "linux", False),
    ],
)
def test_where_a_browser_opens(environment: dict[str, str], platform: str, found: bool) -> None:
    assert command.has_browser(environment, platform) is found


def test_which_context_is_signed_in() -> None:
    known = Contexts("prod", (Context("prod", "https://a.test"),))
    assert command.login_context(known, None, None, None).name == "prod"
    assert command.login_context(known, "https://a.test/", None, "ca").ca_file == "ca"
    assert command.login_context(known, "https://Fair.Way.test", None, None).name == "fair-way-test"
    assert command.login_context(known, "https://a.test", "other", None).name == "other"
