"""Plan and apply fleet files; read applies, drift, interventions, teams; render and import engine files."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Final

from fairway.cost.budgets import stricter
from fairway.files import InvalidFile, Report, Severity, fleet_digest
from fairway.ledger import Ledger, StoredBudgetStatus, Token
from fairway.ledger.records.policy import AppliedCluster, Apply
from fairway.model.access import Role
from fairway.model.apply import ApplyKind, ApplyState
from fairway.model.budget import Hold
from fairway.model.channel import Channels
from fairway.model.condition import ConditionType
from fairway.model.errors import FairwayError
from fairway.model.fleet import Cluster, EngineKind, Fleet
from fairway.model.names import ClusterName
from fairway.model.notice_rules import DEFAULT_RULES
from fairway.policy.fleet_diff import describe, is_budget_field
from fairway.policy.objects import ObjectKey
from fairway.policy.recent_use import TakenAway
from fairway.policy.removals import RemovalKind
from fairway.services.convert import policy as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets, holds_of, with_raised_budgets
from fairway.services.leaving import plan_leave
from fairway.services.plans import FleetPlan, Planner
from fairway.services.removals import find_removals, require_confirmed
from fairway.services.repricing import find_repricing
from fairway.services.rights import require_role, visible_teams
from fairway.views.colours import assigned
from fairway.wire import policy as wire

_LARGE_FILE: Final = 256 * 1024
"""Characters of a fleet file: about a thousand teams."""
_MAX_EARLIER: Final = 50
"""Applies to read to find the successful one before."""


@dataclass(frozen=True, slots=True)
class PolicyServices:
    """The services for policy that need engines or files; `server` builds them."""

    check: Callable[[str, str], Report]
    """Check the text of a fleet file, given its name; relative paths are relative to the server's folder."""
    planner: Planner
    render: Callable[[Fleet, ClusterName], Awaitable[Mapping[str, str]]]
    """Render the files that a Slurm cluster needs besides its policy."""
    import_policy: Callable[[Fleet, ClusterName], Awaitable[wire.Imported]]
    """Describe an existing cluster as a fleet file."""
    checks_large: asyncio.Lock = field(default_factory=asyncio.Lock)


async def plan_fleet_file(
    services: PolicyServices, ledger: Ledger, fleets: Fleets, caller: Token, request: wire.PlanRequest
) -> wire.Plan:
    """Plan a fleet file. Nothing is changed."""
    report = await check_fleet_file(services, request)
    fleet = valid_fleet(report)
    await require_known_clusters(caller, fleet, fleets)
    cluster = cluster_of(fleet, request.cluster) if request.cluster else None
    plan = await services.planner.plan(fleet, cluster, request.source)
    before = await fleets.applied(cluster)
    removals = await find_removals(ledger, fleets, fleet)
    plan = without_removals(plan, removals)
    planned = {c.cluster for c in plan.clusters}
    lifted = lifted_diffs(a for a in await ledger.applies.applied() if a.cluster in planned)
    holds = await _hold_diffs(ledger, before, fleet)
    repricing = await find_repricing(ledger, fleets, fleet)
    stopped = [s for s in await list_stopped(ledger) if cluster in (None, s.cluster)]
    warnings = [f for f in report.faults if f.severity is Severity.WARNING]
    # A large plan takes a second to convert: other requests run meanwhile.
    return await asyncio.to_thread(
        lambda: convert.plan(
            plan,
            fleet_digest(request.fleet),
            [*lifted, *repricing.diffs(), *field_diffs(before, fleet), *holds],
            removals,
            warnings,
            stopped,
            repricing.objections(),
        )
    )


async def start_apply(
    services: PolicyServices, ledger: Ledger, fleets: Fleets, caller: Token, request: wire.ApplyRequest
) -> wire.Apply:
    """Queue the apply of a planned fleet.

    A cluster whose fingerprint differs when the apply starts is refused and remains unchanged. Raises
    RequestError if the fleet removes something that the request does not confirm: a cluster is no longer
    tracked as soon as the revision without it is stored, whatever becomes of the apply. Raises it too if a
    closed month would change without `reprice_past`, or the currency or time zone without `force`.
    """
    fleet = valid_fleet(await check_fleet_file(services, request))
    await require_known_clusters(caller, fleet, fleets)
    if fleet.idle != (await fleets.current()).idle:
        require_role(caller, Role.ADMIN, "idle rules end other people's jobs, and these are not the server's")
    removals = await find_removals(ledger, fleets, fleet)
    require_confirmed(removals, request.confirmed, force=request.force)
    repricing = await find_repricing(ledger, fleets, fleet)
    repricing.require(force=request.force, reprice_past=request.reprice_past)
    fingerprints = {cluster_of(fleet, name): mark for name, mark in request.fingerprints.items()}
    number = await ledger.applies.queue(
        request.fleet,
        fleet_digest(request.fleet),
        fingerprints,
        force=request.force,
        by=caller.name,
        reprice_past=request.reprice_past,
    )
    return await apply_progress(ledger, number)


