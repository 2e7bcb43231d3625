"""The command `fairway check`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fairway.files import Fault, JobReport, Report

_EXAMPLES = """\b
Examples:
  fairway check -f fleet.yaml              every fault, with its place and a hint
  helm template … | fairway check -f -     the same from a pipe
  fairway check -f fleet.yaml -o json      for CI and editors
  fairway check -f job.yaml                a job, a script with #SBATCH lines or a Kubernetes Job
"""


@click.command(epilog=_EXAMPLES)
@click.option(
    "-f", "--file", required=True, metavar="FILE", help="The fleet or job file; - reads standard input."
)
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
def check(file: str, output: str) -> None:
    """Check a fleet or job file and report every fault at once.

    Exits with 0 if the file can be used (warnings allowed), with 1 if not. Contacts no cluster.
    """
    report = _report(file)
    if output == "json":
        click.echo(json.dumps(_as_json(report), indent=2))
    else:
        _show(report)
    if _refused(report):
        raise click.exceptions.Exit(1)


def _report(file: str) -> Report | JobReport:
    from fairway.files import check_bytes, check_fleet, check_job_bytes, check_job_file, is_job_text
    from fairway.files.fleet.load import LARGEST

    if file == "-":
        data = sys.stdin.buffer.read(LARGEST + 1)
        is_job = is_job_text(data)
        return check_job_bytes(data, "<stdin>") if is_job else check_bytes(data, "<stdin>", Path.cwd())
    path = Path(file)
    try:
        with path.open("rb") as opened:
            is_job = is_job_text(opened.read(LARGEST))
    except (OSError, ValueError):
        is_job = False  # check_fleet reports the unreadable file
    return check_job_file(path) if is_job else check_fleet(path)


def _refused(report: Report | JobReport) -> bool:
    return any(fault.severity == "error" for fault in report.faults)


def _show(report: Report | JobReport) -> None:
    from fairway.cli.output.faults import show_fault
    from fairway.files import JobReport

    for fault in report.faults:
        show_fault(fault)
    counts = Counter(str(fault.severity) for fault in report.faults)
    said = ", ".join(_count(counts[word], word) for word in ("error", "warning") if counts[word])
    if _refused(report):
        click.echo(f"{report.source}: {said}", err=True)
        return
    if isinstance(report, JobReport):
        click.echo(f"{report.source}: {_count(len(report.jobs or ()), 'job')}, {said or 'no faults'}")
        return
    if (fleet := report.fleet) is None:
        return
    things = ((fleet.clusters, "cluster"), (fleet.pools, "pool"), (fleet.teams, "team"))
    counted = ", ".join(_count(len(found), thing) for found, thing in things if found)
    click.echo(f"{report.source}: fleet {fleet.name}, {counted}, {said or 'no faults'}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _as_json(report: Report | JobReport) -> dict[str, Any]:
    from fairway.files import JobReport

    told: dict[str, Any] = {"source": report.source, "valid": not _refused(report)}
    if isinstance(report, JobReport):
        told["jobs"] = [job.name for job in report.jobs or ()]
        return told | {"faults": [_fault_as_json(fault) for fault in report.faults]}
    fleet = report.fleet
    return told | {
        "fleet": fleet
        and {
            "name": fleet.name,
            "clusters": [str(cluster.name) for cluster in fleet.clusters],
            "pools": [str(pool.name) for pool in fleet.pools],
            "teams": [str(team.name) for team in fleet.teams],
        },
        "faults": [_fault_as_json(fault) for fault in report.faults],
    }


def _fault_as_json(fault: Fault) -> dict[str, Any]:
    return {
        "severity": fault.severity,
        "code": fault.code,
        "message": fault.message,
        "source": fault.source,
        "line": fault.line,
        "column": fault.column,
        "path": fault.path,
        "found": fault.found,
        "expected": fault.expected,
        "hint": fault.hint,
        "related": [spot._asdict() for spot in fault.related],
    }
