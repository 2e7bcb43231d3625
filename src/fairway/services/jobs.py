"""Submit, list, change and explain jobs, with the rights of each caller.

`Submitter` places jobs and stores them; the functions below it check rights and convert to wire types.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime
from typing import Final, Protocol
from zoneinfo import ZoneInfo

from fairway.engines.port import ChangesWaiting, Explains, LogPart, Runs, Unreachable
from fairway.ledger import HeldByRole, KeyReused, Ledger, Token
from fairway.ledger.records.jobs import (
    DesiredState,
    EventKind,
    JobCount,
    JobDetail,
    JobFilter,
    JobRow,
    NewJob,
)
from fairway.model.access import JobPermission, Role
from fairway.model.apply import Lifted
from fairway.model.errors import PermanentError, Refused
from fairway.model.fleet import Fleet, Pool, VirtualPlace
from fairway.model.job import (
    ENDED_JOBS,
    OPEN_JOBS,
    JobId,
    JobSpec,
    JobState,
    Order,
    Placement,
    engine_name,
    format_job_id,
    parse_job_id,
)
from fairway.model.job_change import SUBMIT_AGAIN
from fairway.model.labels import kept_labels
from fairway.model.names import ClusterName, TeamName, UserName
from fairway.model.team import Priority, Supply, Team, TeamTree, borrowed
from fairway.policy.placement import (
    NoPoolFits,
    NotAllowed,
    PlacementOption,
    PlacementOptions,
    SupplyState,
    choose,
    options,
    priority_of,
    team_of,
)
from fairway.services.advice import advise_job
from fairway.services.convert import gpu_use as convert_use
from fairway.services.convert import jobs as convert
from fairway.services.convert.gpu_health import job_event
from fairway.services.convert.jobs import with_budget_reason, with_left_cluster, with_reason_time
from fairway.services.engine_cache import EngineCache
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets, teams_held_by_budgets
from fairway.services.idle import idle_status
from fairway.services.job_costs import job_costs
from fairway.services.job_references import find_jobs, resolve
from fairway.services.reports import window_of
from fairway.services.rights import Person, forbidden_jobs, require_permission, submitting_user
from fairway.services.wakeup import Wakeup
from fairway.wire import gpu_use as gpu_wire
from fairway.wire import jobs as wire

SNAPSHOT_SECONDS: Final = 2.0
"""How long one reading of pools and queues is used to place jobs."""
NODE_SIZE_SECONDS: Final = 60.0
"""How long the size of a pool's largest node is cached."""
_YIELD_EVERY: Final = 100
_MAX_PAGES: Final = 20
_NODES_PAGE: Final = 2000
_ARRAY_PAGE: Final = 2000

_RequestKey = tuple[str, str]


class FleetSource(Protocol):
    """Reads the newest fleet and the last applied one; implemented by `Fleets`."""

    async def current(self) -> Fleet: ...

    async def applied(self, cluster: str | None = None) -> Fleet | None: ...


class ReadsLogs(Protocol):
    """Reads the output of a job's attempt. Raises Unreachable, or PermanentError if there is no output."""

    async def read(
        self, detail: JobDetail, attempt: int | None, offset: int, limit: int, node: int = 0
    ) -> LogPart: ...


class ExplainsJobs(Protocol):
    """Explains why a job waits; implemented by `services.why.JobExplainer`."""

    async def why(self, job: wire.JobDetail, found: JobDetail, person: Person | None = None) -> wire.Why: ...

    async def waiting_task(self, row: JobRow) -> JobRow | None: ...


class ChangesWaitingJobs(Protocol):
    """Changes jobs that have not started; implemented by `services.job_changes.JobChanger`."""

    async def change(
        self, who: Person, row: JobRow, request: wire.JobChangeRequest, *, by: str
    ) -> wire.JobChanged: ...


@dataclass(frozen=True, slots=True)
class OpenJobLimits:
    """How many open jobs one user and one team may have; native jobs do not count."""

    user: int = 20_000
    team: int = 100_000


class TooManyOpenJobs(PermanentError):
    """A user or a team has as many open jobs as one may have."""


@dataclass(frozen=True, slots=True)
class Submitted:
    """A job, or all tasks of an array, stored from one spec."""

    ids: tuple[JobId, ...]
    """One for each task of an array, otherwise one."""
    placement: Placement


