"""Whose money a caller may see. Pure.

Viewers, operators and admins see all: a viewer's token is given to finance, dashboards and auditors. Members
and leads see their own teams with all inside those. What nobody used is nobody's, and everybody may see it.
"""

from __future__ import annotations

from http import HTTPStatus

from fairway.api.job_rights import person_of
from fairway.api.problems import ApiError
from fairway.ledger import Token, UsageFilter
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.team import TeamTree


def sees_all(token: Token) -> bool:
    """Whether all money is theirs to see, and with it the fleet file, which tells every team's budget."""
    return token.role not in (Role.MEMBER, Role.LEAD)


def teams_seen(token: Token, fleet: Fleet) -> frozenset[str] | None:
    """Names of the teams whose money they may see; None: all."""
    if sees_all(token):
        return None
    return frozenset(person_of(token, fleet).teams)


def check_sees_all(token: Token, fleet: Fleet) -> None:
    """Raise ApiError unless all money is theirs to see: a whole bill tells what others spent."""
    if teams_seen(token, fleet) is not None:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "NotYourMoney",
            "the bill of a pool is everybody's, and you see your own teams' alone",
            "ask an operator, or one with a viewer's token; yours is  fairway report cost",
        )


def usage_filter(
    token: Token, fleet: Fleet, team: str | None, user: str | None, pool: str | None
) -> UsageFilter:
    """What was asked for, as far as they may see it; raises ApiError for a team or pool that is not there."""
    seen = teams_seen(token, fleet)
    teams = seen if team is None else _subtree(fleet, team, seen)
    if pool is not None and pool not in {p.name for p in fleet.pools}:
        raise ApiError(
            HTTPStatus.NOT_FOUND, "NoSuchPool", f"there is no pool {pool}", "fairway get pools  lists them"
        )
    return UsageFilter(
        teams=teams,
        users=None if user is None else frozenset({user}),
        pools=None if pool is None else frozenset({pool}),
    )


def _subtree(fleet: Fleet, team: str, seen: frozenset[str] | None) -> frozenset[str]:
    tree = TeamTree(fleet.teams)
    if team not in tree:
        raise ApiError(
            HTTPStatus.NOT_FOUND, "NoSuchTeam", f"there is no team {team}", "fairway get teams  lists them"
        )
    if seen is not None and team not in seen:
        raise ApiError(
            HTTPStatus.FORBIDDEN,
            "NotYourTeam",
            f"{team} is not your team, nor inside one",
            f"yours: {', '.join(sorted(seen)) or 'none'}; ask a member or an operator",
        )
    return frozenset(t.name for t in tree.subtree(tree[team]))
