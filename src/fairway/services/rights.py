"""What a caller may do with a job, and whose money they may see. Pure.

Viewers, operators and admins see all money: a viewer's token is given to finance, dashboards and auditors.
Members and leads see their own teams with all inside those. What nobody used is nobody's: everybody may
see it.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from fairway.ledger import Token, UsageFilter
from fairway.ledger.records.jobs import JobRow
from fairway.model.access import Deed, Role, may
from fairway.model.fleet import Fleet
from fairway.model.job import format_job_id
from fairway.model.names import TeamName, UserName
from fairway.model.team import TeamTree
from fairway.model.text import first_few
from fairway.services.errors import ErrorKind, RequestError

_NAMED: Final = 10
"""How many jobs a message names before it only counts."""


@dataclass(frozen=True, slots=True)
class Person:
    """A caller as somebody who has jobs and is in teams."""

    user: UserName
    role: Role
    teams: frozenset[TeamName]
    """Teams they are a member of, and all inside those."""

    def may(self, deed: Deed, job: JobRow) -> bool:
        """Whether they may do it. A job whose user the engine does not tell is nobody's own."""
        own = bool(job.user) and job.user == self.user
        return may(self.role, deed, own=own, of_team=job.team in self.teams)


def person_of(token: Token, fleet: Fleet) -> Person:
    """Who is behind a token."""
    user = UserName(token.user)
    tree = TeamTree(fleet.teams)
    teams = {inner.name for team in fleet.teams if user in team.members for inner in tree.subtree(team)}
    return Person(user, token.role, frozenset(teams))


def require_role(caller: Token, needed: Role, what: str) -> None:
    """Refuse what only a higher role may, on a route that is open to lower ones for the rest."""
    if not caller.role.may(needed):
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "RoleTooLow",
            f"{what}; token {caller.name} has the role {caller.role}, this needs {needed}",
            f"ask an admin for a token:  fairway token create NAME --role {needed}",
        )


def submitting_user(token: Token, as_user: str | None) -> UserName:
    """Whose jobs the caller submits: their own, or, for an operator, anybody's."""
    own = UserName(token.user)
    if as_user is None or as_user == own:
        return own
    require_role(token, Role.OPERATOR, f"you are {own} and submit as {as_user}")
    return UserName(as_user)


def require_all(person: Person, deed: Deed, jobs: Iterable[JobRow]) -> None:
    """Refuse the whole request if one of the jobs is not theirs to change, and name those that are not."""
    refused = [job for job in jobs if not person.may(deed, job)]
    if refused:
        raise not_yours(person, deed, refused)


def not_yours(person: Person, deed: Deed, refused: list[JobRow]) -> RequestError:
    """The refusal, with the jobs it is about."""
    named = first_few([f"{format_job_id(j.id)} ({j.user or 'unknown'})" for j in refused], _NAMED)
    verb = "change" if deed is Deed.CHANGE else "read"
    teams = sorted({j.team for j in refused if j.team is not None})
    of = f" of {', '.join(teams[:_NAMED])}" if teams else ""
    return RequestError(
        ErrorKind.FORBIDDEN,
        "NotYourJob",
        f"{person.user} with the role {person.role} may not {verb} {named}; nothing was done",
        f"ask its owner, a lead{of}, or an operator;  fairway get jobs --mine  lists yours",
    )


def sees_all(token: Token) -> bool:
    """Whether all money is theirs to see, and with it the fleet file, which tells every team's budget."""
    return token.role not in (Role.MEMBER, Role.LEAD)


def teams_seen(token: Token, fleet: Fleet) -> frozenset[str] | None:
    """Names of the teams whose money they may see; None: all."""
    if sees_all(token):
        return None
    return frozenset(person_of(token, fleet).teams)


def check_sees_all(token: Token, fleet: Fleet) -> None:
    """Raise RequestError unless all money is theirs to see: a whole bill tells what others spent."""
    if teams_seen(token, fleet) is not None:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "NotYourMoney",
            "the bill of a pool is everybody's, and you see your own teams' alone",
            "ask an operator, or one with a viewer's token; yours is  fairway report cost",
        )


def usage_filter(
    token: Token, fleet: Fleet, team: str | None, user: str | None, pool: str | None
) -> UsageFilter:
    """Narrow a filter to what the caller may see; raises RequestError for an unknown team or pool."""
    seen = teams_seen(token, fleet)
    teams = seen if team is None else _subtree(fleet, team, seen)
    if pool is not None and pool not in {p.name for p in fleet.pools}:
        raise RequestError(
            ErrorKind.NOT_FOUND, "NoSuchPool", f"there is no pool {pool}", "fairway get pools  lists them"
        )
    return UsageFilter(
        teams=teams,
        users=None if user is None else frozenset({user}),
        pools=None if pool is None else frozenset({pool}),
    )


def _subtree(fleet: Fleet, team: str, seen: frozenset[str] | None) -> frozenset[str]:
    tree = TeamTree(fleet.teams)
    if team not in tree:
        raise RequestError(
            ErrorKind.NOT_FOUND, "NoSuchTeam", f"there is no team {team}", "fairway get teams  lists them"
        )
    if seen is not None and team not in seen:
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "NotYourTeam",
            f"{team} is not your team, nor inside one",
            f"yours: {', '.join(sorted(seen)) or 'none'}; ask a member or an operator",
        )
    return frozenset(t.name for t in tree.subtree(tree[team]))
