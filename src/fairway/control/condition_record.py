"""Record a condition of a cluster in the ledger when it changes."""

from __future__ import annotations

from fairway.ledger import Lease, Ledger
from fairway.model.condition import Condition, ConditionType


class ConditionRecord:
    """The condition of one type that a loop has recorded for its cluster."""

    def __init__(self, ledger: Ledger, type_: ConditionType) -> None:
        self._ledger = ledger
        self._type = type_
        self._recorded: tuple[Condition | None] | None = None
        """The condition that the ledger has; None if this is not known yet."""

    async def write(self, lease: Lease, condition: Condition | None) -> None:
        """Write the condition, or that there is none, unless the ledger has it already."""
        if self._recorded != (condition,):
            async with self._ledger.writing(lease) as tx:
                await tx.conditions.write((self._type,), () if condition is None else (condition,))
            self._recorded = (condition,)

    def forget(self) -> None:
        """Forget what the ledger has: another server may write it now."""
        self._recorded = None
