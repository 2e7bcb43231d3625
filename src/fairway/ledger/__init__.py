"""Store everything in PostgreSQL, which no other package talks to.

`Ledger` is the entry point, and `Ledger.writing` opens a transaction for the writes that need a lease.
`records` has the rows that are returned, `errors` the errors. `schema` and `migrations` define the tables;
`fleet`, `policy`, `access`, `jobs`, `usage` and `cost` have the SQL by subject. `embedded` runs a PostgreSQL
of its own.
"""

from __future__ import annotations

from fairway.ledger.access.logins import BY_LOGIN, LOGIN_SECONDS
from fairway.ledger.access.sessions import BY_SIGN_IN
from fairway.ledger.change_feed import Topic
from fairway.ledger.errors import (
    ArchiveMissing,
    ArchiveUnreachable,
    DowngradeRefused,
    HeldByRole,
    InvalidText,
    JobNotChanged,
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
    TooManyLogins,
    TooManyUnits,
)
from fairway.ledger.leases import FLEET
from fairway.ledger.ledger import FencedTransaction, Ledger
from fairway.ledger.migrate import TableVersion
from fairway.ledger.records.costs import (
    ArchivedPart,
    BudgetEvent,
    BudgetRaise,
    ClosedCharge,
    ClosedMonth,
    HeldAndThere,
    NewBudgetRaise,
    PricePointRow,
    StoredBudgetStatus,
    StoredForecast,
    UnitSum,
    UsageFilter,
    UsageView,
)
from fairway.ledger.records.fleet import (
    AllowedLogin,
    ClusterState,
    Lease,
    LoginRequest,
    NodeState,
    PoolState,
    Revision,
    StoredCondition,
    Token,
)
from fairway.ledger.records.jobs import (
    DesiredState,
    EventKind,
    JobDetail,
    JobFilter,
    JobRow,
    MirrorResult,
    NewJob,
)
from fairway.ledger.records.policy import Apply, ApplyCluster, ApplyWork, Drift, StoredChange
from fairway.ledger.usage.metering import Hours, HoursTooFew, MeteredBatch, TeamUsage
from fairway.model.apply import ApplyKind, ApplyState, DriftKind
from fairway.policy.drift import DriftEntry

__all__ = [
    "BY_LOGIN",
    "BY_SIGN_IN",
    "FLEET",
    "LOGIN_SECONDS",
    "AllowedLogin",
    "Apply",
    "ApplyCluster",
    "ApplyKind",
    "ApplyState",
    "ApplyWork",
    "ArchiveMissing",
    "ArchiveUnreachable",
    "ArchivedPart",
    "BudgetEvent",
    "BudgetRaise",
    "ClosedCharge",
    "ClosedMonth",
    "ClusterState",
    "DesiredState",
    "DowngradeRefused",
    "Drift",
    "DriftEntry",
    "DriftKind",
    "EventKind",
    "FencedTransaction",
    "HeldAndThere",
    "HeldByRole",
    "Hours",
    "HoursTooFew",
    "InvalidText",
    "JobDetail",
    "JobFilter",
    "JobNotChanged",
    "JobRow",
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
    "LoginRequest",
    "MeteredBatch",
    "MirrorResult",
    "MonthClosed",
    "MonthOpen",
    "NewBudgetRaise",
    "NewJob",
    "NodeState",
    "ObservationRefused",
    "PoolState",
    "PricePointRow",
    "Revision",
    "StoredBudgetStatus",
    "StoredChange",
    "StoredCondition",
    "StoredForecast",
    "TableVersion",
    "TeamUsage",
    "Token",
    "TokenNameTaken",
    "TooManyLogins",
    "TooManyUnits",
    "Topic",
    "UnitSum",
    "UsageFilter",
    "UsageView",
]
