"""A notice goes to the channels of its team, the operators and the users whom it concerns, by their rules."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.fleet import Fleet
from fairway.model.job import JobId
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import (
    ChannelKind,
    NoticeKind,
    NoticeRule,
    NoticeRules,
    QuietHours,
    SendWhen,
)
from fairway.model.team import Team
from fairway.policy.notice_routing import channel_of, routes_of, teams_that_want

RESEARCH, NLP = TeamName("research"), TeamName("nlp")
ALICE, BOB, CAROL = UserName("alice"), UserName("bob"), UserName("carol")
NOON = datetime(2026, 11, 18, 12, tzinfo=UTC)
NIGHT = datetime(2026, 11, 18, 23, tzinfo=UTC)
IDLE = Notice(NoticeKind.IDLE, "idle", "idle", "idle", NLP, ALICE, JobId(17))
BUDGET = Notice(NoticeKind.BUDGET, "budget", "spent", "spent", NLP)


def fleet(team: NoticeRules | None = None, operators: NoticeRules | None = None) -> Fleet:
    own = Channels(Webhook("https://a.example.org"), Slack("/slack"), rules=team or NoticeRules())
    ops = Channels(mail=Mail(("ops@example.org",)), rules=operators or NoticeRules())
    teams = (
        Team(RESEARCH, notify=own, members=(CAROL,)),
        Team(NLP, RESEARCH, members=(ALICE, BOB)),
        Team(TeamName("product")),
    )
    return Fleet("acme", "USD", (), (), teams, notify=ops)


def sent(
    notice: Notice,
    at: datetime = NOON,
    to: Fleet | None = None,
    chosen: dict[UserName, NoticeRules] | None = None,
    domain: str | None = "example.org",
) -> list[str]:
    return [route.channel for route in routes_of(notice, to or fleet(), chosen or {}, domain, at)]


def only(kind: NoticeKind, send: SendWhen, *to: ChannelKind) -> NoticeRules:
    return NoticeRules((NoticeRule(kind, send, to),))


def test_without_rules_everything_goes_everywhere_at_once() -> None:
    of_research = ["research/webhook", "research/slack"]
    assert sent(IDLE) == [*of_research, "@alice/mail"]  # of the team above
    assert sent(IDLE, domain=None) == of_research
    assert sent(replace(IDLE, operators=True)) == [*of_research, "*/mail", "@alice/mail"]
    assert sent(replace(IDLE, team=None, user=None)) == []
    assert sent(replace(IDLE, team=TeamName("gone"), user=None)) == []
    assert sent(replace(IDLE, team=TeamName("product"), user=None)) == []


def test_job_ends_and_statements_are_for_those_who_chose_them() -> None:
    end = replace(IDLE, kind=NoticeKind.JOB_END)
    statement = replace(BUDGET, kind=NoticeKind.STATEMENT)
    assert sent(end) == sent(statement) == []
    hourly = fleet(only(NoticeKind.JOB_END, SendWhen.HOURLY, ChannelKind.SLACK))
    assert sent(end, to=hourly) == ["research/slack"]
    assert teams_that_want(NoticeKind.JOB_END, hourly) == {RESEARCH, NLP}
    assert teams_that_want(NoticeKind.JOB_END, fleet()) == frozenset()
    chosen = {user: only(NoticeKind.JOB_END, SendWhen.AT_ONCE) for user in (ALICE, BOB)}
    assert sent(end, chosen=chosen) == ["@alice/mail"]  # of her own jobs


def test_a_rule_chooses_channels_and_turns_a_kind_off() -> None:
    assert sent(IDLE, to=fleet(only(NoticeKind.IDLE, SendWhen.AT_ONCE, ChannelKind.SLACK))) == [
        "research/slack",
        "@alice/mail",
    ]
    never = only(NoticeKind.IDLE, SendWhen.NEVER)
    assert sent(IDLE, to=fleet(never), chosen={ALICE: never}) == []
    test = replace(IDLE, kind=NoticeKind.TEST)
    assert sent(test, to=fleet(never), chosen={ALICE: never})[-1] == "@alice/mail"


def test_members_who_chose_it_get_the_budgets_they_may_see() -> None:
    wants = only(NoticeKind.BUDGET, SendWhen.DAILY)
    everybody = dict.fromkeys((ALICE, CAROL, UserName("dave")), wants)
    assert sent(BUDGET, chosen=everybody)[2:] == ["@alice/mail", "@carol/mail"]
    assert sent(replace(BUDGET, team=RESEARCH), chosen=everybody)[2:] == ["@carol/mail"]


def test_quiet_hours_delay_what_is_not_urgent() -> None:
    quiet = NoticeRules(quiet=QuietHours(20 * 60, 7 * 60))
    (first, *_) = routes_of(BUDGET, fleet(quiet), {}, None, NIGHT)
    assert (first.time.at, first.time.alone) == (datetime(2026, 11, 19, 7, tzinfo=UTC), False)
    (first, *_) = routes_of(IDLE, fleet(quiet), {}, None, NIGHT)
    assert (first.time.at, first.time.alone) == (NIGHT, True)


def test_channels_are_found_by_name() -> None:
    every = fleet()
    assert channel_of("research/slack", every, None) == Slack("/slack")
    assert channel_of("*/mail", every, None) == Mail(("ops@example.org",))
    assert channel_of("@alice/mail", every, "example.org") == Mail(("alice@example.org",))
    assert channel_of("@bob@b.org/mail", every, "example.org") == Mail(("bob@b.org",))
    for gone in ("research/mail", "nlp/slack", "gone/slack", "*/slack", "@alice/mail"):
        assert channel_of(gone, every, None) is None
