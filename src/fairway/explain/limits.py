"""Find the limits of a policy that a waiting job would exceed, with who holds how much of them. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fairway.explain.findings import Finding
from fairway.model.names import TeamName, UserName
from fairway.model.team import Supply, Team, TeamTree
from fairway.model.text import count, span


@dataclass(frozen=True, slots=True)
class WaitingRequest:
    """The request of a waiting job, and what is in use already."""

    team: Team
    user: UserName
    supply: Supply
    devices: int
    seconds: int | None
    held: Mapping[TeamName, int]
    """GPUs or slices that running jobs of each team and its descendants use."""
    held_by_user: int
    """GPUs or slices that the user's running jobs of this team use."""


def exceeded_limits(request: WaitingRequest, tree: TeamTree) -> Iterator[Finding]:
    """Yield the limits that keep a job from starting: those it can never meet first."""
    team, limits, devices = request.team, request.team.limits, request.devices
    noun, pool = request.supply.noun, request.supply.pool
    if limits.job_seconds is not None and (request.seconds or 0) > limits.job_seconds:
        asked, limit = span(request.seconds or 0), span(limits.job_seconds)
        yield Finding(
            "JobTimeLimit",
            f"The job requests {asked}, and one job of team {team.name} may run for {limit}",
            subject=team.name,
        )
    if limits.job_gpus is not None and devices > limits.job_gpus:
        allowed = count(limits.job_gpus, noun)
        text = f"The job requests {devices}, and one job of team {team.name} may use {allowed}"
        yield Finding("JobAboveLimit", text, subject=team.name)
    limit_of_user = limits.user_gpus
    if limit_of_user is not None and devices > limit_of_user:
        allowed = count(limit_of_user, noun)
        text = f"The job requests {devices}, and one user of team {team.name} may use {allowed} in {pool}"
        yield Finding("JobAboveLimit", text, subject=team.name)
    elif limit_of_user is not None and request.held_by_user + devices > limit_of_user:
        yield Finding(
            "UserLimit",
            f"User {request.user} already uses {request.held_by_user} of the {count(limit_of_user, noun)} "
            f"that one user of {team.name} may use in {pool}, and the job needs {devices}",
            subject=team.name,
        )
    for each in (team, *tree.ancestors(team)):
        grant, held = each.grant(request.supply), request.held.get(each.name, 0)
        if grant is None or grant.ceiling is None or held + devices <= grant.ceiling:
            continue
        if devices > grant.ceiling:
            text = (
                f"The job requests {count(devices, noun)}, and team {each.name} may use {grant.ceiling} in "
                f"{pool} at most ({grant.guarantee} guaranteed, up to {grant.borrow} borrowed)"
            )
            yield Finding("AboveQuota", text, subject=each.name)
        else:
            yield Finding(
                "TeamAtCeiling",
                f"Team {each.name} already uses {held} of the {count(grant.ceiling, noun)} it may use in "
                f"{pool} ({grant.guarantee} guaranteed, up to {grant.borrow} borrowed), and the job needs "
                f"{devices}",
                subject=each.name,
            )
