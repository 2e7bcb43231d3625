"""What the scenarios ask of one cluster: the hand of its users and administrators, a small protocol.

A hand submits as a user would, looks as an administrator would and breaks nodes, always by the engine's own
tools and never through Fairway. Everything else (fleets, plans, applies, waiting, sampling, verdicts) is in
`stage.py`, once for all engines. An engine's hand lives in `stages/ENGINE.py` and offers one function:

    def open_hand(name: str) -> AbstractAsyncContextManager[Hand]

`name` is the instance of the lab (`slurm-24`, `kubernetes`). When it is not running, call
`absent(name, how)` of tests.contract.driver. A hand is opened once a session; scenarios follow each other on
it, with `clear()` between them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol, runtime_checkable

from fairway.engines.port import Governs
from fairway.model.fleet import Fleet
from fairway.policy.objects import Translation


class State(StrEnum):
    """Where a job is."""

    WAITING = "waiting"
    RUNNING = "running"
    """Every part of it runs; a gang with a part missing is still waiting."""
    DONE = "done"
    """Ended by itself, well."""
    ENDED = "ended"
    """Ended otherwise: cancelled, out of time, failed. `reason` says how, in the engine's words."""


@dataclass(frozen=True, slots=True)
class JobSeen:
    """One job at one moment."""

    state: State
    attempts: int = 0
    """How often it started, the running attempt included: 2 after it was taken once and started again."""
    nodes: tuple[str, ...] = ()
    """Where it holds devices now."""
    devices: int = 0
    """GPUs (or slices) it holds now, in part too."""
    reason: str = ""
    """The engine's own words for why it waits or how it ended."""
    ending: bool = False
    """Its processes are being ended: its quota was given back, but its devices are not free yet."""

    @property
    def counted(self) -> int:
        """Devices that count against its team's ceiling."""
        return 0 if self.ending else self.devices


@dataclass(frozen=True, slots=True)
class Order:
    """One job as a user asks for it by the engine's own tool."""

    user: str
    team: str | None = None
    """Named in the native way (account, namespace); None: the user names none."""
    pool: str = "gpu"
    gpus: int = 1
    """On each node. Of a pool of slices: slices of `slice`."""
    nodes: int = 1
    slice: str | None = None
    seconds: float = 600
    """How long it runs if left alone."""
    limit_seconds: int | None = None
    """The time limit it asks for; None: far more than any scenario takes."""
    priority: str | None = None
    """The policy's word (urgent, low), the way users of the engine write it; None: none is written."""
    together: bool = False
    """All nodes in one rack, or wait."""
    tolerates_loss: bool = False
    last: bool = False
    """Ask the engine to place it behind all others, where users can (--nice); else nothing."""
    log: bool = False
    """Keeps what it prints, where that must be asked for."""
    way: str = ""
    """One of `Hand.ways`, for scenario native; empty: the usual one."""


class Denied(Exception):
    """The engine's tool refused; str() is what it said."""


class Hand(Protocol):
    """One cluster. Every call is bounded in time."""

    @property
    def name(self) -> str:
        """What results are kept under: `virtual`, `slurm-24.11`, `slurm-26.05`, `kueue`."""
        ...

    @property
    def head(self) -> str:
        """The fleet file up to `teams`: apiVersion, kind, name, clusters (one, called `lab`), pools.

        Pools, one shape everywhere: `gpu` 4 nodes x 8 A100, in two racks of two nodes; `mig` with 4 slices
        1g.10gb; `spot`, capacity spot, at least 2 nodes.
        """
        ...

    @property
    def ways(self) -> Sequence[str]:
        """Native ways to ask for GPUs that name neither queue nor QOS: `--gres=gpu:N`, a plain Job, …"""
        ...

    @property
    def stranger(self) -> str:
        """Somebody the engine lets in who is a member of no team."""
        ...

    def rack(self, node: str) -> str:
        """The rack a node of pool `gpu` is in."""
        ...

    def engine(self, fleet: Fleet) -> Governs:
        """A new adapter for the cluster, as the server would build it. The caller closes it."""
        ...

    async def configure(self, fleet: Fleet, wanted: Translation) -> None:
        """Do what an administrator does with advice and rendered files. Quick when nothing changed."""
        ...

    async def submit(self, order: Order) -> str:
        """The engine's id of the job. Raises Denied."""
        ...

    async def look(self) -> Sequence[Mapping[str, JobSeen]]:
        """Every job since the last `clear`, by id, as quick as the engine allows; the last entry is now.

        A hand that watches (events, its own clock) gives every state since the last look before it, in order,
        so that nothing between two looks is missed; another gives now alone.
        """
        ...

    async def words(self, job: str) -> str:
        """What the engine itself says about the job now: for evidence. One line if possible."""
        ...

    async def cancel(self, job: str, user: str) -> str:
        """Cancel a job as that user. Gives what the tool said; raises Denied if it was refused."""
        ...

    async def read(self, job: str, user: str) -> str:
        """What that user gets to see of the job by the engine's tools; raises Denied or gives ''."""
        ...

    async def change(self, job: str, user: str) -> str:
        """Change the job as that user (its priority, its limits); raises Denied if it was refused."""
        ...

    async def smuggle(self, order: Order) -> Mapping[str, str]:
        """Every native way round a grant that users could try for `order.pool`, which the team has none of.

        By the way's name: the id of a job that came of it, or `refused: …`.
        """
        ...

    async def lose(self, node: str) -> None:
        """The node dies without a word, and what runs there with it."""
        ...

    async def restore(self, node: str) -> None:
        """The node is back and takes work when this returns."""
        ...

    async def clear(self) -> None:
        """End and forget every job; all nodes are idle when this returns. Policy stays."""
        ...

    def now(self) -> float:
        """Seconds on the engine's clock."""
        ...

    async def pause(self, seconds: float) -> None:
        """Let the engine's clock go on by so much at most: to the next event, if it has its own clock."""
        ...


@runtime_checkable
class Weighs(Protocol):
    """A hand on an engine that counts past use only now and then (Slurm: once a minute at the most often)."""

    async def weigh(self) -> None:
        """Have it count now, by a verb of its own, so that scenarios need not last so many minutes."""
        ...
