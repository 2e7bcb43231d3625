"""The time limits of tests: a busy machine extends them, but not for ever."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.waiting import Deadline


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the kernel tells about programs that wait for a CPU; the test writes it."""
    pressure = tmp_path / "cpu"
    monkeypatch.setattr("tests.waiting.PRESSURE", pressure)
    return pressure


@pytest.mark.parametrize(
    ("stalled_seconds", "elapsed", "passed"),
    [
        (0, 9, False),
        (0, 11, True),
        (6, 13, False),  # 6 of 13 s count for 2
        (6, 15, True),
        (29, 29, False),
        (31, 31, True),  # never more than three times the limit
        (500, 31, True),
    ],
)
def test_time_in_which_programs_waited_for_a_cpu_counts_less(
    machine: Path, monkeypatch: pytest.MonkeyPatch, stalled_seconds: int, elapsed: float, passed: bool
) -> None:
    told = "some avg10=0.00 avg60=0.10 avg300=0.19 total={}\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n"
    machine.write_text(told.format(5_000_000))
    now = 100.0
    monkeypatch.setattr("tests.waiting.time.monotonic", lambda: now)
    deadline = Deadline(10)
    machine.write_text(told.format(5_000_000 + stalled_seconds * 1_000_000))
    now += elapsed
    assert deadline.passed is passed


def test_a_kernel_that_does_not_tell_changes_nothing(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr("tests.waiting.time.monotonic", lambda: now)
    deadline = Deadline(10)
    now = 111.0
    assert deadline.passed
