"""Runs stages in the order of their dependencies, several at once, and measures each of them."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

OVERRUN = 1.5
"""A stage may take this many times its budget before the run fails."""
MAX_RETRIED = 3
"""More failures than this in one stage are never retried."""
HEARTBEAT_SECONDS = 60.0
POLL_SECONDS = 0.2
END_SECONDS = 30.0
PROBE_ADDITIONS = 1_000_000
PROBE_SECONDS = 0.11
"""CPU seconds that the additions take on the machine for which the budgets are."""
PYTHON = ".venv/bin/python"


@dataclass(frozen=True, slots=True)
class Stage:
    """One step of the pipeline: a shell command with a time budget."""

    name: str
    command: str
    budget_seconds: float
    """What it takes on a quiet machine with two cores, with some margin."""
    after: tuple[str, ...] = ()
    """Stages that must have passed before this one starts."""
    environment: tuple[tuple[str, str], ...] = ()


def before(stages: Iterable[Stage], name: str) -> set[str]:
    """The names of all stages that have passed before the one of this name starts."""
    by_name = {stage.name: stage for stage in stages}
    found: set[str] = set()
    waiting = [name]
    while waiting:
        more = set(by_name[waiting.pop()].after) - found
        found |= more
        waiting += more
    return found


@dataclass(slots=True)
class Outcome:
    """What became of a stage."""

    stage: Stage
    started: float = 0.0
    ticks: CpuTicks | None = None
    """When it started."""
    probes: list[float] = field(default_factory=list)
    """CPU seconds of a fixed piece of work, once a minute."""
    seconds: float = 0.0
    cpu_seconds: float = 0.0
    stolen: float = 0.0
    """Share of the machine's CPU time that its host gave to others meanwhile."""
    code: int = 0
    flaky: list[str] = field(default_factory=list)
    """Tests that failed and were run again, alone. Each is a bug to fix, even if it passed then."""

    @property
    def slowness(self) -> float:
        """How many times slower the machine was than the one for which the budgets are; 1 if it was not.

        A machine that is slow because its host gives time to others is counted once: by the larger of both.
        """
        slow = sum(self.probes) / len(self.probes) / PROBE_SECONDS if self.probes else 1.0
        return max(1.0, slow, 1 / max(0.01, 1 - self.stolen))

    @property
    def own_seconds(self) -> float:
        """What it would have taken on the machine for which the budgets are."""
        return self.seconds / self.slowness

    @property
    def over_budget(self) -> bool:
        return self.own_seconds > self.stage.budget_seconds * OVERRUN

    @property
    def passed(self) -> bool:
        return self.code == 0


@dataclass(frozen=True, slots=True)
class CpuTicks:
    """What /proc/stat has counted since the machine started."""

    all: int = 0
    stolen: int = 0

    @classmethod
    def now(cls) -> CpuTicks:
        """Read the counters; the eighth is time that the host of a virtual machine gave to others."""
        counted = [int(ticks) for ticks in Path("/proc/stat").read_text().split(maxsplit=9)[1:9]]
        return cls(sum(counted), counted[7])

    def stolen_since(self, start: CpuTicks) -> float:
        """The share of the machine's CPU time that it did not get."""
        return (self.stolen - start.stolen) / max(1, self.all - start.all)


