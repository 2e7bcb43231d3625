"""Provide the entry point to PostgreSQL: `Ledger`, with a store per subject, and its fenced transactions.

A store reads, and writes what any server may write at any time. What only the holder of a lease may write is
written by the writers of a `FencedTransaction`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import leases, migrate
from fairway.ledger.access.logins import LoginStore
from fairway.ledger.access.sessions import SessionStore
from fairway.ledger.access.tokens import TokenStore
from fairway.ledger.change_feed import ChangeFeed
from fairway.ledger.connection import ConnectionLimits, Connections, OneConnection
from fairway.ledger.cost.budget_raises import BudgetRaiseStore
from fairway.ledger.cost.budgets import BudgetStore, BudgetWriter
from fairway.ledger.cost.closed_months import MonthStore
from fairway.ledger.cost.forecasts import ForecastStore, ForecastWriter
from fairway.ledger.cost.price_points import PriceStore
from fairway.ledger.errors import LedgerUnreachable
from fairway.ledger.fleet.clusters import ClusterStore
from fairway.ledger.fleet.conditions import ConditionStore, ConditionWriter
from fairway.ledger.fleet.observations import ObservationWriter
from fairway.ledger.fleet.revisions import RevisionStore
from fairway.ledger.fleet.team_colours import TeamColourStore
from fairway.ledger.jobs.changes import JobChangeStore, JobChangeWriter
from fairway.ledger.jobs.dispatch import DispatchStore, DispatchWriter
from fairway.ledger.jobs.ends import JobEndWriter
from fairway.ledger.jobs.forecasts import JobForecastStore, JobForecastWriter
from fairway.ledger.jobs.history import JobHistoryStore
from fairway.ledger.jobs.mirror import MirrorStore, MirrorWriter
from fairway.ledger.jobs.run_times import RunTimeStore, RunTimeWriter
from fairway.ledger.jobs.snapshots import SnapshotStore
from fairway.ledger.jobs.store import JobStore
from fairway.ledger.jobs.waiting import WaitingStore
from fairway.ledger.leases import LeaseStore
from fairway.ledger.migrate import TableVersion
from fairway.ledger.notices import NoticePreferenceStore, NoticeStore, NoticeWriter
from fairway.ledger.policy.applies import ApplyStore, ApplyWriter
from fairway.ledger.policy.drift import DriftStore, DriftWriter
from fairway.ledger.pools import PoolStore
from fairway.ledger.records.fleet import Lease
from fairway.ledger.slos.counts import SloStore, SloWriter
from fairway.ledger.slos.histories import HistoryStore
from fairway.ledger.telemetry.cordons import CordonStore, CordonWriter
from fairway.ledger.telemetry.figures import FiguresStore
from fairway.ledger.telemetry.gpu_events import GpuEventStore, GpuEventWriter
from fairway.ledger.telemetry.gpu_use import GpuUseStore, GpuUseWriter
from fairway.ledger.telemetry.idle import IdleStore, IdleWriter
from fairway.ledger.telemetry.totals import GpuUseTotals
from fairway.ledger.telemetry.use_views import UseViewStore
from fairway.ledger.usage.capacity import CapacityStore, CapacityWriter
from fairway.ledger.usage.metering import MeteringStore, MeteringWriter
from fairway.ledger.usage.partitions import PartitionStore
from fairway.ledger.usage.queue import QueueStore, QueueWriter
from fairway.ledger.usage.totals import UsageStore
from fairway.ledger.usage.units import UnitStore
from fairway.ledger.what_if import StudyStore, StudyWriter


class FencedTransaction:
    """A short transaction under a lease, for the lease's cluster only; see `Ledger.writing`."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self.observations: Final = ObservationWriter(connection, lease)
        self.conditions: Final = ConditionWriter(connection, lease)
        self.applies: Final = ApplyWriter(connection, lease)
        self.drift: Final = DriftWriter(connection, lease)
        self.dispatch: Final = DispatchWriter(connection, lease)
        self.job_changes: Final = JobChangeWriter(connection, lease)
        self.mirror: Final = MirrorWriter(connection, lease)
        self.metering: Final = MeteringWriter(connection, lease)
        self.capacity: Final = CapacityWriter(connection, lease)
        self.queue: Final = QueueWriter(connection, lease)
        self.budgets: Final = BudgetWriter(connection, lease)
        self.forecasts: Final = ForecastWriter(connection, lease)
        self.slos: Final = SloWriter(connection, lease)
        self.gpu_use: Final = GpuUseWriter(connection, lease)
        self.gpu_events: Final = GpuEventWriter(connection, lease)
        self.cordons: Final = CordonWriter(connection, lease)
        self.notices: Final = NoticeWriter(connection, lease)
        self.job_ends: Final = JobEndWriter(connection, lease)
        self.job_forecasts: Final = JobForecastWriter(connection, lease)
        self.idle: Final = IdleWriter(connection, lease)
        self.studies: Final = StudyWriter(connection, lease)
        self.run_times: Final = RunTimeWriter(connection, lease)


