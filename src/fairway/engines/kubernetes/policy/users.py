"""Limit users: each member of a team with such limits has a cohort that never holds more. Pure.

Kueue counts per queue. So each member has separate queues, and a MutatingAdmissionPolicy assigns them to
their jobs. The drawback: priority works within a queue, so not between the users of such a team.
"""

from __future__ import annotations

import re
from typing import Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import ObjectKind
from fairway.model.team import Team
from fairway.policy.objects import FoundPolicy

_OTHER_QUEUES: Final = ("low", "site")
"""Suffixes of a team's other ClusterQueues."""


def served_setting(kind: ObjectKind) -> str:
    """Return the name of the setting for whether the API server serves a kind."""
    return f"served.{kind.name}"


def can_assign_queues(found: FoundPolicy) -> bool:
    """Return whether a policy can assign queues to jobs: from Kubernetes 1.36 on, if Fairway may write it."""
    return found.settings.get(served_setting(kinds.MUTATING_POLICY)) == "yes"


def has_user_queues(team: Team, found: FoundPolicy) -> bool:
    """Return whether each member of the team has separate queues."""
    return team.limits.user_gpus is not None and bool(team.members) and can_assign_queues(found)


def user_slugs(team: Team) -> dict[str, str]:
    """Return the queue suffix of each member: the user's letters and digits, unique in the team."""
    slugs: dict[str, str] = {}
    for user in sorted(team.members):
        plain = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:20].rstrip("-") or "user"
        slug, number = plain, 2
        while slug in slugs.values() or slug in _OTHER_QUEUES:
            slug, number = f"{plain}-{number}", number + 1
        slugs[user] = slug
    return slugs


def user_queues_annotation(team: Team) -> str:
    """Return the annotation that maps users to queues."""
    return ",".join(f"{user}={slug}" for user, slug in user_slugs(team).items())