class Pipeline:
    """Runs the stages of one CI run. Output goes to a file a stage and is printed when the stage ends."""

    def __init__(self, stages: Sequence[Stage], folder: Path, say: Callable[[str], None] = print) -> None:
        names = [stage.name for stage in stages]
        if unknown := {name for stage in stages for name in stage.after} - set(names):
            raise ValueError(f"unknown stages: {', '.join(sorted(unknown))}")
        self.outcomes: list[Outcome] = []
        self._waiting = list(stages)
        self._folder = folder
        self._say = say
        self._running: dict[subprocess.Popen[bytes], Outcome] = {}
        self._began = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds since the pipeline was made."""
        return time.monotonic() - self._began

    def run(self) -> bool:
        """Run every stage; stop the others at the first failure. Returns whether all passed."""
        heartbeat = self.seconds + HEARTBEAT_SECONDS
        try:
            while self._waiting or self._running:
                self._start_ready()
                self._collect()
                if any(not outcome.passed for outcome in self.outcomes):
                    return False
                if self.seconds > heartbeat:
                    heartbeat = self.seconds + HEARTBEAT_SECONDS
                    self._probe()
                    self._say(f"  … {self._status()}")
                time.sleep(POLL_SECONDS)
        finally:
            self._end_all()
        return not any(outcome.over_budget for outcome in self.outcomes)

    def file(self, stage: Stage, suffix: str) -> Path:
        """Where a stage's output (`log`) or its test times (`jsonl`) are stored."""
        return self._folder / f"{stage.name.replace(' ', '-')}.{suffix}"

    def _start_ready(self) -> None:
        done = {outcome.stage.name for outcome in self.outcomes}
        for stage in [stage for stage in self._waiting if done.issuperset(stage.after)]:
            self._waiting.remove(stage)
            self._start(stage)

    def _start(self, stage: Stage) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._say(f"=== {stage.name}: started after {minutes(self.seconds)}")
        self._launch(
            Outcome(stage, started=self.seconds, ticks=CpuTicks.now()),
            ["bash", "-euo", "pipefail", "-c", stage.command],
            "wb",
            PYTEST_ADDOPTS=f"--color=no -q -o {shlex.quote(f'cache_dir={self._cache(stage)}')}",
            FAIRWAY_TEST_TIMES=str(self.file(stage, "jsonl")),
        )

    def _launch(self, outcome: Outcome, command: Sequence[str], mode: str, **environment: str) -> None:
        with self.file(outcome.stage, "log").open(mode) as log:
            process = subprocess.Popen(
                command,
                env={**os.environ, **dict(outcome.stage.environment), **environment},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._running[process] = outcome

    def _collect(self) -> None:
        for process, outcome in list(self._running.items()):
            code, cpu_seconds = _finished(process)
            if code is None:
                continue
            del self._running[process]
            outcome.cpu_seconds += cpu_seconds
            if code and not outcome.flaky and (failed := self._retryable(outcome.stage)):
                outcome.flaky = failed
                self._start_retry(outcome)
                continue
            outcome.code = code
            outcome.seconds = self.seconds - outcome.started
            outcome.stolen = CpuTicks.now().stolen_since(outcome.ticks) if outcome.ticks else 0.0
            self._print(outcome)
            self.outcomes.append(outcome)

    def _retryable(self, stage: Stage) -> list[str]:
        """The failed tests of a stage, if they are so few that chance may be the reason."""
        try:
            failed = list(json.loads((self._cache(stage) / "v/cache/lastfailed").read_text()))
        except (OSError, ValueError):
            return []
        return failed if len(failed) <= MAX_RETRIED and all(failed) else []

    def _start_retry(self, outcome: Outcome) -> None:
        """Run failed tests once more, alone, so that one accident does not hide what else a run finds.

        A test that passes now is still a bug, and the report lists it.
        """
        self._say(f"=== {outcome.stage.name}: {len(outcome.flaky)} failed, running them again, alone")
        command = [PYTHON, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", *outcome.flaky]
        self._launch(outcome, command, "ab", PYTEST_ADDOPTS="--color=no -q")

    def _cache(self, stage: Stage) -> Path:
        return self._folder.resolve() / "cache" / stage.name.replace(" ", "-")

    def _print(self, outcome: Outcome) -> None:
        verdict = "passed" if outcome.passed else f"FAILED (exit {outcome.code})"
        budget = minutes(outcome.stage.budget_seconds)
        self._say(f"=== {outcome.stage.name}: {verdict} in {minutes(outcome.seconds)} (budget {budget})")
        self._say(self.file(outcome.stage, "log").read_text(errors="replace").rstrip())

    def _probe(self) -> None:
        seconds = probe()
        for outcome in self._running.values():
            outcome.probes.append(seconds)

    def _status(self) -> str:
        running = [
            f"{one.stage.name} {minutes(self.seconds - one.started)}" for one in self._running.values()
        ]
        return f"{minutes(self.seconds)}: running {', '.join(running)}"

    def _end_all(self) -> None:
        """End what still runs, with all its children."""
        for process in self._running:
            os.killpg(process.pid, signal.SIGTERM)
        for process, outcome in self._running.items():
            try:
                process.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            self._say(f"=== {outcome.stage.name}: stopped after {minutes(self.seconds - outcome.started)}")
        self._running.clear()


def _finished(process: subprocess.Popen[bytes]) -> tuple[int | None, float]:
    """The exit code of a process and the CPU seconds of it and its children; None while it runs."""
    if process.returncode is None:
        pid, status, usage = os.wait4(process.pid, os.WNOHANG)
        if pid == 0:
            return None, 0.0
        process.returncode = os.waitstatus_to_exitcode(status)
        return process.returncode, usage.ru_utime + usage.ru_stime
    return process.returncode, 0.0


def probe() -> float:
    """CPU seconds that a fixed piece of work takes now. Waiting for a CPU does not count, a slow one does."""
    began = time.thread_time()
    total = 0
    for number in range(PROBE_ADDITIONS):
        total += number
    return time.thread_time() - began


def minutes(seconds: float) -> str:
    """Format seconds as M:SS."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02}"
