"""The one truth: PostgreSQL, spoken to by nobody else.

`Ledger` is the door. `records` holds what comes back through it, `errors` how it says no. Behind the door:
`tables` and `migrations` (what is kept), `connection` (time limits, faults into errors), one file a subject
(`fleets`, `states`, `observations`, `applies`, `drifting`, `leases`, `tokens`; of jobs `jobs`, `job_pages`,
`sending`, `mirroring`), `writing` (what is done under a lease). `embedded` brings a PostgreSQL of its own.
"""

from __future__ import annotations

from fairway.ledger.errors import (
    KeyReused,
    LeaseLost,
    LedgerBusy,
    LedgerNewer,
    LedgerNotMigrated,
    LedgerRefused,
    LedgerUnreachable,
    ObservationRefused,
    TokenNameTaken,
)
from fairway.ledger.job_records import (
    EventKind,
    JobCount,
    JobDetail,
    JobEvent,
    JobFilter,
    JobRow,
    Kept,
    KeptAttempt,
    NewJob,
    ToDo,
    ToSend,
    Wish,
)
from fairway.ledger.ledger import Ledger
from fairway.ledger.policy_records import (
    AppliedCluster,
    Apply,
    ApplyCluster,
    ApplyKind,
    ApplyState,
    ApplyWork,
    Drift,
    DriftEntry,
    DriftKind,
    KeptChange,
    KeptNudge,
)
from fairway.ledger.records import ClusterState, Lease, NodeState, PoolState, Revision, Token
from fairway.ledger.writing import Writing

__all__ = [
    "AppliedCluster",
    "Apply",
    "ApplyCluster",
    "ApplyKind",
    "ApplyState",
    "ApplyWork",
    "ClusterState",
    "Drift",
    "DriftEntry",
    "DriftKind",
    "EventKind",
    "JobCount",
    "JobDetail",
    "JobEvent",
    "JobFilter",
    "JobRow",
    "Kept",
    "KeptAttempt",
    "KeptChange",
    "KeptNudge",
    "KeyReused",
    "Lease",
    "LeaseLost",
    "Ledger",
    "LedgerBusy",
    "LedgerNewer",
    "LedgerNotMigrated",
    "LedgerRefused",
    "LedgerUnreachable",
    "NewJob",
    "NodeState",
    "ObservationRefused",
    "PoolState",
    "Revision",
    "ToDo",
    "ToSend",
    "Token",
    "TokenNameTaken",
    "Wish",
    "Writing",
]
