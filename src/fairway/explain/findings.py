"""Decide why a job waits where its engine gives no reason, or one that means several things. Pure.

Slurm keeps no reason of a job in two partitions with a list of QOS: it shows `None` and `Priority` in turns.
Then the facts decide: what no node can hold, nodes that are unavailable, limits of the policy, jobs ahead,
and room.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

ROOM: Final = "NotEnoughFree"
TURN: Final = "NotItsTurn"
RACK: Final = "NoRackFits"
_UNSURE: Final = frozenset({"", ROOM, TURN})
"""Codes that an engine gives for want of a better one."""
_LIMITS: Final = frozenset({"TeamAtCeiling", "UserLimit", "JobTimeLimit", "JobAboveLimit"})
"""Codes of limits that a policy sets; which of them it is, the ledger knows better than the engine."""
_QUOTA: Final = "QuotaInUse"
"""What Kueue says of a limit that is reached, too: it counts a team's limits and others' use as one quota."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A code of `explain.reasons` that the facts prove, and a sentence with the names and numbers."""

    code: str
    text: str
    evidence: tuple[str, ...] = ()
    """Who holds what, or which jobs, nodes and limits prove it: one short phrase each."""
    subject: str = ""
    """The team whose limit it is; empty: it is no limit of a team."""


@dataclass(frozen=True, slots=True)
class WaitFacts:
    """What an engine reports of one waiting job when it is asked about it."""

    code: str = ""
    """The engine's present reason as a code of `explain.reasons`; empty: it gives none."""
    reason: str = ""
    """The engine's own text."""
    findings: tuple[Finding, ...] = ()
    """What the facts prove, the most decisive first."""
    ahead: tuple[str, ...] = ()
    """Engine ids of jobs that go first, in order: all of them, or the first few."""
    ahead_count: int | None = None
    """How many go first. None if the engine does not report it."""
    same_as: str = ""
    """Engine id of a waiting job that asks for the same: the reason is that one's, this one was not tried."""
    after: tuple[str, ...] = ()
    """Engine ids of jobs that must end first."""
    other: str = ""
    """Engine id of the job that `{job}` in a finding stands for."""
    hidden_by: str = ""
    """Why the engine gives no reason that can be trusted; empty: it does."""


NO_FACTS: Final = WaitFacts()


def decide(code: str, facts: WaitFacts, limits: Sequence[Finding]) -> Finding:
    """Return why a job waits: `code` with the text of the finding that fits it, or a finding that decides.

    `limits`: the limits of the policy that the job would exceed. The text is empty if no finding has one.
    """
    same = next((f for f in (*facts.findings, *limits) if f.code == code), None)
    if code in _LIMITS or code == _QUOTA:
        return same or next(iter(limits), Finding(code, ""))
    if code not in _UNSURE:
        return same or Finding(code, "")
    blocking = [f for f in facts.findings if f.code not in {*_UNSURE, RACK}]
    if found := next(iter((*blocking, *limits)), None):
        return found
    if facts.ahead_count and code != ROOM:
        return Finding(TURN, "")
    room = next((f for f in facts.findings if f.code in (RACK, ROOM)), None)
    return room or Finding(code, "")
