"""Take what-if studies from the pages, and prepare what a study of the ledger's own jobs replays."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from fairway.files import InvalidFile
from fairway.files.fleet.override import InvalidOverride
from fairway.files.fleet.sweep import SweptFleet, parse_sweep, swept_fleets
from fairway.ledger import Ledger, Token
from fairway.ledger.what_if import StoredStudy
from fairway.model.errors import PermanentError
from fairway.model.trace import TraceJob
from fairway.services.convert import policy as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleet_queries import list_pools
from fairway.services.fleets import Fleets
from fairway.services.job_history import read_past_jobs
from fairway.services.revisions import find_revision
from fairway.simulate.replay import ReplayOptions, Scenario, with_sizes
from fairway.views.pool_sizes import observed_sizes
from fairway.wire import fleet as fleet_wire
from fairway.wire.policy import MAX_FLEET_CHARACTERS

MAX_DAYS: Final = 60
MAX_SEEDS: Final = 5
MAX_POINTS: Final = 12
"""Of the sweeps of a study that a server runs: others wait for it."""
MAX_JOBS: Final = 300_000
"""Of a study that a server runs, which has one process and a limited time."""
_SOURCE: Final = "fleet.yaml"
_ROOT: Final = Path("/")
"""Relative paths of a fleet file do not matter here: no cluster is reached."""
_DAY: Final = 86_400.0


@dataclass(frozen=True, slots=True)
class StudyRequest:
    """What somebody asks on the page."""

    fleet: str
    """The text of the changed fleet file."""
    sweeps: str
    """A sweep on each line; empty: none."""
    days: int
    seeds: int


@dataclass(frozen=True, slots=True)
class PreparedStudy:
    """What to replay, and on which fleets."""

    source: str
    trace: Sequence[TraceJob]
    scenarios: Sequence[Scenario]


async def queue_study(ledger: Ledger, caller: Token, request: StudyRequest) -> int:
    """Check and queue a study. Returns its number; raises RequestError."""
    if not (1 <= request.days <= MAX_DAYS and 1 <= request.seeds <= MAX_SEEDS):
        raise _invalid(
            "the number of days or seeds is out of range", f"1 to {MAX_DAYS} days, 1 to {MAX_SEEDS} seeds"
        )
    if len(request.fleet) > MAX_FLEET_CHARACTERS or len(request.sweeps) > MAX_FLEET_CHARACTERS:
        raise _invalid("the fleet file is too large", "check that it is a fleet file")
    try:
        points = await asyncio.to_thread(lambda: len(_fleets(request.fleet, request.sweeps)))
    except InvalidFile as error:
        faults = [convert.file_fault(fault) for fault in error.faults]
        raise RequestError(ErrorKind.INVALID, error.code, error.message, error.hint, faults=faults) from None
    except InvalidOverride as error:
        raise RequestError.wrap(ErrorKind.INVALID, error) from None
    if points > MAX_POINTS + 1:
        raise _invalid(
            f"the sweeps have {points - 1} points, more than {MAX_POINTS}",
            "sweep more on a machine of your own:  fairway simulate --sweep …",
        )
    number = await ledger.studies.add(request.fleet, request.sweeps, request.days, request.seeds, caller.name)
    if number is None:
        raise RequestError(
            ErrorKind.CONFLICT,
            "TooManyStudies",
            "too many studies wait already",
            "wait until some have ended, or run yours here:  fairway simulate -f fleet.yaml",
        )
    return number


async def prepare_study(ledger: Ledger, fleets: Fleets, study: StoredStudy) -> PreparedStudy:
    """Read the jobs of a study and make its scenarios. Raises RequestError or PermanentError."""
    now = datetime.now(UTC)
    trace = await read_past_jobs(ledger, await fleets.current(), now, study.days)
    if not trace:
        raise PermanentError(
            "NothingToReplay", f"there were no jobs in the last {study.days} days", "choose more days"
        )
    if len(trace) > MAX_JOBS:
        raise PermanentError(
            "HistoryTooLong",
            f"the last {study.days} days have {len(trace):,} jobs, more than {MAX_JOBS:,}",
            "choose fewer days, or replay them on another machine:  fairway simulate",
        )
    revision = await find_revision(ledger, None)
    current = revision.text if revision else study.fleet
    pools = await list_pools(ledger, fleets)
    end = now.timestamp()
    options = ReplayOptions(end - study.days * _DAY, end)
    scenarios = await asyncio.to_thread(lambda: _scenarios(current, study, pools, options))
    return PreparedStudy(f"the last {study.days} days", trace, scenarios)


def _scenarios(
    current: str, study: StoredStudy, pools: Sequence[fleet_wire.Pool], options: ReplayOptions
) -> list[Scenario]:
    def scenario(name: str, swept: SweptFleet) -> Scenario:
        sizes = observed_sizes(swept.fleet, pools) | dict(swept.sizes)
        with_sizes(swept.fleet, sizes)  # which refuses one that is missing
        parts = ReplayOptions(options.begin, options.end, dict(swept.spot_parts))
        return Scenario(name, swept.fleet, sizes, parts, swept.settings)

    (applied,) = _fleets(current, "")
    changed, *points = _fleets(study.fleet, study.sweep)
    found = [scenario("current file", applied)]
    if changed.fleet != applied.fleet:
        found.append(scenario("changed file", changed))
    return found + [scenario(point.name, point) for point in points]


def _fleets(text: str, sweeps: str) -> list[SweptFleet]:
    """Return the fleet of a file as it is, and those of its sweeps."""
    parsed = [parse_sweep(line.strip()) for line in sweeps.splitlines() if line.strip()]
    found = list(swept_fleets(text, _SOURCE, _ROOT, ()))
    return found + (list(swept_fleets(text, _SOURCE, _ROOT, parsed)) if parsed else [])


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(ErrorKind.INVALID, "InvalidStudy", message, hint)
