"""The command `fairway simulate`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairway.cli.connect import server_options
from fairway.cli.parameter import ParsedParam
from fairway.cli.shared.fleet_file import FleetText, file_option, read_fleet_text
from fairway.cli.shared.study_options import (
    WARM_UP_SECONDS,
    nodes_option,
    show_study,
    stated_sizes,
    study_format,
    study_output_options,
)

if TYPE_CHECKING:
    from fairway.files.fleet.sweep import SweptFleet
    from fairway.files.traces.read import Trace
    from fairway.model.names import PoolName
    from fairway.model.trace import TraceJob
    from fairway.simulate.replay import Scenario
    from fairway.wire import fleet as fleet_wire

_HOUR: Final = 3_600.0
_DAY: Final = 86_400.0
MAX_SEEDS: Final = 100
DAYS: Final = 14
"""Of a server's history, unless others are chosen."""


@dataclass(frozen=True, slots=True)
class _Past:
    """The jobs to replay, and the fleet files to replay them on."""

    source: str
    jobs: Sequence[TraceJob]
    begin: float
    end: float
    skipped: Mapping[str, int]
    current: FleetText
    changed: FleetText | None
    pools: Sequence[fleet_wire.Pool] = ()
    """As the server observes them."""


@dataclass(frozen=True, slots=True)
class _Assumed:
    """What the options state beyond the fleet files and the jobs."""

    nodes: Sequence[str]
    spot: Sequence[str]
    spot_hours: float
    start_seconds: float


def _day(text: str) -> float:
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise ValueError(f"{text!r} is not a day: write 2026-10-01") from None


@click.command(
    epilog="""\b
Examples:
  fairway simulate                                                      how good is the model?
  fairway simulate -f new.yaml --days 30                                a changed file
  fairway simulate --sweep half_life=1d,7d,14d                          other settings
  fairway simulate -f new.yaml --against fleet.yaml --trace jobs.csv    without a server
  fairway simulate -f fleet.yaml --trace jobs.csv --sweep teams.*.borrow.gpu=0,16 --seeds 5
  fairway simulate -f fleet.yaml --trace jobs.csv --sweep nodes.gpu=16x8,20x8 --out study.html
"""
)
@file_option(required=False)
@click.option("--against", metavar="FILE", help="Fleet file to compare with.  [default: the applied file]")
@click.option(
    "--trace",
    "trace_file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Replay the jobs of a file, without a server: SWF, sacct, slurmdbd, Philly, Helios, openb, or "
    "Fairway's own Parquet or CSV.",
)
@click.option("--format", "format_", metavar="FORMAT", help="Format of the trace.  [default: detected]")
@click.option("--from", "since", type=ParsedParam("day", _day), metavar="DAY", help="First day of --trace.")
@click.option(
    "--days",
    type=click.IntRange(1, 366),
    metavar="N",
    help="Number of days.  [default: 14; all of --trace]",
)
@nodes_option
@click.option(
    "--spot", multiple=True, metavar="POOL=30%", help="Part of a pool's nodes that is spot (repeatable)."
)
@click.option(
    "--spot-hours",
    type=click.FloatRange(0.1, 100_000),
    default=12,
    show_default=True,
    metavar="H",
    help="Mean hours after which a spot node is lost; its successor comes after an hour.",
)
@click.option(
    "--start-seconds",
    type=click.FloatRange(0, 3600),
    default=0,
    show_default=True,
    metavar="S",
    help="How long the engine takes to start a job on free GPUs; matters where jobs are short.",
)
@click.option(
    "--sweep",
    "sweeps",
    multiple=True,
    metavar="KEY=V1,V2",
    help="Try values of a setting of the file; several sweeps make a grid (repeatable).",
)
@click.option(
    "--seeds",
    type=click.IntRange(1, MAX_SEEDS),
    default=1,
    show_default=True,
    metavar="N",
    help="Repeat with N variants of the submit times, for confidence intervals.",
)
@study_output_options
@server_options
def simulate(
    *,
    file: str | None,
    against: str | None,
    trace_file: Path | None,
    format_: str | None,
    since: float | None,
    days: int | None,
    nodes: Sequence[str],
    spot: Sequence[str],
    spot_hours: float,
    start_seconds: float,
    sweeps: Sequence[str],
    seeds: int,
    output: str | None,
    out: Path | None,
    context: str | None,
    url: str | None,
) -> None:
    """Replay past jobs under a changed fleet file.

    The jobs are those of the server's last 14 days, or of --trace. Compares waits, use of the GPUs,
    preemptions, fairness and cost with the current file, and with what really happened.

    A key of --sweep is its path in the fleet file: half_life, teams.research.share, teams.*.borrow.hpc-a100,
    pools.hpc-a100.nodes, priorities.urgent.rank. nodes.POOL=16x8,20x8 and spot.POOL=0%,30% are for pools of
    any cluster. Preempted jobs begin again, as without checkpoints.
    """
    from fairway.cli.output.what_if import what_if_lines, what_if_page
    from fairway.cli.shared.progress import progress_bar
    from fairway.cli.shared.simulations import run_study
    from fairway.views.what_if import what_if_report

    shape = study_format(output, out)
    if trace_file is None:
        past = _from_server(file, against, since, days or DAYS, context, url)
    else:
        past = _from_file(trace_file, format_, file, against, since, days)
    assumed = _Assumed(nodes, spot, spot_hours, start_seconds)
    scenarios = _scenarios(past, assumed, sweeps)
    with progress_bar(f"replaying {len(past.jobs):,} jobs") as advance:
        studied = run_study(scenarios, past.jobs, seeds, advance)
    found = what_if_report(past.source, studied, past.skipped)
    show_study(found, lambda: what_if_lines(found), lambda: what_if_page(found), shape, out)


