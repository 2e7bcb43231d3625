"""Define the kinds of notices, and the rules that say when and how each kind is sent."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class NoticeKind(StrEnum):
    """What a notice is about. Rules choose by it where a notice goes and when."""

    BUDGET = "budget"
    """A budget reached its warning or its limit, or a hold was lifted."""
    ANOMALY = "anomaly"
    """A team spends unusually much, compared with its own past."""
    JOB_END = "job-end"
    """A job ended."""
    DRIFT = "drift"
    """A cluster differs from what was applied to it, or no longer does."""
    HEALTH = "health"
    """Hardware or a part of Fairway does not work: a broken GPU, a cluster that cannot be reached."""
    IDLE = "idle"
    """An idle rule warns about a job, or acts on it."""
    ALERT = "alert"
    """An alert of Prometheus."""
    STATEMENT = "statement"
    """A month was closed; the statement is attached."""
    SLO = "slo"
    """A service level objective misses its target, or spends its error budget fast."""
    TEST = "test"
    """A user tries their channels. Rules do not apply to it."""


URGENT_KINDS: Final = frozenset({NoticeKind.HEALTH, NoticeKind.IDLE, NoticeKind.ALERT, NoticeKind.TEST})
"""Kinds that quiet hours do not delay. An idle rule may cancel a job half an hour after its warning."""


class ChannelKind(StrEnum):
    """A way of sending notices."""

    WEBHOOK = "webhook"
    SLACK = "slack"
    MAIL = "mail"


class SendWhen(StrEnum):
    """When notices of a kind are sent."""

    AT_ONCE = "at-once"
    HOURLY = "hourly"
    """Together with others, every full hour."""
    DAILY = "daily"
    """Together with others, once a day."""
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class NoticeRule:
    """When and by which channels notices of one kind are sent."""

    kind: NoticeKind
    send: SendWhen = SendWhen.AT_ONCE
    to: tuple[ChannelKind, ...] = ()
    """Empty selects every channel."""


@dataclass(frozen=True, slots=True)
class QuietHours:
    """A part of each day in which only urgent notices are sent. It may include midnight."""

    start: int
    """Minutes after midnight, in the time zone of the fleet."""
    end: int

    def includes(self, minute: int) -> bool:
        """Return whether a minute of the day is in the quiet hours."""
        if self.start <= self.end:
            return self.start <= minute < self.end
        return minute >= self.start or minute < self.end

    def __str__(self) -> str:
        return "-".join(f"{m // 60:02}:{m % 60:02}" for m in (self.start, self.end))


QUIET_PATTERN: Final = r"([01][0-9]|2[0-3]):[0-5][0-9]-([01][0-9]|2[0-3]):[0-5][0-9]"
DIGEST_HOUR: Final = 8
"""The hour of the day at which daily digests are sent, unless another is chosen."""
_ON_REQUEST: Final = frozenset({NoticeKind.JOB_END, NoticeKind.STATEMENT})
"""Kinds that teams and operators get only by a rule."""
PERSON_KINDS: Final = (
    NoticeKind.JOB_END,
    NoticeKind.IDLE,
    NoticeKind.HEALTH,
    NoticeKind.ALERT,
    NoticeKind.BUDGET,
    NoticeKind.ANOMALY,
    NoticeKind.STATEMENT,
    NoticeKind.SLO,
)
"""Kinds that a user can choose for themself: about their jobs, then about their teams."""
_OF_OWN_JOBS: Final = frozenset({NoticeKind.IDLE, NoticeKind.HEALTH, NoticeKind.ALERT})


@dataclass(frozen=True, slots=True)
class NoticeRules:
    """The rules of a team, of the operators or of a user."""

    rules: tuple[NoticeRule, ...] = ()
    """At most one for each kind."""
    quiet: QuietHours | None = None
    digest_hour: int = DIGEST_HOUR

    def rule(self, kind: NoticeKind) -> NoticeRule:
        """Return the rule of a team or of the operators: most kinds are sent at once by every channel."""
        return self._find(kind, SendWhen.NEVER if kind in _ON_REQUEST else SendWhen.AT_ONCE)

    def of_person(self, kind: NoticeKind) -> NoticeRule:
        """Return the rule of a user: what concerns their own jobs is sent at once, job ends excepted."""
        return self._find(kind, SendWhen.AT_ONCE if kind in _OF_OWN_JOBS else SendWhen.NEVER)

    def _find(self, kind: NoticeKind, otherwise: SendWhen) -> NoticeRule:
        if kind is NoticeKind.TEST:
            return NoticeRule(kind)
        found = (rule for rule in self.rules if rule.kind is kind)
        return next(found, NoticeRule(kind, otherwise))


DEFAULT_RULES: Final = NoticeRules()


def parse_quiet_hours(text: str) -> QuietHours | None:
    """Parse `20:00-07:00`. Returns None if the text is something else, or the two times are equal."""
    match = re.fullmatch(QUIET_PATTERN, text)
    if match is None:
        return None
    hours = [int(part) for part in re.split("[:-]", text)]
    quiet = QuietHours(hours[0] * 60 + hours[1], hours[2] * 60 + hours[3])
    return None if quiet.start == quiet.end else quiet
