"""A process is recognised as ours, or not at all."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import pytest

from lab import processes
from lab.instance import Instance
from lab.processes import Process
from lab.waiting import wait_until


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    made = tmp_path / "an instance"
    made.mkdir()
    yield made
    for process in processes.inside(made):
        process.send(signal.SIGKILL)


def started(folder: Path, *command: str) -> Process:
    env = {"PATH": os.defpath}
    return processes.start(command, instance=folder, record=folder / "record", log=folder / "log", env=env)


def test_a_daemon_has_a_session_a_log_and_no_stdin(folder: Path) -> None:
    process = started(folder, "sh", "-c", "cat; echo $$ $(ps -o sid= -p $$); exec sleep 60")
    wait_until(lambda: bool((folder / "log").read_text()), 10, "nothing was logged")
    pid, session = (folder / "log").read_text().split()
    assert int(pid) == int(session) == process.pid
    assert process.alive


def test_a_record_of_another_moment_is_not_the_process(folder: Path) -> None:
    process = started(folder, "sleep", "60")
    record = folder / "record"
    assert processes.recall(record) == process
    for other in (
        replace(process, started=process.started - 1),
        replace(process, boot="another boot"),
        replace(process, pid=os.getpid()),
    ):
        processes.remember(other, record)
        assert processes.recall(record) is None
        other.send(signal.SIGKILL)  # reaches nobody
    assert process.alive


def test_whoever_dies_before_the_daemon_is_on_record_leaves_none_behind(folder: Path) -> None:
    code = """
import os, pathlib, sys
from lab import processes
processes.remember = lambda process, record: (print(process.pid, flush=True), os.kill(os.getpid(), 9))
folder = pathlib.Path(sys.argv[1])
ran, record, log = (folder / name for name in ("ran", "record", "log"))
processes.start(["touch", ran], instance=folder, record=record, log=log, env=os.environ)
"""
    said = subprocess.run(
        [sys.executable, "-c", code, str(folder)],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode == -9
    wait_until(lambda: not Path(f"/proc/{said.stdout.strip()}").exists(), 10, "it lives on")
    assert not (folder / "ran").exists()
    assert processes.inside(folder) == []


@pytest.mark.parametrize("content", ["", "{", "{}", "[1]", '{"pid": 1}'])
def test_a_broken_record_is_no_process(folder: Path, content: str) -> None:
    (folder / "record").write_text(content)
    assert processes.recall(folder / "record") is None


def test_a_name_full_of_parentheses_does_not_confuse(tmp_path: Path) -> None:
    program = tmp_path / "a) S 1 (b"
    program.symlink_to("/bin/sleep")
    child = subprocess.Popen([program, "60"])
    try:
        wait_until(lambda: b"sleep" in Path(f"/proc/{child.pid}/exe").readlink().name.encode(), 5, "no exec")
        seen = processes.stat(child.pid)
        assert seen is not None
        assert seen.parent == os.getpid()
    finally:
        child.kill()
        child.wait()


def test_a_zombie_is_not_alive() -> None:
    child = subprocess.Popen(["sleep", "60"])
    seen = processes.stat(child.pid)
    assert seen is not None
    process = Process(child.pid, seen.started, processes.boot())
    assert process.alive
    child.kill()
    wait_until(lambda: (now := processes.stat(child.pid)) is not None and now.state == "Z", 5, "no zombie")
    assert not process.alive
    child.wait()


def test_end_asks_first(folder: Path) -> None:
    polite = started(
        folder, "sh", "-c", "trap 'echo asked; exit' TERM; echo ready; while :; do sleep 0.05; done"
    )
    wait_until(lambda: "ready" in (folder / "log").read_text(), 10, "not ready")
    assert processes.end([polite]) == []
    assert "asked" in (folder / "log").read_text()


def test_end_insists(folder: Path) -> None:
    stubborn = started(folder, "sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.05; done")
    wait_until(lambda: "ready" in (folder / "log").read_text(), 10, "not ready")
    began = time.monotonic()
    assert processes.end([stubborn], patience=0.3) == []
    assert not stubborn.alive
    assert 0.3 <= time.monotonic() - began < 8


def test_inside_finds_orphans_and_those_who_dropped_the_mark(folder: Path) -> None:
    # sh, a child without the mark, and a grandchild in another session whose parent is gone
    script = "env -i sleep 61 & (setsid sleep 62 &) ; sleep 63"
    started(folder, "sh", "-c", script)

    def commands() -> set[str]:
        seen = set()
        for found in processes.inside(folder):
            with suppress(FileNotFoundError, ProcessLookupError):  # the shell between sh and setsid ends soon
                seen.add(Path(f"/proc/{found.pid}/cmdline").read_text())
        return seen

    wanted = {f"sleep\0{seconds}\0" for seconds in ("61", "62", "63")}
    wait_until(lambda: wanted <= commands(), 10, "not all were found", why=lambda: str(commands()))
    assert processes.end(processes.inside(folder)) == []
    assert processes.inside(folder) == []


def test_inside_is_not_fooled_by_a_longer_name(folder: Path) -> None:
    neighbour = folder.with_name(folder.name + "-2")
    neighbour.mkdir()
    other = started(neighbour, "sleep", "60")
    assert processes.inside(folder) == []
    assert processes.inside(neighbour) == [other]
    processes.end([other])


def test_inside_never_counts_those_who_ask(folder: Path) -> None:
    code = (
        "import pathlib, sys; from lab import processes; print(processes.inside(pathlib.Path(sys.argv[1])))"
    )
    marked = {**os.environ, processes.MARK: str(folder), "PYTHONPATH": str(Path(__file__).parents[3])}
    said = subprocess.run(
        [sys.executable, "-c", code, str(folder)], env=marked, capture_output=True, text=True, check=True
    )
    assert said.stdout.strip() == "[]"


def test_a_daemon_that_lives_is_not_started_twice() -> None:
    instance = Instance("postgres", "one", "15")
    first = instance.launch("sleeper", ["sleep", "60"], env={"PATH": os.defpath})
    assert instance.launch("sleeper", ["sleep", "60"], env={"PATH": os.defpath}) == first
    instance.end("sleeper")
    second = instance.launch("sleeper", ["sleep", "60"], env={"PATH": os.defpath})
    assert second != first
    instance.end("sleeper")
    assert instance.processes() == []
