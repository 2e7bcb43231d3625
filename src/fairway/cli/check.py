"""`fairway check`."""

from __future__ import annotations

import json
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from fairway.files import Fault, Report

_EXAMPLES = """\b
Examples:
  fairway check -f fleet.yaml              every fault, with its place and a hint
  helm template … | fairway check -f -     the same from a pipe
  fairway check -f fleet.yaml -o json      for CI and editors
"""


@click.command(epilog=_EXAMPLES)
@click.option("-f", "--file", required=True, metavar="FILE", help="The fleet file; - reads standard input.")
@click.option(
    "-o",
    "--output",
    type=click.Choice(["table", "json"]),
    default="table",
    show_default=True,
    help="For people, or for programs.",
)
def check(file: str, output: str) -> None:
    """Check a fleet file and report every fault at once.

    Exits with 0 if the file can be used (warnings allowed), with 1 if not. Contacts no cluster.
    """
    report = _report(file)
    if output == "json":
        click.echo(json.dumps(_as_json(report), indent=2))
    else:
        _show(report)
    if report.fleet is None:
        raise click.exceptions.Exit(1)


def _report(file: str) -> Report:
    from fairway.files import check_bytes, check_fleet
    from fairway.files.fleet import LARGEST

    if file == "-":
        return check_bytes(sys.stdin.buffer.read(LARGEST + 1), "<stdin>", Path.cwd())
    return check_fleet(Path(file))


def _show(report: Report) -> None:
    from fairway.cli.faults import show_fault

    for fault in report.faults:
        show_fault(fault)
    counts = Counter(str(fault.severity) for fault in report.faults)
    said = ", ".join(_count(counts[word], word) for word in ("error", "warning") if counts[word])
    if report.fleet is None:
        click.echo(f"{report.source}: {said}", err=True)
        return
    fleet = report.fleet
    things = ((fleet.clusters, "cluster"), (fleet.pools, "pool"), (fleet.teams, "team"))
    counted = ", ".join(_count(len(found), thing) for found, thing in things if found)
    click.echo(f"{report.source}: fleet {fleet.name}, {counted}, {said or 'no faults'}")


def _count(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"


def _as_json(report: Report) -> dict[str, Any]:
    fleet = report.fleet
    return {
        "source": report.source,
        "valid": fleet is not None,
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