async def start_adoption(
    ledger: Ledger, fleets: Fleets, caller: Token, request: wire.AdoptionRequest
) -> wire.Apply:
    """Queue the adoption of objects that do not have Fairway's mark."""
    cluster = cluster_of(await fleets.current(), request.cluster)
    keys = [ObjectKey(o.kind, o.name) for o in request.objects]
    number = await ledger.applies.queue_adoption(cluster, keys, by=caller.name)
    return await apply_progress(ledger, number)


async def plan_leaving(
    services: PolicyServices, ledger: Ledger, fleets: Fleets, request: wire.LeaveRequest
) -> wire.Plan:
    """Plan the return of a cluster to its state before Fairway. Nothing is changed."""
    fleet = await fleets.current()
    cluster = cluster_of(fleet, request.cluster)
    saved = await ledger.applies.saved(cluster)
    kind = fleet.cluster(cluster).engine
    plan = await services.planner.plan_with(
        fleet, cluster, lambda engine: plan_leave(engine, cluster, kind, saved)
    )
    return await asyncio.to_thread(lambda: convert.plan(plan, "", [], [], []))


async def start_leaving(
    ledger: Ledger, fleets: Fleets, caller: Token, request: wire.LeaveRequest
) -> wire.Apply:
    """Queue the return of a cluster to its state before Fairway."""
    cluster = cluster_of(await fleets.current(), request.cluster)
    number = await ledger.applies.queue_return(ApplyKind.LEAVE, cluster, request.fingerprint, by=caller.name)
    return await apply_progress(ledger, number)


async def start_release(
    ledger: Ledger, fleets: Fleets, caller: Token, request: wire.ReleaseRequest
) -> wire.Apply:
    """Queue the release of every guard of a cluster."""
    cluster = cluster_of(await fleets.current(), request.cluster)
    number = await ledger.applies.queue_return(ApplyKind.RELEASE, cluster, "", by=caller.name)
    return await apply_progress(ledger, number)


async def apply_detail(ledger: Ledger, fleets: Fleets, caller: Token, number: int) -> wire.ApplyDetail:
    """Read one apply with every change, before and after, without budgets that the caller may not see."""
    found = await ledger.applies.one(number)
    if found is None:
        raise no_such_apply(number)
    earlier = await revision_before(ledger, found)
    before = await fleets.at(earlier) if earlier is not None else None
    after = await fleets.at(found.revision) if found.revision is not None else None
    visible = visible_teams(caller, await fleets.current())

    def convert_detail() -> wire.ApplyDetail:
        diffs = field_diffs(before, after) if after else []
        seen = (d for d in diffs if visible is None or not is_budget_field(d.what) or d.team in visible)
        return convert.apply_detail(found, list(seen))

    return await asyncio.to_thread(convert_detail)


async def apply_progress(ledger: Ledger, number: int) -> wire.Apply:
    """Read one apply without its changes: cheap enough to poll."""
    found = await ledger.applies.page(before=number + 1, limit=1)
    if not found or found[0].id != number:
        raise no_such_apply(number)
    return convert.apply(found[0])


async def list_applies(
    ledger: Ledger, *, cluster: str | None = None, before: int | None = None, limit: int
) -> list[wire.Apply]:
    """List applies, the newest first, without their changes."""
    return [convert.apply(a) for a in await ledger.applies.page(cluster=cluster, before=before, limit=limit)]


async def list_drift(
    ledger: Ledger,
    *,
    cluster: str | None = None,
    after: tuple[str, str, str, str] | None = None,
    limit: int,
) -> list[wire.Drift]:
    """List the differences from the last applied fleet, by cluster, object and field."""
    return [convert.drift(d) for d in await ledger.drift.page(cluster=cluster, after=after, limit=limit)]


async def list_not_checked(ledger: Ledger, cluster: str | None = None) -> list[wire.NotChecked]:
    """List the clusters that could not be compared with what was applied to them."""
    return [
        wire.NotChecked(
            cluster=c.cluster,
            since=c.since,
            code=c.condition.code,
            message=c.condition.message,
            hint=c.condition.hint,
        )
        for c in await ledger.conditions.all()
        if c.condition.type is ConditionType.DRIFT_NOT_CHECKED and cluster in (None, c.cluster)
    ]


