"""The lab as people use it, and what it may leave behind: nothing. Looked at without the lab's own eyes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from lab import Instance, find

ROOT = Path(__file__).parents[2]


def launch(*words: str) -> subprocess.Popen[str]:
    """`python -m lab ...`, not waited for."""
    return subprocess.Popen(
        [sys.executable, "-m", "lab", *words],
        cwd=ROOT,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def lab(*words: str, fails: bool = False) -> str:
    """What `python -m lab ...` printed; if it should fail, what it said on stderr."""
    child = launch(*words)
    said, complained = child.communicate(timeout=280)
    assert "Traceback" not in complained, complained
    assert (child.returncode != 0) == fails, f"exit {child.returncode}\n{said}\n{complained}"
    return complained if fails else said


def up(kind: str, name: str, *words: str) -> Instance:
    lab("up", kind, "--name", name, *words)
    instance = find(name)
    assert instance is not None
    return instance


def status(name: str) -> dict[str, Any]:
    rows: list[dict[str, Any]] = json.loads(lab("status", "-o", "json"))
    return next(row for row in rows if row["name"] == name)


def ports(instance: Instance) -> set[int]:
    return {port for row in instance.rows.values() for port in row}


def assert_nothing_is_left(instance: Instance) -> None:
    """No process with anything to do with the folder, no mount in it, no listener on its ports."""
    folder = str(instance.folder)
    assert [line for line in processes_about(folder) if str(os.getpid()) not in line.split()[:1]] == []
    assert folder + "/" not in Path("/proc/self/mountinfo").read_text()
    assert {port for port, _ in listeners()} & ports(instance) == set()


def processes_about(folder: str) -> list[str]:
    """Those that name the folder in command or environment, or have it as root, cwd, program or open file."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            text = (process / "cmdline").read_bytes() + (process / "environ").read_bytes()
            links = [process / "root", process / "cwd", process / "exe", *(process / "fd").iterdir()]
            targets = [str(link.readlink()) for link in links]
        except OSError:
            continue
        if f"{folder}/".encode() in text or any(f"{target}/".startswith(f"{folder}/") for target in targets):
            found.append(f"{process.name} {text[:200]!r}")
    return found


def listeners() -> list[tuple[int, str]]:
    """Ports that somebody listens on, with the address as the kernel writes it."""
    found = []
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            _, local, _, state, *_ = line.split()
            if state == "0A":
                address, port = local.split(":")
                found.append((int(port, 16), address))
    return found


def addresses_of(instance: Instance) -> dict[int, str]:
    """Port and address of every listening socket that a process of the instance holds."""
    inodes = {}
    for table in ("tcp", "tcp6"):
        for line in Path("/proc/net", table).read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":
                inodes[f"socket:[{fields[9]}]"] = fields[1]
    held = {}
    for process in instance.processes():
        try:
            links = [str(link.readlink()) for link in Path(f"/proc/{process.pid}/fd").iterdir()]
        except OSError:
            continue
        for link in links:
            if link in inodes:
                address, port = inodes[link].split(":")
                held[int(port, 16)] = address
    return held


LOOPBACK = "0100007F"
