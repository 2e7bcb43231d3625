"""Define the reasons for which a job does not wait for GPUs: objectives do not count that time. Pure."""

from __future__ import annotations

from typing import Final

_CODES: Final = (
    # A person, the job's own request or its team's budget decided it.
    "ArrayTaskLimit BudgetSpent Held HeldAfterFailure HeldByAdmin TeamDraining TeamHeld",
    # Something else must come first.
    "AfterAnother NotYetTime ReservationWait Retry",
    # It can never start as it is.
    "AboveQuota AccountRefused ClaimNotCounted DeadlinePassed DependencyNeverMet JobAboveLimit",
    "JobBelowMinimum JobTimeLimit NamespaceLimit NamespaceNotAllowed NoNodeFits PartitionLimit PodRefused",
    "QosGone ReservationGone TimeAbovePartition",
)
PAUSE_CODES: Final = frozenset(code for codes in _CODES for code in codes.split())
"""Codes of `explain.reasons`. The ledger notes from when to when a waiting job has one of them."""
