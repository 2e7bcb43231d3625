"""Faults to plant in what charges histories of fleet files, each of which `agreement` must find."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from typing import Any, Final

from fairway.cost import charges, corrections, fleet_history, rates, report
from fairway.cost.calendar import Calendar
from fairway.cost.fleet_history import FleetSpan
from fairway.model.charge import Charge, Label, Span
from fairway.model.fleet import Fleet, Pool
from fairway.model.gpu import GpuType
from fairway.model.names import SliceName, TeamName
from fairway.model.price import Commitment
from fairway.services import charges as services
from fairway.services.charges import Costs, PricedWindow
from tests.unit.cost import memory_ledger
from tests.unit.cost.faults import patched

_true_spans = fleet_history.fleet_spans


def _newest_for_all_time(
    timeline: Sequence[tuple[int, Fleet]], calendar: Calendar, period: Span
) -> tuple[FleetSpan, ...]:
    return _true_spans([(timeline[0][0], timeline[-1][1])], calendar, period)


def _always_there(
    timeline: Sequence[tuple[int, Fleet]], calendar: Calendar, period: Span
) -> tuple[FleetSpan, ...]:
    return _true_spans([(period.start, timeline[0][1]), *timeline[1:]], calendar, period)


def _from_its_own_hour(at: int, calendar: Calendar, *, first: bool) -> int:
    return calendar.hour_start(at)


def _from_the_day_after(at: int, calendar: Calendar, *, first: bool) -> int:
    return calendar.hour_start(at) if first else calendar.day_end(calendar.day_of(at))


def _dates_of_then(then: Pool, newest: Pool) -> Pool:
    return then


def _undated_of_now(then: Pool, newest: Pool) -> Pool:
    return replace(newest, cluster=then.cluster)


def _not_renamed(fleets: Sequence[Fleet]) -> list[Mapping[str, TeamName]]:
    return [{} for _ in fleets]


_true_paths = fleet_history._paths


def _tree_of_now(before: Any, then: Fleet, names: Any, newest: Fleet, is_past: Any) -> Any:
    """Paths by the newest tree, as budgets had them."""
    return _true_paths({}, newest, {}, newest, is_past)


_true_fleet_span = fleet_history._fleet_span


def _without_removed(*args: Any) -> FleetSpan:
    found = _true_fleet_span(*args)
    pools = tuple(pool for pool in found.fleet.pools if pool.name not in found.removed)
    return replace(found, fleet=replace(found.fleet, pools=pools), removed=frozenset())


def _idle_after_removal(*args: Any) -> FleetSpan:
    return replace(_true_fleet_span(*args), removed=frozenset())


def _committed_after_removal(pool: Pool) -> Pool:
    return pool


async def _own_only(
    self: Costs, fleet: Fleet, period: Span, now: int | None = None
) -> dict[TeamName, Fraction]:
    """A budget without the teams inside."""
    found: dict[TeamName, Fraction] = {}
    for charge in await self.charges(fleet, period, (Label.TEAM,), now=now):
        if charge.labels is not None:
            team = TeamName(charge.labels[0])
            found[team] = found.get(team, Fraction(0)) + charge.amount
    return found


async def _used_only(
    self: Costs, fleet: Fleet, period: Span, now: int | None = None
) -> dict[TeamName, Fraction]:
    """A budget that counts no shares of what was unused."""
    found: dict[TeamName, Fraction] = {}
    for path, charge in await self.by_path(fleet, period, now):
        for team in path if charge.kind == "usage" else ():
            found[team] = found.get(team, Fraction(0)) + charge.amount
    return found


def _no_names_of_then(self: PricedWindow, teams: Any) -> frozenset[str]:
    return frozenset(teams)


def _never_corrected(then: Sequence[Commitment], newest: Sequence[Commitment]) -> tuple[Commitment, ...]:
    return (*newest, *(c for c in then if c not in newest))


def _whole_gpus(gpu: GpuType, slice_: SliceName | None) -> Fraction:
    """A share of a GPU counts as one."""
    shared = slice_ is not None and slice_.startswith("shared-")
    return Fraction(1) if shared else _true_memory_part(gpu, slice_)


def _nothing(gpu: GpuType, slice_: SliceName | None) -> Fraction:
    """A share of a GPU is free."""
    shared = slice_ is not None and slice_.startswith("shared-")
    return Fraction(1, 10**9) if shared else _true_memory_part(gpu, slice_)


_true_memory_part = rates.memory_part


def _filter_drops_overhead(made: Any, labels: Any, priced: Any, which: Any, keep: int) -> Any:
    for charge in _true_filtered(made, labels, priced, which, keep):
        if which.pools is None or charge.supply is not None:
            yield charge


_true_filtered = services._filtered


def _report_by_tens(amount: Fraction) -> Decimal:
    return 10 * Decimal(round(amount / 10))


_true_overhead = charges._overhead


def _overhead_of_whole_days(fleet: Fleet, calendar: Calendar, window: Span) -> Iterator[Any]:
    for line in _true_overhead(fleet, calendar, window):
        day = calendar.day_span(calendar.day_of(line.at))
        part = Fraction(min(day.end, window.end) - max(day.start, window.start), day.end - day.start)
        yield replace(line, amount=line.amount / part)


def _no_corrections(recomputed: Any, billed: Any) -> tuple[()]:
    return ()


def _statement_of_users(made: Sequence[Charge], labels: Any, quantum: Decimal) -> Any:
    """Each amount is rounded by itself."""
    cents = [
        replace(c, amount=Fraction(round(c.amount / Fraction(quantum))) * Fraction(quantum)) for c in made
    ]
    return _true_amounts(cents, labels, quantum)


_true_amounts = corrections.statement_amounts
_SPANS: Final = (memory_ledger, "fleet_spans")

HISTORY_FAULTS: Final[dict[str, tuple[tuple[Any, str, Callable[..., Any]], ...]]] = {
    "undated changes hold for all time (H3)": ((*_SPANS, _newest_for_all_time),),
    "charged before the first apply (H4)": ((*_SPANS, _always_there),),
    "an apply holds from its own hour": ((fleet_history, "_effective", _from_its_own_hour),),
    "an apply holds from the next day": ((fleet_history, "_effective", _from_the_day_after),),
    "dated prices as they were applied then": ((fleet_history, "_with_dated_prices", _dates_of_then),),
    "undated prices of now": ((fleet_history, "_with_dated_prices", _undated_of_now),),
    "renamed teams lose their history (H2)": ((fleet_history, "_current_names", _not_renamed),),
    "budgets by the tree of now (H2)": ((fleet_history, "_paths", _tree_of_now),),
    "jobs on a removed pool are free (H1, M6)": ((fleet_history, "_fleet_span", _without_removed),),
    "a removed pool is idle": ((fleet_history, "_fleet_span", _idle_after_removal),),
    "commitments outlive their pool": ((fleet_history, "_without_commitments", _committed_after_removal),),
    "budgets without the teams inside": ((Costs, "by_team", _own_only),),
    "budgets without shares": ((Costs, "by_team", _used_only),),
    "filters by the names of now": ((PricedWindow, "teams_in", _no_names_of_then),),
    "a pool's report without overhead (M5)": ((services, "_filtered", _filter_drops_overhead),),
    "reports rounded to tens": ((report, "millionths", _report_by_tens),),
    "overhead of parts of days in full": ((charges, "_overhead", _overhead_of_whole_days),),
    "a corrected commitment is paid twice": ((fleet_history, "_commitments", _never_corrected),),
    "a share is a whole GPU (H6)": ((rates, "memory_part", _whole_gpus),),
    "a share is free (H6)": ((rates, "memory_part", _nothing),),
    "closed months are not corrected": ((corrections, "correction", _no_corrections),),
    "statements rounded line by line": ((corrections, "statement_amounts", _statement_of_users),),
}


def planted_in_history(name: str) -> AbstractContextManager[None]:
    """Fairway with that fault, until it is taken out again."""
    return patched(HISTORY_FAULTS[name])
