"""What was held, made into money in three ways: by hand, by Fairway's cost core, and by OpenCost."""

from __future__ import annotations

import json
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC

from fairway.cost.calendar import Calendar
from fairway.cost.charges import charges
from fairway.cost.rates import rate_spans
from fairway.model.charge import CapacitySum, ChargeKind, Label, Span, UsageSum
from fairway.model.fleet import Fleet
from fairway.model.team import Supply
from fairway.model.usage import AttemptUsage, UsagePiece
from tests.unit.cost.metering_reference import difference

IDLE = "__idle__"  # OpenCost's word
PARTS_BY_HAND = {None: 1.0, "1g.10gb": 1 / 6, "3g.40gb": 2 / 3}
"""Of a GPU. The lab's node has 4 × 1g.10gb and 2 × 3g.40gb: an eighth and a half of a GPU's memory each, 1.5
together, which takes two GPUs. So each costs 2/1.5 of its part: 4/6 + 2 × 2/3 = 2."""


@dataclass(frozen=True, slots=True)
class Held:
    """Devices, and from when to when somebody had them."""

    team: str
    name: str
    supply: Supply
    devices: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class There:
    """A node: what could be had of it, the GPUs behind that, and from when to when it was there."""

    devices: Mapping[Supply, int]
    gpus: int
    start: int
    end: int


@dataclass(slots=True)
class Allocation:
    """What somebody says a window cost."""

    who: str
    gpu_seconds: dict[str, float] = field(default_factory=dict)
    """Of whole GPUs, by team."""
    cost: dict[str, float] = field(default_factory=dict)
    """By team, slices too."""
    slices: float = 0.0
    """How much of that is for slices."""
    idle: float = 0.0
    pods: dict[str, float] = field(default_factory=dict)
    """GPU-seconds of each pod, where they are told."""

    @property
    def total(self) -> float:
        return sum(self.cost.values()) + self.idle

    def add(self, team: str, supply: Supply, device_seconds: float, cost: float) -> None:
        self.cost[team] = self.cost.get(team, 0.0) + cost
        if supply.slice is None:
            self.gpu_seconds[team] = self.gpu_seconds.get(team, 0.0) + device_seconds
        else:
            self.slices += cost


def hand_costs(held: Iterable[Held], nodes: Iterable[There], gpu_hour: float) -> Allocation:
    """Devices × seconds × price, added up; nothing of Fairway's is used."""
    found = Allocation("by hand, from the pods")
    for one in held:
        seconds = one.devices * (one.end - one.start)
        cost = seconds * PARTS_BY_HAND[one.supply.slice] * gpu_hour / 3600
        found.add(one.team, one.supply, seconds, cost)
        if one.supply.slice is None:
            found.pods[one.name] = float(seconds)
    bill = sum(node.gpus * (node.end - node.start) for node in nodes) * gpu_hour / 3600
    found.idle = bill - sum(found.cost.values())
    return found


def fairway_costs(held: Sequence[Held], nodes: Sequence[There], fleet: Fleet) -> Allocation:
    """The way of the product: usage rows cut at hours, capacity by hour, rates, charges."""
    calendar = Calendar(UTC)
    pieces = [(one, piece) for one in held for piece in _pieces(one, calendar)]
    first = min(node.start for node in nodes)
    last = max(node.end for node in nodes)
    window = Span(calendar.hour_start(first), calendar.next_hour(last - 1))
    capacity = [row for node in nodes for row in _capacity(node, fleet, calendar)]
    rates = rate_spans(fleet, calendar, window, _summed(capacity), {})
    usage = []
    for one, piece in pieces:
        spans = rates[one.supply.pool]
        place = next(i for i, span in enumerate(spans) if span.span.start <= piece.hour < span.span.end)
        usage.append(UsageSum(place, one.supply, (one.team,), piece.device_seconds))
    found = Allocation("Fairway")
    for charge in charges(fleet, calendar, window, _summed(capacity), rates, usage, (Label.TEAM,)):
        if charge.kind is ChargeKind.USAGE and charge.labels and charge.supply:
            found.add(charge.labels[0], charge.supply, charge.device_seconds, float(charge.amount))
        else:
            found.idle += float(charge.amount)
    return found


def _pieces(one: Held, calendar: Calendar) -> list[UsagePiece]:
    return difference(None, AttemptUsage(0, one.devices, one.start, one.end), calendar)


def _capacity(node: There, fleet: Fleet, calendar: Calendar) -> Iterable[CapacitySum]:
    cluster = fleet.clusters[0].name
    for number, (supply, devices) in enumerate(sorted(node.devices.items(), key=str)):
        for piece in difference(None, AttemptUsage(0, devices, node.start, node.end), calendar):
            behind = node.gpus * (piece.end - piece.start) if number == 0 else 0
            yield CapacitySum(piece.hour, cluster, supply, piece.device_seconds, 0, 0, 0, behind)


def _summed(rows: Iterable[CapacitySum]) -> list[CapacitySum]:
    found: dict[tuple[int, Supply], CapacitySum] = {}
    for row in rows:
        key = (row.start, row.supply)
        if before := found.get(key):
            total, behind = before.total + row.total, before.gpu_seconds + row.gpu_seconds
            row = CapacitySum(row.start, row.cluster, row.supply, total, 0, 0, 0, behind)  # noqa: PLW2901
        found[key] = row
    return list(found.values())


def opencost_costs(url: str, window: str, resolution: str, who: str) -> Allocation:
    """What OpenCost's /allocation says of a window."""
    found = Allocation(who)
    for name, told in _allocations(url, window, resolution, "namespace").items():
        if name == IDLE:
            found.idle += told["gpuCost"]
        elif told["gpuCost"] or told["gpuHours"]:
            found.cost[name] = told["gpuCost"]
            found.gpu_seconds[name] = told["gpuHours"] * 3600
    for name, told in _allocations(url, window, resolution, "pod").items():
        if name != IDLE:
            found.pods[name] = told["gpuHours"] * 3600
    return found


def _allocations(url: str, window: str, resolution: str, by: str) -> Mapping[str, Mapping[str, float]]:
    words = {"window": window, "aggregate": by, "accumulate": "true", "includeIdle": "true"}
    if resolution != "default":
        words["resolution"] = resolution
    with urllib.request.urlopen(f"{url}/allocation?{urllib.parse.urlencode(words)}", timeout=120) as answer:
        (told,) = json.loads(answer.read(50_000_000))["data"]
    return told or {}


def table(found: Sequence[Allocation]) -> str:
    """Side by side, as Markdown."""
    teams = sorted({team for one in found for team in (*one.cost, *one.gpu_seconds)})
    head = ["", *(f"{team}, GPU-s" for team in teams), *(f"{team}, $" for team in teams)]
    head += ["of it slices, $", "idle, $", "total, $"]
    rows = [
        [
            one.who,
            *(f"{one.gpu_seconds.get(team, 0):,.0f}" for team in teams),
            *(f"{one.cost.get(team, 0):.3f}" for team in teams),
            f"{one.slices:.3f}",
            f"{one.idle:.3f}",
            f"{one.total:.3f}",
        ]
        for one in found
    ]
    return "\n".join("| " + " | ".join(row) + " |" for row in [head, ["---"] * len(head), *rows])
