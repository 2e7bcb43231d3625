"""The command `fairway plan-capacity`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from fairway.cli import completion
from fairway.cli.parameter import ParsedParam
from fairway.cli.shared.fleet_file import file_option, read_fleet_text
from fairway.cli.shared.study_options import (
    WARM_UP_SECONDS,
    nodes_option,
    show_study,
    stated_sizes,
    study_format,
    study_output_options,
)

if TYPE_CHECKING:
    from fairway.cli.shared.capacity import CapacityStudy
    from fairway.files.traces.read import Trace
    from fairway.model.fleet import Fleet
    from fairway.model.names import PoolName
    from fairway.model.slo import Slo
    from fairway.simulate.replay import PoolSizes
    from fairway.wire import capacity as wire

_DAY: Final = 86_400.0
MAX_MONTHS: Final = 36


def _growth(text: str) -> float:
    """Parse `5%/month` or `5%`."""
    found = re.fullmatch(r"(-?[0-9]{1,3}(?:\.[0-9]{1,4})?)%(?:/month)?", text)
    if found is None or not -50 <= float(found[1]) <= 100:
        raise ValueError(f"{text!r} is not a growth from -50% to 100% a month: write 5%/month")
    return float(found[1]) / 100


@click.command(
    epilog="""\b
Examples:
  fairway plan-capacity -f fleet.yaml --trace jobs.csv --slo research-starts
  fairway plan-capacity -f fleet.yaml --trace jobs.csv --growth 5%/month --months 12
  fairway plan-capacity -f fleet.yaml --trace jobs.csv --pool hpc-a100 --out capacity.html
"""
)
@file_option(required=True)
@click.option(
    "--trace",
    "trace_file",
    required=True,
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Recent jobs, in any format of `fairway simulate`.",
)
@click.option(
    "--slo", "names", multiple=True, metavar="NAME", help="Meet this SLO (repeatable).  [default: all]"
)
@click.option(
    "--pool",
    "chosen",
    multiple=True,
    metavar="NAME",
    help="Plan this pool (repeatable).",
    shell_complete=completion.pools,
)
@click.option(
    "--growth",
    type=ParsedParam("growth", _growth),
    default="0%",
    show_default=True,
    metavar="5%/month",
    help="Growth of the demand.",
)
@click.option(
    "--months",
    type=click.IntRange(0, MAX_MONTHS),
    default=6,
    show_default=True,
    metavar="N",
    help="Months ahead.",
)
@click.option(
    "--days",
    type=click.IntRange(1, 366),
    default=30,
    show_default=True,
    metavar="N",
    help="Take the demand of the last N days of the trace.",
)
@nodes_option
@click.option("--keep-limits", is_flag=True, help="Do not raise guarantees and ceilings with the pool.")
@study_output_options
def plan_capacity(
    *,
    file: str,
    trace_file: Path,
    names: Sequence[str],
    chosen: Sequence[str],
    growth: float,
    months: int,
    days: int,
    nodes: Sequence[str],
    keep_limits: bool,
    output: str | None,
    out: Path | None,
) -> None:
    """Find how many GPUs meet the objectives as demand grows.

    Replays recent jobs, more of them for each month ahead, and searches the fewest nodes of each pool with
    which all objectives are met, other pools as they are. Shows the monthly cost of buying, reserving or
    bursting for the GPUs beyond the present ones.
    """
    from fairway.cli.output.capacity import capacity_lines, capacity_page
    from fairway.cli.shared.capacity import CapacityPlanner, CapacityStudy
    from fairway.cli.shared.progress import progress_bar
    from fairway.files.fleet.sweep import swept_fleets
    from fairway.files.traces.read import read_trace
    from fairway.views.capacity import planned_month

    shape = study_format(output, out)
    text = read_fleet_text(file)
    folder = Path.cwd() if text.source == "<stdin>" else Path(text.source).absolute().parent
    fleet = next(swept_fleets(text.text, text.source, folder, ())).fleet
    slos, sizes = _objectives(fleet, names), _sizes(fleet, nodes)
    pools = _pools(fleet, chosen, slos)
    trace = read_trace(trace_file)
    begin, end = _window(trace, days)
    jobs = list(trace.between(begin - WARM_UP_SECONDS, end))
    factors = tuple((1 + growth) ** month for month in range(months + 1))
    study = CapacityStudy(fleet, sizes, slos, pools, factors, begin, end, keep_limits)
    with progress_bar(f"replaying {len(jobs):,} jobs for {len(pools) * len(factors)} sizes") as advance:
        planned = CapacityPlanner(study, jobs, advance).plan()
    found = _report(study, trace, growth, jobs=sum(begin <= job.at <= end for job in jobs))
    rows = [
        planned_month(
            fleet, sizes, slos, one.pool, one.month, factors[one.month], one.nodes, one.tried, one.run
        )
        for one in planned
    ]
    plan = found.model_copy(update={"months": rows})
    show_study(plan, lambda: capacity_lines(plan), lambda: capacity_page(plan), shape, out)


def _objectives(fleet: Fleet, names: Sequence[str]) -> tuple[Slo, ...]:
    from fairway.model.errors import PermanentError

    known = {slo.name: slo for slo in fleet.slos}
    unknown = [name for name in names if name not in known]
    if unknown or not known:
        raise PermanentError(
            "NoSuchSlo",
            f"the fleet file has no SLO {', '.join(unknown)}" if unknown else "the fleet file has no SLOs",
            f"name one of {', '.join(known)}"
            if known
            else "add to the fleet file:  slos: { all: { starts_within: 1h, target: 95% } }",
        )
    return tuple(known[name] for name in dict.fromkeys(names)) or fleet.slos


def _sizes(fleet: Fleet, nodes: Sequence[str]) -> PoolSizes:
    from fairway.simulate.replay import size_of, with_sizes

    sized = with_sizes(fleet, stated_sizes(fleet, nodes))
    return {pool.name: size_of(pool) for pool in sized.pools}


def _pools(fleet: Fleet, chosen: Sequence[str], slos: Sequence[Slo]) -> tuple[PoolName, ...]:
    """Return the pools to plan: those chosen, or those that the objectives name, or all."""
    from fairway.files.fleet.sweep import pool_named

    named = [pool_named(fleet, name, f"--pool {name}") for name in chosen]
    if not named and all(slo.pools for slo in slos):
        named = [pool for slo in slos for pool in slo.pools]
    return tuple(dict.fromkeys(named or [pool.name for pool in fleet.pools]))


def _window(trace: Trace, days: int) -> tuple[float, float]:
    from fairway.model.errors import PermanentError

    if not len(trace):
        raise PermanentError(
            "NothingToReplay", f"{trace.source} has no jobs", "name a trace with jobs on GPUs"
        )
    first, last = trace.span
    return max(first, last - days * _DAY), last


def _report(study: CapacityStudy, trace: Trace, growth: float, *, jobs: int) -> wire.CapacityPlan:
    from fairway.wire import capacity as wire

    return wire.CapacityPlan(
        fleet=study.fleet.name,
        currency=study.fleet.currency,
        source=trace.source,
        begin=datetime.fromtimestamp(study.begin, UTC),
        end=datetime.fromtimestamp(study.end, UTC),
        jobs=jobs,
        growth=growth,
        limits_grow=not study.keep_limits,
        objectives=[f"{slo.name}: {slo.text}" for slo in study.slos],
        months=[],
    )
