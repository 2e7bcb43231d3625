"""What the cluster runs while situations are asked about. Each GPU is held within a guarantee or as said."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from tests.situations.desk import Desk


def idle(desk: Desk) -> None:
    """Nothing runs."""


def limits(desk: Desk) -> None:
    """Teams and a user are at their limits, and 16 GPUs are free: two nodes."""
    first, second, *_ = desk.engine.nodes
    desk.run("capped", 4, node=first)
    desk.run("optics", 4, node=first)
    desk.run("quantum", 4, node=second)
    desk.run("limited", 2, node=second)


def full(desk: Desk) -> None:
    """All 32 GPUs are held: research has 20, 12 of them borrowed, product its 8, capped its 4."""
    first, second, third, fourth = desk.engine.nodes
    desk.run("research", 8, node=first)
    desk.run("product", 8, node=second)
    desk.run("capped", 4, node=fourth)
    desk.run("research", 8, node=third)
    desk.run("research", 4, node=fourth)


def fragmented(desk: Desk) -> None:
    """Each node has 4 of its 8 GPUs free: research and product hold their guarantees."""
    first, second, third, fourth = desk.engine.nodes
    for team, node in (("research", first), ("research", second), ("product", third), ("product", fourth)):
        desk.run(team, 4, node=node)


def racks(desk: Desk) -> None:
    """One node of each rack is free."""
    _, second, _, fourth = desk.engine.nodes
    desk.run("research", 8, node=second)
    desk.run("product", 8, node=fourth)


SCENES: Final[Mapping[str, Callable[[Desk], None]]] = {
    "limits": limits,
    "full": full,
    "fragmented": fragmented,
    "racks": racks,
    "idle": idle,
    "policy": idle,
    "away": idle,
}
"""In the order in which they are played; the last two change what the others need."""
