"""Decide by which channels a notice goes, by the rules of teams, operators and users."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Final
from zoneinfo import ZoneInfo

from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import DEFAULT_RULES, ChannelKind, NoticeKind, NoticeRules, SendWhen
from fairway.model.team import TeamTree
from fairway.policy.notice_times import SendTime, send_time

_OPERATORS: Final = "*"
"""Whose channels those of the fleet are: no team is called so."""
_PERSON: Final = "@"
"""What the channel of a user begins with: no team's name does."""
_TO_MEMBERS: Final = frozenset({NoticeKind.BUDGET, NoticeKind.ANOMALY, NoticeKind.STATEMENT, NoticeKind.SLO})
"""Kinds that members of a team, and of the teams above it, may get: they see its costs and objectives."""


@dataclass(frozen=True, slots=True)
class Route:
    """A channel that a notice goes to, and when."""

    channel: str
    """Whose it is, and its kind: `research/slack`, `*/mail` of the operators, `@alice/mail`."""
    time: SendTime


def routes_of(
    notice: Notice,
    fleet: Fleet,
    chosen: Mapping[UserName, NoticeRules],
    mail_domain: str | None,
    now: datetime,
) -> Iterator[Route]:
    """Yield the channels that a notice goes to. `chosen` are the rules of users who chose any."""
    zone = ZoneInfo(fleet.cost.timezone)
    tree = TeamTree(fleet.teams)
    if notice.team is not None and notice.team in tree:
        own = tree.channels(tree[notice.team])
        if own is not None:
            yield from _routes(*own, notice, now, zone)
    if notice.operators and fleet.notify is not None:
        yield from _routes(_OPERATORS, fleet.notify, notice, now, zone)
    for user in sorted(_audience(notice, tree, chosen)):
        rules = chosen.get(user, DEFAULT_RULES)
        time = send_time(rules.of_person(notice.kind), rules, now, zone)
        channel = f"{_PERSON}{user}/{ChannelKind.MAIL}"
        if time is not None and channel_of(channel, fleet, mail_domain) is not None:
            yield Route(channel, time)


def _routes(
    owner: TeamName | str, channels: Channels, notice: Notice, now: datetime, zone: ZoneInfo
) -> Iterator[Route]:
    rule = channels.rules.rule(notice.kind)
    time = send_time(rule, channels.rules, now, zone)
    if time is not None:
        for kind in channels.by_kind():
            if not rule.to or kind in rule.to:
                yield Route(f"{owner}/{kind}", time)


def _audience(notice: Notice, tree: TeamTree, chosen: Mapping[UserName, NoticeRules]) -> set[UserName]:
    """Return the users whom a notice concerns; of a team's members, those who chose any rules."""
    users = set() if notice.user is None else {notice.user}
    if notice.kind in _TO_MEMBERS and notice.team is not None and notice.team in tree:
        team = tree[notice.team]
        members = {user for one in (team, *tree.ancestors(team)) for user in one.members}
        users |= members & chosen.keys()
    return users


def channel_of(name: str, fleet: Fleet, mail_domain: str | None) -> Webhook | Slack | Mail | None:
    """Return the channel of this name. Returns None if there is none any more."""
    owner, _, kind = name.rpartition("/")
    if owner.startswith(_PERSON):
        address = mail_address(owner.removeprefix(_PERSON), mail_domain)
        return None if address is None else Mail((address,))
    if owner == _OPERATORS:
        channels = fleet.notify
    else:
        channels = next((team.notify for team in fleet.teams if team.name == owner), None)
    return None if channels is None else channels.by_kind().get(ChannelKind(kind))


def mail_address(user: str, mail_domain: str | None) -> str | None:
    """Return the address of a user. Returns None if the server has no domain for mail to users."""
    if mail_domain is None:
        return None
    return user if "@" in user else f"{user}@{mail_domain}"


def teams_that_want(kind: NoticeKind, fleet: Fleet) -> frozenset[TeamName]:
    """Return the teams by whose channels notices of a kind are sent."""
    tree = TeamTree(fleet.teams)
    owners = ((team.name, tree.channels(team)) for team in fleet.teams)
    return frozenset(
        name for name, own in owners if own is not None and own[1].rules.rule(kind).send is not SendWhen.NEVER
    )
