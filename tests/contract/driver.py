"""What the contract suite asks of a cluster under test, as small protocols.

A driver is the hand of an administrator: it starts a real job, drains a real node, kills a real daemon,
always by the engine's own means and never through the adapter under test. Clusters are shared, so a driver
changes only what it is asked to change, and every change is an async context manager that undoes it.

An engine's driver lives in `drivers/ENGINE.py` and offers one function:

    def open_driver(name: str) -> AbstractAsyncContextManager[Driver]

`name` is the lab instance (`slurm-24`, `kubernetes`). When it is not running, call `absent(name, how)`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from typing import NoReturn, Protocol

import pytest

from fairway.engines.port import Observes
from fairway.model.fleet import Cluster, Pool
from fairway.model.names import NodeName, PoolName, SliceName

Kind = tuple[PoolName, SliceName | None]
"""What is counted together: a pool's whole GPUs (None), or its slices of one profile."""


class Driver(Protocol):
    """Every engine can do this. Names, pools and nodes are fixed while the driver is open."""

    @property
    def cluster(self) -> Cluster:
        """The cluster as a fleet file would describe it, with credentials that work."""
        ...

    @property
    def whole(self) -> Pool:
        """A pool of whole GPUs on at least two nodes with at least four GPUs each."""
        ...

    @property
    def sliced(self) -> Pool:
        """A pool of slices; its `slices` has at least one profile, and a node has two slices of the first."""
        ...

    def engine(self, *pools: Pool) -> Observes:
        """A new adapter for `cluster` that knows exactly these pools. The caller closes it."""
        ...

    async def counts(self) -> Mapping[Kind, int]:
        """How many devices `whole` and `sliced` have, asked of the engine by its own tools."""
        ...

    def held(
        self, pool: Pool, devices: int, slice_: SliceName | None = None
    ) -> AbstractAsyncContextManager[NodeName]:
        """A running job that holds `devices` on one ready node of the pool; gives that node's name.

        The node had nothing in use before. On leaving, the job is gone and its devices are free.
        """
        ...

    def drained(self, node: NodeName, reason: str) -> AbstractAsyncContextManager[None]:
        """The node is closed to new work for `reason`; opened again on leaving. Running jobs go on."""
        ...

    def lost(self, node: NodeName) -> AbstractAsyncContextManager[None]:
        """The node has just died without a word (the engine may need a while to notice); back on leaving."""
        ...


class Reached(Protocol):
    """An engine behind a network, which can be away and can say no."""

    def nobody_there(self) -> Observes:
        """An adapter for an address where nothing listens."""
        ...

    def silent(self) -> AbstractAsyncContextManager[Observes]:
        """An adapter, told to wait 2 s at most, for an address that takes connections and never answers."""
        ...

    def not_let_in(self) -> Observes:
        """An adapter whose credentials the engine rejects."""
        ...


class Sickens(Protocol):
    """An engine that can hold single devices back on a node that is otherwise well."""

    def sick(self, node: NodeName, pool: Pool, devices: int) -> AbstractAsyncContextManager[None]:
        """`devices` of the pool on the node are unhealthy; well again on leaving."""
        ...


def absent(name: str, how: str) -> NoReturn:
    """Leave the test because the lab has no such instance; `how` says how to start it."""
    word = f"the lab has no running {name}: start it with `{how}`"
    if os.environ.get("FAIRWAY_REQUIRE_LAB") == "1":
        pytest.fail(word)
    pytest.skip(word)
