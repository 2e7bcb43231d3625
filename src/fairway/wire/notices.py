"""Define the JSON of notices, their deliveries, and the rules that users choose for themselves."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from fairway.model.notice_rules import DIGEST_HOUR, QUIET_PATTERN, NoticeKind, SendWhen
from fairway.wire.fleet import Moment, RequestBody, Wire


class NoticeDelivery(Wire):
    """What came of sending a notice by one channel."""

    channel: str = Field(description="whose channel and its kind: research/slack, */mail, @alice/mail")
    state: Literal["waiting", "delivered", "given-up"]
    attempts: int
    at: Moment | None = Field(description="when it was delivered, or is sent next")
    error: str = Field(description="why the last attempt failed; else empty")


class Notice(Wire):
    """A message to a team, to a user or to the operators."""

    kind: NoticeKind
    key: str = Field(description="identifies the event")
    at: Moment
    subject: str
    text: str
    team: str | None
    user: str | None
    job: str | None
    operators: bool
    deliveries: list[NoticeDelivery] = Field(description="empty: no rule or no channel is for it")


class Notices(Wire):
    """The newest notices that the caller may see, newest first."""

    notices: list[Notice]
    of_teams: list[str] | None = Field(description="whose the caller may see; null: all")


class NoticeRules(RequestBody):
    """What a user gets by mail. Kinds that are not named are sent as the default says."""

    kinds: dict[NoticeKind, SendWhen] = Field(
        default={}, description="idle, health and alert of own jobs are sent at once; the others never"
    )
    quiet: Annotated[str, Field(pattern=f"^{QUIET_PATTERN}$")] | None = Field(
        default=None, description="hours in which only urgent kinds are sent, in the fleet's time zone"
    )
    digest_hour: int = Field(default=DIGEST_HOUR, ge=0, le=23, description="hour of daily digests")


class OwnNoticeRules(Wire):
    """The rules of the caller, with what applies to each kind."""

    user: str
    kinds: dict[NoticeKind, SendWhen]
    quiet: str | None
    digest_hour: int
    timezone: str
