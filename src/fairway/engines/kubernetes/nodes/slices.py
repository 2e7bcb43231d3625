"""Count the devices that drivers publish in ResourceSlices (dynamic resource allocation). Pure.

A DeviceClass selects devices by expressions. Those that Fairway understands are conjunctions of comparisons
of the driver and of attributes with constants, as drivers' own classes are; a term of another form is taken
to be true.

Devices may be parts of one another: a GPU and its MIG profiles consume counters of one set. What is free of
such a GPU is counted as devices of the first class of its node's pools, in the order of the fleet file, that
still fits: so the parts never add up to more than the GPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from msgspec import Struct, field

from fairway.engines.kubernetes.api.wire import ObjectMeta
from fairway.engines.kubernetes.nodes.claims import DeviceId
from fairway.engines.kubernetes.nodes.devices import whole_number

SLICES: Final = "resourceslices.resource.k8s.io"
CLASSES: Final = "deviceclasses.resource.k8s.io"

Counters = tuple[tuple[str, str, int], ...]
"""Set, counter and amount."""

Term = tuple[str, str]
"""An attribute, qualified by its domain (`driver` is the driver itself), and its value as text."""

_DRIVER: Final = "driver"
_TERMS: Final = (
    re.compile(r"""device\.(driver)\s*==\s*["']([^"']+)["']"""),
    re.compile(r"""device\.attributes\[["']([^"']+)["']\]\.([A-Za-z_][\w]*)\s*==\s*["']?([^"'\s]+?)["']?"""),
)


class CelSelector(Struct, frozen=True, gc=False):
    """An expression about a device."""

    expression: str = ""


class DeviceSelector(Struct, frozen=True, gc=False):
    """A selector of devices."""

    cel: CelSelector | None = None


class ClassSpec(Struct, frozen=True, gc=False):
    """What a DeviceClass selects: devices for which all selectors hold."""

    selectors: list[DeviceSelector] = []


class DeviceClassObject(Struct, frozen=True, gc=False):
    """A DeviceClass."""

    metadata: ObjectMeta
    spec: ClassSpec = ClassSpec()


class Attribute(Struct, frozen=True, gc=False):
    """The value of an attribute; exactly one field is set."""

    string: str | None = None
    version: str | None = None
    truth: bool | None = field(name="bool", default=None)
    number: int | None = field(name="int", default=None)

    @property
    def text(self) -> str:
        if self.truth is not None:
            return str(self.truth).lower()
        return str(next((v for v in (self.string, self.number, self.version) if v is not None), ""))


class Quantity(Struct, frozen=True, gc=False):
    """An amount."""

    value: str = "0"


class CounterSet(Struct, frozen=True, gc=False):
    """Counters that several devices share."""

    name: str = ""
    counters: dict[str, Quantity] = {}


class Consumption(Struct, rename="camel", frozen=True, gc=False):
    """What a device takes of a set of counters."""

    counter_set: str = ""
    counters: dict[str, Quantity] = {}


class DeviceTaint(Struct, frozen=True, gc=False):
    """A reason not to use a device."""

    effect: str = ""


class PublishedDevice(Struct, rename="camel", frozen=True, gc=False):
    """A device of a slice."""

    name: str = ""
    attributes: dict[str, Attribute] = {}
    consumes_counters: list[Consumption] = []
    taints: list[DeviceTaint] = []
    node_name: str = ""


class SlicePool(Struct, frozen=True, gc=False):
    """The pool of a driver that a slice is a part of; only its newest generation is valid."""

    name: str = ""
    generation: int = 0


class SliceSpec(Struct, rename="camel", frozen=True, gc=False):
    """The spec of a slice."""

    driver: str = ""
    pool: SlicePool = SlicePool()
    node_name: str = ""
    devices: list[PublishedDevice] = field(default_factory=list)
    shared_counters: list[CounterSet] = field(default_factory=list)


class SliceObject(Struct, frozen=True, gc=False):
    """A ResourceSlice."""

    metadata: ObjectMeta
    spec: SliceSpec = SliceSpec()


class DeviceFacts(Struct, frozen=True, gc=False):
    """A device of a driver."""

    name: str
    node: str
    rank: int
    """The place of its class in the fleet file."""
    resource: str
    """By which Kueue counts its class; empty: it is of no pool's class."""
    tainted: bool
    consumes: Counters


class SliceFacts(Struct, frozen=True, gc=False):
    """The devices and counters of a ResourceSlice."""

    driver: str
    pool: str
    generation: int
    devices: tuple[DeviceFacts, ...]
    counters: Counters


@dataclass(slots=True)
class DeviceCounts:
    """The devices of one resource on one node."""

    total: int = 0
    in_use: int = 0
    unhealthy: int = 0


