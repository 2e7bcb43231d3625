"""The command `fairway demo tour`: shows each command, then runs it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import click

from fairway.client.contexts import Context, config_file, read_contexts
from fairway.demo.home import PREFIX
from fairway.model.errors import PermanentError

START_SECONDS: Final = 120.0
_DAYS: Final = "14"
"""Days of history of a demo that is started for the tour."""
_POLICY_CHANGE: Final = ("borrow: { hpc-a100: 16,", "borrow: { hpc-a100: 24,")
"""The change that the tour plans: students may borrow eight more GPUs."""
_FAIRWAY: Final = (sys.executable, "-m", "fairway.cli")


def run_tour(*, ask: bool) -> int:
    """Run the tour and return an exit code. With `ask`, wait for Enter before each step."""
    with _running_demo() as demo, tempfile.TemporaryDirectory(prefix="fairway-tour-") as folder:
        changed = Path(folder) / "fleet.yaml"
        changed.write_text(_fleet_text(demo).replace(*_POLICY_CHANGE), encoding="utf-8")
        steps = _steps(changed, Path(folder) / "tour.plan")
        for number, (title, args) in enumerate(steps, 1):
            if ask and not _prompt(number, len(steps)):
                return 0
            code = _run(f"{number}/{len(steps)}", title, args, demo)
            if code:
                return code
        _print_next_steps(demo)
    return 0


def _steps(fleet: Path, plan: Path) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the explanation and the arguments of each command."""
    return (
        ("Two clusters, five pools: what there is, and what of it is in use.", ("get", "pools")),
        (
            "One file says who gets what. If students may borrow 24 A100s instead of 16, what changes?",
            ("plan", "-f", str(fleet), "--out", str(plan)),
        ),
        ("Make it so, on every cluster it concerns.", ("apply", str(plan), "--yes")),
        ("What waits now, newest first.", ("get", "jobs", "--state", "waiting", "--most", "6")),
        ("Take one of them: where it goes, and why it does not run yet.", ("describe", "job", "WAITING")),
        ("What each team cost in the last 30 days.", ("report", "cost")),
        ("What nobody used in that time, and why.", ("report", "waste")),
        ("What is left of the budgets, and when they run out.", ("get", "budgets")),
    )


def _run(number: str, title: str, args: tuple[str, ...], demo: Context) -> int:
    if "WAITING" in args:
        job = _waiting_job(demo)
        if job is None:
            click.echo(click.style(f"\n{number}  Nothing waits just now.", bold=True))
            return 0
        args = tuple(job if arg == "WAITING" else arg for arg in args)
    click.echo(click.style(f"\n{number}  {title}", bold=True))
    click.echo(f"$ fairway {' '.join(args)}\n")
    return subprocess.run([*_FAIRWAY, *args, "--context", demo.name], check=False).returncode  # noqa: S603


def _waiting_job(demo: Context) -> str | None:
    """Return the id of a waiting job, preferably one with a reason. Returns None if none waits."""
    args = ("get", "jobs", "--state", "waiting", "--most", "50", "-o", "json", "--context", demo.name)
    result = subprocess.run([*_FAIRWAY, *args], check=False, capture_output=True, text=True)  # noqa: S603
    jobs = json.loads(result.stdout) if result.returncode == 0 and result.stdout else []
    ids = [str(job["id"]) for job in sorted(jobs, key=lambda job: not job.get("reason"))]
    return ids[0] if ids else None


def _prompt(number: int, count: int) -> bool:
    """Prompt the user. Returns False on Ctrl-C."""
    action = "Enter: begin" if number == 1 else f"Enter: go on ({number} of {count})"
    try:
        click.prompt(f"\n{action}, Ctrl-C: enough", default="", show_default=False, prompt_suffix=" ")
    except click.Abort:
        click.echo()
        return False
    return True


def _print_next_steps(demo: Context) -> None:
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


# the demo of the tour


@contextmanager
def _running_demo() -> Iterator[Context]:
    """Yield the context of the running demo; if there is none, start one and stop it afterwards."""
    running = _find()
    if running is not None:
        yield running
        return
    click.echo("no demo runs: starting one for the tour …", err=True)
    with subprocess.Popen(  # noqa: S603 - ourselves
        [*_FAIRWAY, "demo", "--quiet", "--days", _DAYS], stdin=subprocess.DEVNULL, start_new_session=True
    ) as process:
        try:
            yield _wait_for(process)
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(60)


def _wait_for(process: subprocess.Popen[bytes]) -> Context:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline and process.poll() is None:
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
