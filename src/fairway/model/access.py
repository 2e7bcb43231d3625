"""Define roles and the permission rules for jobs."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """The role of a token; each role includes the permissions of the ones before it, except of ALERTS."""

    ALERTS = "alerts"
    """Reports alerts, and nothing else: for Alertmanager."""
    VIEWER = "viewer"
    """Reads only."""
    MEMBER = "member"
    """Submits and cancels own jobs in its teams."""
    LEAD = "lead"
    """Also cancels, holds and reads other members' jobs of its teams."""
    OPERATOR = "operator"
    """Operates the fleet: plans, applies, drains."""
    ADMIN = "admin"
    """Manages the access of others."""

    def may(self, needed: Role) -> bool:
        """Return whether this role includes the permissions of `needed`."""
        if needed is Role.ALERTS:
            return self in (Role.ALERTS, Role.ADMIN)
        order = list(Role)
        return order.index(self) >= order.index(needed)


class JobPermission(StrEnum):
    """An operation on a job that needs permission."""

    SEE = "see"
    """See that it exists, its state and its devices."""
    READ = "read"
    """Read its output and its spec: commands and environments may contain secrets."""
    CHANGE = "change"
    """Cancel, hold or release it."""


def may(role: Role, permission: JobPermission, *, own: bool, of_team: bool) -> bool:
    """Return whether a user with `role` may perform `deed` on a job.

    `own`: the job is the user's. `of_team`: it belongs to one of the user's teams or a descendant of one.
    """
    if permission is JobPermission.SEE or role.may(Role.OPERATOR):
        return True
    if own:
        return role.may(Role.MEMBER) or permission is JobPermission.READ
    return of_team and role.may(Role.LEAD)
