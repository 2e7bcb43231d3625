"""PostgreSQL from pip alone."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from fairway.ledger import LedgerRefused, embedded

USER = """
import sys
from pathlib import Path
from fairway.ledger import embedded
server = embedded.start(Path(sys.argv[1]))
print(server.url, flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    made = Path(tempfile.mkdtemp(prefix="fairway-test-"))
    made.chmod(0o711)
    yield made / "postgres"
    shutil.rmtree(made, ignore_errors=True)


def answers(url: str) -> bool:
    try:
        with psycopg.connect(url, connect_timeout=60) as connection:
            connection.execute("SELECT 1")
    except psycopg.OperationalError:
        return False
    return True


def test_the_last_to_leave_stops_it_and_data_stays(folder: Path) -> None:
    one = embedded.start(folder)
    two = embedded.start(folder)
    assert one.url == two.url
    with psycopg.connect(one.url) as connection:
        connection.execute("CREATE TABLE kept (n int)")
        addresses = connection.execute("SHOW listen_addresses").fetchone()
    assert addresses == ("",)  # a Unix socket only
    one.stop()
    one.stop()
    assert answers(two.url)
    two.stop()
    assert not answers(two.url)
    three = embedded.start(folder)
    with psycopg.connect(three.url) as connection:
        assert connection.execute("SELECT count(*) FROM kept").fetchone() == (0,)
    three.stop()


def test_a_killed_user_is_not_waited_for(folder: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", USER, folder], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as user:
        assert user.stdout is not None
        url = user.stdout.readline().strip()
        ours = embedded.start(folder)
        assert ours.url == url
        user.send_signal(signal.SIGKILL)
        user.wait(10)
    assert answers(url)
    ours.stop()
    assert not answers(url)


def test_a_user_that_ends_leaves_nothing_running(folder: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", USER, folder],
        input="\n",
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert done.stderr == ""
    assert not answers(done.stdout.strip())
    assert not (folder / "data" / "postmaster.pid").exists()


def test_a_server_killed_is_started_again(folder: Path) -> None:
    server = embedded.start(folder)
    pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    os.kill(pid, signal.SIGKILL)
    deadline = time.monotonic() + 60
    while answers(server.url) and time.monotonic() < deadline:
        time.sleep(0.05)
    again = embedded.start(folder)
    assert answers(again.url)
    again.stop()  # the first still counts as a user
    assert answers(server.url)
    server.stop()
    assert not answers(server.url)


def test_stopping_one_that_somebody_killed_is_no_error(folder: Path) -> None:
    server = embedded.start(folder)
    os.kill(int((folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)
    deadline = time.monotonic() + 60
    while answers(server.url) and time.monotonic() < deadline:
        time.sleep(0.05)
    server.stop()
    assert not answers(server.url)


def test_a_long_path_gets_its_socket_elsewhere(folder: Path) -> None:
    deep = folder / ("x" * 60) / ("y" * 60)
    folder.mkdir()
    (folder / ("x" * 60)).mkdir()
    server = embedded.start(deep)
    assert answers(server.url)
    server.stop()


def test_without_the_extra_it_says_what_to_install(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LedgerRefused, match="not installed") as caught:
        embedded.start(folder)
    assert "pip install 'fairway[embedded]'" in caught.value.hint


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user")
def test_as_root_a_closed_folder_is_refused_not_opened(folder: Path) -> None:
    folder.parent.chmod(0o700)
    with pytest.raises(LedgerRefused, match="may not pass") as caught:
        embedded.start(folder)
    assert "FAIRWAY_STATE_DIR" in caught.value.hint
    assert folder.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.skipif(os.geteuid() != 0, reason="only root needs another user")
def test_as_root_binaries_in_a_closed_folder_are_copied(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = importlib.util.find_spec(embedded.PACKAGE)
    assert real is not None
    assert real.submodule_search_locations
    package = Path(real.submodule_search_locations[0])
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o700)
    for name in (package.name, f"{package.name}.libs"):
        (closed / name).symlink_to(package.with_name(name))
    real.submodule_search_locations[:] = [str(closed / package.name)]
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: real)

    server = embedded.start(folder)
    assert answers(server.url)
    pid = int((folder / "data" / "postmaster.pid").read_text().split()[0])
    assert Path(f"/proc/{pid}/exe").readlink().is_relative_to(folder)
    server.stop()
    assert closed.stat().st_mode & 0o777 == 0o700
