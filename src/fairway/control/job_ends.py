"""Find out who gets notices of ended jobs, so that the loops which end jobs can skip the rest."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from fairway.ledger import Ledger
from fairway.ledger.jobs.ends import JobEndAudience
from fairway.model.fleet import Fleet
from fairway.model.notice_rules import NoticeKind
from fairway.policy.notice_routing import teams_that_want

AUDIENCE_SECONDS: Final = 30.0
"""How soon a user's choice takes effect. It is one small query for each cluster in this time."""


class JobEndAudiences:
    """Caches who gets notices of ended jobs."""

    def __init__(self, ledger: Ledger, clock: Callable[[], float] = time.monotonic) -> None:
        self._ledger = ledger
        self._clock = clock
        self._cached: tuple[Fleet, float, JobEndAudience] | None = None

    async def get(self, fleet: Fleet) -> JobEndAudience:
        """Return the teams by the rules of the fleet, and the users by their own."""
        now = self._clock()
        if self._cached is not None:
            known, read_at, audience = self._cached
            if known is fleet and now - read_at < AUDIENCE_SECONDS:
                return audience
        users = await self._ledger.notice_preferences.want(NoticeKind.JOB_END)
        audience = JobEndAudience(teams_that_want(NoticeKind.JOB_END, fleet), users)
        self._cached = (fleet, now, audience)
        return audience
