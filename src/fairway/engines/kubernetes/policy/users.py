"""Limits per user: a cohort for each member of a team that has them, which never holds more. Pure.

Kueue counts queues. So each member has separate queues there, and a MutatingAdmissionPolicy puts their jobs
into them. The price: priority works within a queue, so between the users of such a team it does not.
"""

from __future__ import annotations

import re

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.api.kinds import ObjectKind
from fairway.model.team import Team
from fairway.policy.objects import FoundPolicy


def served_setting(kind: ObjectKind) -> str:
    """Return the setting that says whether the API server serves a kind."""
    return f"served.{kind.name}"


def can_place(found: FoundPolicy) -> bool:
    """Return whether a policy can put jobs into queues: Kubernetes 1.36 on, if Fairway may write it."""
    return found.settings.get(served_setting(kinds.MUTATING_POLICY)) == "yes"


def counts_by_user(team: Team, found: FoundPolicy) -> bool:
    """Return whether each member of the team has separate queues."""
    return team.limits.user_gpus is not None and bool(team.members) and can_place(found)


def user_slugs(team: Team) -> dict[str, str]:
    """Return the queue suffix of each member: the user's letters and digits, unique in the team."""
    slugs: dict[str, str] = {}
    for user in sorted(team.members):
        plain = re.sub(r"[^a-z0-9]+", "-", user.lower()).strip("-")[:20].rstrip("-") or "user"
        slug, number = plain, 2
        while slug in slugs.values():
            slug, number = f"{plain}-{number}", number + 1
        slugs[user] = slug
    return slugs


def user_queues(team: Team) -> str:
    """Return the annotation that maps users to queues."""
    return ",".join(f"{user}={slug}" for user, slug in user_slugs(team).items())
