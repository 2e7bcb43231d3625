"""The stages of CI and of `make nightly`, each with its time budget.

Budgets are for a quiet machine with two cores and warm caches, with stages side by side as they are here.
Stages on real engines mostly wait, so each runs beside one that computes. Stages that run at the same time
never share a cluster.
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


def labs(stages: Iterable[Stage]) -> set[str]:
    """The folders in which these stages have lab instances."""
    return {value for stage in stages for name, value in stage.environment if name == INSTANCES}


_ENGINES = _lab("ci")
# In the environment of the stage, so that a test that is run again meets the wheel, too.
_WHEEL = (("FAIRWAY_BIN", str(Path("build/wheel/bin/fairway").resolve())),)
# The lowest priority: other stages go on as if it were not there, and it takes what they leave. Where Linux
# shares the CPU among sessions first (autogroup), `nice` alone counts only within the stage's own session.
_LOWEST = "{ echo 19 > /proc/self/autogroup; } 2> /dev/null || true; nice -n 19"
_FIRST = (
    Stage("install", "bash .ci/install", 90),
    Stage("lab builds", f"{_LOWEST} .venv/bin/python -m lab build", 1800, after=("install",)),
)

CI: tuple[Stage, ...] = (
    *_FIRST,
    Stage("check", f"{MAKE} check", 150, after=("install",)),
    Stage("unit and contract", f"{MAKE} test", 420, after=("install",)),
    # Integration tests start servers all the time and need both cores. Scenarios wait: others run beside.
    Stage("lab up", f"{MAKE} lab-up", 120, ("check", "unit and contract", "lab builds"), _ENGINES),
    Stage("integration", f"{MAKE} integration", 1500, ("lab up",), _ENGINES),
    Stage("scenarios", f"{MAKE} scenarios reached lab-down", 1080, ("integration",), _ENGINES),
    Stage("docs", f"{MAKE} docs test-docs", 720, after=("integration",)),
    Stage("wheel in a clean venv", "bash .ci/wheel", 660, ("docs",), _WHEEL),
    Stage("pages in a browser", f"{MAKE} pages", 360, after=("wheel in a clean venv",)),
    # Compiling needs a core for a minute.
    Stage("compiled wheel", f"{MAKE} compiled", 240, ("scenarios",)),
    # Both wait for daemons to start and end, and have clusters of their own.
    Stage("deploy", f"{MAKE} deploy", 720, ("integration",), _lab("ci-deploy")),
    Stage("lab tests", f"{MAKE} test-lab", 600, ("deploy",)),
)

NIGHTLY: tuple[Stage, ...] = (
    *_FIRST,
    Stage("check", f"{MAKE} check", 150, after=("install",)),
    Stage("unit and contract", f"{MAKE} test", 1200, after=("check",)),
    Stage("Python 3.12", f"{MAKE} test-python PYTHON=3.12", 1200, after=("unit and contract",)),
    Stage("Python 3.13", f"{MAKE} test-python PYTHON=3.13", 1200, after=("Python 3.12",)),
    Stage("another month", f"{MAKE} test-at AT='2026-12-01 00:02'", 1200, after=("Python 3.13",)),
    Stage("a leap day", f"{MAKE} test-at AT='2028-02-29 23:58'", 1200, after=("another month",)),
    Stage("docs", f"{MAKE} docs test-docs", 420, after=("a leap day",)),
    Stage("wheel in a clean venv", "bash .ci/wheel", 420, ("docs",), _WHEEL),
    Stage("release check", f"{MAKE} release-check", 240, after=("wheel in a clean venv",)),
    Stage("compiled wheel", f"{MAKE} compiled", 240, ("release check",)),
    Stage("pages in a browser", f"{MAKE} pages", 600, after=("compiled wheel",)),
    Stage("deploy", f"{MAKE} deploy", 600, ("pages in a browser", "lab builds"), _lab("ci-deploy")),
    Stage("lab tests", f"{MAKE} test-lab", 1500, after=("deploy",)),
    Stage("lab up", f"{MAKE} lab-up", 120, ("lab tests",), _ENGINES),
    Stage("scenarios", f"{MAKE} scenarios reached", 1800, ("lab up",), _ENGINES),
    Stage("situations", f"{MAKE} situations", 1800, ("scenarios",), _ENGINES),
    Stage("mutations", f"{MAKE} mutations", 7200, ("situations",), _ENGINES),
    Stage("integration", f"{MAKE} integration", 9000, ("mutations",), _ENGINES),
    Stage("bench", f"{MAKE} bench lab-down", 900, ("integration",), _ENGINES),
)