async def list_interventions(
    ledger: Ledger, *, cluster: str | None = None, before: int | None = None, limit: int
) -> list[wire.Intervention]:
    """List interventions, the newest first."""
    return [
        convert.intervention(n)
        for n in await ledger.drift.interventions(cluster=cluster, before=before, limit=limit)
    ]


async def list_stopped(ledger: Ledger) -> list[wire.StoppedApply]:
    """List the applies that stopped before their end and that no later one has finished, by cluster."""
    return [convert.stopped(s) for s in await ledger.applies.stopped()]


async def list_teams(ledger: Ledger, fleets: Fleets) -> list[wire.Team]:
    """List the teams as last applied, each below its parent.

    Teams of an apply that stopped are listed too, with the clusters where not all of them was written.
    """
    fleet, stopped = await fleets.applied(), await list_stopped(ledger)
    found = {team.name: team for team in convert.teams(fleet)} if fleet else {}
    not_live: dict[str, list[str]] = {}
    for apply in stopped:
        begun = await fleets.at(apply.revision)
        for team in convert.teams(begun) if begun else ():
            found.setdefault(team.name, team)
        for name in (*apply.partly_live, *apply.not_live):
            not_live.setdefault(name, []).append(apply.cluster)
    counts, pools = await ledger.jobs.counts(), await ledger.clusters.pools()
    teams = convert.with_holdings(list(found.values()), counts, pools)
    colours = await ledger.team_colours.numbers(list(found), assigned)
    teams = [
        team.model_copy(update={"not_live_on": not_live.get(team.name, []), "colour": colours[team.name]})
        for team in teams
    ]
    return sorted(teams, key=convert.team_key)


async def render_files(
    services: PolicyServices, fleets: Fleets, caller: Token, request: wire.RenderRequest
) -> wire.Rendered:
    """Render the files that a Slurm cluster needs besides its policy. Nothing is changed."""
    fleet = valid_fleet(await check_fleet_file(services, request))
    await require_known_clusters(caller, fleet, fleets)
    cluster = cluster_of(fleet, request.cluster)
    if fleet.cluster(cluster).engine is not EngineKind.SLURM:
        raise RequestError(
            ErrorKind.INVALID,
            "NotSlurm",
            f"{cluster} is not a Slurm cluster: it needs no files",
            "fairway get clusters  shows each one's engine",
        )
    return wire.Rendered(cluster=cluster, files=dict(await services.render(fleet, cluster)))


async def import_fleet_file(
    services: PolicyServices, fleets: Fleets, request: wire.ImportRequest
) -> wire.Imported:
    """Describe an existing cluster as a fleet file. Nothing is changed."""
    fleet = await fleets.current()
    cluster = cluster_of(fleet, request.cluster)
    try:
        return await services.import_policy(fleet, cluster)
    except FairwayError as error:
        raise RequestError.wrap(ErrorKind.ENGINE_FAILED, error) from error


async def revision_before(ledger: Ledger, found: Apply) -> int | None:
    """Find the revision that was applied before this apply. Returns None if there is none."""
    earlier = await ledger.applies.page(before=found.id, limit=_MAX_EARLIER)
    done = (a.revision for a in earlier if a.kind is ApplyKind.APPLY and a.state is ApplyState.DONE)
    return next(done, None)


async def check_fleet_file(services: PolicyServices, request: wire.FleetRequest) -> Report:
    """Check a fleet file as `fairway check` does, in a thread; large ones take seconds, one at a time."""
    async with services.checks_large if len(request.fleet) > _LARGE_FILE else nullcontext():
        return await asyncio.to_thread(services.check, request.fleet, request.source)


def valid_fleet(report: Report) -> Fleet:
    """Return the fleet of a valid file. Raises RequestError with all faults, as `fairway check` does."""
    if report.fleet is not None:
        return report.fleet
    error = InvalidFile(report.source, report.faults)
    raise RequestError(
        ErrorKind.INVALID,
        error.code,
        error.message,
        error.hint,
        faults=[convert.file_fault(f) for f in report.faults],
    )


