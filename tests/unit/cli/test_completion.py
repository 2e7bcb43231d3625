"""Shell completion: scripts that shells accept, and values that a server is asked for, once and quickly."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import click
import pytest
from click.shell_completion import ShellComplete

from fairway.cli.errors import run
from fairway.cli.root import root
from tests.wire_jobs import wire_job

ANSWERS: dict[str, list[dict[str, Any]]] = {
    "/v1/jobs": [wire_job("running", id="8f3k", name="train-llm"), wire_job("done", id="8f3m", name="eval")],
    "/v1/teams": [{"name": "nlp", "parent": "research"}, {"name": "vision", "parent": None}],
    "/v1/pools": [{"name": "hpc-a100", "gpu": "A100-80GB", "cluster": "hpc"}],
    "/v1/clusters": [{"name": "hpc", "engine": "slurm"}, {"name": "cloud", "engine": "kubernetes"}],
    "/v1/nodes": [{"name": "gpu017", "health": "ready", "cluster": "hpc"}],
    "/v1/revisions": [{"revision": 4, "created_by": "dana", "created_at": "2026-10-01T00:00:00Z"}],
}


class Asked:
    """A server that answers lists, or never."""

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.silent = False
        asked = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                asked.paths.append(self.path)
                if asked.silent:
                    time.sleep(3)
                    return
                found = ANSWERS[self.path.partition("?")[0]]
                body = json.dumps({"items": found, "next_cursor": "more"}).encode()
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Asked]:
    server = Asked()
    url = f"http://127.0.0.1:{server.http.server_port}"
    text = f"contexts:\n  demo:\n    url: {url}\n  other:\n    url: {url}\ncurrent: demo\n"
    (tmp_path / "config.yaml").write_text(text)
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path))
    monkeypatch.delenv("FAIRWAY_URL", raising=False)
    yield server
    server.http.shutdown()
    server.http.server_close()


def complete(*words: str) -> list[str]:
    """Return what is completed for the last word, by click's own parser."""
    found = ShellComplete(root, {}, "fairway", "_FAIRWAY_COMPLETE").get_completions(
        list(words[:-1]), words[-1]
    )
    return [item.value for item in found]


@pytest.mark.parametrize(
    ("words", "values"),
    [
        (["why", "8"], ["8f3k", "8f3m"]),
        (["why", "tr"], ["train-llm"]),
        (["logs", "-f", ""], ["8f3k", "8f3m"]),
        (["cancel", "8f3k", "ev"], ["eval"]),
        (["stop", "ev"], ["eval"]),
        (["describe", "8f3m"], ["8f3m"]),
        (["get", "jobs", "--team", "n"], ["nlp"]),
        (["get", "jobs", "--pool", ""], ["hpc-a100"]),
        (["get", "job", "--pool", ""], ["hpc-a100"]),
        (["get", "jobs", "--node", "g"], ["gpu017"]),
        (["run", "--pool", "h"], ["hpc-a100"]),
        (["get", "pools", "--cluster", ""], ["hpc", "cloud"]),
        (["get", "pools", "--context", "o"], ["other"]),
        (["context", "use", ""], ["demo", "other"]),
        (["rollback", ""], ["4"]),
        (["get", "fleet", "--revision", ""], ["4"]),
        (["report", "cost", "--window", "last"], ["last-week", "last-month"]),
        (["uncordon", ""], ["gpu017"]),
        (["ge"], ["get"]),
        (["st"], ["stop"]),
        (["get", "gpu"], ["gpu-events"]),
    ],
)
def test_values(asked: Asked, words: list[str], values: list[str]) -> None:
    assert complete(*words) == values
    assert len(asked.paths) <= 1


def test_only_unfinished_jobs_are_offered_to_cancel(asked: Asked) -> None:
    complete("cancel", "")
    assert asked.paths == ["/v1/jobs?state=open&limit=200"]