@dataclass(frozen=True, slots=True)
class DryRun:
    """The result of a submission that stores and sends nothing."""

    placement: Placement | None
    """None if no pool fits."""
    options: tuple[PlacementOption, ...]
    """Every pool that fits, the best first."""
    preview: str
    """The request that the engine would get; empty if no pool fits."""
    could_run: bool
    why: str
    """The reason for the placement, or why the job could never run."""
    hint: str = ""
    """What would help if it could never run."""


@dataclass(frozen=True, slots=True)
class _Preview:
    """The request that an engine would get, or why it would refuse it."""

    supply: Supply
    text: str
    refusal: Refused | None = None


@dataclass(slots=True)
class _SupplySnapshot:
    """The supplies of a fleet as read at one moment, less what jobs placed since then will take."""

    fleet: Fleet
    tree: TeamTree
    supplies: dict[Supply, SupplyState]
    valid_until: float
    today: date
    """In the fleet's time zone, for prices."""
    refusals: dict[_RequestKey, dict[Supply, Refused | None]] = field(default_factory=dict)
    """Refusals of engines by kind of job and supply; None if the engine accepts it."""
    busy: dict[Supply, dict[TeamName, int]] = field(default_factory=dict)
    held_by_user: dict[tuple[UserName, TeamName], dict[Supply, int]] = field(default_factory=dict)
    """Devices that running jobs of users hold, of teams that limit them."""
    open_of_user: dict[UserName, int] = field(default_factory=dict)
    open_of_team: dict[TeamName, int] = field(default_factory=dict)
    """Open jobs, as counted once and with those stored since."""
    team_cache: dict[tuple[UserName, str | None, str | None], tuple[Team, Priority]] = field(
        default_factory=dict
    )

    def team_and_priority(self, spec: JobSpec, user: UserName) -> tuple[Team, Priority]:
        """Return the job's team and priority; cached for a batch: a fleet may have a thousand teams."""
        key = (user, spec.team, spec.priority)
        if key not in self.team_cache:
            team = team_of(self.fleet, spec, user)
            self.team_cache[key] = (team, priority_of(self.fleet, spec, team))
        return self.team_cache[key]

    def options(
        self,
        spec: JobSpec,
        user: UserName,
        team: Team,
        priority: Priority,
        refusals: Mapping[Supply, Refused] | None = None,
    ) -> PlacementOptions:
        """Find the pools that fit a job, without those whose engine refused it."""
        supplies: Mapping[Supply, SupplyState] = self.supplies
        if held := self.held_by_user.get((user, team.name)):
            supplies = {s: replace(state, user_held=held.get(s, 0)) for s, state in supplies.items()}
        return options(spec, team, priority, self.fleet, supplies, refusals or {}, self.tree, self.today)

    def count(self, counts: Sequence[JobCount]) -> None:
        """Add the devices that jobs hold and wait for; a team's count for its ancestors too."""
        waiting: dict[Supply, int] = {}
        running: dict[tuple[Supply, TeamName], int] = {}
        for row in counts:
            if row.pool is None or row.state is JobState.HELD:
                continue
            supply = Supply(row.pool, row.slice)
            if row.state is not JobState.RUNNING:
                waiting[supply] = waiting.get(supply, 0) + row.devices
            if row.team is not None and row.team in self.tree:
                team = self.tree[row.team]
                self._add_busy(team, supply, row.devices)
                if row.state is JobState.RUNNING:
                    for each in (team, *self.tree.ancestors(team)):
                        running[supply, each.name] = running.get((supply, each.name), 0) + row.devices
        for supply, state in self.supplies.items():
            busy = self.busy.setdefault(supply, {})
            lent = sum(
                borrowed(running.get((supply, team.name), 0), grant.guarantee if grant else 0)
                for team in self.tree.top()
                for grant in (team.grant(supply),)
            )
            self.supplies[supply] = replace(state, busy=busy, waiting=waiting.get(supply, 0), lent=lent)

    def take(self, team: Team, supply: Supply, devices: int) -> None:
        """Count the devices of a job that was just placed."""
        self._add_busy(team, supply, devices)
        state = self.supplies[supply]
        self.supplies[supply] = replace(state, waiting=state.waiting + devices)

    def _add_busy(self, team: Team, supply: Supply, devices: int) -> None:
        busy = self.busy.setdefault(supply, {})
        for each in (team, *self.tree.ancestors(team)):
            busy[each.name] = busy.get(each.name, 0) + devices


