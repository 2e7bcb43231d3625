"""Define the types and the pattern of names. One pattern is valid on every engine: names need no mapping."""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import count
from typing import Final, NewType

ClusterName = NewType("ClusterName", str)
PoolName = NewType("PoolName", str)
NodeName = NewType("NodeName", str)
TeamName = NewType("TeamName", str)
PriorityName = NewType("PriorityName", str)
UserName = NewType("UserName", str)
"""A user as known to the engines: a login on Slurm, a user of the API server on Kubernetes."""
SliceName = NewType("SliceName", str)
"""A MIG profile as NVIDIA writes it, `1g.10gb`, or `shared-4`: one of four replicas of a shared GPU."""

# Namespaces have the strictest rule (DNS labels of 63 characters); 40 leaves room for suffixes.
NAME_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"
NAME_RULE: Final = "lower-case letters, digits and '-', starting with a letter, at most 40 characters"


_RESERVED_TEAMS: Final = re.compile(r"default|fairway|lent|low|root|(fairway|kube|kueue)-.*")
"""Names of accounts, QOS, namespaces and queues that the engines or Fairway itself use."""

_SYSTEM_USERS: Final = frozenset({"bin", "daemon", "munge", "root", "slurm", "slurmdbd", "slurmrestd", "sys"})
"""Users that own keys or daemons of a cluster: a job that runs as one of them can become any other user."""


def is_system_user(user: str) -> bool:
    """Return whether `user` belongs to the system, so that nobody may submit as it, not even for an admin.

    Slurm reads digits as a uid if no login has that name, so `0` is root, and a directory may ignore case.
    Kubernetes' own users begin with `system:`; service accounts may be members of a team.
    """
    name = user.strip().lower()
    if name.startswith("system:"):
        return not name.startswith("system:serviceaccount:")
    return name in _SYSTEM_USERS or not name.strip("+-0")


def is_team_name(text: str) -> bool:
    """Return whether a team can be called `text`."""
    return is_name(text) and not is_reserved_team(text)


def is_reserved_team(text: str) -> bool:
    """Return whether the engines, or Fairway on them, use `text` for something else than a team."""
    return _RESERVED_TEAMS.fullmatch(text) is not None


def to_team_name(text: str, taken: Container[str] = ()) -> str:
    """Return a name for a team that an engine calls `text`: `ML_Team` becomes `ml-team`."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")[:40].strip("-")
    name = plain if is_team_name(plain) else f"team-{plain}"[:40].rstrip("-")
    return free_name(name, taken)


def free_name(name: str, taken: Container[str]) -> str:
    """Return `name`, or if it is taken `name-2`, `name-3` and so on, within the length of a name."""
    if name not in taken:
        return name
    numbered = (f"{name[: 40 - len(f'-{n}')].rstrip('-')}-{n}" for n in count(2))
    return next(free for free in numbered if free not in taken)


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of a cluster, pool or team."""
    return re.fullmatch(NAME_PATTERN[1:-1], text) is not None
