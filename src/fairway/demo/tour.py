"""The command `fairway demo tour`: shows each command, then runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from fairway.client.contexts import Context, config_file, read_contexts
from fairway.demo.home import PREFIX
from fairway.model.errors import PermanentError

START_SECONDS: Final = 120.0
_DAYS: Final = "14"
"""Days of history of a demo that is started for the tour."""
_BORROWED: Final = ("borrow: { hpc-a100: 16,", "borrow: { hpc-a100: 24,")
"""The change that the tour plans: students may borrow eight more GPUs."""
_US: Final = (sys.executable, "-m", "fairway.cli")


@dataclass(frozen=True, slots=True)
class TourStep:
    """One command and its explanation."""

    says: str
    words: tuple[str, ...]


def walk(*, ask: bool) -> int:
    """Run the tour and return an exit code. With `ask`, wait for Enter before each step."""
    with _running_demo() as demo, tempfile.TemporaryDirectory(prefix="fairway-tour-") as folder:
        changed = Path(folder) / "fleet.yaml"
        changed.write_text(_changed(_fleet_text(demo)), encoding="utf-8")
        steps = _steps(changed, Path(folder) / "tour.plan")
        for number, step in enumerate(steps, 1):
            if ask and not _asked(number, len(steps)):
                return 0
            code = _run(number, len(steps), step, demo)
            if code:
                return code
        _say_what_is_next(demo)
    return 0


def _steps(fleet: Path, plan: Path) -> tuple[TourStep, ...]:
    return (
        TourStep("Two clusters, five pools: what there is, and what of it is in use.", ("get", "pools")),
        TourStep(
            "One file says who gets what. If students may borrow 24 A100s instead of 16, what changes?",
            ("plan", "-f", str(fleet), "--out", str(plan)),
        ),
        TourStep("Make it so, on every cluster it concerns.", ("apply", str(plan), "--yes")),
        TourStep("What waits now, newest first.", ("get", "jobs", "--state", "waiting", "--most", "6")),
        TourStep(
            "Take one of them: where it goes, and why it does not run yet.", ("describe", "job", "WAITING")
        ),
        TourStep("What each team cost in the last 30 days.", ("report", "cost")),
        TourStep("What nobody used in that time, and why.", ("report", "waste")),
        TourStep("What is left of the budgets, and when they run out.", ("get", "budgets")),
    )


def _run(number: int, count: int, step: TourStep, demo: Context) -> int:
    words = step.words
    if "WAITING" in words:
        found = _waiting(demo)
        if found is None:
            click.echo(click.style(f"\n{number}/{count}  Nothing waits just now.", bold=True))
            return 0
        words = tuple(found if word == "WAITING" else word for word in words)
    click.echo(click.style(f"\n{number}/{count}  {step.says}", bold=True))
    click.echo(f"$ fairway {' '.join(words)}\n")
    return subprocess.run([*_US, *words, "--context", demo.name], check=False).returncode  # noqa: S603


def _waiting(demo: Context) -> str | None:
    """Return the id of a waiting job, preferably one with a reason. Returns None if none waits."""
    told = _told(("get", "jobs", "--state", "waiting", "--most", "50", "-o", "json"), demo)
    jobs = json.loads(told) if told else []
    ids = [str(job["id"]) for job in sorted(jobs, key=lambda job: not job.get("reason"))]
    return ids[0] if ids else None


def _told(words: Sequence[str], demo: Context) -> str:
    done = subprocess.run(  # noqa: S603 - ourselves
        [*_US, *words, "--context", demo.name], check=False, capture_output=True, text=True
    )
    return done.stdout if done.returncode == 0 else ""


def _asked(number: int, count: int) -> bool:
    """Prompt the user. Returns False on Ctrl-C."""
    words = "Enter: begin" if number == 1 else f"Enter: go on ({number} of {count})"
    try:
        click.prompt(f"\n{words}, Ctrl-C: enough", default="", show_default=False, prompt_suffix=" ")
    except click.Abort:
        click.echo()
        return False
    return True


def _say_what_is_next(demo: Context) -> None:
    click.echo(
        click.style("\nThat was it.", bold=True)
        + f"""
  The same in a browser:             {demo.url}/
  Send a job as somebody:            fairway run --context demo-alice --gpus 1 -- sleep 30
  Your own Slurm cluster:            docs/guides/slurm.md
  Your own Kubernetes cluster:       docs/guides/kubernetes.md
  Every word of the fleet file:      docs/guides/fleet-file.md
  What the demo is made of:          docs/guides/demo.md"""
    )


# the demo it walks through


@contextmanager
def _running_demo() -> Iterator[Context]:
    """Yield the context of the running demo; if there is none, start one and stop it afterwards."""
    found = _find()
    if found is not None:
        yield found
        return
    click.echo("no demo runs: starting one for the tour …", err=True)
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*_US, "demo", "--quiet", "--days", _DAYS], stdin=subprocess.DEVNULL, start_new_session=True
    ) as started:
        try:
            yield _wait_for(started)
        finally:
            started.send_signal(signal.SIGINT)
            started.wait(60)


def _wait_for(started: subprocess.Popen[bytes]) -> Context:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and started.poll() is None:
        found = _find()
        if found is not None:
            return found
        time.sleep(0.3)
    raise PermanentError(
        "DemoNotStarted",
        "the demo for the tour did not start",
        "start it in another terminal and see what it says:  fairway demo",
    )


def _find() -> Context | None:
    """Find the context of a running demo: its token file is in a demo's folder. Returns None if none runs."""
    for context in read_contexts(config_file()).known:
        folder = _folder(context)
        if folder is not None and context.name.startswith("demo") and not context.name.endswith("alice"):
            return context
    return None


def _folder(context: Context) -> Path | None:
    if context.token_file is None or not os.access(context.token_file, os.R_OK):
        return None
    return next((p for p in Path(context.token_file).parents if p.name.startswith(PREFIX)), None)


def _fleet_text(demo: Context) -> str:
    folder = _folder(demo)
    try:
        return "" if folder is None else (folder / "fleet.yaml").read_text(encoding="utf-8")
    except OSError as error:
        raise PermanentError(
            "DemoGone", f"the demo of context {demo.name} is gone", "start one:  fairway demo"
        ) from error


def _changed(text: str) -> str:
    return text.replace(*_BORROWED)
