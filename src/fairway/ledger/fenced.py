"""The transaction that only the holder of a lease can commit."""

from __future__ import annotations

from typing import Final

from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.cost.budgets import BudgetWriter
from fairway.ledger.fleet.observations import ObservationWriter
from fairway.ledger.jobs.dispatch import DispatchWriter
from fairway.ledger.jobs.mirror import MirrorWriter
from fairway.ledger.policy.applies import ApplyWriter
from fairway.ledger.policy.drift import DriftWriter
from fairway.ledger.records.fleet import Lease
from fairway.ledger.usage.capacity import CapacityWriter
from fairway.ledger.usage.metering import MeteringWriter


class FencedTransaction:
    """A short transaction under a lease, for the lease's cluster only; see `Ledger.writing`."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self.observations: Final = ObservationWriter(connection, lease)
        self.applies: Final = ApplyWriter(connection, lease)
        self.drift: Final = DriftWriter(connection, lease)
        self.dispatch: Final = DispatchWriter(connection, lease)
        self.mirror: Final = MirrorWriter(connection, lease)
        self.metering: Final = MeteringWriter(connection, lease)
        self.capacity: Final = CapacityWriter(connection, lease)
        self.budgets: Final = BudgetWriter(connection, lease)
