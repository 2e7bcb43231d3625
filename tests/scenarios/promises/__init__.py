"""Every promise of a policy, as scenarios: one file a family."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from tests.scenarios.stage import Stage

Scenario = Callable[[Stage], Awaitable[None]]

PROMISES: Final = MappingProxyType(
    {
        "guarantee": (
            "a team below its guarantee starts its jobs soon, even if other teams use every GPU: GPUs "
            "on loan are reclaimed"
        ),
        "borrow": "idle GPUs go to any team that asks, up to its borrow limit",
        "ceiling": "guarantee plus borrow is never exceeded, even briefly",
        "least-harm": (
            "reclaiming preempts no more GPUs than needed, and never those of a team within its guarantee"
        ),
        "priority": (
            "an urgent job preempts a lower-priority job of its own team, never a guaranteed job of "
            "another team"
        ),
        "low-only-idle": "a low job never delays a guaranteed job",
        "share": "two teams with shares 60 and 40 and unlimited demand divide borrowed GPUs about 60 : 40",
        "memory": (
            "a team with high recent usage yields to one with low recent usage; past usage decays "
            "with the half-life"
        ),
        "gang": (
            "a job with N nodes starts on all of them or not at all; two gangs that each fit in part "
            "never deadlock"
        ),
        "no-starvation": "a large gang starts in bounded time while small jobs keep arriving",
        "limits": (
            "a job above the per-job or per-user limit of its team is refused or held at once, with "
            "the reason"
        ),
        "access": "a team without a grant on a pool cannot use it, not even with the engine's own tools",
        "isolation": "nobody reads the logs of, changes or cancels a job of another team",
        "hierarchy": (
            "what a child team does not use of its guarantee goes to its siblings first, then to other teams"
        ),
        "time": "a job ends at its time limit",
        "tolerance": (
            "only jobs that declare that they tolerate loss run on spot nodes; after a node is lost "
            "they run again, as a new attempt"
        ),
        "slices": "MIG slices are guaranteed, put on loan and counted as slices",
        "together": "a job that asks for one rack gets one rack, or waits and reports why",
        "no-surprise": (
            "applying a changed policy never stops a running job; lower limits take effect as jobs "
            "finish, unless you ask to evict them"
        ),
        "removal": "a team with jobs is not removed; Fairway offers to drain it first",
        "budget": (
            "when the budget of a team is spent, none of its jobs starts, or only low ones; running "
            "jobs continue, and waiting jobs start when it is raised"
        ),
        "native": (
            "all of the above hold for plain `sbatch` and `kubectl`; a GPU pod or job that names no "
            "team is refused, or charged to the default team"
        ),
        "give-way": (
            "removing Fairway leaves working engine objects, and a later `fairway plan` finds no change"
        ),
    }
)
"""What each says, in the order in which the table shows them."""

_kept: dict[str, list[Scenario]] = {}


def promise(name: str) -> Callable[[Scenario], Scenario]:
    """The scenario shows that the promise is kept, or how far."""
    assert name in PROMISES, name

    def keep(scenario: Scenario) -> Scenario:
        _kept.setdefault(name, []).append(scenario)
        return scenario

    return keep


def scenarios() -> Mapping[str, tuple[Scenario, ...]]:
    """Every promise with its scenarios."""
    for module in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{module.name}")
    return MappingProxyType({name: tuple(_kept.get(name, ())) for name in PROMISES})