class Submitter:
    """Places jobs and stores them. Safe for concurrent use."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: FleetSource,
        engines: EngineCache,
        *,
        wakeup: Wakeup | None = None,
        limits: OpenJobLimits | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`wakeup` is notified of each cluster that jobs were stored for."""
        self._ledger = ledger
        self._fleets = fleets
        self._engines = engines
        self._wakeup = wakeup or Wakeup()
        self._limits = limits or OpenJobLimits()
        self._clock = clock
        self._cached: _SupplySnapshot | None = None
        self._node_sizes: tuple[float, dict[Supply, int]] = (float("-inf"), {})

    async def submit(
        self,
        specs: Sequence[JobSpec],
        user: UserName,
        *,
        by: str,
        key: str | None = None,
        hold: bool = False,
    ) -> tuple[Submitted, ...]:
        """Place and store jobs, all or none. The same (by, key) again returns the jobs of the first time.

        Raises NotAllowed, NoPoolFits or TooManyOpenJobs.
        """
        snapshot = await self._snapshot()
        jobs: list[NewJob] = []
        for spec in specs:
            jobs.append(await self._place(snapshot, spec, user, hold=hold))
            if len(jobs) % _YIELD_EVERY == 0:
                await asyncio.sleep(0)  # ten thousand take a second: other requests run meanwhile
        try:
            await self._count_open(snapshot, user, jobs)
        except TooManyOpenJobs:
            if key is None or not await self._ledger.jobs.has_key(by, key):
                raise  # else they are stored already, and count themselves
        ids = await self._ledger.jobs.submit(jobs, by=by, key=key)
        for cluster in {job.placement.cluster for job in jobs}:
            self._wakeup.notify(cluster)
        return tuple(Submitted(numbers, job.placement) for numbers, job in zip(ids, jobs, strict=True))

    async def dry_run(self, spec: JobSpec, user: UserName) -> DryRun:
        """Place a job without storing it. Raises NotAllowed, which the user has to resolve."""
        snapshot = await self._snapshot()
        team, priority = snapshot.team_and_priority(spec, user)
        await self._count_user(snapshot, user, team)
        try:
            previews = [
                await self._preview(snapshot.fleet, _order(spec, user, team, priority, option.supply))
                for option in snapshot.options(spec, user, team, priority).fits
            ]
            refusals = {p.supply: p.refusal for p in previews if p.refusal}
            found = snapshot.options(spec, user, team, priority, refusals)
            placement = choose(found)
        except NoPoolFits as error:
            return DryRun(None, (), "", could_run=False, why=error.message, hint=error.hint)
        text = next(p.text for p in previews if p.supply == placement.supply)
        return DryRun(placement, found.fits, text, could_run=True, why=placement.why)

    async def options(self, spec: JobSpec, user: UserName) -> PlacementOptions:
        """Return the pools that fit a job now, best first. Raises NotAllowed or NoPoolFits."""
        snapshot = await self._snapshot()
        team, priority = snapshot.team_and_priority(spec, user)
        await self._count_user(snapshot, user, team)
        return snapshot.options(spec, user, team, priority)

    async def place_again(self, spec: JobSpec, user: UserName, stays_on: Supply | None = None) -> NewJob:
        """Place the changed spec of a stored job, with `stays_on` there. Stores and counts nothing.

        Raises NotAllowed or NoPoolFits.
        """
        snapshot = await self._snapshot()
        team, priority = snapshot.team_and_priority(spec, user)
        await self._count_user(snapshot, user, team)
        refusals: dict[Supply, Refused] = {}
        while True:  # ends: each round either chooses or rules one more supply out
            found = snapshot.options(spec, user, team, priority, refusals)
            if stays_on is not None:
                found = replace(found, fits=tuple(o for o in found.fits if o.supply == stays_on))
            placement = choose(found)
            order = _order(spec, user, team, priority, placement.supply)
            refusal = (await self._preview(snapshot.fleet, order)).refusal
            if refusal is None:
                return _new_job(snapshot.fleet, spec, user, team, priority, placement)
            refusals[placement.supply] = refusal

    async def check_change(self, cluster: ClusterName, before: Order, after: Order) -> None:
        """Return if the engine of a cluster can change a waiting job so. Raises Refused otherwise."""
        fleet = await self._fleet()
        engine = await self._engines.get(*fleet.engine_parts(cluster))
        if not isinstance(engine, ChangesWaiting):
            raise Refused("CannotChange", f"cluster {cluster} cannot change jobs that wait", SUBMIT_AGAIN)
        engine.check_change(before, after, fleet)

    async def _place(self, snapshot: _SupplySnapshot, spec: JobSpec, user: UserName, *, hold: bool) -> NewJob:
        team, priority = snapshot.team_and_priority(spec, user)
        await self._count_user(snapshot, user, team)
        answers = snapshot.refusals.setdefault(_request_key(spec, user), {})
        while True:  # ends: each round either chooses or rules one more supply out
            refusals = {supply: refusal for supply, refusal in answers.items() if refusal}
            found = snapshot.options(spec, user, team, priority, refusals)
            placement = choose(found)
            if placement.supply in answers:
                break
            order = _order(spec, user, team, priority, placement.supply)
            answers[placement.supply] = (await self._preview(snapshot.fleet, order)).refusal
        # Later jobs of the same batch, and of the next seconds, must not count on the same devices.
        snapshot.take(team, placement.supply, spec.devices * max(1, len(spec.array)))
        return _new_job(snapshot.fleet, spec, user, team, priority, placement, hold=hold)

    async def _count_open(self, snapshot: _SupplySnapshot, user: UserName, jobs: Sequence[NewJob]) -> None:
        """Add jobs to the open ones of their user and teams. Raises TooManyOpenJobs, and then adds none."""
        new = Counter[TeamName]()
        for job in jobs:
            new[job.team] += max(1, len(job.spec.array))
        if user not in snapshot.open_of_user:
            most = self._limits.user + 1
            snapshot.open_of_user[user] = await self._ledger.jobs.count_open_of_user(user, most)
        for team in new.keys() - snapshot.open_of_team.keys():
            most = self._limits.team + 1
            snapshot.open_of_team[team] = await self._ledger.jobs.count_open_of_team(team, most)
        _require_room(f"user {user}", snapshot.open_of_user[user], new.total(), self._limits.user, "user")
        for team, count in new.items():
            _require_room(f"team {team}", snapshot.open_of_team[team], count, self._limits.team, "team")
        snapshot.open_of_user[user] += new.total()
        for team, count in new.items():
            snapshot.open_of_team[team] += count

    async def _count_user(self, snapshot: _SupplySnapshot, user: UserName, team: Team) -> None:
        """Count what a user's running jobs hold, once a snapshot, if the team limits it."""
        if team.limits.user_gpus is None or (user, team.name) in snapshot.held_by_user:
            return
        which = JobFilter(user=user, team=team.name, states=(JobState.RUNNING,))
        held: dict[Supply, int] = {}
        for row in await self._ledger.jobs.page(which, limit=_ARRAY_PAGE):
            if row.pool is not None:
                supply = Supply(row.pool, row.slice)
                held[supply] = held.get(supply, 0) + row.devices
        snapshot.held_by_user[user, team.name] = held

    async def _preview(self, fleet: Fleet, order: Order) -> _Preview:
        cluster = fleet.pool(order.supply.pool).cluster
        engine = await self._engines.get(*fleet.engine_parts(cluster))
        try:
            text = engine.preview(order, fleet)
        except Refused as refusal:
            return _Preview(order.supply, "", refusal)
        return _Preview(order.supply, text, await _never_fits(engine, order, fleet))

    async def _snapshot(self) -> _SupplySnapshot:
        """Read the supplies of the fleet: once for a batch, and not again within two seconds."""
        fleet = await self._fleet()
        now = self._clock()
        if self._cached is not None and self._cached.fleet is fleet and now < self._cached.valid_until:
            return self._cached
        pools = await self._ledger.clusters.pools()
        counts = await self._ledger.jobs.counts()
        reachable = {
            c.cluster: c.reachable or c.observed_at is None for c in await self._ledger.clusters.all()
        }
        left = {a.cluster for a in await self._ledger.applies.applied() if a.lifted is Lifted.LEFT}
        node_sizes = await self._largest_nodes(now)
        today = datetime.now(ZoneInfo(fleet.cost.timezone)).date()
        snapshot = _SupplySnapshot(fleet, TeamTree(fleet.teams), {}, now + SNAPSHOT_SECONDS, today)
        observed = {Supply(p.pool, p.slice): p for p in pools if p.pool is not None}
        for pool in fleet.pools:
            for supply in pool.supplies:
                state = observed.get(supply)
                total = state.total if state else pool.gpus if supply.slice is None else None
                snapshot.supplies[supply] = SupplyState(
                    total,
                    state.free if state else 0,
                    _virtual_node_size(pool, supply) or node_sizes.get(supply),
                    reachable=reachable.get(pool.cluster, True),
                    left=pool.cluster in left,
                )
        snapshot.count(counts)
        self._cached = snapshot
        return snapshot

    async def _fleet(self) -> Fleet:
        """Read the last applied fleet, which engines enforce, without the clusters removed since."""
        newest = await self._fleets.current()
        if not newest.clusters:
            raise PermanentError("NoFleet", "there is no fleet yet", "fairway apply -f fleet.yaml")
        applied = await self._fleets.applied()
        if applied is None:
            return newest
        names = {c.name for c in newest.clusters}
        if all(c.name in names for c in applied.clusters):
            return applied
        clusters = tuple(c for c in applied.clusters if c.name in names)
        return replace(
            applied, clusters=clusters, pools=tuple(p for p in applied.pools if p.cluster in names)
        )

    async def _largest_nodes(self, now: float) -> dict[Supply, int]:
        """Read the most devices that one node has of each supply; cached, because nodes rarely change."""
        read_at, cached = self._node_sizes
        if now < read_at + NODE_SIZE_SECONDS and cached:
            return cached
        found: dict[Supply, int] = {}
        after: tuple[str, str] | None = None
        for _ in range(_MAX_PAGES):
            page = await self._ledger.clusters.nodes(after=after, limit=_NODES_PAGE)
            for node in page:
                for d in node.devices:
                    if d.pool is not None:
                        supply = Supply(d.pool, d.slice)
                        found[supply] = max(found.get(supply, 0), d.total)
            if len(page) < _NODES_PAGE:
                break
            after = (page[-1].cluster, page[-1].name)
        else:
            found = {}  # too many nodes to read: the engine refuses what does not fit
        self._node_sizes = (now, found)
        return found


