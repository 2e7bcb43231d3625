"""Read the data of the Home page: what all people share once for all of them, the rest for each person.

Every read is bounded: a few pages of jobs of one user, nodes and events of the last day, and what the Fleet
page reads anyway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Final

from fairway.ledger import BudgetEvent, Ledger, Token
from fairway.ledger.fleet.clusters import NodeChanges
from fairway.ledger.records.jobs import JobFilter, JobRow, JobSort, JobSortKey
from fairway.ledger.records.policy import Apply
from fairway.ledger.telemetry.cordons import Cordon
from fairway.model.access import Role
from fairway.model.apply import ApplyKind
from fairway.model.job import ENDED_JOBS, PENDING_JOBS, JobState
from fairway.services.convert import policy as convert
from fairway.services.fleets import Fleets
from fairway.services.jobs import explain_jobs
from fairway.services.policy import apply_detail, list_drift, list_interventions, list_stopped
from fairway.services.rights import Person, visible_teams
from fairway.views.jobs import BAD
from fairway.web.cache.single_flight import SingleFlight, SingleFlightGroup
from fairway.web.pages.fleet.data import FleetPageData
from fairway.wire import jobs as job_wire
from fairway.wire import policy as policy_wire

SINCE: Final = timedelta(hours=24)
"""How far back changes are listed."""
MAX_JOBS: Final = 8
"""Jobs of each kind."""
MAX_ENDED: Final = 200
MAX_EVENTS: Final = 50
MAX_APPLIES: Final = 5
"""Applies of the last day whose changes are read."""
MAX_DRIFT: Final = 200
_SHARED_SECONDS: Final = 10.0
_STALE_SECONDS: Final = 60.0
_MAX_DETAILS: Final = 64


@dataclass(frozen=True, slots=True)
class SharedEvents:
    """What happened since yesterday, and what is wrong now; the same for everybody."""

    since: datetime
    applies: tuple[Apply, ...]
    budget_events: tuple[BudgetEvent, ...]
    nodes: tuple[NodeChanges, ...]
    interventions: Sequence[policy_wire.Intervention]
    drift: Sequence[policy_wire.Drift]
    stopped: Sequence[policy_wire.StoppedApply]
    cordons: tuple[Cordon, ...]


@dataclass(frozen=True, slots=True)
class MyJobs:
    """The jobs of a person."""

    running: Sequence[job_wire.Job]
    waiting: Sequence[job_wire.Job]
    held: Sequence[job_wire.Job]
    ended: Sequence[job_wire.Job]
    """The last of those that ended since yesterday."""
    failed: Sequence[job_wire.Job]
    """The last of those that failed since yesterday."""
    endings: Mapping[JobState, int]
    """How many ended since yesterday, at most MAX_ENDED."""
    rows: dict[str, JobRow]
    counts: dict[JobState, int]
    """Open jobs by state; every task counts."""


class HomeCache:
    """Data that all open Home pages share."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self.events: Final = SingleFlight(
            self._read_events, max_age=_SHARED_SECONDS, stale_age=_STALE_SECONDS
        )
        self._teams: tuple[FleetPageData | None, list[policy_wire.Team]] = (None, [])
        self._details: Final = SingleFlightGroup[policy_wire.ApplyDetail](
            _MAX_DETAILS, max_age=_STALE_SECONDS
        )

    def teams(self, data: FleetPageData) -> list[policy_wire.Team]:
        """Return every team with what it holds; computed once for all pages of the same data."""
        if self._teams[0] is not data:
            teams = convert.teams(data.policy)
            self._teams = data, convert.with_holdings(teams, data.snapshot.counts, data.snapshot.pools)
        return self._teams[1]

    async def _read_events(self) -> SharedEvents:
        ledger, since = self._ledger, datetime.now(UTC) - SINCE
        applies = await ledger.applies.page(limit=MAX_EVENTS)
        return SharedEvents(
            since,
            tuple(a for a in applies if a.created_at >= since and a.kind is ApplyKind.APPLY)[:MAX_APPLIES],
            tuple(e for e in await ledger.budgets.events(limit=MAX_EVENTS) if e.at >= since),
            await ledger.clusters.changes(since),
            [i for i in await list_interventions(ledger, limit=MAX_EVENTS) if i.at >= since],
            await list_drift(ledger, limit=MAX_DRIFT),
            await list_stopped(ledger),
            await ledger.cordons.open(),
        )

    async def apply_details(self, caller: Token, applies: Sequence[Apply]) -> list[policy_wire.ApplyDetail]:
        """Read what each apply changed, without budgets that the caller may not see."""
        visible = visible_teams(caller, await self._fleets.current())
        return [
            await self._details.get(
                (a.id, a.state, visible), partial(apply_detail, self._ledger, self._fleets, caller, a.id)
            )
            for a in applies
        ]


async def my_jobs(ledger: Ledger, fleets: Fleets, person: Person, now: datetime) -> MyJobs:
    """Read the newest open jobs of a person, and those that ended since yesterday."""
    mine = partial(JobFilter, user=person.user, once_an_array=True)
    running = await ledger.jobs.page(mine(states=(JobState.RUNNING,)), limit=MAX_JOBS)
    waiting = await ledger.jobs.page(mine(states=PENDING_JOBS), limit=MAX_JOBS)
    held = await ledger.jobs.page(mine(states=(JobState.HELD,)), limit=MAX_JOBS)
    last = await ledger.jobs.sorted_page(mine(states=ENDED_JOBS), JobSort(JobSortKey.ENDED), limit=MAX_ENDED)
    ended = [row for row in last if row.ended_at is not None and row.ended_at >= now - SINCE]
    failed = [row for row in ended if row.state in BAD][:MAX_JOBS]
    rows = list({row.id: row for row in (*running, *waiting, *held, *ended[:MAX_JOBS], *failed)}.values())
    jobs = dict(zip((r.id for r in rows), await explain_jobs(ledger, fleets, person, rows), strict=True))
    return MyJobs(
        [jobs[r.id] for r in running],
        [jobs[r.id] for r in waiting],
        [jobs[r.id] for r in held],
        [jobs[r.id] for r in ended[:MAX_JOBS]],
        [jobs[r.id] for r in failed],
        Counter(row.state for row in ended),
        {jobs[r.id].id: r for r in rows},
        dict(await ledger.jobs.count_open(JobFilter(user=person.user))),
    )


def is_operator(person: Person) -> bool:
    """Return whether the clusters are this person's to keep running."""
    return person.role.may(Role.OPERATOR)
