"""Every command of docs/tasks.md works. The server is its own: the apply of a page may empty a cluster."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from fairway.cli.errors import run
from fairway.cli.root import root
from tests.docs.reading import ROOT
from tests.docs.test_commands import ACME, acme
from tests.integration.server_process import Home

__all__ = ["acme"]
pytestmark = pytest.mark.timeout(300)


def test_every_task_has_a_command_that_works(
    acme: Home, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """The tables of docs/tasks.md: each command is typed, each with a job of its own."""
    cells = [row.rsplit("|", 2)[1] for row in (ROOT / "docs/tasks.md").read_text().splitlines() if "|" in row]
    commands = [command for cell in cells for command in re.findall(r"`fairway ([^`]+)`", cell)]
    assert len(commands) > 30
    for name, value in acme.environment.items():
        monkeypatch.setenv(name, value)
    shutil.copy(ACME, tmp_path / "fleet.yaml")
    monkeypatch.chdir(tmp_path)
    failed = []
    for number, command in enumerate(commands):
        job = f"train-{number}"
        words = shlex.split(re.sub(r" train\b(?!\.py)| hpc/1542", f" {job}", command))
        if job in words:
            run(root, ["run", "--gpus", "1", "--name", job, "--hold", "--", "sleep", "60"])
        capfd.readouterr()
        status = run(root, [*words, *(["--yes"] if words[0] == "apply" else [])])
        shown = capfd.readouterr()
        if status != 0 or not shown.out + shown.err:
            failed.append(f"{command}: {status} {shown.err}")
    assert failed == []