def _new_job(
    fleet: Fleet,
    spec: JobSpec,
    user: UserName,
    team: Team,
    priority: Priority,
    placement: Placement,
    *,
    hold: bool = False,
) -> NewJob:
    labels = kept_labels(spec.labels, fleet.cost.labels)
    return NewJob(
        spec, user, team.name, priority.name, placement, hold, project=spec.project or "", labels=labels
    )


def _require_room(whose: str, open_jobs: int, new: int, most: int, kind: str) -> None:
    if open_jobs + new > most:
        raise TooManyOpenJobs(
            "TooManyOpenJobs",
            f"{whose} has {min(open_jobs, most)} open jobs and is limited to {most}; this would add {new} "
            "more",
            f"wait until some end, or cancel some:  fairway get jobs --state open;"
            f"  an admin may raise  max_open_jobs_{kind}",
        )


async def _never_fits(engine: Runs, order: Order, fleet: Fleet) -> Refused | None:
    """Return why no node can ever hold an order. Returns None if one can, or if the engine is away."""
    if not isinstance(engine, Explains):
        return None
    try:
        return await engine.never_fits(order, fleet)
    except (Unreachable, Refused):
        return None  # no answer is no reason to refuse: the job is kept, and the engine has the last word


@dataclass(frozen=True, slots=True)
class JobServices:
    """The services for jobs that need engines; `server` builds them."""

    submitter: Submitter
    log_reader: ReadsLogs
    explainer: ExplainsJobs
    changer: ChangesWaitingJobs


