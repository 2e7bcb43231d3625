"""What Fairway's objects are called on Slurm, and the mark they bear. One place, both directions."""

from __future__ import annotations

from typing import Final

from fairway.model.names import TeamName, UserName
from fairway.model.team import Supply
from fairway.policy.objects import ObjectKey

LOW: Final = "fairway.low"
"""What preemptible jobs run as, whosever they are."""
LENT: Final = "fairway.lent"
"""What jobs beyond a guarantee run as, whosever they are: one QOS, because a list of those that each
guarantee may take back grows with the square of the teams."""
GATE: Final = "fairway.gate"
"""The QOS of a pool's own partition: lets nothing in but QOS that carry their own limit instead of its."""
WAITING_URGENT: Final = "fairway.urgent"
"""First in the list of every urgent job. Nothing can run as it; it is how waiting urgent jobs are found
among all others."""

ROOT_ACCOUNT: Final = "root"
"""The account that every other one is inside of."""

DEFAULT_ACCOUNT: Final = "default-account/"
"""Before a user's name in the settings found: the default account of whoever is in several."""

MARK: Final = "managed by fairway"
"""How a description (QOS) or comment (association) begins when the object is Fairway's."""

_FOR: Final = f"{MARK} for "


def mark(team: TeamName | None) -> str:
    """The mark of an object of `team`, or of the fleet."""
    return MARK if team is None else f"{_FOR}{team}"


def is_marked(text: str) -> bool:
    """Whether a description or comment says that the object is Fairway's."""
    return text == MARK or text.startswith((f"{MARK} ", f"{MARK}:"))


def marked_team(text: str) -> TeamName | None:
    """Whose it is, if the mark tells."""
    return TeamName(text.removeprefix(_FOR).split()[0]) if text.startswith(_FOR) else None


def stem(supply: Supply) -> str:
    """A supply inside a QOS's name: `hpc-a100`, `hpc-mig.1g.10gb`."""
    return supply.pool if supply.slice is None else f"{supply.pool}.{supply.slice}"


def own(team: str, supply: Supply) -> str:
    """The QOS of what a team is guaranteed and has not promised on to teams inside it."""
    return f"{team}.{stem(supply)}.own"


def kin(team: str, supply: Supply) -> str:
    """The QOS of what a team's children leave of their guarantees to each other."""
    return f"{team}.{stem(supply)}.kin"


def qos_key(name: str) -> ObjectKey:
    return ObjectKey("qos", name)


def account_key(team: str) -> ObjectKey:
    return ObjectKey("account", team)


def association_key(team: str, user: UserName) -> ObjectKey:
    return ObjectKey("association", f"{team}/{user}")


def user_key(user: UserName) -> ObjectKey:
    return ObjectKey("user", user)
