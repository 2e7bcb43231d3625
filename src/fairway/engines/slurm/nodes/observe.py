"""Turn slurmctld's nodes into nodes of the model: their health, and why. Pure.

Slurm reports a base state (IDLE, MIXED, ALLOCATED, DOWN, ...) and any number of flags. A node is as healthy
as its worst state. States that are in neither table leave a node ready, so that a flag of a later Slurm does
not empty a pool: base states that take no work are all listed here.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final

from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.engines.slurm.rest.wire import WireNode
from fairway.model.names import NodeName
from fairway.model.observation import Health, Node

DOWN: Final[Mapping[str, str]] = {
    "DOWN": "down",
    "ERROR": "in error",
    "FUTURE": "not there yet",
    "INVALID": "in an invalid state",
    "INVALID_REG": "registered with less than slurm.conf says",
    "NOT_RESPONDING": "not responding",
    "UNKNOWN": "not heard of since slurmctld started",
}
"""The engine lost the node or declared it unfit."""

DRAINED: Final[Mapping[str, str]] = {
    "DRAIN": "drained",
    "FAIL": "expected to fail",
    "MAINTENANCE": "in a maintenance reservation",
    "POWERING_DOWN": "powering down",
    "POWER_DOWN": "about to power down",
    "POWER_DRAIN": "drained, to power down",
    "REBOOT_ISSUED": "rebooting",
}
"""Closed to new work on purpose; running jobs may go on."""

# a node that is off or starting cannot respond, and is not expected to
_POWER_STATES: Final = frozenset({"POWERED_DOWN", "POWERING_UP", "POWERING_DOWN", "POWER_UP"})

# 9999-12-31: beyond it, a number is no time
_LAST_SECOND: Final = 253_402_300_800


def health(states: Collection[str]) -> tuple[Health, str]:
    """Return the health of a node with these states, and the reason; the reason is empty when it is ready."""
    names = set(states)
    if not names:
        return Health.DOWN, "without a state"
    if names & _POWER_STATES:
        names.discard("NOT_RESPONDING")
    for found, texts in ((Health.DOWN, DOWN), (Health.DRAINED, DRAINED)):
        if listed := sorted(names & texts.keys()):
            return found, ", ".join(texts[name] for name in listed)
    return Health.READY, ""


_health = lru_cache(maxsize=256)(health)


def to_node(wire: WireNode, pools: PoolMatcher) -> Node:
    """Convert one node. Jobs on a node that is drained or down still count as in use."""
    state, text = _health(wire.state)
    reason = "" if state is Health.READY else _reason(wire, text)
    return Node(NodeName(wire.name), state, reason, pools.devices(wire.partitions, wire.gres, wire.gres_used))


def _reason(wire: WireNode, state: str) -> str:
    """Return the administrator's or Slurm's reason, with who set it and when."""
    reason, user = wire.reason.strip(), wire.reason_set_by_user
    if not reason:
        return f"{state}: {wire.reservation}" if "MAINTENANCE" in wire.state and wire.reservation else state
    if not user:
        return reason
    seconds = wire.reason_changed_at.number if wire.reason_changed_at.set else 0
    if not 0 < seconds < _LAST_SECOND:
        return f"{reason} ({user})"
    return f"{reason} ({user}, {datetime.fromtimestamp(seconds, UTC):%Y-%m-%d %H:%M} UTC)"
