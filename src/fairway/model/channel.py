"""Define the channels by which a team or the operators get notices, as the fleet file says."""

from __future__ import annotations

from dataclasses import dataclass


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
    """The channels of a team, or of the operators."""

    webhook: Webhook | None = None
    slack: Slack | None = None
    mail: Mail | None = None