@dataclass(frozen=True, slots=True)
class DeviceClasses:
    """The DeviceClasses of pools: what each selects, and the resource by which Kueue counts it."""

    terms: tuple[tuple[str, tuple[Term, ...]], ...] = ()
    """By resource, in the order of the fleet file."""

    def match(self, driver: str, attributes: Mapping[str, Attribute]) -> tuple[int, str]:
        """Return place and resource of the first class that selects a device; empty: none does."""
        for rank, (resource, terms) in enumerate(self.terms):
            if all(_holds(term, driver, attributes) for term in terms):
                return rank, resource
        return len(self.terms), ""


def device_classes_of(found: Iterable[DeviceClassObject], resources: Mapping[str, str]) -> DeviceClasses:
    """Return the classes that pools name; `resources` has the resource of each."""
    selectors = {c.metadata.name: c.spec.selectors for c in found}
    return DeviceClasses(
        tuple((resources[name], _terms(name, selectors[name])) for name in resources if name in selectors)
    )


def _terms(name: str, selectors: Sequence[DeviceSelector]) -> tuple[Term, ...]:
    terms: list[Term] = []
    for selector in selectors:
        for part in (selector.cel.expression if selector.cel else "").split("&&"):
            driver, attribute = (pattern.fullmatch(part.strip(" \n\t()")) for pattern in _TERMS)
            if driver is not None:
                terms.append((_DRIVER, driver[2]))
            elif attribute is not None:
                terms.append((f"{attribute[1]}/{attribute[2]}", attribute[3]))
    # Without a driver a class would select the devices of all drivers; most are named after theirs.
    return tuple(terms) if any(key == _DRIVER for key, _ in terms) else ((_DRIVER, name), *terms)


def _holds(term: Term, driver: str, attributes: Mapping[str, Attribute]) -> bool:
    key, value = term
    if key == _DRIVER:
        return driver == value
    domain, _, name = key.partition("/")
    found = attributes.get(key) or (attributes.get(name) if domain == driver else None)
    return found is not None and found.text == value


def slice_transform(classes: DeviceClasses) -> Callable[[SliceObject], SliceFacts | None]:
    """Return the function that reduces ResourceSlices to facts; None: one of a driver of no pool."""
    drivers = {value for _, terms in classes.terms for key, value in terms if key == _DRIVER}

    def transform(found: SliceObject) -> SliceFacts | None:
        spec = found.spec
        if spec.driver not in drivers:
            return None
        return SliceFacts(
            spec.driver,
            spec.pool.name,
            spec.pool.generation,
            tuple(_device(device, spec, classes) for device in spec.devices),
            tuple(
                (counters.name, name, whole_number(amount.value))
                for counters in spec.shared_counters
                for name, amount in counters.counters.items()
            ),
        )

    return transform


def _device(device: PublishedDevice, spec: SliceSpec, classes: DeviceClasses) -> DeviceFacts:
    rank, resource = classes.match(spec.driver, device.attributes)
    return DeviceFacts(
        device.name,
        device.node_name or spec.node_name,
        rank,
        resource,
        any(taint.effect in {"NoSchedule", "NoExecute"} for taint in device.taints),
        tuple(
            (part.counter_set, name, whole_number(amount.value))
            for part in device.consumes_counters
            for name, amount in part.counters.items()
        ),
    )


def count_devices(
    slices: Iterable[SliceFacts], held: Collection[DeviceId], claimed_on: Callable[[str], Collection[str]]
) -> dict[str, dict[str, DeviceCounts]]:
    """Count devices by node and resource.

    `held` are those that claims got; `claimed_on` returns the resources that pools claim on a node.
    """
    pools: dict[tuple[str, str], list[SliceFacts]] = {}
    for found in slices:
        pools.setdefault((found.driver, found.pool), []).append(found)
    counts: dict[str, dict[str, DeviceCounts]] = {}
    for (driver, pool), parts in pools.items():
        newest = max(part.generation for part in parts)
        current = [part for part in parts if part.generation == newest]
        devices = [device for part in current for device in part.devices]
        left = {(name, counter): n for part in current for name, counter, n in part.counters}
        in_use = {d.name for d in devices if (driver, pool, d.name) in held} if held else set()
        for device in devices:
            if device.name in in_use:
                _consume(device, left)
        if left:
            devices.sort(key=lambda d: (d.resource not in claimed_on(d.node), d.rank))
        for device in devices:
            if not device.resource or not device.node:
                continue
            used = device.name in in_use
            if not used and not _fits(device, left):
                continue  # a part of a GPU that is used otherwise
            if not used:
                _consume(device, left)
            count = counts.setdefault(device.node, {}).setdefault(device.resource, DeviceCounts())
            count.total += 1
            count.in_use += used
            count.unhealthy += device.tainted and not used
    return counts


def _fits(device: DeviceFacts, left: Mapping[tuple[str, str], int]) -> bool:
    return all(left.get((name, counter), 0) >= n for name, counter, n in device.consumes)


def _consume(device: DeviceFacts, left: dict[tuple[str, str], int]) -> None:
    for name, counter, n in device.consumes:
        left[name, counter] = left.get((name, counter), 0) - n
