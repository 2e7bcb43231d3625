"""Summarize a job that is over: what it used, what it cost, what to change next time. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from fairway.model.job import OPEN_JOBS
from fairway.model.price import money_text
from fairway.views.gpu_use import hours_text, memory_text, use_text

if TYPE_CHECKING:
    from fairway.wire import gpu_use as use_wire
    from fairway.wire import jobs as wire

_JOULES_IN_KWH: Final = 3_600_000


def cost_text(cost: wire.JobCost) -> str:
    """Format the cost of a job so far: `53.33 USD`, `about 53.33 USD`."""
    return ("about " if cost.about else "") + money_text(cost.amount, cost.currency)


def summary_lines(found: wire.Why) -> list[str]:
    """Return what a job that is over used and cost, in sentences. Empty if it runs, or held no GPUs."""
    if found.use is None or found.state in OPEN_JOBS or not found.use.held_gpu_seconds:
        return []
    held = f"It held {hours_text(found.use.held_gpu_seconds)} GPU-hours"
    money = f", {cost_text(found.cost)}" if found.cost is not None else ""
    more = "; ".join(_most(found.use))
    return [f"{held}{money}. GPUs: {use_text(found.use)}{'; ' if more else ''}{more}."]


def _most(use: use_wire.Use) -> Iterator[str]:
    if use.memory_peak_mib is not None:
        yield f"at most {memory_text(use.memory_peak_mib)} GiB of memory on one"
    if use.energy_joules is not None:
        yield f"{use.energy_joules / _JOULES_IN_KWH:,.1f} kWh"
