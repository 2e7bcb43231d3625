"""The step of the notify loop: deliver each notice by each of its channels.

A success is recorded in a transaction right after it. A server that is killed between the two leaves it
unrecorded, and the next one delivers it again: at least once. A receiver can tell that by the delivery's key.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from typing import Final

import structlog

from fairway.control.channels import NotDelivered, Sender, Target, targets_of
from fairway.control.metrics import NoticeMetrics
from fairway.ledger import Lease, LeaseLost, Ledger
from fairway.ledger.notices import Delivery, DueNotice
from fairway.model.backoff import Backoff
from fairway.model.fleet import Fleet
from fairway.services.fleets import Fleets
from fairway.settings import Settings

log: structlog.stdlib.BoundLogger = structlog.get_logger("fairway.control")

BATCH: Final = 24
"""Notices in one round, so that with `AT_ONCE` and the limit of an attempt a round ends in time."""
AT_ONCE: Final = 8
MAX_ATTEMPTS: Final = 12
"""Attempts by one channel, over three to five hours; then it is given up."""
BACKOFF: Final = Backoff(30, 3600)
FORGET_SECONDS: Final = 3600.0


class DeliverNotices:
    """Delivers the notices of the fleet."""

    def __init__(
        self,
        ledger: Ledger,
        fleets: Fleets,
        settings: Settings,
        metrics: NoticeMetrics,
        *,
        backoff: Backoff = BACKOFF,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._settings = settings
        self._metrics = metrics
        self._backoff = backoff
        self._clock = clock
        self._sender: Sender | None = None
        self._forgot_at: float | None = None

    async def __call__(self, lease: Lease) -> None:
        """Deliver what is due; else one small query."""
        due = await self._ledger.notices.due(BATCH)
        if due:
            fleet = await self._fleets.in_force()
            sender = self._sender = self._sender or Sender(self._settings)
            places = asyncio.Semaphore(AT_ONCE)

            async def deliver(one: DueNotice) -> None:
                async with places:
                    await self._deliver(lease, one, fleet, sender)

            ends = await asyncio.gather(*map(deliver, due), return_exceptions=True)
            failures = [end for end in ends if isinstance(end, BaseException)]
            if failures:
                raise next((end for end in failures if isinstance(end, LeaseLost)), failures[0])
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

    async def _deliver(self, lease: Lease, due: DueNotice, fleet: Fleet, sender: Sender) -> None:
        targets = [
            target
            for target in targets_of(due.notice, fleet, self._settings.mail_domain)
            if target.id not in due.delivered and due.tried.get(target.id, 0) < MAX_ATTEMPTS
        ]
        deliveries = await asyncio.gather(*(self._attempt(sender, due, target) for target in targets))
        attempts = [due.tried.get(d.channel, 0) + 1 for d in deliveries if d.error is not None]
        waits = [self._backoff.seconds(n, random.random()) for n in attempts if n < MAX_ATTEMPTS]  # noqa: S311
        async with self._ledger.writing(lease) as tx:
            await tx.notices.record(deliveries, {due.id: min(waits, default=None)})

    async def _attempt(self, sender: Sender, due: DueNotice, target: Target) -> Delivery:
        try:
            await sender.send(due.notice, due.created_at, target)
        except NotDelivered as error:
            last = due.tried.get(target.id, 0) + 1 >= MAX_ATTEMPTS
            self._metrics.tried(target.kind, "given-up" if last else "failed")
            write = log.error if last else log.warning
            write(
                "notice abandoned" if last else "notice not delivered",
                key=due.notice.key,
                channel=target.id,
                why=str(error),
            )
            return Delivery(due.id, target.id, str(error))
        self._metrics.tried(target.kind, "delivered")
        return Delivery(due.id, target.id)
