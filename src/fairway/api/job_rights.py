"""Who a caller is among the fleet's people, and what that lets them do with a job. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from fairway.api.access import require_role
from fairway.api.problems import ApiError
from fairway.ledger import Token
from fairway.ledger.job_records import JobRow
from fairway.model.access import Deed, Role, may
from fairway.model.fleet import Fleet
from fairway.model.job import job_word
from fairway.model.names import TeamName, UserName
from fairway.model.team import TeamTree

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


def not_yours(person: Person, deed: Deed, refused: list[JobRow]) -> ApiError:
    """The refusal, with the jobs it is about."""
    named = ", ".join(f"{job_word(j.id)} ({j.user or 'unknown'})" for j in refused[:_NAMED])
    more = f" and {len(refused) - _NAMED} more" if len(refused) > _NAMED else ""
    verb = "change" if deed is Deed.CHANGE else "read"
    teams = sorted({j.team for j in refused if j.team is not None})
    of = f" of {', '.join(teams[:_NAMED])}" if teams else ""
    return ApiError(
        HTTPStatus.FORBIDDEN,
        "NotYourJob",
        f"{person.user} with the role {person.role} may not {verb} {named}{more}; nothing was done",
        f"ask its owner, a lead{of}, or an operator;  fairway get jobs --mine  lists yours",
    )
