"""Define the errors that the ledger raises."""

from __future__ import annotations

from fairway.model.errors import PermanentError, TemporaryError


class LedgerUnreachable(TemporaryError):
    """PostgreSQL did not answer: down, restarting, network failure or timeout."""


class InvalidText(PermanentError):
    """A text has a character that PostgreSQL cannot store: NUL, or half of a surrogate pair."""


class LedgerBusy(TemporaryError):
    """PostgreSQL answered, but not in time: locks, a full connection pool, a cancelled statement."""


class LedgerRefused(PermanentError):
    """PostgreSQL refused the connection or statement: bad password, unknown database, missing permissions."""


class LedgerNotMigrated(PermanentError):
    """The database has no Fairway tables, or older ones than this code needs."""


class LedgerNewer(PermanentError):
    """The database was migrated by a newer Fairway; this one must not touch it."""


class DowngradeRefused(PermanentError):
    """The tables cannot be downgraded that far, or not without losing data: nothing was changed."""


class LeaseLost(TemporaryError):
    """Another server holds the lease now, or it expired: nothing was written."""


class ObservationRefused(PermanentError):
    """An observation is inconsistent, e.g. names a node twice: nothing was written."""


class TokenNameTaken(PermanentError):
    """A token of that name exists or existed."""


class TooManyLogins(PermanentError):
    """Too many sign-ins of the command line are in progress."""


class LastAdmin(PermanentError):
    """This is the last admin token: without it nobody could create another. It was not revoked."""


class KeyReused(PermanentError):
    """The idempotency key was used before, for different jobs."""


class HeldByRole(PermanentError):
    """A job was held with a higher role than that of whoever wants to release it."""


class JobNotChanged(PermanentError):
    """A job started, ended or was changed by somebody else before this change of it was stored."""


class MonthClosed(PermanentError):
    """The month is already closed: its reported charges do not change."""


class MonthOpen(PermanentError):
    """An earlier month has usage and is not closed: months close in order."""


class ArchiveMissing(PermanentError):
    """Old usage is in an object store that this server has no setting for, or that has lost it."""


class ArchiveUnreachable(TemporaryError):
    """The object store did not answer, or did not store the upload: nothing was removed from PostgreSQL."""


class UsageTooFine(PermanentError):
    """The answer would have too many rows to be useful."""


class TooManyUnits(PermanentError):
    """A job reports more units of work than it may, or there are too many new units: nothing was stored."""


class LedgerNotEmpty(PermanentError):
    """The ledger has jobs already: generated history is not mixed with them."""
