"""Every promise of a policy, as scenarios: one file a family."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType
from typing import Final

from tests.scenarios.stage import Stage

Scenario = Callable[[Stage], Awaitable[None]]

PROMISES: Final = (
    "guarantee",
    "borrow",
    "ceiling",
    "least-harm",
    "priority",
    "low-only-idle",
    "share",
    "memory",
    "gang",
    "no-starvation",
    "limits",
    "access",
    "isolation",
    "hierarchy",
    "time",
    "tolerance",
    "slices",
    "together",
    "no-surprise",
    "removal",
    "native",
    "give-way",
)
"""In the order in which the table shows them."""

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
