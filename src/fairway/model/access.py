"""Who may do what: roles in order, and tokens as they are known after they are made."""

from __future__ import annotations

from enum import StrEnum


class Role(StrEnum):
    """What a token may do; each role may do all that the ones before it may."""

    VIEWER = "viewer"
    """Reads."""
    MEMBER = "member"
    """Works: submits and ends jobs of its own teams."""
    OPERATOR = "operator"
    """Runs the fleet: plans, applies, drains."""
    ADMIN = "admin"
    """Decides who else may."""

    def may(self, needed: Role) -> bool:
        """Whether this role covers what `needed` covers."""
        order = list(Role)
        return order.index(self) >= order.index(needed)
