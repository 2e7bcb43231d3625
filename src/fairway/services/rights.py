"""Check what a caller may do with a job, and whose costs they may see. Pure functions.

Viewers, operators and admins see all costs: viewer tokens are for finance, dashboards and auditors. Members
and leads see those of their own teams and the descendants. Everybody may see unused capacity, which has no
owner.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairway.ledger import Token, UsageFilter
from fairway.ledger.records.jobs import JobRow
from fairway.model.access import JobPermission, Role, may
from fairway.model.fleet import Fleet
from fairway.model.job import format_job_id
from fairway.model.names import TeamName, UserName, is_system_user
from fairway.model.team import TeamTree
from fairway.model.text import first_few
from fairway.services.errors import ErrorKind, RequestError

_MAX_NAMED: Final = 10
"""How many jobs a message names before it only counts."""


@dataclass(frozen=True, slots=True)
class Person:
    """A caller as a user of jobs and a member of teams."""

    user: UserName
    role: Role
    teams: frozenset[TeamName]
    """Teams they are a member of, and the descendants of those."""

    @property
    def visible_teams(self) -> frozenset[str] | None:
        """Return the names of the teams whose costs they may see; None is all."""
        return None if _sees_all(self.role) else self.teams

    def may(self, permission: JobPermission, job: JobRow) -> bool:
        """Return whether they have a permission on a job. A job whose user is unknown has no owner."""
        own = bool(job.user) and job.user == self.user
        return may(self.role, permission, own=own, of_team=job.team in self.teams)


def person_of(token: Token, fleet: Fleet) -> Person:
    """Return the user of a token with their teams."""
    user = UserName(token.user)
    tree = TeamTree(fleet.teams)
    teams = {inner.name for team in fleet.teams if user in team.members for inner in tree.subtree(team)}
    return Person(user, token.role, frozenset(teams))


def require_role(caller: Token, needed: Role, what: str) -> None:
    """Raise RequestError if the caller's role is too low, on a route that lower roles may call."""
    if not caller.role.may(needed):
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "RoleTooLow",
            f"{what}; token {caller.name} has the role {caller.role}, this needs {needed}",
            f"ask an admin for a token:  fairway token create NAME --role {needed}",
        )


def submitting_user(token: Token, as_user: str | None) -> UserName:
    """Return the user to submit jobs as: the caller's own, or for an operator any user."""
    own = UserName(token.user)
    user = own if as_user is None else UserName(as_user)
    if user != own:
        require_role(token, Role.OPERATOR, f"you are {own} and submit as {user}")
    require_person(user, reserved=is_system_user(user))
    return user


def require_person(user: str, *, reserved: bool) -> None:
    """Raise RequestError for a reserved user: whoever runs a job as one can become any other user."""
    if reserved:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "SystemUser",
            f"{user} is a user of the system or of Fairway itself, so no jobs are submitted as it",
            "name the owner of the jobs:  --as alice, --user alice",
        )


def require_permission(person: Person, permission: JobPermission, jobs: Iterable[JobRow]) -> None:
    """Raise RequestError with the jobs on which a person lacks the permission, if there are any."""
    refused = [job for job in jobs if not person.may(permission, job)]
    if refused:
        raise forbidden_jobs(person, permission, refused)


def forbidden_jobs(person: Person, permission: JobPermission, refused: list[JobRow]) -> RequestError:
    """Build the error that names the jobs on which a person lacks a permission."""
    named = first_few([f"{format_job_id(j.id)} ({j.user or 'unknown'})" for j in refused], _MAX_NAMED)
    verb = "change" if permission is JobPermission.CHANGE else "read"
    teams = sorted({j.team for j in refused if j.team is not None})
    of = f" of {', '.join(teams[:_MAX_NAMED])}" if teams else ""
    return RequestError(
        ErrorKind.FORBIDDEN,
        "NotYourJob",
        f"{person.user} with the role {person.role} may not {verb} {named}; nothing was done",
        f"ask its owner, a lead{of}, or an operator;  fairway get jobs --mine  lists yours",
    )


def sees_all(token: Token) -> bool:
    """Return whether the caller may see all costs, and with them the fleet file, which has all budgets."""
    return _sees_all(token.role)


def _sees_all(role: Role) -> bool:
    return role not in (Role.MEMBER, Role.LEAD, Role.ALERTS)


def visible_teams(token: Token, fleet: Fleet) -> frozenset[str] | None:
    """Return the names of the teams whose costs the caller may see; None is all."""
    return None if sees_all(token) else person_of(token, fleet).visible_teams


def require_sees_all(token: Token, fleet: Fleet) -> None:
    """Raise RequestError unless the caller may see all costs: a whole bill shows what others spent."""
    if visible_teams(token, fleet) is not None:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "NotYourMoney",
            "the bill of a pool includes all teams, and you may see only your own",
            "ask an operator or a viewer; for your teams use  fairway report cost",
        )


def no_such_pool(pool: str) -> RequestError:
    """Build the error for the name of a pool that does not exist."""
    return RequestError(
        ErrorKind.NOT_FOUND, "NoSuchPool", f"there is no pool {pool}", "fairway get pools  lists them"
    )


def no_such_team(team: str) -> RequestError:
    """Build the error for the name of a team that does not exist."""
    return RequestError(
        ErrorKind.NOT_FOUND, "NoSuchTeam", f"there is no team {team}", "fairway get teams  lists them"
    )


def usage_filter(
    token: Token, fleet: Fleet, team: str | None, user: str | None, pool: str | None
) -> UsageFilter:
    """Build a filter limited to what the caller may see. Raises RequestError for an unknown team or pool."""
    visible = visible_teams(token, fleet)
    teams = visible if team is None else _subtree(fleet, team, visible)
    if pool is not None and pool not in {p.name for p in fleet.pools}:
        raise no_such_pool(pool)
    return UsageFilter(
        teams=teams,
        users=None if user is None else frozenset({user}),
        pools=None if pool is None else frozenset({pool}),
    )


def _subtree(fleet: Fleet, team: str, visible: frozenset[str] | None) -> frozenset[str]:
    tree = TeamTree(fleet.teams)
    if team not in tree:
        raise no_such_team(team)
    if visible is not None and team not in visible:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "NotYourTeam",
            f"{team} is not your team, nor inside one",
            f"yours: {', '.join(sorted(visible)) or 'none'}; ask a member or an operator",
        )
    return frozenset(t.name for t in tree.subtree(tree[team]))