async def submit_jobs(
    submitter: Submitter, ledger: Ledger, caller: Token, request: wire.SubmitRequest
) -> wire.Submitted:
    """Store jobs, all or none, and return without waiting for an engine to get them."""
    user = submitting_user(caller, request.as_user)
    specs = await _specs(ledger, request.jobs)
    try:
        stored = await submitter.submit(specs, user, by=caller.name, key=request.key, hold=request.hold)
    except PermanentError as error:
        raise placement_refusal(error) from error
    return wire.Submitted(
        jobs=[convert.submitted(s, job.ids, job.placement) for s, job in zip(specs, stored, strict=True)]
    )


async def dry_run_job(
    submitter: Submitter, ledger: Ledger, caller: Token, request: wire.DryRunRequest
) -> wire.DryRun:
    """Return where a job would go, what the engine would get, and whether it could ever run."""
    user = submitting_user(caller, request.as_user)
    (spec,) = await _specs(ledger, [request.job])
    try:
        found = await submitter.dry_run(spec, user)
    except PermanentError as error:
        raise placement_refusal(error) from error
    return wire.DryRun(
        could_run=found.could_run,
        why=found.why,
        hint=found.hint,
        placement=convert.placement(found.placement) if found.placement else None,
        options=[convert.option(o) for o in found.options],
        preview=found.preview,
    )


