"""Read a sweep, `half_life=1d,7d`, and make the fleets that it asks for: the grid of several sweeps."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Final

from fairway.files.diagnostics import Fault, FaultCode, InvalidFile, Severity, did_you_mean, shown
from fairway.files.fleet.load import check_text
from fairway.files.fleet.override import SHORT_KEYS, InvalidOverride, Override, override
from fairway.model.fleet import Fleet, VirtualPlace
from fairway.model.names import PoolName

MAX_POINTS: Final = 64
"""The most fleets of all sweeps together: each is a replay of the whole trace, for each seed."""
_SIZE: Final = re.compile(r"([0-9]{1,6})x([0-9]{1,4})")
_PERCENT: Final = re.compile(r"([0-9]{1,3}(?:\.[0-9]+)?)(%?)")
_OPEN, _CLOSE = "{[", "}]"


@dataclass(frozen=True, slots=True)
class Sweep:
    """A setting and the values to try."""

    key: str
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class SweptFleet:
    """A fleet of a sweep, and what differs from the file."""

    fleet: Fleet
    settings: tuple[str, ...] = ()
    """`half_life=1d`, one of each sweep; empty: the file as it is."""
    sizes: Mapping[PoolName, VirtualPlace] = field(default_factory=lambda: MappingProxyType({}))
    spot_parts: Mapping[PoolName, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """Return its settings in one line."""
        return " ".join(self.settings)


def parse_sweep(text: str) -> Sweep:
    """Parse `KEY=VALUE,VALUE`; commas within brackets belong to a value. Raises InvalidOverride."""
    key, equals, rest = text.partition("=")
    values = tuple(value for part in _split(rest) if (value := part.strip()))
    if not equals or not key.strip() or not values:
        raise InvalidOverride(
            f"{shown(text)} is no sweep", "write a key of the fleet file and values:  half_life=1d,7d,14d"
        )
    if len(set(values)) < len(values):
        raise InvalidOverride(f"{shown(text)} has a value twice", "write each value once")
    return Sweep(key.strip(), values)


def parse_size(text: str) -> VirtualPlace:
    """Parse nodes and the GPUs of each: `16x8`. Raises InvalidOverride."""
    found = _SIZE.fullmatch(text)
    if found is None or int(found[2]) < 1:
        raise InvalidOverride(f"{shown(text)} is no size of a pool", "write nodes x GPUs of each:  16x8")
    return VirtualPlace(int(found[1]), int(found[2]))


def parse_part(text: str) -> float:
    """Parse a part of a pool: `30%` or `0.3`. Raises InvalidOverride."""
    found = _PERCENT.fullmatch(text)
    part = float(found[1]) / (100 if found[2] else 1) if found else -1.0
    if not 0 <= part <= 1:
        raise InvalidOverride(f"{shown(text)} is no part of a pool", "write a percentage:  30%")
    return part


def swept_fleets(
    text: str, source: str, folder: Path | None, sweeps: Sequence[Sweep]
) -> Iterator[SweptFleet]:
    """Generate the fleet of each point of the grid. Raises InvalidOverride for an invalid one."""
    points = prod(len(sweep.values) for sweep in sweeps)
    if points > MAX_POINTS:
        raise InvalidOverride(
            f"the sweeps have {points} points together, more than {MAX_POINTS}",
            "try fewer values at once, and refine around the best",
        )
    keys = [sweep.key for sweep in sweeps]
    if len(set(keys)) < len(keys):
        raise InvalidOverride("two sweeps have the same key", "write all values in one:  half_life=1d,7d")
    for values in product(*(sweep.values for sweep in sweeps)):
        yield _swept(text, source, folder, list(zip(keys, values, strict=True)))


def pool_named(fleet: Fleet, name: str, setting: str) -> PoolName:
    """Return the name of a pool. Raises InvalidOverride if the fleet has none of this name."""
    names = [pool.name for pool in fleet.pools]
    if name not in names:
        raise InvalidOverride(
            f"{shown(setting)}: the fleet has no pool {shown(name)}",
            did_you_mean(name, names, f"the pools are {', '.join(names[:8])}"),
        )
    return PoolName(name)


def _swept(text: str, source: str, folder: Path | None, chosen: Sequence[tuple[str, str]]) -> SweptFleet:
    overrides: list[Override] = []
    outside: list[tuple[str, str, str]] = []
    for key, value in chosen:
        kind, _, pool = key.partition(".")
        if kind in ("nodes", "spot") and pool:
            outside.append((kind, pool, value))
        else:
            overrides.append(override(key, value))
    fleet = _checked(text, source, folder, overrides)
    sizes: dict[PoolName, VirtualPlace] = {}
    parts: dict[PoolName, float] = {}
    for kind, pool, value in outside:
        name = pool_named(fleet, pool, f"{kind}.{pool}={value}")
        if kind == "nodes":
            sizes[name] = with_layout(fleet, name, parse_size(value))
        else:
            parts[name] = parse_part(value)
    settings = tuple(f"{key}={value}" for key, value in chosen)
    return SweptFleet(fleet, settings, MappingProxyType(sizes), MappingProxyType(parts))


def with_layout(fleet: Fleet, pool: PoolName, size: VirtualPlace) -> VirtualPlace:
    """Return a size with the slices and racks that the file states for the pool."""
    place = fleet.pool(pool).place
    return (
        replace(place, nodes=size.nodes, gpus_per_node=size.gpus_per_node)
        if isinstance(place, VirtualPlace)
        else size
    )


def _checked(text: str, source: str, folder: Path | None, overrides: Sequence[Override]) -> Fleet:
    report = check_text(text, source, folder, overrides=overrides)
    if report.fleet is not None:
        return report.fleet
    if not overrides:
        raise InvalidFile(source, report.faults)
    fault = next(f for f in report.faults if f.severity is Severity.ERROR)
    settings = " ".join(one.text for one in overrides)
    where = f" ({fault.path})" if fault.path else ""
    raise InvalidOverride(
        f"{source} with {shown(settings)} is not valid: {fault.message}{where}", _hint(fault)
    )


def _hint(fault: Fault) -> str:
    if fault.code is not FaultCode.UNKNOWN_KEY:
        return fault.hint
    return did_you_mean(fault.path, SHORT_KEYS, fault.hint)


def _split(text: str) -> Iterator[str]:
    """Split at commas outside brackets."""
    depth, part = 0, ""
    for ch in text:
        depth += (ch in _OPEN) - (ch in _CLOSE)
        if ch == "," and depth <= 0:
            yield part
            part = ""
        else:
            part += ch
    yield part
