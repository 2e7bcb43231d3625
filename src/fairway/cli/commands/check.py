"""The command `fairway check`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairway.cli.connect import connect, server_options
from fairway.model.names import PoolName, SliceName
from fairway.model.text import count, first_few

if TYPE_CHECKING:
    from fairway.files import Fault, JobReport, Report
    from fairway.model.fleet import Fleet
    from fairway.model.team import Supply
    from fairway.policy.plan import Objection
    from fairway.telemetry.inspection import Finding

_SECONDS: Final = 2.0
"""People check while they write, so a check does not wait long for a server."""

_EXAMPLES = """\b
Examples:
  fairway check -f fleet.yaml
  helm template … | fairway check -f -     from a pipe
  fairway check -f fleet.yaml -o json      for CI and editors
  fairway check -f fleet.yaml --offline    without a server
  fairway check -f job.yaml                a job file, #SBATCH script or Kubernetes Job
"""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The guarantees of a fleet file compared with what the server observes."""

    warnings: tuple[Objection, ...] = ()
    missing: str = ""
    """Why some or all of them were not compared; empty if all were."""


@click.command(epilog=_EXAMPLES)
@click.option("-f", "--file", required=True, metavar="FILE", help="Fleet file or job file; `-` reads stdin.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="Output format.",
)
@click.option("--offline", is_flag=True, help="Do not contact the server or Prometheus.")
@server_options
def check(*, file: str, output: str, offline: bool, context: str | None, url: str | None) -> None:
    """Check a fleet file or a job file for errors.

    All errors are reported at once, with their position. Exits with 0 if the file is valid, possibly with
    warnings, and with 1 otherwise. If a server is available, guarantees are compared with the GPUs that it
    observes. The Prometheus of each cluster is checked for missing GPU metrics.
    """
    report = _report(file)
    seen = None if offline else _compare(report, context, url)
    lacking = () if offline else _inspect(report)
    if output == "json":
        click.echo(json.dumps(_as_json(report, seen, lacking), indent=2))
    else:
        _show(report, seen, lacking)
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


def _compare(report: Report | JobReport, context: str | None, url: str | None) -> Comparison | None:
    """Compare guarantees with the pools that the server observes. Returns None if there is nothing to do."""
    from fairway.files import JobReport
    from fairway.model.errors import FairwayError
    from fairway.policy.guarantees import guarantees_to_check, guarantees_too_high

    fleet = None if isinstance(report, JobReport) else report.fleet
    supplies = [s for c in fleet.clusters for s in guarantees_to_check(fleet, c.name)] if fleet else []
    if fleet is None or not supplies:
        return None
    try:
        observed = _observed(fleet, context, url)
    except FairwayError as error:
        return Comparison(missing=error.message)
    unseen = [str(s) for s in supplies if s not in observed]
    return Comparison(
        tuple(guarantees_too_high(fleet, [s for s in supplies if s in observed], observed)),
        f"the server has not observed {first_few(unseen, 5)}" if unseen else "",
    )


def _inspect(report: Report | JobReport) -> tuple[Finding, ...]:
    """Ask the Prometheus of each cluster what it lacks, from here; the server's token is for the server."""
    from fairway.files import JobReport

    fleet = None if isinstance(report, JobReport) else report.fleet
    clusters = (
        [c for c in fleet.clusters if c.telemetry is not None and c.telemetry.token_file is None]
        if fleet
        else []
    )
    if not clusters:
        return ()
    import asyncio

    from fairway.telemetry.inspection import inspect

    async def ask() -> list[tuple[Finding, ...]]:
        return await asyncio.gather(*(inspect(c, timeout_seconds=_SECONDS) for c in clusters))

    return tuple(finding for found in asyncio.run(ask()) for finding in found)


def _observed(fleet: Fleet, context: str | None, url: str | None) -> dict[Supply, int]:
    import httpx2

    from fairway.model.team import Supply

    clusters = {pool.name: pool.cluster for pool in fleet.pools}
    with connect(context, url, timeout=httpx2.Timeout(_SECONDS)) as client:
        pools = [p for p in client.pools() if clusters.get(PoolName(p.name)) == p.cluster]
    observed = {Supply(PoolName(p.name)): p.gpus.total for p in pools if p.gpus is not None}
    for pool in pools:
        for cut in pool.slices or ():
            observed[Supply(PoolName(pool.name), SliceName(cut.slice))] = cut.total
    return observed


def _refused(report: Report | JobReport) -> bool:
    return any(fault.severity == "error" for fault in report.faults)


def _show(report: Report | JobReport, seen: Comparison | None, lacking: Sequence[Finding]) -> None:
    from fairway.cli.output.faults import show_fault
    from fairway.files import JobReport

    for fault in report.faults:
        show_fault(fault)
    warnings: list[Objection | Finding] = [*(seen.warnings if seen is not None else ()), *lacking]
    for warning in warnings:
        click.echo(f"warning: {warning.message}\n  hint: {warning.hint}", err=True)
    if seen is not None and seen.missing:
        click.echo(f"not compared with the clusters: {seen.missing}", err=True)
    counts = Counter(str(fault.severity) for fault in report.faults)
    counts["warning"] += len(warnings)
    faults = ", ".join(count(counts[kind], kind) for kind in ("error", "warning") if counts[kind])
    if _refused(report):
        click.echo(f"{report.source}: {faults}", err=True)
        return
    if isinstance(report, JobReport):
        click.echo(f"{report.source}: {count(len(report.jobs or ()), 'job')}, {faults or 'no errors'}")
        return
    if (fleet := report.fleet) is None:
        return
    parts = ((fleet.clusters, "cluster"), (fleet.pools, "pool"), (fleet.teams, "team"))
    size = ", ".join(count(len(found), noun) for found, noun in parts if found)
    click.echo(f"{report.source}: fleet {fleet.name}, {size}, {faults or 'no errors'}")


def _as_json(
    report: Report | JobReport, seen: Comparison | None, lacking: Sequence[Finding]
) -> dict[str, Any]:
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
        if seen is not None:
            document["clusters"] = {
                "warnings": [_warning_as_json(w) for w in seen.warnings],
                "not_compared": seen.missing,
            }
        if lacking:
            document["telemetry"] = [_warning_as_json(finding) for finding in lacking]
    return document | {"faults": [_fault_as_json(fault) for fault in report.faults]}


def _warning_as_json(warning: Objection | Finding) -> dict[str, str]:
    return {"code": warning.code, "message": warning.message, "hint": warning.hint}


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
