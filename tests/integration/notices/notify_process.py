"""The notify loop as a process that tests can kill: its step over and over, under a lease."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from prometheus_client import CollectorRegistry

from fairway.control.loops.notify import DeliverNotices
from fairway.control.metrics import NoticeMetrics
from fairway.ledger import FLEET, Lease, Ledger
from fairway.ledger.notices import DueMessage, NoticeWriter
from fairway.model.backoff import Backoff
from fairway.model.channel import Channels, Mail, Slack, Webhook
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules, SendWhen
from fairway.model.team import Team
from fairway.services.fleets import Fleets
from fairway.settings import Settings
from tests.integration.server.lease_server import FLEET as PLAIN

LEASE_SECONDS = 1.0
SEND_SECONDS = 0.4
TEAM = TeamName("research")
MEMBER = UserName("alice")


@dataclass(frozen=True)
class Site:
    """Where the ledger and the receivers are."""

    database_url: str
    hooks_url: str
    smtp_url: str
    slack_file: str
    planted: str | None = None
    """A fault: `recorded-first` or `changing-key`."""

    def fleet(self) -> Fleet:
        digests = NoticeRules((NoticeRule(NoticeKind.BUDGET, SendWhen.HOURLY),))
        team = Channels(
            Webhook(f"{self.hooks_url}/team"), Slack(self.slack_file), Mail(("team@example.org",)), digests
        )
        operators = Channels(Webhook(f"{self.hooks_url}/operators"))
        return replace(PLAIN, teams=(Team(TEAM, members=(MEMBER,), notify=team),), notify=operators)

    def settings(self) -> Settings:
        return Settings(
            state_dir=Path("/nonexistent"),
            smtp_url=self.smtp_url,
            smtp_from="fairway@example.org",
            mail_domain="example.org",
        )


def _plant(fault: str | None) -> None:
    if fault == "recorded-first":
        send = DeliverNotices._send
        record = NoticeWriter.record

        async def recorded_first(self: DeliverNotices, lease: Lease, due: DueMessage, *rest: object) -> None:
            async with self._ledger.writing(lease) as tx:
                await record(tx.notices, due, None, None)
            await send(self, lease, due, *rest)  # type: ignore[arg-type]

        DeliverNotices._send = recorded_first  # type: ignore[method-assign,assignment]
    elif fault == "changing-key":
        from fairway.control import channels

        key = channels.Message.__dict__["key"].fget
        assert key is not None
        channels.Message.key = property(lambda self: f"{key(self)[:20]}{time.time_ns() % 10**12:012}")  # type: ignore[method-assign,assignment]


async def main(site: Site) -> None:
    _plant(site.planted)
    ledger = await Ledger.connect(site.database_url)
    fleet = site.fleet()
    deliver = DeliverNotices(
        ledger,
        Fleets(ledger, lambda _: fleet),
        site.settings(),
        NoticeMetrics(CollectorRegistry()),
        backoff=Backoff(0.05, 0.2),
        send_seconds=SEND_SECONDS,
    )
    holder = f"{time.monotonic_ns()}"
    while True:
        # The ledger is slower than the lease, or another has it.
        with suppress(FairwayError):
            lease = await ledger.leases.take("notify", FLEET, holder, LEASE_SECONDS)
            if lease is not None:
                await deliver(lease)
        await asyncio.sleep(0.01)


def serve(site: Site) -> None:
    """The whole life of one process."""
    asyncio.run(main(site))
