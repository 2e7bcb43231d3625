"""The step of the notify loop: route each notice to its channels once, and send what is due.

A success is recorded in a transaction right after it. A server that is killed between the two leaves it
unrecorded, and the next one sends the same message again, with the same key: at least once, and once for a
receiver that ignores a key that it has seen.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from datetime import date, datetime
from typing import Final, Protocol

import structlog

from fairway.control.channels import SEND_SECONDS, Message, NotDelivered, Sender
from fairway.control.metrics import NoticeMetrics
from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.ledger.notices import DueMessage, PlannedDelivery
from fairway.model.backoff import Backoff
from fairway.model.channel import Mail
from fairway.model.errors import FairwayError
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.policy.notice_routing import channel_of, routes_of
from fairway.services.fleets import Fleets
from fairway.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

ROUTED_AT_ONCE: Final = 500
"""Notices routed in one round."""
BATCH: Final = 24
"""Messages in one round, so that with `AT_ONCE` and the limit of an attempt a round ends in time."""
AT_ONCE: Final = 8
MAX_ATTEMPTS: Final = 12
"""Attempts by one channel, over three to five hours; then it is given up."""
BACKOFF: Final = Backoff(30, 3600)
FORGET_SECONDS: Final = 3600.0


class RendersStatements(Protocol):
    """Renders the statements that are attached to mail; implemented by `StatementDocuments`."""

    async def of_team(self, team: TeamName, month: date) -> str:
        """Render a team's statement of a closed month as HTML."""
        ...


class DeliverNotices:
    """Delivers the notices of the fleet."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: Fleets,
        settings: Settings,
        metrics: NoticeMetrics,
        documents: RendersStatements | None = None,
        *,
        backoff: Backoff = BACKOFF,
        send_seconds: float = SEND_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._settings = settings
        self._metrics = metrics
        self._documents = documents
        self._backoff = backoff
        self._send_seconds = send_seconds
        self._clock = clock
        self._sender: Sender | None = None
        self._forgot_at: float | None = None

    async def __call__(self, lease: Lease) -> None:
        """Route new notices, and send what is due; if there is nothing, one small query."""
        pending = await self._ledger.notices.pending()
        if pending.unrouted:
            await self._route(lease, pending.now)
        if pending.unrouted or pending.due:
            await self._send_due(lease)
        now = self._clock()
        if self._forgot_at is None or now - self._forgot_at >= FORGET_SECONDS:
            async with self._ledger.writing(lease) as tx:
                await tx.notices.forget()
            self._forgot_at = now

    async def close(self) -> None:
        """Close connections at the end of a tenure."""
        sender, self._sender = self._sender, None
        if sender is not None:
            await sender.close()

    async def _route(self, lease: Lease, now: datetime) -> None:
        """Store by which channels and when new notices are sent, once: later changes of rules leave them."""
        fleet = await self._fleets.in_force()
        chosen = await self._ledger.notice_preferences.all()
        stored = await self._ledger.notices.unrouted(ROUTED_AT_ONCE)
        planned = [
            PlannedDelivery(one.id, route.channel, route.time)
            for one in stored
            for route in routes_of(one.notice, fleet, chosen, self._settings.mail_domain, now)
        ]
        async with self._ledger.writing(lease) as tx:
            await tx.notices.route([one.id for one in stored], planned)

    async def _send_due(self, lease: Lease) -> None:
        # In a fenced transaction even if nothing is assembled: nothing is sent if another server took over.
        async with self._ledger.writing(lease) as tx:
            await tx.notices.assemble()
        due = await self._ledger.notices.due(BATCH)
        if not due:
            return
        fleet = await self._fleets.in_force()
        sender = self._sender = self._sender or Sender(self._settings, seconds=self._send_seconds)
        places = asyncio.Semaphore(AT_ONCE)

        async def send(one: DueMessage) -> None:
            async with places:
                await self._send(lease, one, fleet, sender)

        ends = await asyncio.gather(*map(send, due), return_exceptions=True)
        failures = [end for end in ends if isinstance(end, BaseException)]
        if failures:
            raise next((end for end in failures if isinstance(end, LeaseLost)), failures[0])

    async def _send(self, lease: Lease, due: DueMessage, fleet: Fleet, sender: Sender) -> None:
        channel = channel_of(due.channel, fleet, self._settings.mail_domain)
        error: str | None = None
        again: float | None = None
        if channel is None:
            error = "the channel is no longer configured"
        else:
            try:
                attachments = await self._attachments(due) if isinstance(channel, Mail) else {}
                await sender.send(Message(due.channel, due.notices, attachments), channel)
            except NotDelivered as failure:
                error = str(failure)
        if error is None:
            self._metrics.tried(_kind(due), "delivered")
        else:
            last = channel is None or due.attempts + 1 >= MAX_ATTEMPTS
            if not last:
                again = self._backoff.seconds(due.attempts + 1, random.random())  # noqa: S311
            self._metrics.tried(_kind(due), "given-up" if last else "failed")
            (log.error if last else log.warning)(
                "notice abandoned" if last else "notice not delivered",
                key=due.notices[0].notice.key,
                notices=len(due.notices),
                channel=due.channel,
                why=error,
            )
        async with self._ledger.writing(lease) as tx:
            await tx.notices.record(due, error, again)

    async def _attachments(self, due: DueMessage) -> dict[str, str]:
        """Render the statements that the notices of a message are about."""
        found = {}
        for one in due.notices:
            team, month = one.notice.team, one.notice.month
            if team is not None and month is not None and self._documents is not None:
                try:
                    html = await self._documents.of_team(team, month)
                except FairwayError as error:
                    raise NotDelivered(f"the statement cannot be rendered: {error.message}") from error
                found[f"statement-{month:%Y-%m}-{team}.html"] = html
        return found


def _kind(due: DueMessage) -> str:
    return due.channel.rpartition("/")[2]