async def list_jobs(
    ledger: Ledger,
    fleets: Fleets,
    person: Person,
    which: JobFilter,
    *,
    window: str | None = None,
    search: str = "",
    before: JobId | None = None,
    limit: int,
) -> list[wire.Job]:
    """List jobs of all clusters, Fairway's and native ones, the newest first.

    `window` is a window of whole days in the fleet's time zone, such as `last-week`; it replaces the times of
    `which`.
    """
    if window is not None:
        which = _submitted_on(which, window, await fleets.current())
    rows = await ledger.jobs.page(which, search=search, before=before, limit=limit)
    return await explain_jobs(ledger, fleets, person, rows)


def _submitted_on(which: JobFilter, window: str, fleet: Fleet) -> JobFilter:
    """Limit a filter to jobs that were submitted on the days of a window."""
    try:
        span = window_of(fleet, window).span
    except PermanentError as error:
        raise RequestError.wrap(ErrorKind.INVALID, error) from None
    first, end = (datetime.fromtimestamp(moment, UTC) for moment in (span.start, span.end))
    return replace(which, submitted_after=first, submitted_before=end)


async def explain_jobs(
    ledger: Ledger, fleets: Fleets, person: Person, rows: Sequence[JobRow]
) -> list[wire.Job]:
    """Convert rows to wire jobs; a job that waits for a spent budget has that budget as its reason.

    The amounts of a budget are for those who may see its team's costs.
    """
    fleet, held = await teams_held_by_budgets(ledger, fleets, person.visible_teams)
    left = await ledger.clusters.left()
    used = await ledger.use_views.jobs([row.id for row in rows])
    costs = await job_costs(ledger, await fleets.current(), person, rows, datetime.now(UTC))
    jobs = (
        with_budget_reason(convert.job(row, used.get(row.id), costs.get(row.id)), fleet, held) for row in rows
    )
    times = await ledger.mirror.complete_times()
    return [with_left_cluster(with_reason_time(job, times), left) for job in jobs]


async def job_states(ledger: Ledger, words: Sequence[str]) -> wire.JobStates:
    """Return the states of jobs. Raises RequestError if one does not exist."""
    return wire.JobStates(states={word: row.state for word, row in (await resolve(ledger, words)).items()})


async def count_jobs(ledger: Ledger, cluster: str | None = None) -> wire.JobCounts:
    """Count open jobs by cluster, team, pool and state, with the devices they hold or request."""
    return wire.JobCounts(counts=[convert.count(c) for c in await ledger.jobs.counts(cluster)])


async def describe_job(ledger: Ledger, fleets: Fleets, found: JobDetail, person: Person) -> wire.JobDetail:
    """Convert a job with everything this person may read of it, and the budget it may wait for."""
    readable = person.may(JobPermission.READ, found.row)
    fleet, held = await teams_held_by_budgets(ledger, fleets, person.visible_teams)
    use = (await ledger.use_views.jobs([found.row.id])).get(found.row.id)
    costs = await job_costs(ledger, await fleets.current(), person, [found.row], datetime.now(UTC))
    detail = convert.job_detail(found, use, costs.get(found.row.id), readable=readable)
    job = with_budget_reason(detail, fleet, held)
    seen = await ledger.gpu_events.of_job(found.row.id) if found.attempts else ()
    if seen:
        of_gpus = [job_event(found.row.id, event, found.attempts) for event in seen]
        events = sorted([*job.events, *of_gpus], key=lambda event: event.at)
        job = job.model_copy(update={"events": events})
    idle, steps = await idle_status(ledger, fleets, found.row, datetime.now(UTC))
    if idle is not None or steps:
        events = sorted([*job.events, *steps], key=lambda event: event.at)
        job = job.model_copy(update={"events": events, "idle": idle})
    if counts := await ledger.units.of_job(found.row.id):
        job = job.model_copy(update={"counts": counts})
    job = with_reason_time(job, await ledger.mirror.complete_times())
    return with_left_cluster(job, await ledger.clusters.left())


