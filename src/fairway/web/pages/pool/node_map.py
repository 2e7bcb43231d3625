"""Compute the map of a pool's nodes and the jobs on them. Pure.

A node is a tile, each kind of device a row in it, each job a block in the row, as wide as the GPUs it holds
there. Of a large pool, one page of tiles is drawn, and the whole as a grid of small squares. Which GPUs of
the node a job holds is unknown, and does not matter here: blocks are ordered by age.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final
from zlib import crc32

from fairway.ledger.pools import DeviceRow, Holder
from fairway.model.fleet import Pool, VirtualPlace
from fairway.model.job import format_job_id
from fairway.model.names import NodeName
from fairway.model.observation import Health
from fairway.model.text import count
from fairway.views.colours import colour_class
from fairway.web.pages.fleet.supply_bars import part

NODES_PER_PAGE: Final = 48
MAX_LEGEND: Final = 16
MAX_SQUARES: Final = 4000
SQUARES_PER_LINE: Final = 64
_STEP: Final = 12
_SIDE: Final = 10
_NARROW_BLOCKS: Final = 6
"""A block of at most a sixth of its row is narrow."""
_NARROW_LETTERS: Final = 3
_CUT_CELLS: Final = 16
"""The most devices in a row to draw separators for: more would hide everything else."""


class Colouring(StrEnum):
    """What the map is coloured by."""

    TEAM = "team"
    USER = "user"
    JOB = "job"


@dataclass(frozen=True, slots=True)
class MapColours:
    """How to colour the jobs of a map."""

    by: Colouring = Colouring.TEAM
    teams: Mapping[str, int] = field(default_factory=dict)
    """The numbers of their fixed colours."""
    borrowing: frozenset[str] = frozenset()
    """Teams that hold more than they are guaranteed."""

    def name(self, holder: Holder) -> str:
        """Return what a job is coloured by."""
        match self.by:
            case Colouring.TEAM:
                return holder.team or "no team"
            case Colouring.USER:
                return holder.user or "unknown user"
            case Colouring.JOB:
                return holder.name

    def colour(self, holder: Holder) -> str:
        """Return the CSS class of a job: a team's own, or one that follows from the user or job."""
        if self.by is Colouring.TEAM:
            return colour_class(self.teams.get(holder.team or ""))
        key = holder.user if self.by is Colouring.USER else str(holder.job)
        return colour_class(crc32(key.encode()))


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A colour of the map."""

    name: str
    colour: str
    devices: int
    """On the nodes of this page."""
    on_loan: bool


@dataclass(frozen=True, slots=True)
class PoolNode:
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
        """Return the state in one word, for its square."""
        if self.health is not Health.READY:
            return "drained" if self.health is Health.DRAINED else "down"
        if self.in_use == 0:
            return "idle"
        return "used" if self.in_use >= self.total else "partly"


@dataclass(frozen=True, slots=True)
class Block:
    """Adjacent devices in the same state; those of one job if it holds them."""

    kind: str
    count: int
    start: str
    width: str
    label: str = ""
    title: str = ""
    link: str = ""
    colour: str = ""
    """The CSS class of what the map is coloured by; empty if no job is known to hold it."""
    name: str = ""
    """What it is coloured by, in the legend."""
    on_loan: bool = False
    """Whether its team holds more of the pool than it is guaranteed."""


@dataclass(frozen=True, slots=True)
class NodeDeviceRow:
    """The devices of one kind on one node."""

    devices: DeviceRow
    blocks: tuple[Block, ...]
    cuts: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Tile:
    """The drawing of a node."""

    node: PoolNode
    rows: tuple[NodeDeviceRow, ...]


@dataclass(frozen=True, slots=True)
class Rack:
    """The nodes of a rack; the number is None if racks are unknown."""

    number: int | None
    tiles: list[Tile] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class NodeGrid:
    """A whole pool with one square per node: one SVG path for each state."""

    paths: Mapping[str, str]
    counts: Mapping[str, int]
    width: int
    height: int
    beyond: int


def pool_nodes(rows: Iterable[DeviceRow]) -> list[PoolNode]:
    """Group devices by node, in natural order: node-2 before node-10."""
    found: dict[NodeName, list[DeviceRow]] = {}
    for row in rows:
        found.setdefault(row.node, []).append(row)
    nodes = [PoolNode(name, tuple(devices)) for name, devices in found.items()]
    return sorted(nodes, key=lambda node: _natural_key(node.name))


def page_of(every: Sequence[PoolNode], page: int) -> tuple[list[PoolNode], int, int]:
    """Return the nodes of a page, its number and the number of pages; beyond the last page, the last."""
    pages = max(1, -(-len(every) // NODES_PER_PAGE))
    page = max(1, min(page, pages))
    return list(every[(page - 1) * NODES_PER_PAGE : page * NODES_PER_PAGE]), page, pages


def racks(
    pool: Pool,
    every: Sequence[PoolNode],
    shown: Sequence[PoolNode],
    holders: Iterable[Holder],
    colours: MapColours,
) -> list[Rack]:
    """Group the nodes of a page by rack, with the jobs on them."""
    size = pool.place.nodes_per_rack if isinstance(pool.place, VirtualPlace) else None
    index = {node.name: i for i, node in enumerate(every)} if size else {}
    by_node: dict[NodeName, list[Holder]] = {}
    for holder in sorted(holders, key=lambda h: (h.since, h.job)):
        for node in holder.nodes:
            by_node.setdefault(node, []).append(holder)
    found: list[Rack] = []
    for pool_node in shown:
        number = index[pool_node.name] // size + 1 if size else None
        if not found or found[-1].number != number:
            found.append(Rack(number))
        found[-1].tiles.append(tile(pool_node, by_node.get(pool_node.name, ()), colours))
    return found


def tile(node: PoolNode, holders: Sequence[Holder], colours: MapColours) -> Tile:
    """Draw a node with its jobs."""
    rows = []
    for devices in node.devices:
        cuts = range(1, devices.total) if devices.total <= _CUT_CELLS else ()
        blocks = _blocks(devices, [h for h in holders if h.slice == devices.slice], colours)
        rows.append(NodeDeviceRow(devices, blocks, tuple(part(n, devices.total) for n in cuts)))
    return Tile(node, tuple(rows))


def legend(racks: Iterable[Rack]) -> tuple[list[LegendEntry], int]:
    """Return the colours of the drawn nodes, most devices first, and the number of those left out."""
    found: dict[str, LegendEntry] = {}
    for block in (b for r in racks for t in r.tiles for row in t.rows for b in row.blocks if b.colour):
        before = found.get(block.name)
        devices = block.count + (before.devices if before else 0)
        found[block.name] = LegendEntry(block.name, block.colour, devices, block.on_loan)
    ranked = sorted(found.values(), key=lambda entry: (-entry.devices, entry.name))
    return ranked[:MAX_LEGEND], max(0, len(ranked) - MAX_LEGEND)


def squares(every: Sequence[PoolNode]) -> NodeGrid:
    """Draw all nodes as squares, up to a limit."""
    paths: dict[str, list[str]] = {}
    shown = every[:MAX_SQUARES]
    for index, node in enumerate(shown):
        x, y = index % SQUARES_PER_LINE * _STEP, index // SQUARES_PER_LINE * _STEP
        paths.setdefault(node.state, []).append(f"M{x} {y}h{_SIDE}v{_SIDE}h-{_SIDE}z")
    order = [state for state in ("used", "partly", "idle", "drained", "down") if state in paths]
    lines = -(-len(shown) // SQUARES_PER_LINE)
    return NodeGrid(
        {state: "".join(paths[state]) for state in order},
        {state: len(paths[state]) for state in order},
        min(len(shown), SQUARES_PER_LINE) * _STEP,
        lines * _STEP,
        len(every) - len(shown),
    )


def _blocks(devices: DeviceRow, holders: Sequence[Holder], colours: MapColours) -> tuple[Block, ...]:
    total = max(devices.total, devices.in_use, 1)
    blocks: list[Block] = []
    at = 0

    def add(kind: str, devices: int, **more: str | bool) -> None:
        nonlocal at
        devices = min(devices, total - at)
        if devices > 0:
            blocks.append(Block(kind, devices, part(at, total), part(devices, total), **more))  # type: ignore[arg-type]
            at += devices

    # Jobs and nodes are observed at different times: draw no more as held than the node reports in use.
    unassigned = devices.in_use
    for holder in holders:
        here = min(unassigned, -(-holder.devices // max(1, len(holder.nodes))))
        narrow = here * _NARROW_BLOCKS <= total
        job_id = format_job_id(holder.job)
        name, on_loan = colours.name(holder), (holder.team or "") in colours.borrowing
        add(
            "used",
            here,
            label=name[: _NARROW_LETTERS if narrow else None],
            title=f"{holder.name} ({job_id}): {holder.user or 'unknown user'}, {holder.team or 'no team'},"
            f" {holder.devices} in all on {count(len(set(holder.nodes)), 'node')}"
            f"{'; on loan' if on_loan else ''}",
            link=f"/jobs/{job_id}",
            colour=colours.colour(holder),
            name=name,
            on_loan=on_loan,
        )
        unassigned -= here
    add(
        "unknown",
        unassigned,
        label="?",
        title="in use by a job that is not known yet, or by something outside the engine",
    )
    unused = devices.total - devices.in_use
    match devices.health:
        case Health.DRAINED:
            add("drained", unused, title="on a drained node")
        case Health.DOWN:
            add("down", unused, title="on a node that is down")
        case _:
            add("down", min(devices.unhealthy, unused), title="disabled by the engine")
            add("idle", unused - min(devices.unhealthy, unused), title="free")
    return tuple(blocks)


def _natural_key(name: str) -> tuple[tuple[int, int, str], ...]:
    parts = re.split(r"(\d+)", name)
    return tuple((1, int(p), "") if p.isdigit() else (0, 0, p) for p in parts if p)
