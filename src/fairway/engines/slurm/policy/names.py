"""Define the names of Fairway's objects on Slurm, and their ownership mark, in both directions."""

from __future__ import annotations

from typing import Final

from fairway.model.names import TeamName, UserName
from fairway.model.team import Supply
from fairway.policy.objects import ObjectKey

LOW: Final = "fairway.low"
"""The QOS of preemptible jobs of all teams."""
LENT: Final = "fairway.lent"
"""The QOS of jobs beyond a guarantee, of all teams.

One QOS, because a list of those that each guarantee may preempt would grow with the square of the teams.
"""
GATE: Final = "fairway.gate"
"""The QOS of a pool's own partition: only QOS that override it with their own limit get in."""
WAITING_URGENT: Final = "fairway.urgent"
"""The first QOS in the list of every urgent job. Nothing can run as it: it marks waiting urgent jobs."""

ROOT_ACCOUNT: Final = "root"
"""The account that contains every other one."""

DEFAULT_ACCOUNT: Final = "default-account/"
"""Prefix of a user's name in the found settings: the default account of a user who has several."""

MARK: Final = "managed by fairway"
"""The prefix of a description (QOS) or comment (association) of Fairway's objects."""

_FOR: Final = f"{MARK} for "


def mark(team: TeamName | None) -> str:
    """Return the mark of an object of `team`, or of the fleet if None."""
    return MARK if team is None else f"{_FOR}{team}"


def is_marked(text: str) -> bool:
    """Return whether a description or comment marks the object as Fairway's."""
    return text == MARK or text.startswith((f"{MARK} ", f"{MARK}:"))


def marked_team(text: str) -> TeamName | None:
    """Return the team in a mark. Returns None if it names none."""
    return TeamName(text.removeprefix(_FOR).split()[0]) if text.startswith(_FOR) else None


def stem(supply: Supply) -> str:
    """Return a supply's part of a QOS name: `hpc-a100`, `hpc-mig.1g.10gb`."""
    return supply.pool if supply.slice is None else f"{supply.pool}.{supply.slice}"


def own_qos(team: str, supply: Supply) -> str:
    """Return the QOS of a team's guarantee less what it promised to its child teams."""
    return f"{team}.{stem(supply)}.own"


def kin_qos(team: str, supply: Supply) -> str:
    """Return the QOS of guarantees that a team's children leave to each other."""
    return f"{team}.{stem(supply)}.kin"


def qos_key(name: str) -> ObjectKey:
    return ObjectKey("qos", name)


def account_key(team: str) -> ObjectKey:
    return ObjectKey("account", team)


def association_key(team: str, user: UserName) -> ObjectKey:
    return ObjectKey("association", f"{team}/{user}")


def user_key(user: UserName) -> ObjectKey:
    return ObjectKey("user", user)
