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

INTERVENTION_JOB: Final = "fairway-intervention"
"""The name of Fairway's own small jobs, which help others to start; job_submit.lua lets them through."""

ROOT_ACCOUNT: Final = "root"
"""The account that contains every other one."""

DEFAULT_ACCOUNT: Final = "default-account/"
"""Prefix of a user's name in the found settings: the default account of a user who has several."""

ROOT_QOS: Final = "root/QOS"
"""Key in the found settings: the QOS list of the root account, which every other one inherits."""
ROOT_DEFAULT_QOS: Final = "root/DefaultQOS"
DEFAULT_QOS: Final = "normal"
"""The QOS of a job whose association names no default."""
SITE_QOS: Final = "site/QOS"
"""Key in the found settings: every QOS that is not Fairway's."""
SITE_ACCOUNT: Final = "site-account/"
"""Prefix of an account in the found settings that Fairway did not create: the QOS it may use, not ours."""
DEFAULT_QOS_OF: Final = "default-qos/"
"""Prefix of such an account in the found settings: the QOS of its jobs that name none."""
QOS_WALL: Final = "qos-wall/"
"""Prefix of a QOS of the site in the found settings: its MaxWall, in minutes."""
QOS_USER_GPUS: Final = "qos-user-gpus/"
"""Prefix of a QOS of the site in the found settings: the GPUs that it lets one user have."""
QOS_LIMITS: Final = "qos-limits/"
"""Prefix of a QOS of the site in the found settings: its limits that do not count for teams' GPU jobs."""

MARK: Final = "managed by fairway"
"""The prefix of a description (QOS) or comment (association) of Fairway's objects."""

_FOR: Final = f"{MARK} for "


def mark(team: TeamName | None) -> str:
    """Return the mark of an object of `team`, or of the fleet if None."""
    return MARK if team is None else f"{_FOR}{team}"


def is_marked(text: str) -> bool:
    """Return whether a description or comment marks the object as Fairway's."""
    return text == MARK or text.startswith((f"{MARK} ", f"{MARK}:"))


def is_created(text: str) -> bool:
    """Return whether a description is that of an account which Fairway made, rather than adopted."""
    return text == MARK


def adopted_mark(description: str) -> str:
    """Return the mark of an object that people made, before what they wrote: never one of `is_created`."""
    return f"{MARK}: {description}".rstrip()


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


def lent_partition(partition: str) -> str:
    """Return the second partition over the same nodes, where jobs beyond guarantees run."""
    return f"{partition}-lent"


def gate_qos(partition: str) -> str:
    """Return the gate of a partition that has a QOS of the site's, whose limits it has too."""
    return f"{GATE}.{partition}"


def site_limits_qos(account: str) -> str:
    """Return the QOS that remembers an account's limits of the site's; nothing can run as it."""
    return f"fairway.site.{account}"


def is_gate(qos: str) -> bool:
    """Return whether a QOS is the gate of some partition."""
    return qos == GATE or qos.startswith(f"{GATE}.")


def qos_key(name: str) -> ObjectKey:
    return ObjectKey("qos", name)


def account_key(account: str) -> ObjectKey:
    return ObjectKey("account", account)


def association_key(account: str, user: UserName) -> ObjectKey:
    return ObjectKey("association", f"{account}/{user}")


def user_key(user: UserName) -> ObjectKey:
    return ObjectKey("user", user)