class Ledger:
    """The ledger database. Safe to share between tasks; every call has a time limit."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections
        self.outage: LedgerUnreachable | None = None
        """Why PostgreSQL is down, if this server runs it itself; `ready` raises it."""
        self.revisions: Final = RevisionStore(connections)
        self.clusters: Final = ClusterStore(connections)
        self.conditions: Final = ConditionStore(connections)
        self.pools: Final = PoolStore(connections)
        self.waiting: Final = WaitingStore(connections)
        self.snapshots: Final = SnapshotStore(connections)
        self.job_forecasts: Final = JobForecastStore(connections)
        self.applies: Final = ApplyStore(connections)
        self.drift: Final = DriftStore(connections)
        self.jobs: Final = JobStore(connections)
        self.job_history: Final = JobHistoryStore(connections)
        self.dispatch: Final = DispatchStore(connections)
        self.job_changes: Final = JobChangeStore(connections)
        self.mirror: Final = MirrorStore(connections)
        self.metering: Final = MeteringStore(connections)
        self.capacity: Final = CapacityStore(connections)
        self.queue: Final = QueueStore(connections)
        self.team_colours: Final = TeamColourStore(connections)
        self.usage: Final = UsageStore(connections)
        self.units: Final = UnitStore(connections)
        self.partitions: Final = PartitionStore(connections)
        self.prices: Final = PriceStore(connections)
        self.months: Final = MonthStore(connections)
        self.budgets: Final = BudgetStore(connections)
        self.budget_raises: Final = BudgetRaiseStore(connections)
        self.forecasts: Final = ForecastStore(connections)
        self.slos: Final = SloStore(connections)
        self.job_histories: Final = HistoryStore(connections)
        self.gpu_use: Final = GpuUseStore(connections)
        self.gpu_events: Final = GpuEventStore(connections)
        self.cordons: Final = CordonStore(connections)
        self.notices: Final = NoticeStore(connections)
        self.notice_preferences: Final = NoticePreferenceStore(connections)
        self.figures: Final = FiguresStore(connections)
        self.gpu_use_totals: Final = GpuUseTotals(connections)
        self.use_views: Final = UseViewStore(connections)
        self.idle: Final = IdleStore(connections)
        self.run_times: Final = RunTimeStore(connections)
        self.studies: Final = StudyStore(connections)
        self.tokens: Final = TokenStore(connections)
        self.sessions: Final = SessionStore(connections)
        self.logins: Final = LoginStore(connections)
        self.leases: Final = LeaseStore(connections)
        self.change_feed: Final = ChangeFeed(connections)

    @classmethod
    async def connect(cls, url: str, limits: ConnectionLimits | None = None) -> Ledger:
        """Connect to the ledger at `postgresql://…`. Raises LedgerUnreachable or LedgerRefused."""
        ledger = cls(Connections(url, limits or ConnectionLimits()))
        try:
            async with ledger._connections.single() as connection:
                await connection.execute(select(1))
        except BaseException:
            await ledger.close()
            raise
        return ledger

    @property
    def url(self) -> str:
        """The URL that `connect` got. It may contain a password: not to be printed."""
        return self._connections.url

    async def close(self) -> None:
        """Close every connection. Safe to call twice."""
        await self._connections.close()

    async def migrate(self) -> None:
        """Upgrade the tables to the version this code needs; any number of servers may do so at once."""
        await migrate.migrate(self._connections)

    async def table_version(self) -> TableVersion:
        """Return the migration the tables are at, and the newest one, without changing anything."""
        return await migrate.version(self._connections)

    async def downgrade(self, to: str, *, force: bool = False) -> TableVersion:
        """Downgrade the tables to step `to`. Raises DowngradeRefused, and then nothing was changed."""
        return await migrate.downgrade(self._connections, to, force=force)

    async def ready(self) -> None:
        """Return if the ledger can serve now. Raises LedgerUnreachable, LedgerBusy or LedgerNotMigrated."""
        if self.outage is not None:
            raise self.outage
        async with self._connections.single() as connection:
            await migrate.check_version(connection)
            await self._connections.check_writable(connection)

    @asynccontextmanager
    async def reading(self) -> AsyncIterator[Ledger]:
        """Open a ledger whose reads share one connection, one after the other: for many small ones.

        It has the time limit of one call. What needs a transaction is not for it.
        """
        async with self._connections.single() as connection:
            yield Ledger(OneConnection(connection))

    @asynccontextmanager
    async def writing(self, lease: Lease) -> AsyncIterator[FencedTransaction]:
        """Open a short transaction that only the holder of the lease can commit. Raises LeaseLost otherwise.

        It begins by locking the lease's row where holder and token match and the lease has not expired by
        the database's clock, and ends by checking expiry again. Nobody can take the lease while the row is
        locked: what was verified is still true when the commit is done. Make no network call inside.
        """
        async with self._connections.transaction() as connection:
            await leases.begin(connection, lease, self._connections.limits.statement_seconds)
            yield FencedTransaction(connection, lease)
            await leases.check_held(connection, lease)
