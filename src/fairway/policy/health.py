"""Decide which nodes with broken GPUs are closed to new jobs. Pure.

A pool never loses more nodes than its rule allows, whoever closed them: people, the engine or Fairway.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from fairway.model.gpu_health import HealthAction, HealthRule, event_words
from fairway.model.names import NodeName, PoolName


@dataclass(frozen=True, slots=True)
class NodeState:
    """A node, as far as the decision needs it."""

    name: NodeName
    pools: frozenset[PoolName]
    closed: bool
    """Takes no new jobs, or will not: drained, down, or about to be closed by Fairway."""


@dataclass(frozen=True, slots=True)
class BrokenGpu:
    """An event that lasts."""

    node: NodeName
    gpu: str
    code: str
    at: datetime


@dataclass(frozen=True, slots=True)
class CordonDecision:
    """What becomes of a node with a broken GPU."""

    node: NodeName
    reason: str
    rule: str
    full: PoolName | None = None
    """The pool whose limit forbids to close the node; None: it is closed."""


def decide_cordons(
    broken: Iterable[BrokenGpu], nodes: Mapping[NodeName, NodeState], rules: Sequence[HealthRule]
) -> tuple[CordonDecision, ...]:
    """Return what to do with nodes that are open and have broken GPUs, those that broke first first."""
    total = Counter(pool for node in nodes.values() for pool in node.pools)
    closed = Counter(pool for node in nodes.values() if node.closed for pool in node.pools)
    decided: dict[NodeName, CordonDecision] = {}
    for event in sorted(broken, key=lambda event: (event.at, event.node, event.gpu, event.code)):
        node = nodes.get(event.node)
        if node is None or node.closed or not node.pools or event.node in decided:
            continue
        rule = next((rule for rule in rules if rule.matches(event.code, node.pools)), None)
        if rule is None or rule.action is not HealthAction.CORDON:
            continue
        full = next((p for p in sorted(node.pools) if closed[p] >= rule.most(total[p])), None)
        reason = f"GPU {event.gpu} {event_words(event.code)}"
        decided[event.node] = CordonDecision(event.node, reason, rule.name, full)
        if full is None:
            closed.update(node.pools)
    return tuple(decided.values())