def test_silence_is_no_value_within_a_second_or_so(asked: Asked) -> None:
    asked.silent = True
    began = time.monotonic()
    assert complete("why", "8") == []
    assert time.monotonic() - began < 2.5
    assert len(asked.paths) == 1


def test_without_a_server_there_are_no_values(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path / "none"))
    assert complete("why", "8") == []
    (tmp_path / "config.yaml").write_text("contexts:\n  a:\n    url: http://127.0.0.1:9\ncurrent: a\n")
    monkeypatch.setenv("FAIRWAY_CONFIG_DIR", str(tmp_path))
    assert complete("why", "8") == []
    (tmp_path / "config.yaml").write_text("[")
    assert complete("get", "pools", "--context", "") == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_has_a_script_and_asks_by_its_own_protocol(
    asked: Asked, shell: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(root, ["completion", shell]) == 0
    script = capsys.readouterr().out
    assert "fairway" in script and f"{shell}_complete" in script
    if found := shutil.which(shell):
        subprocess.run([found, "-n", "/dev/stdin"], input=script, text=True, check=True)
    words = {"COMP_WORDS": "fairway get jobs --team n", "COMP_CWORD": "4" if shell != "fish" else "n"}
    done = subprocess.run(
        [sys.executable, "-c", "import sys; sys.argv = ['fairway']; import fairway.cli; fairway.cli.main()"],
        env={**os.environ, "_FAIRWAY_COMPLETE": f"{shell}_complete", **words},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert "nlp" in done.stdout and "vision" not in done.stdout, done


IN_SHELL = {
    "bash": (
        'eval "$(fairway completion bash)"\n'
        "COMP_WORDS=(fairway get jobs --team n); COMP_CWORD=4; COMPREPLY=()\n"
        '_fairway_completion fairway; echo "${COMPREPLY[@]}"\n'
    ),
    "zsh": (
        "compdef() { :; }\n"
        'eval "$(fairway completion zsh)"\n'
        "words=(fairway get jobs --team n); CURRENT=5\n"
        '_describe() { print -l -- "${(@P)3}"; }\n'
        "compadd() { :; }\n"
        "_fairway_completion\n"
    ),
    "fish": "fairway completion fish | source\ncomplete -C 'fairway get jobs --team n'\n",
}


@pytest.mark.parametrize("shell", list(IN_SHELL))
def test_real_shells_complete_a_value(asked: Asked, shell: str, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    fairway = tmp_path / "fairway"
    fairway.write_text(f'#!/bin/sh\nexec {sys.executable} -m fairway.cli "$@"\n')
    fairway.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(tmp_path)}
    done = subprocess.run(
        [shell, "-c", IN_SHELL[shell]],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.stdout.split()[:1] == ["nlp"] or done.stdout.startswith("nlp:"), done
    assert "vision" not in done.stdout


def test_the_list_of_commands_is_completed_without_importing_them() -> None:
    code = (
        "import sys\nfrom click.shell_completion import ShellComplete\nfrom fairway.cli.root import root\n"
        "found = ShellComplete(root, {}, 'fairway', '_X').get_completions([], '')\n"
        "assert {'get', 'ps', 'help', 'why'} <= {item.value for item in found}\n"
        "print(*[m for m in sys.modules if m.startswith('fairway.cli.commands')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""


def test_every_option_that_names_something_completes_it() -> None:
    named = {"--team", "--pool", "--cluster", "--node", "--context", "--window", "--revision", "--after"}
    checked = 0

    def check(command: click.Command, name: str) -> None:
        nonlocal checked
        for param in command.params:
            if isinstance(param, click.Option) and named & set(param.opts) and param.metavar != "N":
                assert param._custom_shell_complete is not None, (name, param.opts)
                checked += 1
        if isinstance(command, click.Group):
            context = click.Context(command)
            for verb in command.list_commands(context):
                found = command.get_command(context, verb)
                assert found is not None
                check(found, f"{name} {verb}")

    check(root, "fairway")
    assert checked > 40
