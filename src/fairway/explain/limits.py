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
    """What a waiting job asks for, and what is held already."""

    team: Team
    user: UserName
    supply: Supply
    devices: int
    seconds: int | None
    held: Mapping[TeamName, int]
    """Devices of the supply that running jobs of each team hold, its descendants' included."""
    held_by_user: int
    """Devices of the supply that the user's running jobs of this team hold."""


def exceeded_limits(request: WaitingRequest, tree: TeamTree) -> Iterator[Finding]:
    """Yield the limits that keep a job from starting: those it can never meet first."""
    team, limits, devices = request.team, request.team.limits, request.devices
    noun = "slice" if request.supply.slice else "GPU"
    if limits.job_seconds is not None and (request.seconds or 0) > limits.job_seconds:
        asked, limit = span(request.seconds or 0), span(limits.job_seconds)
        yield Finding("JobTimeLimit", f"it asks for {asked}; one job of {team.name} may have {limit}")
    if limits.job_gpus is not None and devices > limits.job_gpus:
        allowed = count(limits.job_gpus, noun)
        yield Finding("JobAboveLimit", f"it asks for {devices}; one job of {team.name} may have {allowed}")
    limit_of_user = limits.user_gpus
    if limit_of_user is not None and request.held_by_user + devices > limit_of_user:
        yield Finding(
            "UserLimit",
            f"{request.user} holds {request.held_by_user} of the {count(limit_of_user, noun)} that one user "
            f"of {team.name} may hold, and the job needs {devices}",
        )
    for each in (team, *tree.ancestors(team)):
        grant, held = each.grant(request.supply), request.held.get(each.name, 0)
        if grant is not None and grant.ceiling is not None and held + devices > grant.ceiling:
            yield Finding(
                "TeamAtCeiling",
                f"{each.name} holds {held} of the {count(grant.ceiling, noun)} it may hold of "
                f"{request.supply} ({grant.guarantee} guaranteed, {grant.borrow} borrowed at most), "
                f"and the job needs {devices}",
            )
