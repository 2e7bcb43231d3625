"""`python3 -m ci`: run CI's stages (`--nightly`: also the nightly ones; `--only NAME`: a few of them)."""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from ci import report
from ci.pipeline import Outcome, Pipeline, Stage, before
from ci.stages import CI, NIGHTLY, labs

FOLDER = Path("build/ci")
TIMES = Path("build/ci-times.json")
WIPE_SECONDS = 120


def main() -> int:
    """Run the stages and print the report. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m ci", description=__doc__)
    parser.add_argument("--nightly", action="store_true", help="also what only `make nightly` runs")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="these stages alone")
    arguments = parser.parse_args()
    stages = chosen(NIGHTLY if arguments.nightly else CI, arguments.only)
    os.environ.update(
        CI="true",  # Hypothesis draws the same cases every time: a change is judged, not its luck
        FAIRWAY_REQUIRE_LAB="1",  # a missing engine is a failure here, not a skip
        FAIRWAY_REQUIRE_FOCUS="1",  # so is a missing FOCUS validator
        PYTHONDONTWRITEBYTECODE="",  # else every process compiles all it imports: twice the time to start
        **({"FAIRWAY_TESTS": "nightly"} if arguments.nightly else {}),
    )
    shutil.rmtree(FOLDER, ignore_errors=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that `finally` ends what was started
    pipeline = Pipeline(stages, FOLDER, say=lambda text: print(text, flush=True))
    passed = False
    try:
        passed = pipeline.run()
    finally:
        wipe(labs(stages))
        times = [
            time
            for outcome in pipeline.outcomes
            for time in report.read_times(outcome.stage.name, pipeline.file(outcome.stage, "jsonl"))
        ]
        report.write_json(TIMES, pipeline.outcomes, times, pipeline.seconds)
        print(*closing_lines(pipeline.outcomes, times, pipeline.seconds, passed=passed), sep="\n", flush=True)
    return 0 if passed else 1


def chosen(stages: tuple[Stage, ...], only: list[str]) -> list[Stage]:
    """The stages of these names, in their order, without the others; all of them if there is no name."""
    if not only:
        return list(stages)
    names = [stage.name for stage in stages]
    if missing := set(only).difference(names):
        sys.exit(f"error: no stage {', '.join(sorted(missing))}\nhint: one of {', '.join(names)}")
    return [
        replace(stage, after=tuple(sorted(before(stages, stage.name).intersection(only))))
        for stage in stages
        if stage.name in only
    ]


def wipe(folders: set[str]) -> None:
    """Remove what lab instances of a failed or stopped stage left behind."""
    for folder in folders:
        if Path(folder).is_dir() and Path(".venv/bin/python").exists():
            environment = {**os.environ, "FAIRWAY_LAB_INSTANCES": folder}
            command = [".venv/bin/python", "-m", "lab", "wipe", "--all"]
            subprocess.run(command, env=environment, check=False, timeout=WIPE_SECONDS)


def closing_lines(
    outcomes: list[Outcome], times: list[report.TestTime], seconds: float, *, passed: bool
) -> list[str]:
    """The report at the end of a run."""
    lines = ["", f"=== slowest tests (all {len(times)} in {TIMES})", *report.slowest_table(times)]
    lines += ["", "=== stages", *report.stage_table(outcomes, seconds)]
    if flaky := [test for outcome in outcomes for test in outcome.flaky]:
        lines += ["", "=== flaky: failed at first. Each is a bug to fix", *flaky]
    else:
        lines += ["", "=== flaky: none, no test was retried"]
    failed = [outcome.stage.name for outcome in outcomes if not outcome.passed]
    over = [outcome.stage.name for outcome in outcomes if outcome.over_budget]
    if passed:
        verdict = "passed"
    elif failed:
        verdict = f"FAILED in {', '.join(failed)}"
    else:
        verdict = f"FAILED: over budget: {', '.join(over)}" if over else "FAILED: stopped"
    return [*lines, f"ci: {verdict}"]


if __name__ == "__main__":
    sys.exit(main())
