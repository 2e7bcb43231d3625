"""List notices, and let users choose which of them they get. Members see those of their teams."""

from __future__ import annotations

import secrets

from fairway.ledger import Ledger, Token
from fairway.ledger.notices import Delivery, StoredNotice
from fairway.model.job import format_job_id
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import PERSON_KINDS, NoticeKind, NoticeRule, NoticeRules, parse_quiet_hours
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets
from fairway.services.rights import usage_filter, visible_teams
from fairway.wire import notices as wire


class NoticeQueries:
    """Reads notices and rules for a caller. Raises RequestError with a hint if they may not."""

    def __init__(self, ledger: Ledger, fleets: Fleets) -> None:
        self._ledger = ledger
        self._fleets = fleets

    async def notices(self, caller: Token, kind: NoticeKind | None, limit: int) -> wire.Notices:
        """Return the newest notices that the caller may see, with their deliveries."""
        visible = visible_teams(caller, await self._fleets.in_force())
        found = await self._ledger.notices.page(kind, visible, caller.user, limit)
        return wire.Notices(
            notices=[_notice(stored, deliveries) for stored, deliveries in found],
            of_teams=None if visible is None else sorted(visible),
        )

    async def rules(self, caller: Token) -> wire.OwnNoticeRules:
        """Return what the caller gets of each kind."""
        fleet = await self._fleets.in_force()
        rules = await self._ledger.notice_preferences.get(caller.user)
        return wire.OwnNoticeRules(
            user=caller.user,
            kinds={kind: rules.of_person(kind).send for kind in PERSON_KINDS},
            quiet=None if rules.quiet is None else str(rules.quiet),
            digest_hour=rules.digest_hour,
            timezone=fleet.cost.timezone,
        )

    async def put_rules(self, caller: Token, given: wire.NoticeRules) -> wire.OwnNoticeRules:
        """Replace the rules of the caller."""
        if wrong := [kind.value for kind in given.kinds if kind not in PERSON_KINDS]:
            raise _invalid(
                f"kinds: users do not get {', '.join(wrong)}",
                f"kinds are {', '.join(PERSON_KINDS)}; the others go to teams and operators",
            )
        quiet = None if given.quiet is None else parse_quiet_hours(given.quiet)
        if given.quiet is not None and quiet is None:
            raise _invalid(f"quiet: {given.quiet} has no length", "two different times:  20:00-07:00")
        rules = tuple(NoticeRule(kind, send) for kind, send in given.kinds.items())
        chosen = NoticeRules(rules, quiet, given.digest_hour)
        await self._ledger.notice_preferences.put(caller.user, chosen)
        return await self.rules(caller)

    async def test(self, caller: Token, team: str | None) -> wire.Notice:
        """Store a test notice to the caller, or to the channels of a team that they may see."""
        usage_filter(caller, await self._fleets.in_force(), team, None, None)
        notice = Notice(
            NoticeKind.TEST,
            f"test/{caller.user}/{secrets.token_hex(8)}",
            f"test from {caller.user}",
            f"{caller.user} tries the channels{'' if team is None else f' of {team}'}. Nothing happened.",
            None if team is None else TeamName(team),
            UserName(caller.user) if team is None else None,
        )
        await self._ledger.notices.add([notice])
        found = await self._ledger.notices.page(NoticeKind.TEST, None, caller.user, 20)
        stored = next(one for one, _ in found if one.notice.key == notice.key)
        return _notice(stored, ())


def _invalid(message: str, hint: str) -> RequestError:
    return RequestError(ErrorKind.INVALID, "InvalidRequest", message, hint)


def _notice(stored: StoredNotice, deliveries: tuple[Delivery, ...]) -> wire.Notice:
    notice = stored.notice
    return wire.Notice(
        kind=notice.kind,
        key=notice.key,
        at=stored.created_at,
        subject=notice.subject,
        text=notice.text,
        team=notice.team,
        user=notice.user,
        job=None if notice.job is None else format_job_id(notice.job),
        operators=notice.operators,
        deliveries=[
            wire.NoticeDelivery(
                channel=one.channel,
                state="delivered" if one.delivered_at else "waiting" if one.due_at else "given-up",
                attempts=one.attempts,
                at=one.delivered_at or one.due_at,
                error=one.error or "",
            )
            for one in deliveries
        ],
    )
