"""Read policy: plans, what applies changed, drift, teams, and what an engine has or needs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairway.files import InvalidFile, Report, Severity, fleet_digest
from fairway.ledger import Ledger, Token
from fairway.ledger.records.policy import Apply
from fairway.model.access import Role
from fairway.model.apply import ApplyKind, ApplyState
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import ClusterName
from fairway.policy.fleet_diff import describe
from fairway.services.convert import policy as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.plans import Planner
from fairway.services.rights import require_role
from fairway.wire import policy as wire

_LOOKED_BACK: Final = 50
"""Applies that are read to find the one before."""


@dataclass(frozen=True, slots=True)
class PolicyParts:
    """What policy needs beside the ledger; `server` builds it."""

    check: Callable[[str, str], Report]
    """A fleet file's text and its name; relative paths count from the server's folder."""
    planner: Planner
    render: Callable[[Fleet, ClusterName], Awaitable[Mapping[str, str]]]
    """The files a Slurm cluster needs beside its policy."""
    import_policy: Callable[[Fleet, ClusterName], Awaitable[wire.Imported]]
    """An existing cluster as a fleet file."""


async def planned(parts: PolicyParts, fleets: Fleets, caller: Token, asked: wire.PlanRequest) -> wire.Plan:
    """What a fleet file would change. Nothing is changed."""
    report = await checked(parts, asked)
    fleet = fleet_of(report)
    await require_known_connections(caller, fleet, fleets)
    cluster = cluster_of(fleet, asked.cluster) if asked.cluster else None
    found = await parts.planner.plan(fleet, cluster)
    before = await fleets.applied(cluster)
    warnings = [f for f in report.faults if f.severity is Severity.WARNING]
    # A large plan takes a second to put together: others are answered meanwhile.
    return await asyncio.to_thread(
        lambda: convert.plan(found, fleet_digest(asked.fleet), said(before, fleet), warnings)
    )


async def apply_detail(ledger: Ledger, fleets: Fleets, number: int) -> wire.ApplyDetail:
    """One apply with every change, before and after."""
    found = await ledger.applies.one(number)
    if found is None:
        raise no_such_apply(number)
    earlier = await revision_before(ledger, found)
    before = await fleets.at(earlier) if earlier is not None else None
    after = await fleets.at(found.revision) if found.revision is not None else None
    return await asyncio.to_thread(lambda: convert.apply_detail(found, said(before, after) if after else []))


async def apply_progress(ledger: Ledger, number: int) -> wire.Apply:
    """Read one apply without its changes: cheap enough to ask again and again."""
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
    """List what differs from what was last applied, by cluster, object and field."""
    return [convert.drift(d) for d in await ledger.drift.page(cluster=cluster, after=after, limit=limit)]


async def list_nudges(
    ledger: Ledger, *, cluster: str | None = None, before: int | None = None, limit: int
) -> list[wire.Nudge]:
    """List corrective actions on engines, the newest first."""
    return [convert.nudge(n) for n in await ledger.drift.nudges(cluster=cluster, before=before, limit=limit)]


async def list_teams(fleets: Fleets) -> list[wire.Team]:
    """List the teams as last applied, each below its parent."""
    fleet = await fleets.applied()
    return convert.teams(fleet) if fleet else []


def team_key(team: wire.Team) -> str:
    """The key that `list_teams` orders teams by."""
    return convert.team_key(team)


async def rendered(
    parts: PolicyParts, fleets: Fleets, caller: Token, asked: wire.RenderRequest
) -> wire.Rendered:
    """Write the files a Slurm cluster needs beside its policy. Nothing is changed."""
    fleet = fleet_of(await checked(parts, asked))
    await require_known_connections(caller, fleet, fleets)
    cluster = cluster_of(fleet, asked.cluster)
    if fleet.cluster(cluster).engine is not EngineKind.SLURM:
        raise RequestError(
            ErrorKind.INVALID,
            "NotSlurm",
            f"{cluster} is not a Slurm cluster: it needs no files beside its policy",
            "fairway get clusters  shows each one's engine",
        )
    return wire.Rendered(cluster=cluster, files=dict(await parts.render(fleet, cluster)))


async def imported(parts: PolicyParts, fleets: Fleets, asked: wire.ImportRequest) -> wire.Imported:
    """Describe an existing cluster as a fleet file. Nothing is changed."""
    fleet = await fleets.current()
    cluster = cluster_of(fleet, asked.cluster)
    try:
        return await parts.import_policy(fleet, cluster)
    except FairwayError as error:
        raise RequestError.wrap(ErrorKind.ENGINE_FAILED, error) from error


async def revision_before(ledger: Ledger, found: Apply) -> int | None:
    """The fleet's revision that was applied before this apply."""
    earlier = await ledger.applies.page(before=found.id, limit=_LOOKED_BACK)
    done = (a.revision for a in earlier if a.kind is ApplyKind.APPLY and a.state is ApplyState.DONE)
    return next(done, None)


async def checked(parts: PolicyParts, asked: wire.FleetRequest) -> Report:
    """All that `fairway check` says. A large file takes a second of work: others are answered meanwhile."""
    return await asyncio.to_thread(parts.check, asked.fleet, asked.source)


def fleet_of(report: Report) -> Fleet:
    """The fleet of a file without faults; otherwise all of them, as `fairway check` would say them."""
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


async def require_known_connections(caller: Token, fleet: Fleet, fleets: Fleets) -> None:
    """Let only an admin say where a cluster is and which credentials open it.

    Whoever writes a URL and a path could otherwise have any file that the server may read sent anywhere, or,
    by a kubeconfig, any program run. For everybody else a cluster is what the server already knows.
    """
    if caller.role.may(Role.ADMIN):
        return
    here = {c.name: c.connection for c in (await fleets.current()).clusters}
    other = [c.name for c in fleet.clusters if here.get(c.name) != c.connection]
    if other:
        require_role(
            caller, Role.ADMIN, f"{', '.join(other)} is reached in another way than the server's fleet says"
        )


def cluster_of(fleet: Fleet, name: str) -> ClusterName:
    """A cluster that the fleet has."""
    if any(c.name == name for c in fleet.clusters):
        return ClusterName(name)
    raise RequestError(
        ErrorKind.NOT_FOUND,
        "NoSuchCluster",
        f"the fleet has no cluster {name!r}",
        f"it has: {', '.join(c.name for c in fleet.clusters) or 'none yet'}",
    )


def no_such_apply(number: int) -> RequestError:
    """A number that none has."""
    return RequestError(
        ErrorKind.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "fairway history  lists them"
    )


def said(before: Fleet | None, after: Fleet) -> list[wire.FieldDiff]:
    """What differs between two fleets, in the words of the fleet file."""
    return [
        wire.FieldDiff(team=group.team, sign=c.sign, what=c.word, before=c.before, after=c.after)
        for group in describe(before, after)
        for c in group.changes
    ]