def _from_file(
    path: Path,
    format_: str | None,
    file: str | None,
    against: str | None,
    since: float | None,
    days: int | None,
) -> _Past:
    from fairway.files.traces.formats import TraceFormat
    from fairway.files.traces.read import read_trace

    if file is None:
        raise click.UsageError("a trace is replayed on a fleet file: add -f FILE")
    if format_ is not None and format_ not in list(TraceFormat):
        raise click.UsageError(f"--format {format_}: use one of {', '.join(TraceFormat)}")
    trace = read_trace(path, None if format_ is None else TraceFormat(format_))
    begin, end = _window(trace, since, days)
    jobs = list(trace.between(begin - WARM_UP_SECONDS, end) if since is not None or days else trace)
    changed = read_fleet_text(file)
    current = changed if against is None else read_fleet_text(against)
    return _Past(trace.source, jobs, begin, end, trace.skipped, current, None if against is None else changed)


def _from_server(
    file: str | None,
    against: str | None,
    since: float | None,
    days: int,
    context: str | None,
    url: str | None,
) -> _Past:
    from fairway.cli.shared.history import read_history

    if since is not None:
        raise click.UsageError("--from is for a --trace; for the history of the server use --days")
    found = read_history(context, url, days, with_fleet=against is None)
    end = max(found.trace.span[1], found.read_at)
    _window(found.trace, end - days * _DAY, days)
    current = found.fleet or read_fleet_text(against or "-")
    changed = None if file is None else read_fleet_text(file)
    return _Past(
        *(found.trace.source, list(found.trace), end - days * _DAY, end, found.trace.skipped),
        *(current, changed, found.pools),
    )


def _window(trace: Trace, since: float | None, days: int | None) -> tuple[float, float]:
    """Return the time to measure: from a day on, or the last days, or the whole trace."""
    from fairway.model.errors import PermanentError

    first, last = trace.span
    if since is None:
        begin = first if days is None else max(first, last - days * _DAY)
        end = last
    else:
        begin, end = since, last if days is None else min(last, since + days * _DAY)
    if not len(trace) or begin > last or end < first:
        day = f"{datetime.fromtimestamp(first, UTC):%Y-%m-%d} to {datetime.fromtimestamp(last, UTC):%Y-%m-%d}"
        raise PermanentError(
            "NothingToReplay",
            f"{trace.source} has no jobs of this time" if len(trace) else f"{trace.source} has no jobs",
            f"the trace is from {day}" if len(trace) else "name a trace with jobs on GPUs",
        )
    return begin, end


def _scenarios(past: _Past, assumed: _Assumed, sweeps: Sequence[str]) -> list[Scenario]:
    """Return what to simulate: the current file, the changed one, and each point of the sweeps."""
    from fairway.files.fleet.sweep import parse_sweep, swept_fleets

    def scenario(name: str, swept: SweptFleet) -> Scenario:
        return _scenario(name, swept, past, assumed)

    found = [scenario("current file", _as_is(past.current))]
    if past.changed is not None:
        found.append(scenario(Path(past.changed.source).name, _as_is(past.changed)))
    if sweeps:
        base = past.changed or past.current
        points = swept_fleets(*_parts(base), [parse_sweep(text) for text in sweeps])
        found += [scenario(point.name, point) for point in points]
    return found


def _as_is(text: FleetText) -> SweptFleet:
    from fairway.files.fleet.sweep import swept_fleets

    return next(swept_fleets(*_parts(text), ()))


def _parts(text: FleetText) -> tuple[str, str, Path]:
    folder = Path.cwd() if not Path(text.source).exists() else Path(text.source).absolute().parent
    return text.text, text.source, folder


def _scenario(name: str, swept: SweptFleet, past: _Past, assumed: _Assumed) -> Scenario:
    from fairway.files.fleet.sweep import parse_part, pool_named
    from fairway.simulate.replay import ReplayOptions, Scenario, SpotAssumption
    from fairway.views.pool_sizes import observed_sizes

    fleet = swept.fleet
    sizes = observed_sizes(fleet, past.pools) | stated_sizes(fleet, assumed.nodes)
    parts: dict[PoolName, float] = {}
    for text in assumed.spot:
        pool, _, part = text.partition("=")
        parts[pool_named(fleet, pool, f"--spot {text}")] = parse_part(part)
    options = ReplayOptions(
        past.begin,
        past.end,
        parts | dict(swept.spot_parts),
        SpotAssumption(up_seconds=assumed.spot_hours * _HOUR),
        start_seconds=assumed.start_seconds,
    )
    return Scenario(name, fleet, sizes | dict(swept.sizes), options, swept.settings)
