"""The one truth: PostgreSQL, spoken to by nobody else.

`Ledger` is the door. `records` holds what comes back through it, `errors` how it says no. Behind the door:
`tables` and `migrations` (what is kept), `connection` (time limits, faults into errors), one file a subject
(`fleets`, `states`, `observations`, `leases`, `tokens`). `embedded` brings a PostgreSQL of its own.
"""

from __future__ import annotations

from fairway.ledger.errors import (
    LeaseLost,
    LedgerBusy,
    LedgerNewer,
    LedgerNotMigrated,
    LedgerRefused,
    LedgerUnreachable,
    ObservationRefused,
    TokenNameTaken,
)
from fairway.ledger.ledger import Ledger
from fairway.ledger.observations import Writing
from fairway.ledger.records import ClusterState, Lease, NodeState, PoolState, Revision, Token

__all__ = [
    "ClusterState",
    "Lease",
    "LeaseLost",
    "Ledger",
    "LedgerBusy",
    "LedgerNewer",
    "LedgerNotMigrated",
    "LedgerRefused",
    "LedgerUnreachable",
    "NodeState",
    "ObservationRefused",
    "PoolState",
    "Revision",
    "Token",
    "TokenNameTaken",
    "Writing",
]