async def require_known_clusters(caller: Token, fleet: Fleet, fleets: Fleets) -> None:
    """Refuse a fleet with new or changed connections, folders, telemetry or channels unless by an admin.

    Anyone who can set a URL and a path could otherwise have any file that the server can read sent anywhere,
    or, by a kubeconfig, any program run; and a folder is read by the server or mounted into jobs. Everyone
    else can only use the connections and folders that the server already has.
    """
    if caller.role.may(Role.ADMIN):
        return
    current = await fleets.current()
    known = {c.name: c for c in current.clusters}
    changed = [
        c.name for c in fleet.clusters if c.name not in known or _reached(c) != _reached(known[c.name])
    ]
    if changed:
        require_role(
            caller,
            Role.ADMIN,
            f"{', '.join(changed)} is reached in another way, or has other folders, than the server's fleet "
            "says",
        )
    channels = {t.name: _addresses(t.notify) for t in current.teams}
    told = [
        t.name for t in fleet.teams if t.notify is not None and _addresses(t.notify) != channels.get(t.name)
    ]
    if told or (fleet.notify is not None and _addresses(fleet.notify) != _addresses(current.notify)):
        require_role(
            caller,
            Role.ADMIN,
            f"notices to {', '.join(told) or 'the operators'} change their channels",
        )


def _addresses(channels: Channels | None) -> Channels | None:
    """Return channels without their rules, which send nothing to another address."""
    return None if channels is None else replace(channels, rules=DEFAULT_RULES)


def _reached(cluster: Cluster) -> object:
    return cluster.connection, cluster.folders, cluster.telemetry


def cluster_of(fleet: Fleet, name: str) -> ClusterName:
    """Return the name of a cluster of the fleet. Raises RequestError if the fleet does not have it."""
    if any(c.name == name for c in fleet.clusters):
        return ClusterName(name)
    raise RequestError(
        ErrorKind.NOT_FOUND,
        "NoSuchCluster",
        f"the fleet has no cluster {name!r}",
        f"it has: {', '.join(c.name for c in fleet.clusters) or 'none yet'}",
    )


def no_such_apply(number: int) -> RequestError:
    """Build the error for an apply that does not exist."""
    return RequestError(
        ErrorKind.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "fairway history  lists them"
    )


def without_removals(plan: FleetPlan, removals: Iterable[wire.Removal]) -> FleetPlan:
    """Leave out what clusters take away that a removal of a team or member says already."""
    teams = {r.name for r in removals if r.kind is RemovalKind.TEAM}
    members = {(r.name, r.what) for r in removals if r.kind is RemovalKind.MEMBER}

    def is_said(taken: TakenAway) -> bool:
        return taken.team is not None and (taken.team in teams or (taken.team, taken.user) in members)

    return replace(
        plan,
        clusters=tuple(replace(c, taken=tuple(t for t in c.taken if not is_said(t))) for c in plan.clusters),
    )


def lifted_diffs(applied: Iterable[AppliedCluster]) -> list[wire.FieldDiff]:
    """Describe that policies that were left or released are enforced again: something to apply by itself."""
    return [
        wire.FieldDiff(
            team=None,
            sign="~",
            what=f"policy on {a.cluster}",
            before=f"{a.lifted} by {a.lifted_by}",
            after="enforced",
        )
        for a in applied
        if a.lifted is not None
    ]


async def _hold_diffs(ledger: Ledger, before: Fleet | None, after: Fleet) -> list[wire.FieldDiff]:
    """Compare both fleets with what is spent; approved raises count for both."""
    now = int(time.time())
    after = await with_raised_budgets(after, ledger, now)
    before = None if before is None else await with_raised_budgets(before, ledger, now)
    return hold_diffs(before, after, await ledger.budgets.statuses(), now)


def hold_diffs(
    before: Fleet | None, after: Fleet, statuses: Sequence[StoredBudgetStatus], now: int
) -> list[wire.FieldDiff]:
    """Describe which teams a new fleet holds at once, because they have spent its budgets already."""
    held = {} if before is None else holds_of(before, statuses, now)
    holds = holds_of(after, statuses, now)
    spent = {status.team: status.spent for status in statuses}
    found = []
    for team in after.teams:
        hold = holds.get(team.name)
        if team.budget is None or hold is None or stricter(hold, held.get(team.name)) is held.get(team.name):
            continue
        amount = spent[team.name if team.name in spent else team.renamed_from or team.name]
        what = "stops" if hold is Hold.STOP else "starts only preemptible jobs"
        text = f"{amount:,.0f} of {team.budget.amount:,f} spent: {team.name} {what} at once"
        found.append(wire.FieldDiff(team=team.name, sign="+", what="budget hold", before=None, after=text))
    return found


def field_diffs(before: Fleet | None, after: Fleet) -> list[wire.FieldDiff]:
    """Describe the differences between two fleets in terms of the fleet file."""
    return [
        wire.FieldDiff(team=group.team, sign=c.sign, what=c.what, before=c.before, after=c.after)
        for group in describe(before, after)
        for c in group.changes
    ]
