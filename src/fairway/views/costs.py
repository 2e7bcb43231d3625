"""Format the labels of report rows, the same in terminal, file and page. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Final, TypeAlias

from fairway.model.charge import ChargeKind, Dimension, JobLabel, Label
from fairway.model.gpu_use import HeldKind
from fairway.wire import costs as wire

MISSING_LABELS: Final = {
    Label.TEAM: "(no team)",
    Label.USER: "(no user)",
    Label.PRIORITY: "(none)",
    Label.NAME: "(no name)",
    Label.SERVICE: "(jobs)",
    Label.KIND: "(jobs)",
    Label.SLICE: "whole GPUs",
    Label.PROJECT: "(no project)",
}
"""Names for missing labels."""
_OWNER_LABELS: Final = (
    Label.TEAM,
    Label.USER,
    Label.PROJECT,
    Label.PRIORITY,
    Label.NAME,
    Label.SERVICE,
    Label.KIND,
    Label.OUTCOME,
)
NO_LABEL: Final = "(not set)"
KIND_WORDS: Final = {
    ChargeKind.USAGE: "used",
    ChargeKind.IDLE: "idle",
    ChargeKind.FRAGMENTED: "fragmented",
    ChargeKind.DRAINED: "drained",
    ChargeKind.DOWN: "down",
    ChargeKind.COMMITMENT: "unused commitment",
    ChargeKind.OVERHEAD: "overhead",
}
"""The display names of kinds of charges."""

HELD_WORDS: Final = {
    HeldKind.BUSY: "busy",
    HeldKind.POOR: "poorly used",
    HeldKind.IDLE: "held but idle",
    HeldKind.UNMEASURED: "not measured",
}
"""The display names of what became of held time."""

AnyRow: TypeAlias = wire.CostRow | wire.UsageRow | wire.WasteRow


def row_amount(row: AnyRow) -> Decimal:
    """Return the main number of a row: cost, or GPU-hours of usage."""
    match row:
        case wire.CostRow():
            return row.total
        case wire.UsageRow():
            return row.gpu_hours
        case wire.WasteRow():
            return row.amount


def row_names(row: AnyRow | wire.EfficiencyRow, by: Sequence[Dimension]) -> list[str]:
    """Return the display names of a row's labels."""
    if row.others:
        return [
            f"({row.others} more row{'' if row.others == 1 else 's'})",
            *[""] * (len(by) - 1),
        ]
    kind = row.kind if isinstance(row, wire.CostRow) else None
    if kind is None:
        # A team's share by its guarantee belongs to no user.
        share = isinstance(row, wire.CostRow) and not row.usage and not row.gpu_hours
        missing = MISSING_LABELS | dict.fromkeys(_OWNER_LABELS[1:], "(share)") if share else MISSING_LABELS
        unset = "(share)" if share else NO_LABEL
        return [
            text or (missing.get(label, "-") if isinstance(label, Label) else unset)
            for label, text in zip(by, row.labels, strict=True)
        ]
    # Unallocated cost: its kind takes the place of the missing name.
    names = [
        text or ("whole GPUs" if label is Label.SLICE else "")
        for label, text in zip(by, row.labels, strict=True)
    ]
    owners = (i for i, label in enumerate(by) if label in _OWNER_LABELS or isinstance(label, JobLabel))
    place = next(owners, 0)
    names[place] = f"{names[place]} ({KIND_WORDS[kind]})".strip()
    return names