async def explain_job(
    ledger: Ledger,
    fleets: Fleets,
    explainer: ExplainsJobs,
    found: JobDetail,
    person: Person,
    now: datetime | None = None,
) -> wire.Why:
    """Explain why a job waits and how it uses its GPUs; of an array that has begun, why a task waits.

    `now`: None for the present.
    """
    job = await describe_job(ledger, fleets, found, person)
    why = await explainer.why(job, found, person)
    if job.last_seen_at is None:
        fleet, at = await fleets.current(), now or datetime.now(UTC)
        advice = await advise_job(ledger, fleet, found, person, at)
        said = {"use": job.use, "cost": job.cost, **advice._asdict()}
        why = why.model_copy(update=said)
    task = await explainer.waiting_task(found.row)
    waiting = await ledger.jobs.one(task.id) if task is not None else None
    if waiting is None:
        return why
    of_task = await explainer.why(await describe_job(ledger, fleets, waiting, person), waiting)
    text = f"{why.summary}; of its array, {format_job_id(waiting.row.id)} waits"
    return why.model_copy(update={"summary": text, "reasons": of_task.reasons})


async def dependencies_of(ledger: Ledger, job: wire.JobDetail) -> list[tuple[wire.After, wire.Job | None]]:
    """Read the jobs that this one depends on, if the caller may read its spec."""
    if job.spec is None or not job.spec.after:
        return []
    ids = [job_id for a in job.spec.after if (job_id := parse_job_id(a.job)) is not None]
    by_id = {j.id: j for j in map(convert.job, await ledger.jobs.rows(ids))}
    return [(a, by_id.get(a.job.lower())) for a in job.spec.after]


async def job_use(ledger: Ledger, row: JobRow, max_gpus: int) -> gpu_wire.JobUse:
    """Read what the GPUs of a job did: in all, GPU by GPU, and over time."""
    found = (await ledger.use_views.jobs([row.id])).get(row.id)
    gpus: list[gpu_wire.GpuUse] = []
    gpus_in_all = 0
    hours: list[gpu_wire.CoursePoint] = []
    windows: list[gpu_wire.CoursePoint] = []
    if found is not None and found.use.measured:
        devices = await ledger.use_views.devices(row.id)
        gpus_in_all = len(devices)
        gpus = convert_use.gpus(devices, max_gpus, runs=row.state is JobState.RUNNING)
        hours = convert_use.course(await ledger.use_views.hours(row.id))
        windows = convert_use.course(await ledger.use_views.windows(row.id))
    return gpu_wire.JobUse(
        id=format_job_id(row.id),
        use=convert_use.use(found) if found else None,
        gpus=gpus,
        gpus_in_all=gpus_in_all,
        hours=hours,
        windows=windows,
    )


async def count_tasks_of(ledger: Ledger, row: JobRow) -> wire.TaskCounts:
    """Count the tasks of a job's array by state. A single job is one task."""
    states = Counter([row.state])
    if row.array is not None:
        states = Counter([task.state async for task in tasks_of(ledger, row.array)])
    return wire.TaskCounts(tasks=states.total(), counts=dict(states))


async def tasks_of(ledger: Ledger, array: JobId, states: tuple[JobState, ...] = ()) -> AsyncIterator[JobRow]:
    """Yield every task of an array: at most ten thousand; for a native one, as many as the engine allows."""
    which, before = JobFilter(array=array, states=states), None
    while page := await ledger.jobs.page(which, before=before, limit=_ARRAY_PAGE):
        for row in page:
            yield row
        if len(page) < _ARRAY_PAGE:
            return
        before = page[-1].id


async def read_log_part(
    reader: ReadsLogs, who: Person, found: JobDetail, attempt: int | None, node: int, offset: int, limit: int
) -> wire.LogPart:
    """Read a part of the output of an attempt (None: the last). Raises RequestError if it is forbidden."""
    if not who.may(JobPermission.READ, found.row):
        raise forbidden_jobs(who, JobPermission.READ, [found.row])
    number = _attempt(found, attempt)
    if number is None:
        ended = found.row.state in ENDED_JOBS
        return wire.LogPart(attempt=0, text="", offset=offset, next_offset=offset, ended=ended)
    try:
        part = await reader.read(found, number, offset, limit, node)
    except Unreachable as error:
        raise RequestError.wrap(ErrorKind.ENGINE_FAILED, error) from error
    except PermanentError as error:
        raise RequestError.wrap(ErrorKind.NOT_FOUND, error) from error
    return convert.log_part(part, number, offset)


async def change_jobs(
    ledger: Ledger, who: Person, words: Sequence[str], desired: DesiredState, *, by: str
) -> wire.Changed:
    """Request that jobs are cancelled, held or released: all of them, or none if one is not permitted."""
    rows = await find_jobs(ledger, words)
    require_permission(who, JobPermission.CHANGE, rows)
    affected = list(dict.fromkeys([n for row in rows for n in await _affected(ledger, row)]))
    try:
        changed = set(await ledger.jobs.set_desired_state(affected, desired, by=by, role=who.role))
    except HeldByRole as error:
        raise RequestError.wrap(ErrorKind.FORBIDDEN, error) from error
    return wire.Changed(
        changed=[format_job_id(n) for n in affected if n in changed],
        unchanged=[format_job_id(n) for n in affected if n not in changed],
    )


