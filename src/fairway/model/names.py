"""Define the types and the pattern of names. One pattern is valid on every engine: names need no mapping."""

from __future__ import annotations

import re
from typing import Final, NewType

ClusterName = NewType("ClusterName", str)
PoolName = NewType("PoolName", str)
NodeName = NewType("NodeName", str)
TeamName = NewType("TeamName", str)
PriorityName = NewType("PriorityName", str)
UserName = NewType("UserName", str)
"""A user as known to the engines: a login on Slurm, a user of the API server on Kubernetes."""
SliceName = NewType("SliceName", str)
"""A MIG profile as NVIDIA writes it: `1g.10gb`."""

# Namespaces have the strictest rule (DNS labels of 63 characters); 40 leaves room for suffixes.
NAME_PATTERN: Final = r"^[a-z]([a-z0-9-]{0,38}[a-z0-9])?$"
NAME_RULE: Final = "lower-case letters, digits and '-', starting with a letter, at most 40 characters"


def is_name(text: str) -> bool:
    """Return whether `text` is a valid name of a cluster, pool or team."""
    return re.fullmatch(NAME_PATTERN[1:-1], text) is not None
