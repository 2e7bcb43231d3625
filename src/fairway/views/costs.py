"""Names for the rows of a report, in terminal, file and page alike. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

from fairway.model.charge import ChargeKind, Label
from fairway.wire import costs as wire

NONE: Final = {
    Label.TEAM: "(no team)",
    Label.USER: "(no user)",
    Label.PRIORITY: "(none)",
    Label.NAME: "(no name)",
    Label.SLICE: "whole GPUs",
}
"""Names for missing labels."""
_PEOPLE: Final = (Label.TEAM, Label.USER, Label.PRIORITY, Label.NAME)
_KIND_WORDS: Final = {
    ChargeKind.USAGE: "used",
    ChargeKind.IDLE: "idle",
    ChargeKind.FRAGMENTED: "fragmented",
    ChargeKind.DRAINED: "drained",
    ChargeKind.DOWN: "down",
    ChargeKind.COMMITMENT: "unused commitment",
    ChargeKind.OVERHEAD: "overhead",
}

AnyRow: TypeAlias = wire.CostRow | wire.UsageRow | wire.WasteRow


def kind_word(kind: ChargeKind) -> str:
    """Return the display name of a kind of charge."""
    return _KIND_WORDS[kind]


def row_names(row: AnyRow, by: Sequence[Label]) -> list[str]:
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
        none = NONE | dict.fromkeys(_PEOPLE[1:], "(share)") if share else NONE
        return [text or none.get(label, "-") for label, text in zip(by, row.labels, strict=True)]
    # Unallocated cost: its kind takes the place of the missing name.
    named = [
        text or ("whole GPUs" if label is Label.SLICE else "")
        for label, text in zip(by, row.labels, strict=True)
    ]
    place = next((i for i, label in enumerate(by) if label in _PEOPLE), 0)
    named[place] = f"{named[place]} ({kind_word(kind)})".strip()
    return named
