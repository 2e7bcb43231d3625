"""What Slurm's node states mean for new work.

Slurm reports a base state (IDLE, MIXED, ALLOCATED, DOWN, ...) and any number of flags. A node is as well as
its worst word. Words that are in neither table leave a node ready, so that a flag of a later Slurm does not
empty a pool: base states that take no work are all named here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final

from fairway.model.observation import Health

DOWN: Final[Mapping[str, str]] = {
    "DOWN": "down",
    "ERROR": "in error",
    "FUTURE": "not there yet",
    "INVALID": "in an invalid state",
    "INVALID_REG": "registered with less than slurm.conf says",
    "NOT_RESPONDING": "not responding",
    "UNKNOWN": "not heard of since slurmctld started",
}
"""The engine lost it or declared it unfit."""

DRAINED: Final[Mapping[str, str]] = {
    "DRAIN": "drained",
    "FAIL": "expected to fail",
    "MAINTENANCE": "in a maintenance reservation",
    "POWERING_DOWN": "powering down",
    "POWER_DOWN": "about to power down",
    "POWER_DRAIN": "drained, to power down",
    "REBOOT_ISSUED": "rebooting",
}
"""Closed to new work on purpose; what runs may go on."""

READY: Final = frozenset(
    {
        "ALLOCATED",
        "BLOCKED",  # next to a job that wants its switch alone: full, not unwell
        "CLOUD",
        "COMPLETING",
        "DYNAMIC_FUTURE",
        "DYNAMIC_NORM",
        "IDLE",
        "MIXED",
        "PLANNED",  # the backfill scheduler keeps it for a waiting job
        "POWERED_DOWN",  # slurmctld powers it up for the next job
        "POWERING_UP",
        "POWER_UP",
        "REBOOT_CANCELED",
        "REBOOT_REQUESTED",  # reboots when idle, takes work until then
        "RESERVED",  # open to those the reservation names
        "RESUME",
        "UNDRAIN",
    }
)
"""Words that keep nobody away. Listed to show that they were weighed; nothing reads them but the tests."""

# a node that is off or starting cannot respond, and is not expected to
_ASLEEP: Final = frozenset({"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_UP"})


def health(states: Collection[str]) -> tuple[Health, str]:
    """How a node with these states is, and why in plain words; the words are empty when it is ready."""
    words = set(states)
    if not words:
        return Health.DOWN, "without a state"
    if words & _ASLEEP:
        words.discard("NOT_RESPONDING")
    for found, table in ((Health.DOWN, DOWN), (Health.DRAINED, DRAINED)):
        if named := sorted(words & table.keys()):
            return found, ", ".join(table[word] for word in named)
    return Health.READY, ""
