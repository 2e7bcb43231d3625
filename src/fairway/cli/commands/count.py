"""The command `fairway count`: report how much a job has done since it began."""

from __future__ import annotations

import re
from collections.abc import Sequence

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.output.format import Format, ScreenLine, output_option, show_document
from fairway.cli.parameter import ParsedParam
from fairway.model.cost_unit import MAX_TOTAL, UNIT_PATTERN
from fairway.wire import jobs as wire


def _parse_total(text: str) -> tuple[str, int]:
    unit, _, number = text.partition("=")
    total = number.replace("_", "")
    if not re.match(UNIT_PATTERN, unit) or not (total.isascii() and total.isdecimal()):
        raise ValueError(f"{text!r}: write a unit in lower case and its total, as in steps=120000")
    if int(total) > MAX_TOTAL:
        raise ValueError(f"{text!r}: a total is at most {MAX_TOTAL:,}")
    return unit, int(total)


@click.command(
    epilog="""\b
Examples:
  fairway count 8f3k steps=120000
  fairway count hpc/1542 steps=120000 tokens=491520000        a Slurm job
  fairway count "$FAIRWAY_JOB_ID" requests=5000               in the script of a job
"""
)
@click.argument("job", metavar="JOB", shell_complete=completion.open_jobs)
@click.argument(
    "totals", nargs=-1, required=True, metavar="UNIT=TOTAL...", type=ParsedParam("UNIT=TOTAL", _parse_total)
)
@server_options
@output_option
def count(
    job: str, totals: Sequence[tuple[str, int]], context: str | None, url: str | None, output: Format
) -> None:
    """Report the steps, tokens or other units that a job has done.

    JOB is an id, a name or an engine id. TOTAL is what the job has done since it began, not since the last
    report: to report it again adds nothing, and so does a lower one after a restart from a checkpoint.
    `fairway report cost --per steps` divides costs by it.
    """
    by_unit = dict(totals)
    if len(by_unit) < len(totals):
        raise click.UsageError("name each unit once")
    with connect(context, url) as client:
        found = client.count(job, **by_unit)
    show_document(found, lambda: _lines(found), output)


def _lines(found: wire.Counts) -> list[ScreenLine]:
    totals = ", ".join(f"{total:,} {unit}" for unit, total in found.counts.items())
    added = ", ".join(f"{count:,} {unit}" for unit, count in found.added.items() if count)
    return [ScreenLine(f"{found.job} has done {totals}; {f'new: {added}' if added else 'nothing new'}")]
