"""The one truth: PostgreSQL, spoken to by nobody else.

`Ledger` is the door. `records` holds what comes back through it, `errors` how it says no. Behind the door:
`tables` and `migrations` (what is kept), `connection` (time limits, faults into errors), one file a subject
(`fleets`, `states`, `observations`, `applies`, `drifting`, `leases`, `tokens`; of jobs `jobs`, `job_pages`,
`sending`, `mirroring`; of usage and money `usage_sums`, `capacity_sums`, `price_points`, `closing`,
`budget_rows`, `partitions`, `archive`), `writing` (what is done under a lease). `embedded` brings a
PostgreSQL of its own.
"""

from __future__ import annotations

from fairway.ledger.cost_records import (
    ArchivedPart,
    BudgetEvent,
    BudgetLevel,
    BudgetStanding,
    ClosedCharge,
    ClosedMonth,
    LocalTime,
    PricePointRow,
    UsageFilter,
    UsageView,
)
from fairway.ledger.errors import (
    ArchiveMissing,
    ArchiveUnreachable,
    DowngradeRefused,
    KeyReused,
    LastAdmin,
    LeaseLost,
    LedgerBusy,
    LedgerNewer,
    LedgerNotMigrated,
    LedgerRefused,
    LedgerUnreachable,
    MonthClosed,
    MonthOpen,
    ObservationRefused,
    TokenNameTaken,
    UsageTooFine,
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
from fairway.ledger.leases import FLEET
from fairway.ledger.ledger import Ledger
from fairway.ledger.metering import Hours, HoursTooFew, MeteredBatch, Used
from fairway.ledger.migrate import TableVersion
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
from fairway.ledger.pulse import Topic
from fairway.ledger.records import ClusterState, Lease, NodeState, PoolState, Revision, Token
from fairway.ledger.writing import Writing

__all__ = [
    "FLEET",
    "AppliedCluster",
    "Apply",
    "ApplyCluster",
    "ApplyKind",
    "ApplyState",
    "ApplyWork",
    "ArchiveMissing",
    "ArchiveUnreachable",
    "ArchivedPart",
    "BudgetEvent",
    "BudgetLevel",
    "BudgetStanding",
    "ClosedCharge",
    "ClosedMonth",
    "ClusterState",
    "DowngradeRefused",
    "Drift",
    "DriftEntry",
    "DriftKind",
    "EventKind",
    "Hours",
    "HoursTooFew",
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
    "LastAdmin",
    "Lease",
    "LeaseLost",
    "Ledger",
    "LedgerBusy",
    "LedgerNewer",
    "LedgerNotMigrated",
    "LedgerRefused",
    "LedgerUnreachable",
    "LocalTime",
    "MeteredBatch",
    "MonthClosed",
    "MonthOpen",
    "NewJob",
    "NodeState",
    "ObservationRefused",
    "PoolState",
    "PricePointRow",
    "Revision",
    "TableVersion",
    "ToDo",
    "ToSend",
    "Token",
    "TokenNameTaken",
    "Topic",
    "UsageFilter",
    "UsageTooFine",
    "UsageView",
    "Used",
    "Wish",
    "Writing",
]
