"""Who may do what: roles in order, and tokens as they are known after they are made."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a token may do; each role may do all that the ones before it may."""

    VIEWER = "viewer"
    """Reads."""
    MEMBER = "member"
    """Works: submits and ends jobs of its own teams."""
    LEAD = "lead"
    """Looks after its teams: also ends, holds and reads other members' jobs of them."""
    OPERATOR = "operator"
    """Runs the fleet: plans, applies, drains."""
    ADMIN = "admin"
    """Decides who else may."""

    def may(self, needed: Role) -> bool:
        """Whether this role covers what `needed` covers."""
        order = list(Role)
        return order.index(self) >= order.index(needed)


class Deed(StrEnum):
    """What somebody wants to do with a job."""

    SEE = "see"
    """That it exists, how it is, what it holds."""
    READ = "read"
    """What it prints, and how it was asked for: commands and environments hold secrets."""
    CHANGE = "change"
    """End, hold or release it."""


def may(role: Role, deed: Deed, *, own: bool, of_team: bool) -> bool:
    """Whether somebody of that role may do it with a job.

    `own`: the job is theirs. `of_team`: it is of a team they are in, or inside one.
    """
    if deed is Deed.SEE or role.may(Role.OPERATOR):
        return True
    if own:
        return role.may(Role.MEMBER) or deed is Deed.READ
    return of_team and role.may(Role.LEAD)
