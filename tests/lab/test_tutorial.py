"""The tutorial for an existing Slurm cluster, typed in as it stands; every line it shows must come back."""

from __future__ import annotations

import os
import re
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from lab import Instance
from tests.integration.server_process import temporary_home
from tests.lab.driving import lab, up
from tests.waiting import until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[2]
TUTORIAL = ROOT / "docs/tutorials/existing-slurm.md"
NAME = "tutorial"
TOOLS = ("sacctmgr", "squeue", "scontrol", "sbatch")
COMMAND_SECONDS = 120
LOOKS = 8


@dataclass(frozen=True)
class Typed:
    """A command of the tutorial and the lines it shows below it."""

    command: str
    shown: tuple[str, ...]


def commands(text: str) -> list[Typed]:
    found: list[Typed] = []
    for block in re.findall(r"```console\n(.*?)```", text, re.DOTALL):
        for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
            command, *shown = part.rstrip("\n").split("\n")
            found.append(Typed(command, tuple(shown)))
    return found


def plain(line: str) -> str:
    """A line without what differs from run to run: spacing, addresses, seconds."""
    line = re.sub(r"127\.0\.0\.1:\d+", "HOST", line)
    line = re.sub(r" in \d+(\.\d+)? (s|min)\b", "", line)
    return " ".join(line.split())


class Desk:
    """A shell with Slurm's tools, sudo and fairway on its path, in a folder of its own."""

    def __init__(self, folder: Path, instance: Instance) -> None:
        self.folder = folder
        self.instance = instance
        self._servers: list[subprocess.Popen[bytes]] = []
        bin_ = folder / "bin"
        bin_.mkdir()
        run = f"cd {shlex.quote(str(ROOT))} && exec {shlex.quote(sys.executable)} -m lab"
        for tool in TOOLS:
            self._script(bin_ / tool, f'{run} run {NAME} {tool} "$@"')
        self._script(bin_ / "sudo", f'user=$2; shift 2; {run} run {NAME} --as "$user" "$@"')
        # the tutorial's cluster is called hpc, and so would be the reader's instance
        self._script(bin_ / "python", f'here=$PWD; {run} "$3" {NAME} "$here/$5"')
        self._script(bin_ / "fairway", f'exec {shlex.quote(sys.executable)} -m fairway.cli "$@"')
        self.environment = {
            **{k: os.environ[k] for k in ("HOME", "LANG", "FAIRWAY_LAB_INSTANCES") if k in os.environ},
            "PATH": f"{bin_}:{os.environ['PATH']}",
            "XDG_CONFIG_HOME": str(folder / "config"),
            "FAIRWAY_STATE_DIR": str(folder / "state"),
            "FAIRWAY_LISTEN_PORT": "0",
        }

    @staticmethod
    def _script(path: Path, body: str) -> None:
        path.write_text(f"#!/bin/bash\n{body}\n")
        path.chmod(0o755)

    def type(self, command: str) -> str:
        if command.endswith("&"):
            return self._background(command[:-1])
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=COMMAND_SECONDS,
            check=False,
        )
        return done.stdout + done.stderr

    def _background(self, command: str) -> str:
        log = self.folder / "server.log"
        with log.open("wb") as out:
            self._servers.append(
                subprocess.Popen(
                    ["bash", "-c", f"exec {command}"],
                    cwd=self.folder,
                    env=self.environment,
                    stdout=out,
                    stderr=out,
                )
            )
        until(lambda: "fairway serves" in log.read_text(), 60, f"{command}: {log.read_text()}")
        return log.read_text()

    def close(self) -> None:
        for server in self._servers:
            server.send_signal(signal.SIGTERM)
            server.wait(30)


@pytest.fixture
def desk() -> Iterator[Desk]:
    instance = up("slurm", NAME, "--version", "24.11")
    with temporary_home() as home:
        desk = Desk(home.folder, instance)
        try:
            as_many_clusters_are()
            yield desk
        finally:
            desk.close()
            lab("wipe", NAME)


def as_many_clusters_are() -> None:
    """Three accounts with hard limits, and more work in one of them than its limit takes."""
    sacctmgr = ("run", NAME, "sacctmgr", "-i", "-Q")
    lab(*sacctmgr, "add", "user", "fairway", "account=root", "adminlevel=admin")
    lab(*sacctmgr, "add", "account", "vision,speech,ops")
    for user, account, gpus, share in (
        ("alice", "vision", 16, 40),
        ("bob", "speech", 8, 20),
        ("carol", "ops", 4, 10),
    ):
        lab(*sacctmgr, "modify", "account", account, "set", f"GrpTRES=gres/gpu={gpus}", f"fairshare={share}")
        lab(*sacctmgr, "add", "user", user, f"account={account}")
        lab(*sacctmgr, "modify", "user", user, "set", f"DefaultAccount={account}")
        lab(*sacctmgr, "delete", "user", user, "account=lab")
    lab(*sacctmgr, "modify", "user", "fairway", "set", "DefaultAccount=root")
    lab(*sacctmgr, "delete", "user", "fairway", "account=lab")
    lab(*sacctmgr, "delete", "account", "lab")
    for _ in range(3):
        lab("run", NAME, "--as", "bob", "sbatch", "-o", "/dev/null", "-t", "30", "-p", "gpu",
            "--gres=gpu:a100:4", "--wrap", "sleep 1500")  # fmt: skip
    until(lambda: lab("run", NAME, "squeue", "-a", "-h", "-t", "R").count("\n") == 2, 30, "two of three run")
    # Slurm first has a job without a reason, and looks at its limits in its next pass.
    waits = ("run", NAME, "squeue", "-a", "-h", "-t", "PD", "-o", "%r")
    until(lambda: lab(*waits).strip() == "AssocGrpGRES", 60, "the third waits at its account's limit")


def test_the_tutorial_does_what_it_shows(desk: Desk) -> None:
    text = TUTORIAL.read_text()
    start = re.search(r'```yaml title="start.yaml"\n(.*?)```', text, re.DOTALL)
    assert start is not None
    facts = desk.instance.facts()
    file = start[1].replace("http://127.0.0.1:6820", facts["url"])
    (desk.folder / "start.yaml").write_text(file.replace("/etc/fairway/hpc.jwt", facts["jwt_key_file"]))

    typed = commands(text)
    assert len(typed) > 15
    for one in typed:
        # Whoever is told to wait looks again when the machine is slower than the tutorial's.
        for _ in range(LOOKS if one.command.startswith("sleep ") else 1):
            came = desk.type(one.command)
            lines = {plain(line) for line in came.splitlines()}
            missing = [line for line in one.shown if plain(line) not in lines]
            if not missing:
                break
        assert not missing, f"$ {one.command}\nshould show {missing}, but showed:\n{came}"
