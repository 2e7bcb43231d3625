"""Define notices to people."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.notice_rules import NoticeKind


@dataclass(frozen=True, slots=True)
class Notice:
    """A message to a team, to one of its users, or to the operators of the fleet."""

    kind: NoticeKind
    key: str
    """Identifies the event: a second notice with the same key is the same one, and is not delivered again."""
    subject: str
    """One line."""
    text: str
    """What happened, why, and which command to use."""
    team: TeamName | None = None
    """Goes to the channels of this team, or of the nearest team above it that has channels."""
    user: UserName | None = None
    """The user whom it concerns; they get it by mail where the server knows their address."""
    job: JobId | None = None
    operators: bool = False
    """Whether it goes to the channels of the operators too."""
    month: date | None = None
    """The closed month whose statement of the team is attached."""
