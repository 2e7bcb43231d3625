"""Builds are whole or not there; what is mounted is seen and not removed."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from lab import LabError, folders, mounts

ROOT = Path(__file__).parents[3]


def test_a_build_is_made_once(own_cache: Path) -> None:
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "program").write_text("x")

    builders = [threading.Thread(target=folders.built, args=("thing", "1.0", make)) for _ in range(5)]
    for builder in builders:
        builder.start()
    for builder in builders:
        builder.join()
    assert len(made) == 1
    assert (own_cache / "builds/thing-1.0/program").read_text() == "x"


def test_a_killed_build_leaves_nothing_to_be_taken_for_a_good_one(own_cache: Path) -> None:
    killed = """
import os
from lab import folders
def make(folder):
    (folder / "half").write_text("x")
    os.kill(os.getpid(), 9)
folders.built("thing", "1.0", make)
"""
    done = subprocess.run([sys.executable, "-c", killed], cwd=ROOT, check=False)
    assert done.returncode == -9
    assert not (own_cache / "builds/thing-1.0").exists()
    folder = folders.built("thing", "1.0", lambda folder: (folder / "whole").touch())
    assert [file.name for file in folder.iterdir()] == ["whole"]


def test_a_failed_build_fails_and_may_be_tried_again() -> None:
    def fail(folder: Path) -> None:
        raise LabError("no network")

    with pytest.raises(LabError, match="no network"):
        folders.built("thing", "1.0", fail)
    assert folders.built("thing", "1.0", lambda folder: None).is_dir()


def test_mounts_below_a_folder_the_latest_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form = "36 35 98:0 / {} rw,noatime - ext3 /dev/root rw\n"
    folder = tmp_path / "with space"
    folder.mkdir()
    escaped = str(folder).replace(" ", "\\040")
    table = tmp_path / "mountinfo"
    points = [escaped, f"{escaped}/proc", f"{escaped}-2", "/elsewhere"]
    table.write_text("".join(form.format(point) for point in points))
    monkeypatch.setattr(mounts, "MOUNTINFO", table)

    assert mounts.below(folder) == [folder / "proc", folder]
    assert mounts.mounted(folder)
    assert not mounts.mounted(folder / "sys")
    with pytest.raises(LabError, match="still mounted"):
        folders.remove(folder)
    assert folder.is_dir()
