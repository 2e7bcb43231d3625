"""What the routes and the pages of policy both answer with: plans, and what an apply changed."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fairway.api import policy_known as known
from fairway.api import policy_wire as wire
from fairway.api.access import require_role
from fairway.api.fleets import Fleets
from fairway.api.problems import ApiError
from fairway.control.planning import Planner
from fairway.files import InvalidFile, Report, Severity, fleet_digest
from fairway.ledger import Ledger, Token
from fairway.ledger.policy_records import Apply
from fairway.model.access import Role
from fairway.model.apply import ApplyKind, ApplyState
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.policy.words import describe

_LOOKED_BACK: Final = 50
"""Applies that are read to find the one before."""


@dataclass(frozen=True, slots=True)
class PolicyParts:
    """What policy needs beside the ledger; `wiring` knows how to make them."""

    check: Callable[[str, str], Report]
    """A fleet file's text and its name; relative paths count from the server's folder."""
    planner: Planner
    render: Callable[[Fleet, ClusterName], Awaitable[Mapping[str, str]]]
    """The files a Slurm cluster needs beside its policy."""
    import_policy: Callable[[Fleet, ClusterName], Awaitable[wire.Imported]]
    """An existing cluster as a fleet file."""


async def planned(parts: PolicyParts, fleets: Fleets, caller: Token, asked: wire.AskedPlan) -> wire.Plan:
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
        lambda: known.plan(found, fleet_digest(asked.fleet), said(before, fleet), warnings)
    )


async def apply_detail(ledger: Ledger, fleets: Fleets, number: int) -> wire.ApplyDetail:
    """One apply with every change, before and after."""
    found = await ledger.apply(number)
    if found is None:
        raise no_such_apply(number)
    earlier = await revision_before(ledger, found)
    before = await fleets.at(earlier) if earlier is not None else None
    after = await fleets.at(found.revision) if found.revision is not None else None
    return await asyncio.to_thread(lambda: known.apply_detail(found, said(before, after) if after else []))


async def revision_before(ledger: Ledger, found: Apply) -> int | None:
    """The fleet's revision that was applied before this apply."""
    earlier = await ledger.applies(before=found.id, limit=_LOOKED_BACK)
    done = (a.revision for a in earlier if a.kind is ApplyKind.APPLY and a.state is ApplyState.DONE)
    return next(done, None)


async def checked(parts: PolicyParts, asked: wire.AskedFleet) -> Report:
    """All that `fairway check` says. A large file takes a second of work: others are answered meanwhile."""
    return await asyncio.to_thread(parts.check, asked.fleet, asked.source)


def fleet_of(report: Report) -> Fleet:
    """The fleet of a file without faults; otherwise all of them, as `fairway check` would say them."""
    if report.fleet is not None:
        return report.fleet
    error = InvalidFile(report.source, report.faults)
    raise ApiError(
        HTTPStatus.UNPROCESSABLE_ENTITY,
        error.code,
        error.message,
        error.hint,
        faults=[known.file_fault(f) for f in report.faults],
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
    raise ApiError(
        HTTPStatus.NOT_FOUND,
        "NoSuchCluster",
        f"the fleet has no cluster {name!r}",
        f"it has: {', '.join(c.name for c in fleet.clusters) or 'none yet'}",
    )


def no_such_apply(number: int) -> ApiError:
    """A number that none has."""
    return ApiError(
        HTTPStatus.NOT_FOUND, "NoSuchApply", f"there is no apply {number}", "fairway history  lists them"
    )


def said(before: Fleet | None, after: Fleet) -> list[wire.Said]:
    """What differs between two fleets, in the words of the fleet file."""
    return [
        wire.Said(team=group.team, sign=c.sign, what=c.word, before=c.before, after=c.after)
        for group in describe(before, after)
        for c in group.changes
    ]
