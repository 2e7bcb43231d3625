"""Define the channels by which a team or the operators get notices, as the fleet file says."""

from __future__ import annotations

from dataclasses import dataclass

from fairway.model.notice_rules import DEFAULT_RULES, ChannelKind, NoticeRules


@dataclass(frozen=True, slots=True)
class Webhook:
    """An address that gets each notice as JSON."""

    url: str | None = None
    """The address; None if it is in `url_file`."""
    url_file: str | None = None
    """File with the address, where that contains a secret."""
    token_file: str | None = None
    """File with a bearer token."""


@dataclass(frozen=True, slots=True)
class Slack:
    """An incoming webhook of Slack, or of what takes the same JSON (Mattermost, Rocket.Chat)."""

    url_file: str
    """File with the address: whoever knows it can write to the channel."""


@dataclass(frozen=True, slots=True)
class Mail:
    """Addresses that get each notice by mail."""

    to: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Channels:
    """The channels of a team, or of the operators, with their rules."""

    webhook: Webhook | None = None
    slack: Slack | None = None
    mail: Mail | None = None
    rules: NoticeRules = DEFAULT_RULES

    def by_kind(self) -> dict[ChannelKind, Webhook | Slack | Mail]:
        """Return the channels that there are, by kind."""
        every = (
            (ChannelKind.WEBHOOK, self.webhook),
            (ChannelKind.SLACK, self.slack),
            (ChannelKind.MAIL, self.mail),
        )
        return {kind: channel for kind, channel in every if channel is not None}
