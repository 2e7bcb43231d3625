"""The reader of logs trusts nothing that people own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fairway.engines.slurm.jobs.logs import read_part
from fairway.model.errors import Refused

ME = os.geteuid()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "logs" / "alice").mkdir(parents=True)
    (tmp_path / "logs" / "alice" / "a.1.out").write_bytes(b"0123456789")
    (tmp_path / "secret").write_bytes(b"secret")
    return tmp_path / "logs"


def _read(folder: Path, name: str = "a.1.out", user: str = "alice", owner: int = ME) -> bytes:
    return read_part(str(folder), user, name, owner, 0, 100)[0]


def test_pieces(folder: Path) -> None:
    assert read_part(str(folder), "alice", "a.1.out", ME, 0, 4) == (b"0123", False)
    assert read_part(str(folder), "alice", "a.1.out", ME, 4, 100) == (b"456789", True)
    assert read_part(str(folder), "alice", "a.1.out", ME, 50, 100) == (b"", True)


def test_what_is_not_there_yet_is_no_fault(folder: Path) -> None:
    with pytest.raises(FileNotFoundError):
        _read(folder, "b.1.out")
    with pytest.raises(FileNotFoundError):
        _read(folder, user="bob")


def test_links_pipes_folders_and_other_people_s_files_are_not_read(folder: Path) -> None:
    here = folder / "alice"
    (here / "link").symlink_to(folder.parent / "secret")
    (here / "hard").hardlink_to(folder.parent / "secret")
    (here / "dir").mkdir()
    os.mkfifo(here / "pipe")
    (folder / "bob").symlink_to(here)
    for name in ("link", "hard", "dir", "pipe", "..", ".", "", "../alice/a.1.out", "/etc/passwd"):
        with pytest.raises(Refused, match="is not read"):
            _read(folder, name)
    with pytest.raises(Refused, match="is not read"):
        _read(folder, user="bob")
    with pytest.raises(Refused, match="not the user's own"):
        _read(folder, owner=ME + 1)


def test_a_folder_that_is_not_mounted_is_said(tmp_path: Path) -> None:
    with pytest.raises(Refused) as refused:
        _read(tmp_path / "nowhere")
    assert refused.value.code == "LogsUnreadable"
