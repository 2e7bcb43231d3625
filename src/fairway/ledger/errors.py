"""How the ledger says no."""

from __future__ import annotations

from fairway.model.errors import PermanentError, TemporaryError


class LedgerUnreachable(TemporaryError):
    """PostgreSQL did not answer: down, restarting, network, time-out."""


class LedgerBusy(TemporaryError):
    """PostgreSQL answered, but not in time: locks, a full connection pool, a cancelled statement."""


class LedgerRefused(PermanentError):
    """PostgreSQL answered no: bad password, unknown database, missing rights."""


class LedgerNotMigrated(PermanentError):
    """The database has no tables of Fairway's, or older ones than this code needs."""


class LedgerNewer(PermanentError):
    """The database was migrated by a newer Fairway; this one must not touch it."""


class DowngradeRefused(PermanentError):
    """The tables cannot go back that far, or not without losing something: nothing was changed."""


class LeaseLost(TemporaryError):
    """Somebody else holds the lease now, or its time ran out: nothing was written."""


class ObservationRefused(PermanentError):
    """An observation contradicts itself, e.g. names a node twice: nothing was written."""


class TokenNameTaken(PermanentError):
    """There is, or was, a token of that name."""


class LastAdmin(PermanentError):
    """Without this token nobody could ever make one again: it was not revoked."""


class KeyReused(PermanentError):
    """Other jobs were submitted under the same key before."""


class MonthClosed(PermanentError):
    """The month was closed before: what was told of it stays."""


class MonthOpen(PermanentError):
    """A month before it has usage and is not closed: months close in order."""


class ArchiveMissing(PermanentError):
    """Old usage is in an object store that this server was not told of, or that has lost it."""


class ArchiveUnreachable(TemporaryError):
    """The object store did not answer, or did not keep what it was given: nothing was removed here."""


class UsageTooFine(PermanentError):
    """The answer would have more lines than anybody reads."""


class LedgerNotEmpty(PermanentError):
    """There are jobs already: a past that is made up is not mixed with them."""
