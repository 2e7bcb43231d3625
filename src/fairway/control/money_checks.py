"""Check what charges rest on: spot prices that still come, no more held than there was, labels apart."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from fairway.control.condition_record import ConditionRecord
from fairway.control.metrics import UsageMetrics
from fairway.cost.calendar import Calendar
from fairway.cost.spot_prices import FEED_POINTS, PriceFeed, price_feed
from fairway.ledger import HeldAndThere, Lease, Ledger
from fairway.model.charge import Span
from fairway.model.condition import Condition, ConditionType
from fairway.model.fleet import Capacity, Fleet
from fairway.model.labels import MAX_NEW_VALUES, OTHER_VALUE, VALUE_DAYS
from fairway.model.names import ClusterName, PoolName
from fairway.model.text import span as duration_text

FEED_SECONDS: Final = 60
"""How often the age of spot prices is checked."""
LAG_SECONDS: Final = 60
"""A device may be observed, and the end of a job reported, so much too late."""


class MoneyChecks:
    """Records conditions of one cluster: PriceFeedStopped, UsageAboveCapacity and TooManyLabelValues."""

    def __init__(self, cluster: ClusterName, ledger: Ledger, metrics: UsageMetrics) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._metrics = metrics
        self._feed = ConditionRecord(ledger, ConditionType.PRICE_FEED_STOPPED)
        self._held = ConditionRecord(ledger, ConditionType.USAGE_ABOVE_CAPACITY)
        self._labels = ConditionRecord(ledger, ConditionType.TOO_MANY_LABEL_VALUES)
        self._feeds_checked = 0
        self._hour_checked = 0

    async def feeds(self, lease: Lease, fleet: Fleet, now: int) -> None:
        """Check, once a minute, that the prices of spot pools still come, and that labels count apart."""
        if 0 <= now - self._feeds_checked < FEED_SECONDS:
            return
        feeds: dict[PoolName, PriceFeed] = {}
        for pool in fleet.pools_of(self._cluster):
            if pool.capacity is Capacity.SPOT:
                points = await self._ledger.prices.stored(pool.name, limit=FEED_POINTS)
                feed = price_feed([point.at for point in points])
                if feed is not None:
                    feeds[pool.name] = feed
        at = datetime.fromtimestamp(now, UTC)
        overdue = {name: max(0.0, (at - f.newest - f.limit).total_seconds()) for name, f in feeds.items()}
        self._metrics.feeds(self._cluster, overdue)
        await self._feed.write(lease, _feed_condition({n: f for n, f in feeds.items() if f.stopped(at)}))
        limited = await self._ledger.jobs.limited_labels(self._cluster)
        await self._labels.write(lease, _labels_condition(limited) if limited else None)
        self._feeds_checked = now

    async def usage(self, lease: Lease, fleet: Fleet, calendar: Calendar, metered_to: int) -> None:
        """Compare what was held with what there was in the last hour that is metered, once for each hour."""
        if metered_to == self._hour_checked:
            return
        hour = Span(calendar.hour_start(metered_to - 1), metered_to)
        pools = {pool.name for pool in fleet.pools_of(self._cluster)}
        found = [
            row
            for row in await self._ledger.capacity.held_and_there(self._cluster, hour)
            if row.supply.pool in pools and _exceeds(row, hour)
        ]
        seconds = hour.end - hour.start
        self._metrics.above_capacity(
            self._cluster,
            {(r.supply.pool, r.supply.slice or ""): (r.held - r.there) / seconds for r in found},
        )
        await self._held.write(lease, _usage_condition(found, hour) if found else None)
        self._hour_checked = metered_to

    def forget(self) -> None:
        """Check anew in the next tenure: another server may write the conditions meanwhile."""
        self._feed.forget()
        self._held.forget()
        self._labels.forget()
        self._feeds_checked = self._hour_checked = 0
        self._metrics.feeds(self._cluster, {})
        self._metrics.above_capacity(self._cluster, {})


def _exceeds(row: HeldAndThere, hour: Span) -> bool:
    """Return whether more was held than a late observation explains."""
    seconds = hour.end - hour.start
    return row.held - row.there > max(row.held, row.there) * LAG_SECONDS / seconds


def _feed_condition(stopped: dict[PoolName, PriceFeed]) -> Condition | None:
    if not stopped:
        return None
    texts = [
        f"spot prices of {name} have stopped: the newest is from {feed.newest:%Y-%m-%d %H:%M}Z, and one came "
        f"about every {duration_text(feed.interval.total_seconds())}"
        for name, feed in sorted(stopped.items())
    ]
    name = min(stopped)
    return Condition(
        ConditionType.PRICE_FEED_STOPPED,
        "PriceFeedStopped",
        "; ".join(texts),
        "the newest price applies until another comes; check the job that runs  "
        f"fairway price points {name} FILE",
    )


def _labels_condition(keys: Sequence[str]) -> Condition:
    of = " and ".join(f"values of the label {key}" if key else "projects" for key in keys)
    return Condition(
        ConditionType.TOO_MANY_LABEL_VALUES,
        "TooManyLabelValues",
        f"jobs had more than {MAX_NEW_VALUES:,} new {of} in {VALUE_DAYS} days: further ones count as "
        f"{OTHER_VALUE} in reports",
        "find who labels each job anew:  fairway report usage --label KEY='(other)' --by user; remove the "
        "key from  cost.labels  if it is not to be reported",
    )


def _usage_condition(found: list[HeldAndThere], hour: Span) -> Condition:
    def devices(seconds: int) -> str:
        return f"{seconds / (hour.end - hour.start):.1f}"

    begin, end = (datetime.fromtimestamp(at, UTC) for at in (hour.start, hour.end))
    texts = [
        f"jobs held {devices(row.held)} {row.supply.slice or 'GPUs'} of {row.supply.pool} on average from "
        f"{begin:%H:%M} to {end:%H:%M}Z, and it had {devices(row.there)}"
        for row in found
    ]
    pool = found[0].supply.pool
    return Condition(
        ConditionType.USAGE_ABOVE_CAPACITY,
        "UsageAboveCapacity",
        "; ".join(texts),
        f"compare  fairway get jobs --pool {pool} --state running  with the cluster's own list: jobs that "
        "have ended are still charged, or nodes are not observed",
    )