def possible_changes(who: Person, row: JobRow) -> tuple[DesiredState, ...]:
    """List the changes that would have an effect on a job and that this person may request."""
    if row.state not in OPEN_JOBS or row.desired_state is DesiredState.CANCEL:
        return ()
    if not (who.role.may(Role.MEMBER) and who.may(JobPermission.CHANGE, row)):
        return ()
    if row.state is JobState.HELD or row.desired_state is DesiredState.HOLD:
        return (DesiredState.RUN, DesiredState.CANCEL)
    return (
        (DesiredState.CANCEL,) if row.state is JobState.RUNNING else (DesiredState.HOLD, DesiredState.CANCEL)
    )


def release_refusal(who: Person, found: JobDetail) -> str:
    """Return why this person may not release a held job; empty if they may."""
    holder = found.hold_role
    if holder is None or who.role.may(holder):
        return ""
    by = next(e.by for e in reversed(found.events) if e.kind is EventKind.HELD)
    return f"{by} held it as {holder}, and your role is {who.role}: ask them to release it."


def _virtual_node_size(pool: Pool, supply: Supply) -> int | None:
    """Return the devices per node of a virtual pool, from the fleet file. Returns None for other pools."""
    if not isinstance(pool.place, VirtualPlace):
        return None
    per_gpu = pool.place.slices_per_gpu.get(supply.slice, 1) if supply.slice else 1
    return pool.place.gpus_per_node * per_gpu


def _request_key(spec: JobSpec, user: UserName) -> _RequestKey:
    """Return a key of everything that an engine may refuse a job for, equal for most jobs of a batch."""
    plain = replace(
        spec, name="", command=(), script=None, env={}, array=(), after=(), project=None, labels={}
    )
    return (user, repr(plain))


def _order(spec: JobSpec, user: UserName, team: Team, priority: Priority, supply: Supply) -> Order:
    """Build the order of a job that is not stored yet."""
    name = engine_name("0000", JobId(0), 1, spec.name)
    return Order(JobId(0), 1, name, spec, user, team.name, priority.name, supply)


def _attempt(found: JobDetail, requested: int | None) -> int | None:
    """Return the number of the requested attempt, or of the last. Returns None before the first."""
    numbers = [a.number for a in found.attempts]
    if requested is None:
        return numbers[-1] if numbers else None
    if requested not in numbers:
        word = format_job_id(found.row.id)
        raise RequestError(
            ErrorKind.NOT_FOUND,
            "NoSuchAttempt",
            f"{word} has no attempt {requested}; it has {len(numbers)}",
            f"fairway describe job {word}  lists them",
        )
    return requested


async def _specs(ledger: Ledger, jobs: Sequence[wire.JobSpec]) -> list[JobSpec]:
    """Convert specs to the model; the jobs they depend on must exist, or they would wait forever."""
    after = {a.job for job in jobs for a in job.after}
    rows = await resolve(ledger, sorted(after), "to start after") if after else {}
    ids = {word: format_job_id(row.id) for word, row in rows.items()}
    return [_with_ids(job, ids).to_model() if job.after else job.to_model() for job in jobs]


def _with_ids(job: wire.JobSpec, ids: Mapping[str, str]) -> wire.JobSpec:
    """Replace the references of a job's dependencies by ids."""
    after = [wire.After(job=ids[a.job], when=a.when) for a in job.after]
    return job.model_copy(update={"after": after})


async def _affected(ledger: Ledger, row: JobRow) -> list[JobId]:
    """Return the job's id, or for an array's first task those of all open tasks: they have one owner."""
    if row.array != row.id:
        return [row.id]
    return sorted([task.id async for task in tasks_of(ledger, row.id, OPEN_JOBS)]) or [row.id]


def placement_refusal(error: PermanentError) -> RequestError:
    """Convert the reason why jobs were not stored, or not changed, to an error for the caller."""
    match error:
        case NotAllowed():
            return RequestError.wrap(ErrorKind.FORBIDDEN, error)
        case KeyReused() | TooManyOpenJobs():
            return RequestError.wrap(ErrorKind.CONFLICT, error)
        case _:
            return RequestError.wrap(ErrorKind.INVALID, error)
