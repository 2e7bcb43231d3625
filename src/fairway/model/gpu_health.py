"""Define what goes wrong with a GPU: codes of events, their classes, and the words for them. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from decimal import Decimal
from enum import StrEnum
from typing import Final

from fairway.model.names import PoolName

HOT_CELSIUS: Final = 85
"""A GPU that is hotter than this is reported."""
BAD_THROTTLE_BITS: Final[Mapping[int, str]] = {
    8: "hardware slowdown",
    32: "software thermal slowdown",
    64: "hardware thermal slowdown",
    128: "power brake",
}
"""Reasons for lower clocks that are faults; 1 (idle) and 4 (power cap), among others, are normal."""
SAME_EVENT_SECONDS: Final = 600
"""What is seen again after less than this is the same event."""

HELD_BEFORE_SECONDS: Final = 60
"""A job whose GPU failed may have ended before the exporter was next asked."""


class EventClass(StrEnum):
    """What an event says about a GPU, from the worst to the most harmless."""

    HARDWARE = "hardware"
    """It is broken, or its memory or links are: no job should run on it."""
    RESET = "reset"
    """It goes on, but needs a reset once it is free."""
    WARNING = "warning"
    """It is hot or slowed down."""
    UNKNOWN = "unknown"
    """An XID that is in none of the tables: see NVIDIA's catalogue."""
    APPLICATION = "application"
    """A program's own fault, or what follows from another event."""


class EventCode(StrEnum):
    """The codes of events that are not XIDs; an XID's is `xid-` and its number."""

    GONE = "gone"
    ECC = "ecc"
    ROW_REMAP = "row-remap"
    ROW_PENDING = "row-pending"
    NVLINK = "nvlink"
    THROTTLE = "throttle"
    HOT = "hot"


_XIDS: Final[Mapping[int, tuple[EventClass, str]]] = {
    13: (EventClass.APPLICATION, "stopped a program that made an invalid access"),
    31: (EventClass.APPLICATION, "stopped a program that accessed memory that is not its own"),
    43: (EventClass.APPLICATION, "stopped processing for a program"),
    45: (EventClass.APPLICATION, "cleaned up after an earlier error"),
    48: (EventClass.HARDWARE, "had an uncorrectable memory error"),
    63: (EventClass.RESET, "remapped a bad row of its memory and needs a reset"),
    64: (EventClass.HARDWARE, "could not remap a bad row of its memory"),
    74: (EventClass.HARDWARE, "had an NVLink error"),
    79: (EventClass.HARDWARE, "fell off the bus"),
    94: (EventClass.RESET, "had a memory error that ended one program, and needs a reset"),
    95: (EventClass.HARDWARE, "had a memory error that it could not contain"),
    119: (EventClass.HARDWARE, "has firmware that does not answer"),
    120: (EventClass.HARDWARE, "has firmware that failed"),
}
_OTHERS: Final[Mapping[EventCode, tuple[EventClass, str]]] = {
    EventCode.GONE: (EventClass.HARDWARE, "is no longer reported, while others of its node are"),
    EventCode.ECC: (EventClass.HARDWARE, "has uncorrectable memory errors since its last reset"),
    EventCode.ROW_REMAP: (EventClass.HARDWARE, "could not remap a bad row of its memory"),
    EventCode.ROW_PENDING: (EventClass.RESET, "has a bad row of memory to remap and needs a reset"),
    EventCode.NVLINK: (EventClass.WARNING, "had NVLink errors that it recovered from"),
    EventCode.THROTTLE: (EventClass.WARNING, "is slowed down"),
    EventCode.HOT: (EventClass.WARNING, f"is hotter than {HOT_CELSIUS} °C"),
}
_ENDS_JOBS: Final = frozenset({"xid-94"})
"""Events of other classes than hardware that end the program on the GPU through no fault of its own."""


_OTHER_CODES: Final = {code.value: code for code in EventCode}


