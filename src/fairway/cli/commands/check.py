"""The command `fairway check`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from fairway.model.text import count

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
    from fairway.files.fleet.load import MAX_BYTES

    if file == "-":
        data = sys.stdin.buffer.read(MAX_BYTES + 1)
        is_job = is_job_text(data)
        return check_job_bytes(data, "<stdin>") if is_job else check_bytes(data, "<stdin>", Path.cwd())
    path = Path(file)
    try:
        with path.open("rb") as stream:
            is_job = is_job_text(stream.read(MAX_BYTES))
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
    faults = ", ".join(count(counts[kind], kind) for kind in ("error", "warning") if counts[kind])
    if _refused(report):
        click.echo(f"{report.source}: {faults}", err=True)
        return
    if isinstance(report, JobReport):
        click.echo(f"{report.source}: {count(len(report.jobs or ()), 'job')}, {faults or 'no faults'}")
        return
    if (fleet := report.fleet) is None:
        return
    parts = ((fleet.clusters, "cluster"), (fleet.pools, "pool"), (fleet.teams, "team"))
    size = ", ".join(count(len(found), noun) for found, noun in parts if found)
    click.echo(f"{report.source}: fleet {fleet.name}, {size}, {faults or 'no faults'}")


def _as_json(report: Report | JobReport) -> dict[str, Any]:
    from fairway.files import JobReport

    document: dict[str, Any] = {"source": report.source, "valid": not _refused(report)}
    if isinstance(report, JobReport):
        document["jobs"] = [job.name for job in report.jobs or ()]
    else:
        fleet = report.fleet
        document["fleet"] = fleet and {
            "name": fleet.name,
            "clusters": [str(cluster.name) for cluster in fleet.clusters],
            "pools": [str(pool.name) for pool in fleet.pools],
            "teams": [str(team.name) for team in fleet.teams],
        }
    return document | {"faults": [_fault_as_json(fault) for fault in report.faults]}


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
