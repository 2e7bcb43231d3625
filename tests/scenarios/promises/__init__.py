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
            "a team below its guarantee starts soon after it asks, though others hold every "
            "GPU: what is lent is taken back"
        ),
        "borrow": "idle GPUs go to whoever asks, up to its borrow limit",
        "ceiling": "guarantee plus borrow is never exceeded, not for an instant",
        "least-harm": (
            "taking back never takes more GPUs than needed, and never from a team within its guarantee"
        ),
        "priority": (
            "an urgent job takes the place of its own team's lower job; never of another "
            "team's guaranteed one"
        ),
        "low-only-idle": "a low job never delays anybody's guaranteed job",
        "share": ("two teams of shares 60 and 40 with endless demand hold what is lent about 60 : 40"),
        "memory": ("a team that used much lately yields to one that used little; the half-life forgives"),
        "gang": ("a job of N nodes starts whole or not at all; two gangs that each half fit never deadlock"),
        "no-starvation": "a large gang starts in bounded time while small jobs keep coming",
        "limits": (
            "a job over its team's per-job or per-user limit is refused or held at once, with the reason"
        ),
        "access": "a team without a grant on a pool cannot use it, by the native tools either",
        "isolation": "no one reads the logs of, changes or cancels another team's job",
        "hierarchy": ("what a child team leaves of its guarantee goes to its siblings first, then outside"),
        "time": "a job past its time limit ends",
        "tolerance": (
            "only jobs that say they tolerate loss run on spot; after a node loss they run "
            "again, and it counts as a new attempt"
        ),
        "slices": "MIG slices are guaranteed, lent and counted as slices",
        "together": "a job that asks for one rack gets one rack, or waits and says so",
        "no-surprise": (
            "applying a changed policy never ends a running job; tightening works by "
            "attrition unless told to evict"
        ),
        "removal": "a team with jobs is not removed; draining it first is offered",
        "budget": (
            "when a team's budget is spent nothing of it starts, or only what is low; what runs goes on, and "
            "what waits starts when it is raised"
        ),
        "native": (
            "all of the above hold for plain `sbatch` and `kubectl`; a GPU pod or job that "
            "names no team is refused, or charged to the default team"
        ),
        "give-way": (
            "taking Fairway away leaves working engine objects, and `fairway plan` afterwards finds no change"
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