def xid_code(xid: int) -> str:
    """Return the code of an XID."""
    return f"xid-{xid}"


def parse_xid(code: str) -> int | None:
    """Return the XID of a code. Returns None if it is not one."""
    number = code.removeprefix("xid-")
    return int(number) if number != code and number.isdecimal() and len(number) <= 6 else None


def is_event_code(code: str) -> bool:
    """Return whether a text is a code of an event."""
    return parse_xid(code) is not None or code in _OTHER_CODES


def class_of(code: str) -> EventClass:
    """Return the class of an event by its code."""
    if (xid := parse_xid(code)) is not None:
        return _XIDS[xid][0] if xid in _XIDS else EventClass.UNKNOWN
    return _OTHERS[_OTHER_CODES[code]][0] if code in _OTHER_CODES else EventClass.UNKNOWN


def ends_jobs(code: str) -> bool:
    """Return whether an event explains the end of a job on the GPU as no fault of its program."""
    return class_of(code) is EventClass.HARDWARE or code in _ENDS_JOBS


def event_words(code: str, detail: str = "") -> str:
    """Return what happened, to follow `GPU 3 of gpu001`."""
    if (xid := parse_xid(code)) is not None:
        words = f"{_XIDS[xid][1]} (XID {xid})" if xid in _XIDS else f"reported XID {xid}"
    else:
        words = _OTHERS[_OTHER_CODES[code]][1] if code in _OTHER_CODES else f"reported {code}"
    return f"{words}: {detail}" if detail else words


def throttle_words(bits: int) -> str:
    """Return the bad reasons for lower clocks. Returns an empty text if there are none."""
    return ", ".join(words for bit, words in BAD_THROTTLE_BITS.items() if bits & bit)


@dataclass(frozen=True, slots=True)
class GpuSighting:
    """Something that is wrong with a GPU now, as its exporter or an alert reports it."""

    node: str
    gpu: str
    """Its index as the driver counts."""
    code: str
    at: float
    """When it began, in seconds since 1970, as far as that is known."""
    seen_at: float
    """When it was seen last."""
    uuid: str = ""
    serial: str = ""
    """Where the exporter tells."""
    model: str = ""
    detail: str = ""
    holders: frozenset[str] = frozenset()
    """Whom the exporter names as holding the GPU when it began."""
    onset_known: bool = False
    """Whether it was seen to begin: what was wrong from before is blamed for no job."""

    @property
    def key(self) -> tuple[str, str, str]:
        return self.node, self.gpu, self.code


class HealthAction(StrEnum):
    """What is done about an event."""

    SHOW = "show"
    """It is shown and operators are notified, as always."""
    CORDON = "cordon"
    """The node is closed to new jobs by the engine's own means; running jobs go on."""


@dataclass(frozen=True, slots=True)
class HealthRule:
    """What is done about events of GPUs. Of several rules, the first that matches an event counts."""

    name: str
    events: tuple[str, ...] = (EventClass.HARDWARE.value,)
    """Classes or codes of events."""
    pools: tuple[PoolName, ...] = ()
    """Empty: every pool."""
    action: HealthAction = HealthAction.SHOW
    max_share: Decimal = Decimal("0.1")
    """The largest part of a pool's nodes that may be closed at once, by whomever; at least one may."""
    max_nodes: int | None = None
    """The largest number of them; None: `max_share` alone."""

    def matches(self, code: str, pools: Collection[PoolName]) -> bool:
        """Return whether the rule is about an event on a node of these pools."""
        of_pools = not self.pools or any(pool in self.pools for pool in pools)
        return of_pools and (code in self.events or class_of(code).value in self.events)

    def most(self, nodes: int) -> int:
        """Return how many of so many nodes of a pool may be closed at once."""
        share = max(1, int(self.max_share * nodes))
        return share if self.max_nodes is None else min(share, self.max_nodes)
