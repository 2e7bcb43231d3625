"""Define units of work that jobs count, such as steps and tokens, and what a cost can be divided by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, TypeAlias

from fairway.model.charge import JobLabel, parse_dimension

UNIT_PATTERN: Final = r"^[a-z][a-z0-9_-]{0,30}$"
MAX_UNITS: Final = 4
"""Units that one job counts."""
MAX_TOTAL: Final = 10**15
"""Of one unit of one job: JSON numbers are exact up to nine times as many."""
MAX_NEW_UNITS: Final = 100
"""Units whose names are new within `UNIT_DAYS`; a job that counts a further one is refused."""
UNIT_DAYS: Final = 30

_MAX_SIZE: Final = 10**12
_COUNTED: Final = re.compile(r"(?:([1-9][0-9]{0,12}):)?([a-z][a-z0-9_-]{0,30})", re.ASCII)


@dataclass(frozen=True, slots=True)
class CostUnit:
    """Some units of work, such as 1,000 steps, that a cost is divided by."""

    name: str
    size: int = 1

    def __str__(self) -> str:
        """Return the unit as it is written: `1000:steps`."""
        return self.name if self.size == 1 else f"{self.size}:{self.name}"

    @property
    def text(self) -> str:
        """Return the unit for people: `1,000 steps`."""
        return self.name if self.size == 1 else f"{self.size:,} {self.name}"


CostDivisor: TypeAlias = CostUnit | JobLabel
"""What a cost can be divided by: units that jobs counted, or the distinct values of a label."""


def parse_divisor(text: str) -> CostDivisor | None:
    """Parse `steps`, `1000:steps` or `label:experiment`. Returns None for anything else.

    >>> parse_divisor("1000:steps")
    CostUnit(name='steps', size=1000)
    """
    match = _COUNTED.fullmatch(text)
    if match is not None:
        size = int(match[1] or 1)
        return CostUnit(match[2], size) if size <= _MAX_SIZE else None
    label = parse_dimension(text)
    return label if isinstance(label, JobLabel) else None


def size_of(divisor: CostDivisor) -> int:
    """Return how many units a cost is for; one value of a label."""
    return divisor.size if isinstance(divisor, CostUnit) else 1


def divisor_text(divisor: CostDivisor) -> str:
    """Return a divisor for people: `1,000 steps`, `experiment`."""
    return divisor.text if isinstance(divisor, CostUnit) else divisor.key
