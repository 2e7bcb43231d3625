"""The report of a CI run: the table of stages, the slowest tests, and a JSON file with every test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ci.pipeline import OVERRUN, Outcome, minutes

SHOWN = 20
PHASES = ("setup", "call", "teardown")


@dataclass(frozen=True, slots=True)
class TestTime:
    """How long one test took, and how much of it was CPU time of the test process and its children."""

    __test__ = False

    test: str
    stage: str
    seconds: Mapping[str, float]
    cpu_seconds: Mapping[str, float]
    why: str
    """Why it is in its tier: the reason its marker gives."""

    @property
    def total(self) -> float:
        return sum(self.seconds.values())

    @property
    def cpu_total(self) -> float:
        return sum(self.cpu_seconds.values())


def read_times(stage: str, file: Path) -> list[TestTime]:
    """Read what the plugin tests/timing.py wrote for a stage."""
    if not file.exists():
        return []
    return [
        TestTime(
            row["test"],
            stage,
            {phase: row.get(phase, 0.0) for phase in PHASES},
            {phase: row.get(f"{phase}_cpu", 0.0) for phase in PHASES},
            row.get("why", ""),
        )
        for row in map(json.loads, file.read_text().splitlines())
    ]


def stage_table(outcomes: Iterable[Outcome], total_seconds: float) -> list[str]:
    """Format each stage with its actual time beside its budget. Stages overlap, so they exceed the total."""
    lines = [f"{'STAGE':<26} {'STARTED':>8} {'TOOK':>7} {'BUDGET':>7} {'CPU':>7} {'STOLEN':>7} {'SLOWER':>7}"]
    for one in outcomes:
        budget = one.stage.budget_seconds
        verdict = "" if one.passed else "  FAILED"
        if one.own_seconds > budget:
            verdict += f"  over its budget by {100 * (one.own_seconds / budget - 1):.0f} %"
        if one.over_budget:
            verdict += f": more than {100 * (OVERRUN - 1):.0f} %, the run fails"
        lines.append(
            f"{one.stage.name:<26} {minutes(one.started):>8} {minutes(one.seconds):>7}"
            f" {minutes(budget):>7} {minutes(one.cpu_seconds):>7} {one.stolen:>7.0%} {one.slowness:>6.1f}x"
            f"{verdict}"
        )
    lines.append(f"{'total':<26} {'':>8} {minutes(total_seconds):>7}")
    return lines


def slowest_table(times: Sequence[TestTime]) -> list[str]:
    """The slowest tests: where the next minute is to be saved."""
    lines = [f"{'SETUP':>6} {'CALL':>6} {'TEARDOWN':>8} {'CPU':>6}  TEST"]
    for one in sorted(times, key=lambda one: -one.total)[:SHOWN]:
        setup, call, teardown = (one.seconds[phase] for phase in PHASES)
        lines.append(f"{setup:6.1f} {call:6.1f} {teardown:8.1f} {one.cpu_total:6.1f}  {one.test}")
        if one.why:
            lines.append(f"{'':30} why: {one.why}")
    return lines


def write_json(
    file: Path, outcomes: Iterable[Outcome], times: Iterable[TestTime], total_seconds: float
) -> None:
    """Write every stage and every test of the run, for comparing one run with another."""
    document: dict[str, Any] = {
        "total_seconds": round(total_seconds, 1),
        "stages": [
            {
                "stage": one.stage.name,
                "started_seconds": round(one.started, 1),
                "seconds": round(one.seconds, 1),
                "budget_seconds": one.stage.budget_seconds,
                "cpu_seconds": round(one.cpu_seconds, 1),
                "stolen": round(one.stolen, 3),
                "slowness": round(one.slowness, 2),
                "passed": one.passed,
                "flaky": one.flaky,
            }
            for one in outcomes
        ],
        "tests": [
            {
                "test": one.test,
                "stage": one.stage,
                "seconds": dict(one.seconds),
                "cpu_seconds": dict(one.cpu_seconds),
                **({"why": one.why} if one.why else {}),
            }
            for one in sorted(times, key=lambda one: -one.total)
        ],
    }
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(document, indent=1))
