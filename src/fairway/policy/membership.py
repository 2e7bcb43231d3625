"""Whose a job is: the team and the priority it has, or why a user may not submit it so. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from fairway.model.errors import PermanentError
from fairway.model.fleet import Fleet
from fairway.model.job import JobSpec
from fairway.model.names import UserName
from fairway.model.spelling import nearest
from fairway.model.team import Priority, Team

NAMED: Final = 12
"""How many names a message has before it only counts."""


class NotAllowed(PermanentError):
    """The user may not submit it so: no member of the team, a priority that is not the team's."""


def team_of(fleet: Fleet, spec: JobSpec, user: UserName) -> Team:
    """The team a user's job belongs to; raises NotAllowed."""
    if spec.team is None:
        name = fleet.default_teams().get(user)
        if name is None:
            raise NotAllowed(
                "NoTeam",
                f"{user} is a member of no team",
                "ask a platform engineer for one:  fairway get teams  shows them",
            )
    else:
        name = spec.team
    team = next((t for t in fleet.teams if t.name == name), None)
    if team is None:
        raise NotAllowed(
            "NoSuchTeam", f"the fleet has no team {name!r}", near(name, [t.name for t in fleet.teams])
        )
    if user not in team.members:
        own = sorted(t.name for t in fleet.teams if user in t.members)
        raise NotAllowed(
            "NotAMember",
            f"{user} is no member of team {name}",
            f"submit it for a team of yours: {', '.join(own)}" if own else "ask its lead to add you",
        )
    if team.draining:
        raise NotAllowed(
            "TeamDraining",
            f"team {name} is draining: nothing of it starts any more",
            "submit it for another team",
        )
    return team


def priority_of(fleet: Fleet, spec: JobSpec, team: Team) -> Priority:
    """The priority a team's job has; raises NotAllowed."""
    if spec.priority is None:
        default = fleet.default_priority
        if default.name in team.priorities:
            return default
        if team.priorities:  # the nearest below the default, else whatever is the lowest it has
            ranked = [fleet.priority(name) for name in team.priorities]
            below = [p for p in ranked if p.rank <= default.rank]
            return below[0] if below else ranked[-1]
        return default
    if not any(p.name == spec.priority for p in fleet.priorities):
        raise NotAllowed(
            "NoSuchPriority",
            f"the fleet has no priority {spec.priority!r}",
            near(spec.priority, [p.name for p in fleet.priorities]),
        )
    if spec.priority not in team.priorities:
        raise NotAllowed(
            "PriorityNotAllowed",
            f"jobs of team {team.name} may not have priority {spec.priority}",
            f"it may use: {', '.join(team.priorities) or 'none'}",
        )
    return fleet.priority(spec.priority)


def near(name: str, known: Iterable[str]) -> str:
    """The hint about a name that is not there: what was probably meant, else what there is."""
    there = list(known)
    close = nearest(name, there, most=1)
    return f"did you mean {close[0]}?" if close else f"it has: {', '.join(there[:NAMED]) or 'none'}"
