"""Records how long each test takes: a pytest plugin, active when FAIRWAY_TEST_TIMES names a file to write.

Each line of the file is one test: its id, its worker, and the seconds of wall-clock and CPU time of setup,
call and teardown. CPU time is that of the test process and of the children it has waited for, so a daemon of
the lab does not count. The difference between both is time spent waiting.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests import tier

FILE = "FAIRWAY_TEST_TIMES"


def pytest_configure(config: pytest.Config) -> None:
    if os.environ.get(FILE):
        config.pluginmanager.register(Measure(), "measure")
        if not hasattr(config, "workerinput"):
            config.pluginmanager.register(Record(Path(os.environ[FILE])), "record")


class Measure:
    """Adds the CPU seconds of each phase to its report; runs where the test runs."""

    def __init__(self) -> None:
        self._before = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        self._before = _cpu_seconds()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report: Any = yield
        now = _cpu_seconds()
        report.cpu_seconds = now - self._before
        self._before = now
        report.why = tier.reason(item)
        return report


class Record:
    """Collects the reports of all workers and writes a line when a test is over."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._file.parent.mkdir(parents=True, exist_ok=True)
        self._tests: dict[str, dict[str, Any]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        row = self._tests.setdefault(
            report.nodeid,
            {"test": report.nodeid, "worker": getattr(report, "worker_id", ""), "outcome": "passed"},
        )
        row[report.when] = round(report.duration, 3)
        row[f"{report.when}_cpu"] = round(getattr(report, "cpu_seconds", 0.0), 3)
        if report.outcome != "passed":
            row["outcome"] = report.outcome
        if why := getattr(report, "why", ""):
            row["why"] = why
        if report.when == "teardown":
            with self._file.open("a") as out:
                out.write(json.dumps(self._tests.pop(report.nodeid)) + "\n")


def _cpu_seconds() -> float:
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system
