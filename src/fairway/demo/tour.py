"""The command `fairway demo tour`: shows each command, then runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from fairway.client.contexts import Context, config_file, read_contexts
from fairway.demo.home import PREFIX
from fairway.model.errors import PermanentError

START_SECONDS: Final = 300.0
_PROGRESS_SECONDS: Final = 10.0
_DAYS: Final = "14"
"""Days of history of a demo that is started for the tour."""
_POLICY_CHANGE: Final = ("borrow: { hpc-a100: 16,", "borrow: { hpc-a100: 24,")
"""The change that the tour plans: students may borrow eight more GPUs."""
_FAIRWAY: Final = (sys.executable, "-m", "fairway.cli")


@dataclass(frozen=True, slots=True)
class Step:
    """One step of the tour: a command, or without one an address to open in a browser."""

    title: str
    args: tuple[str, ...] = ()


def run_tour(*, ask: bool) -> int:
    """Run the tour and return an exit code. With `ask`, wait for Enter before each step."""
    with _running_demo() as (demo, own), tempfile.TemporaryDirectory(prefix="fairway-tour-") as folder:
        changed = Path(folder) / "fleet.yaml"
        changed.write_text(_fleet_text(demo).replace(*_POLICY_CHANGE), encoding="utf-8")
        steps = steps_of(changed, Path(folder) / "tour.plan")
        jobs: dict[str, str] = {}
        for number, step in enumerate(steps, 1):
            if ask and not _prompt(number, len(steps)):
                return 0
            click.echo(click.style(f"\n{number}/{len(steps)}  {step.title}", bold=True))
            if not step.args:
                _print_browser_step(demo, jobs)
            elif code := _run(step, demo, jobs):
                return code
        _print_next_steps()
        if own and ask:
            _wait_for_enter("Enter to stop the demo of this tour")
    return 0


def steps_of(fleet: Path, plan: Path) -> tuple[Step, ...]:
    """Return the steps. WAITING and RUNNING stand for a job that an earlier step printed."""
    return (
        Step("Two clusters with five pools of GPUs, and how full they are.", ("get", "pools")),
        Step(
            "The jobs that are waiting, newest first.", ("get", "jobs", "--state", "waiting", "--limit", "6")
        ),
        Step("Why is one of them waiting, and what would help?", ("why", "WAITING")),
        Step("The jobs that are running.", ("get", "jobs", "--state", "running", "--limit", "6")),
        Step("Where does one of them run, and what does it cost?", ("describe", "job", "RUNNING")),
        Step("Somebody changed the policy of a cluster by hand.", ("get", "drift")),
        Step(
            "The fleet file is the policy. This plan lets students borrow 24 A100s instead of 16, and reverts"
            " the change by hand.",
            ("plan", "-f", str(fleet), "--out", str(plan)),
        ),
        Step("Apply exactly this plan.", ("apply", str(plan), "--yes")),
        Step("The cost of each team in the last 30 days.", ("report", "cost")),
        Step("GPU-hours that were not used, and why.", ("report", "waste")),
        Step("The budgets, and when they run out.", ("get", "budgets")),
        Step("The same in a browser."),
    )


def _run(step: Step, demo: Context, jobs: dict[str, str]) -> int:
    """Run a command, and remember which job of each state it printed."""
    if missing := {"WAITING", "RUNNING"} & set(step.args) - set(jobs):
        click.echo(f"No job is {missing.pop().lower()} now.")
        return 0
    args = tuple(jobs.get(arg, arg) for arg in step.args)
    click.echo(f"$ fairway {' '.join(args)}\n")
    command = [*_FAIRWAY, *args, "--context", demo.name]
    if "--state" not in args:
        return subprocess.run(command, check=False).returncode  # noqa: S603
    done = subprocess.run(command, check=False, capture_output=True, text=True)  # noqa: S603
    click.echo(done.stdout, nl=False)
    click.echo(done.stderr, nl=False, err=True)
    if (job := printed_job(done.stdout)) is not None:
        jobs[args[args.index("--state") + 1].upper()] = job
    return done.returncode


def printed_job(table: str) -> str | None:
    """Return the id of the job with most GPUs in a table of `get jobs`. Returns None if there is none."""
    header, *rows = (line.split() for line in table.splitlines() if line) if table.strip() else ([],)
    if "GPUS" not in header:
        return None
    gpus = header.index("GPUS")
    found = [row for row in rows if len(row) > gpus and row[gpus].isdecimal()]
    return max(found, key=lambda row: int(row[gpus]))[0] if found else None


def _print_browser_step(demo: Context, jobs: Mapping[str, str]) -> None:
    job = jobs.get("WAITING") or jobs.get("RUNNING")
    click.echo(f"Open  {demo.url}/{f'jobs/{job}' if job else ''}")
    click.echo(f"and sign in with the token in  {demo.token_file}")


def _prompt(number: int, count: int) -> bool:
    """Prompt the user. Returns False on Ctrl-C."""
    action = "Enter to begin" if number == 1 else f"Enter for step {number} of {count}"
    return _wait_for_enter(f"{action}, Ctrl-C to quit")


def _wait_for_enter(text: str) -> bool:
    try:
        click.prompt(f"\n{text}", default="", show_default=False, prompt_suffix=" ")
    except click.Abort:
        click.echo()
        return False
    return True


def _print_next_steps() -> None:
    click.echo(
        click.style("\nNext steps", bold=True)
        + """
  Submit a job as a user:        fairway run --context demo-alice --gpus 1 -- sleep 30
  Your own Slurm cluster:        docs/guides/slurm.md
  Your own Kubernetes cluster:   docs/guides/kubernetes.md
  All fields of the fleet file:  docs/guides/fleet-file.md
  More about the demo:           docs/guides/demo.md"""
    )


# the demo of the tour


@contextmanager
def _running_demo() -> Iterator[tuple[Context, bool]]:
    """Yield the context of the running demo, or of one that is started and stopped; True if the latter."""
    running = _find()
    if running is not None:
        yield running, False
        return
    click.echo("No demo is running. Starting one for the tour …", err=True)
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*_FAIRWAY, "demo", "--quiet", "--days", _DAYS], stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield _wait_for(process), True
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait_for(process: subprocess.Popen[bytes]) -> Context:
    began = printed_at = time.monotonic()
    while time.monotonic() < began + START_SECONDS and process.poll() is None:
        found = _find()
        if found is not None:
            return found
        if time.monotonic() >= printed_at + _PROGRESS_SECONDS:
            printed_at = time.monotonic()
            click.echo(f"  … starting for {printed_at - began:.0f} s", err=True)
        time.sleep(0.3)
    raise PermanentError(
        "DemoNotStarted",
        "the demo for the tour did not start",
        "start it in another terminal to see why:  fairway demo",
    )


def _find() -> Context | None:
    """Find the context of a running demo: its token file is in a demo's folder. Returns None if none runs."""
    for context in read_contexts(config_file()).entries:
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
