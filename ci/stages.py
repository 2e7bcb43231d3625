"""The stages of CI and of `make nightly`, each with its time budget.

Budgets are for a quiet machine with two cores and warm caches, with stages side by side as they are here.
Stages on real engines mostly wait, so each runs beside one that computes. Each has a lab of its own: no
cluster is shared, and none is restarted under somebody else's test.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from ci.pipeline import Stage

CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "fairway-lab"
INSTANCES = "FAIRWAY_LAB_INSTANCES"
MAKE = "make --no-print-directory"


def _lab(name: str) -> tuple[tuple[str, str], ...]:
    return ((INSTANCES, str(CACHE / name)),)


def _on_engines(name: str, target: str, budget_seconds: float, *after: str) -> Stage:
    """A stage between `lab-up` and `lab-down`, in a lab of its own."""
    command = f"{MAKE} lab-up {target} lab-down"
    return Stage(name, command, budget_seconds, after, _lab(f"ci-{name}"))


def labs(stages: Iterable[Stage]) -> set[str]:
    """The folders in which these stages have lab instances."""
    return {value for stage in stages for name, value in stage.environment if name == INSTANCES}


_FIRST = (
    Stage("install", "bash .ci/install", 90),
    # The lowest priority: other stages go on as if it were not there, and it takes what they leave.
    Stage("lab builds", "nice -n 19 .venv/bin/python -m lab build", 1800, after=("install",)),
)

CI: tuple[Stage, ...] = (
    *_FIRST,
    # Scenarios wait for most of their time; beside them runs what computes.
    _on_engines("scenarios", "scenarios reached", 960, "lab builds"),
    Stage("check", f"{MAKE} check", 120, after=("install",)),
    Stage("unit and contract", f"{MAKE} test", 240, after=("check",)),
    Stage("docs", f"{MAKE} docs test-docs", 240, after=("unit and contract",)),
    Stage("wheel in a clean venv", "bash .ci/wheel", 240, after=("docs",)),
    # Integration tests start many servers; beside them runs little.
    _on_engines("integration", "integration", 1080, "scenarios", "wheel in a clean venv"),
    Stage("pages in a browser", f"{MAKE} pages", 360, after=("scenarios", "wheel in a clean venv")),
    Stage("deploy", f"{MAKE} deploy", 420, ("pages in a browser",), _lab("ci-deploy")),
    Stage("lab's own tests", f"{MAKE} test-lab", 420, after=("deploy",)),
)

NIGHTLY: tuple[Stage, ...] = (
    *_FIRST,
    Stage("check", f"{MAKE} check", 120, after=("install",)),
    Stage("unit and contract", f"{MAKE} test", 900, after=("check",)),
    Stage("Python 3.12", f"{MAKE} test-python PYTHON=3.12", 900, after=("unit and contract",)),
    Stage("Python 3.13", f"{MAKE} test-python PYTHON=3.13", 900, after=("Python 3.12",)),
    Stage("another month", f"{MAKE} test-at AT='2026-12-01 00:02'", 900, after=("Python 3.13",)),
    Stage("a leap day", f"{MAKE} test-at AT='2028-02-29 23:58'", 900, after=("another month",)),
    Stage("docs", f"{MAKE} docs test-docs", 400, after=("a leap day",)),
    Stage("wheel in a clean venv", "bash .ci/wheel", 400, after=("docs",)),
    Stage("pages in a browser", f"{MAKE} pages", 600, after=("wheel in a clean venv",)),
    Stage("deploy", f"{MAKE} deploy", 600, ("pages in a browser", "lab builds"), _lab("ci-deploy")),
    Stage("lab's own tests", f"{MAKE} test-lab", 1200, after=("deploy",)),
    _on_engines("scenarios", "scenarios reached", 1500, "lab's own tests"),
    _on_engines("mutations", "mutations", 5400, "scenarios"),
    _on_engines("integration", "integration", 9000, "scenarios"),
    _on_engines("bench", "bench", 900, "integration", "mutations"),
)
