"""The terminal of a demo shows progress and status, each on its own line; everything else is in the log."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

from fairway.demo.live_load import LoadStatus
from fairway.demo.screen import Screen


def test_without_a_terminal_each_step_is_a_line() -> None:
    stream = io.StringIO()
    screen = Screen(stream, quiet=False)
    screen.step("Simulating the last 60 days")
    screen.progress(0.5)
    screen.status(LoadStatus(running=1, waiting=2, ended=3, held=4, devices=5))
    screen.end()
    assert stream.getvalue().splitlines()[0] == "  Simulating the last 60 days …"
    assert all(line.startswith("  ") for line in stream.getvalue().splitlines())


def test_a_quiet_demo_prints_no_progress() -> None:
    stream = io.StringIO()
    screen = Screen(stream, quiet=True)
    screen.step("Simulating the last 60 days")
    screen.progress(0.5)
    screen.status(LoadStatus(running=1, waiting=2, ended=3, held=4, devices=5))
    assert stream.getvalue() == ""


def test_whatever_is_logged_goes_to_the_file(tmp_path: Path) -> None:
    """Also what libraries and child processes write, and tracebacks: they glued onto the status line."""
    code = """
import os, subprocess, sys
from pathlib import Path
from fairway.cli.commands.demo import _stderr_to
with _stderr_to(Path(sys.argv[1])) as terminal:
    terminal.write("progress\\n")
    print("a warning", file=sys.stderr)
    os.write(2, b"a traceback\\n")
    subprocess.run(["sh", "-c", "echo of a child >&2"])
print("error: after it", file=sys.stderr)
"""
    log = tmp_path / "demo.log"
    done = subprocess.run(
        [sys.executable, "-c", code, str(log)], capture_output=True, text=True, check=True, env=os.environ
    )
    assert done.stderr == "progress\nerror: after it\n"
    assert log.read_text() == "a warning\na traceback\nof a child\n"
