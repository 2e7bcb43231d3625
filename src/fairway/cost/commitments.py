"""Compute coverage, utilisation and break-even of a commitment. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction


@dataclass(frozen=True, slots=True)
class CommitmentUse:
    """What became of the GPU-hours of one commitment in a period, and its prices per GPU-hour."""

    used: Fraction
    """Committed GPU-hours in which jobs held the GPU."""
    idle: Fraction
    """Committed GPU-hours of GPUs that existed and that no job held."""
    absent: Fraction
    """Committed GPU-hours for which no GPU existed."""
    uncovered: Fraction
    """GPU-hours of the pool that jobs held beyond its commitments."""
    price: Fraction
    """What the commitment costs for each committed GPU-hour."""
    list_price: Fraction
    """What the same GPU-hour costs without the commitment."""

    @property
    def committed(self) -> Fraction:
        """Return the GPU-hours that are paid for, whatever becomes of them."""
        return self.used + self.idle + self.absent

    @property
    def coverage(self) -> Fraction | None:
        """Return the part of the pool's used GPU-hours that the commitment covered; None without any."""
        total = self.used + self.uncovered
        return self.used / total if total else None

    @property
    def utilisation(self) -> Fraction | None:
        """Return the used part of the committed GPU-hours; None without any."""
        return self.used / self.committed if self.committed else None

    @property
    def break_even(self) -> Fraction | None:
        """Return the utilisation from which the commitment is cheaper; None if nothing else has a price."""
        return self.price / self.list_price if self.list_price else None

    @property
    def saved(self) -> Fraction:
        """Return what the used GPU-hours would have cost without the commitment, less what it cost.

        It is negative exactly while the utilisation is below the break-even.
        """
        return self.used * self.list_price - self.committed * self.price
