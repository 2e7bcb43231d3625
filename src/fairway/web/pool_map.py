"""The nodes of a pool and what is on each, ready to be drawn. Pure.

A tile a node, a row in it for each kind of device, a block in the row for each job: as wide as the GPUs it
holds there. Of a large pool one page of tiles is drawn, and all of it as a grid of small squares. Which of
the GPUs of a node a job holds is not known, nor does it matter here: blocks stand by age.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from fairway.ledger.pool_answers import DeviceRow, Holder
from fairway.model.fleet import Pool, VirtualPlace
from fairway.model.job import job_word
from fairway.model.names import NodeName, SliceName
from fairway.model.observation import Health
from fairway.web.supply_known import part

NODES_PER_PAGE: Final = 48
MOST_SQUARES: Final = 4000
SQUARES_A_LINE: Final = 64
_STEP: Final = 12
_SIDE: Final = 10
_NARROW_BLOCKS: Final = 6
"""A block of at most a sixth of its row is narrow."""
_NARROW_LETTERS: Final = 3
_CUT_CELLS: Final = 16
"""With more devices in a row lines between them would be all one sees."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node with its devices of the pool."""

    name: NodeName
    devices: tuple[DeviceRow, ...]

    @property
    def health(self) -> Health:
        return self.devices[0].health

    @property
    def total(self) -> int:
        return sum(d.total for d in self.devices)

    @property
    def in_use(self) -> int:
        return sum(d.in_use for d in self.devices)

    @property
    def state(self) -> str:
        """In a word, for its square."""
        if self.health is not Health.READY:
            return "drained" if self.health is Health.DRAINED else "broken"
        if self.in_use == 0:
            return "idle"
        return "used" if self.in_use >= self.total else "partly"


@dataclass(frozen=True, slots=True)
class Block:
    """Devices side by side that are in the same state; of one job, if one holds them."""

    kind: str
    count: int
    start: str
    width: str
    label: str = ""
    title: str = ""
    link: str = ""
    shade: int = 0
    """Neighbouring jobs are told apart by it."""


@dataclass(frozen=True, slots=True)
class Row:
    """The devices of one kind on one node."""

    slice: SliceName | None
    total: int
    in_use: int
    blocks: tuple[Block, ...]
    cuts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """A node, drawn."""

    machine: Machine
    rows: tuple[Row, ...]


@dataclass(frozen=True, slots=True)
class Rack:
    """Nodes that stand together; without a number: nothing is known of racks."""

    number: int | None
    tiles: list[Tile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Squares:
    """A whole pool, a square a node: for each state one path."""

    paths: Mapping[str, str]
    counts: Mapping[str, int]
    width: int
    height: int
    beyond: int


def machines(rows: Iterable[DeviceRow]) -> list[Machine]:
    """Nodes in the order people count them: node-2 before node-10."""
    found: dict[NodeName, list[DeviceRow]] = {}
    for row in rows:
        found.setdefault(row.node, []).append(row)
    made = [Machine(name, tuple(devices)) for name, devices in found.items()]
    return sorted(made, key=lambda m: _counted(m.name))


def page_of(every: Sequence[Machine], page: int) -> tuple[list[Machine], int, int]:
    """The nodes of a page, its number and how many pages there are; a page beyond the last is the last."""
    pages = max(1, -(-len(every) // NODES_PER_PAGE))
    page = max(1, min(page, pages))
    return list(every[(page - 1) * NODES_PER_PAGE : page * NODES_PER_PAGE]), page, pages


def racks(
    pool: Pool, every: Sequence[Machine], shown: Sequence[Machine], holders: Iterable[Holder]
) -> list[Rack]:
    """The nodes of a page by rack, with whoever holds something on them."""
    size = pool.place.nodes_per_rack if isinstance(pool.place, VirtualPlace) else None
    number = {machine.name: index for index, machine in enumerate(every)} if size else {}
    on: dict[NodeName, list[Holder]] = {}
    for holder in sorted(holders, key=lambda h: (h.since, h.job)):
        for node in holder.nodes:
            on.setdefault(node, []).append(holder)
    found: list[Rack] = []
    for machine in shown:
        rack = number[machine.name] // size + 1 if size else None
        if not found or found[-1].number != rack:
            found.append(Rack(rack))
        found[-1].tiles.append(tile(machine, on.get(machine.name, ())))
    return found


def tile(machine: Machine, holders: Sequence[Holder]) -> Tile:
    """A node with its jobs."""
    rows = []
    for devices in machine.devices:
        mine = [h for h in holders if h.slice == devices.slice]
        rows.append(
            Row(
                devices.slice,
                devices.total,
                devices.in_use,
                _blocks(devices, mine),
                tuple(part(n, devices.total) for n in range(1, devices.total))
                if devices.total <= _CUT_CELLS
                else (),
            )
        )
    return Tile(machine, tuple(rows))


def squares(every: Sequence[Machine]) -> Squares:
    """All nodes, as far as a page can show them."""
    paths: dict[str, list[str]] = {}
    shown = every[:MOST_SQUARES]
    for index, machine in enumerate(shown):
        x, y = index % SQUARES_A_LINE * _STEP, index // SQUARES_A_LINE * _STEP
        paths.setdefault(machine.state, []).append(f"M{x} {y}h{_SIDE}v{_SIDE}h-{_SIDE}z")
    order = [state for state in ("used", "partly", "idle", "drained", "broken") if state in paths]
    lines = -(-len(shown) // SQUARES_A_LINE)
    return Squares(
        {state: "".join(paths[state]) for state in order},
        {state: len(paths[state]) for state in order},
        min(len(shown), SQUARES_A_LINE) * _STEP,
        lines * _STEP,
        len(every) - len(shown),
    )


def _blocks(devices: DeviceRow, holders: Sequence[Holder]) -> tuple[Block, ...]:
    total = max(devices.total, devices.in_use, 1)
    blocks: list[Block] = []
    at = 0

    def add(kind: str, count: int, **more: str | int) -> None:
        nonlocal at
        count = min(count, total - at)
        if count > 0:
            blocks.append(Block(kind, count, part(at, total), part(count, total), **more))  # type: ignore[arg-type]
            at += count

    # Jobs and nodes are seen at two moments: no more is drawn as held than the node says is in use.
    room = devices.in_use
    for shade, holder in enumerate(holders):
        here = min(room, -(-holder.devices // max(1, len(holder.nodes))))
        word = job_word(holder.job)
        add(
            "used",
            here,
            label=_short(holder.team or holder.user or "?", here, total),
            title=f"{holder.name} ({word}): {holder.user or 'unknown'}, {holder.team or 'no team'},"
            f" {holder.devices} in all on {len(holder.nodes)} node{'s' * (len(holder.nodes) != 1)}",
            link=f"/jobs/{word}",
            shade=shade % 2,
        )
        room -= here
    add("unknown", room, label="?", title="in use; by which job is not known")
    unheld = devices.total - devices.in_use
    match devices.health:
        case Health.DRAINED:
            add("drained", unheld, title="on a drained node")
        case Health.DOWN:
            add("broken", unheld, title="on a node that is down")
        case _:
            add("broken", min(devices.unhealthy, unheld), title="held back by the engine")
            add("idle", unheld - min(devices.unhealthy, unheld), title="free")
    return tuple(blocks)


def _short(name: str, count: int, total: int) -> str:
    """As much of a name as a narrow block has room for."""
    return name[:_NARROW_LETTERS] if count * _NARROW_BLOCKS <= total else name


def _counted(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(p), "") if p.isdigit() else (0, 0, p) for p in parts if p)
