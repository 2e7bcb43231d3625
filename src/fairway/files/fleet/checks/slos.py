"""Check the section `slos`: unknown names, promises that say nothing, and those that nothing can keep."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final

from fairway.files.diagnostics import FaultCode, Faults, Severity, did_you_mean, listed
from fairway.files.fleet import schema as fs
from fairway.files.fleet import schema_slos as ss
from fairway.files.fleet import schema_teams as ts
from fairway.files.fleet.build import Supplies, TeamSection, priorities_of
from fairway.files.schema.containers import Key, Section
from fairway.files.schema.values import ParsedValue
from fairway.model.slo import DEFAULT_WINDOW
from fairway.model.team import Grant
from fairway.model.text import duration_text

MAX_SLOS: Final = 100
"""Each is counted for itself, and has its own metrics."""


def check_slos(file: Section, teams: Sequence[TeamSection], supplies: Supplies, faults: Faults) -> None:
    """Run all checks of objectives."""
    by_name = {team.name: team for team in teams}
    priorities = [str(p.name) for p in priorities_of(file)]
    found = file.get(ss.SLOS) or {}
    _not_too_many(file, found, faults)
    for one in found.values():
        slo = one.value
        _target_below_all(slo, faults)
        _within_fits(slo, faults)
        _known(slo, "team", _one(slo, ss.TEAM), by_name, FaultCode.UNKNOWN_TEAM, faults)
        if file.valid(fs.POOLS):
            pools = slo.get(ss.POOLS) or ()
            _known(slo, "pool", pools, file.names_in(fs.POOLS), FaultCode.UNKNOWN_POOL, faults)
        if file.valid(ts.PRIORITIES):
            _known(slo, "priority", _one(slo, ss.PRIORITY), priorities, FaultCode.UNKNOWN_PRIORITY, faults)
        if file.valid(fs.POOLS, ts.TEAMS):
            _can_be_met(slo, by_name, supplies, faults)


def _one(slo: Section, key: Key[str]) -> tuple[ParsedValue[str], ...]:
    found = slo.found(key)
    return () if found is None else (found,)


def _not_too_many(file: Section, found: Collection[Any], faults: Faults) -> None:
    section = file.found(ss.SLOS)
    if section is not None and len(found) > MAX_SLOS:
        faults.add(
            FaultCode.OUT_OF_RANGE,
            section.location,
            f"slos has {len(found)} objectives",
            expected=f"at most {MAX_SLOS}",
            hint="write one for several teams: that of the team around them counts them all",
        )


def _target_below_all(slo: Section, faults: Faults) -> None:
    target = slo.found(ss.TARGET)
    if target is not None and target.value >= 1:
        faults.add(
            FaultCode.OUT_OF_RANGE,
            target.location,
            f"slo {slo.name} has a target of 100%, which leaves no error budget: one late job misses it",
            expected="a part below 100%, for example 99%",
            hint="write  target: 99%",
        )


def _within_fits(slo: Section, faults: Faults) -> None:
    within, bound = slo.found(ss.WITHIN), slo.found(ss.STARTS_WITHIN)
    if bound is not None and within is not None:
        faults.add(
            FaultCode.NO_EFFECT,
            within.location,
            f"slo {slo.name} has starts_within, beside which within means nothing",
            expected="starts_within, or gpu_hours and within",
            hint="take within away",
        )
    hours = slo.found(ss.GPU_HOURS)
    if hours is not None and not hours.value:
        faults.add(
            FaultCode.OUT_OF_RANGE,
            hours.location,
            f"slo {slo.name} promises 0 GPU-hours",
            expected="a number above 0",
            hint="write what must be delivered:  gpu_hours: 100",
        )
    if hours is not None and within is None and slo.valid(ss.WITHIN):
        faults.add(
            FaultCode.MISSING_KEY,
            hours.location,
            f"slo {slo.name} has gpu_hours but no within",
            expected="the time in which they must be delivered",
            hint="add:  within: 24h",
        )
    longest = bound or within
    window = slo.get(ss.WINDOW) or DEFAULT_WINDOW
    if longest is not None and slo.valid(ss.WINDOW) and longest.value >= window:
        faults.add(
            FaultCode.OUT_OF_RANGE,
            longest.location,
            f"slo {slo.name} allows {duration_text(longest.value)}, which its window of "
            f"{duration_text(window)} does not contain",
            expected="a time shorter than the window",
            hint=f"write a longer window, e.g.  window: {duration_text(longest.value * 4)}",
        )


def _known(
    slo: Section,
    what: str,
    named: Sequence[ParsedValue[str]],
    known: Collection[str],
    code: FaultCode,
    faults: Faults,
) -> None:
    for item in named:
        if item.value not in known:
            faults.add(
                code,
                item.location,
                f"slo {slo.name} counts {what} {item.value}, which the fleet does not have",
                expected=f"one of {listed(known)}" if known else f"a {what} of the fleet",
                hint=did_you_mean(item.value, known, f"name a {what} of the fleet, or take it away"),
            )


def _can_be_met(slo: Section, teams: dict[str, TeamSection], supplies: Supplies, faults: Faults) -> None:
    """Warn of an objective that counts nothing, or that promises more GPU-hours than can be delivered."""
    name = slo.get(ss.TEAM)
    team = teams.get(name) if name else None
    if name and team is None:
        return
    named = {item.value for item in slo.get(ss.POOLS) or ()}
    grants = [grant for grant in _grants(team, supplies) if not named or grant.supply.pool in named]
    pools = slo.found(ss.POOLS)
    if team is not None and pools is not None and not grants and named <= supplies.pool_names:
        faults.add(
            FaultCode.SLO_NEVER_MET,
            pools.location,
            f"slo {slo.name} counts nothing: team {team.name} may not use {listed(sorted(named))}",
            expected="a pool that the team may use",
            hint=f"give team {team.name} a guarantee or borrow there, or take pools away",
            severity=Severity.WARNING,
        )
    hours, within = slo.found(ss.GPU_HOURS), slo.get(ss.WITHIN)
    sizes = [_most(grant, supplies) for grant in grants]
    known = [size for size in sizes if size is not None]
    if hours is None or within is None or not grants or len(known) < len(sizes):
        return
    most = sum(known) * within / 3600
    if hours.value > most:
        faults.add(
            FaultCode.SLO_NEVER_MET,
            hours.location,
            f"slo {slo.name} promises {hours.value:,f} GPU-hours within {duration_text(within)}, in which "
            f"{sum(known):g} GPUs deliver {most:,.0f}",
            expected=f"at most {most:,.0f}",
            hint="promise less or allow more time, or let the team hold more GPUs",
            severity=Severity.WARNING,
        )


def _grants(team: TeamSection | None, supplies: Supplies) -> Iterator[Grant]:
    if team is not None:
        yield from team.team.grants
    else:
        yield from (Grant(supply) for supply in supplies.by_supply)


def _most(grant: Grant, supplies: Supplies) -> float | None:
    """Return the most GPUs that a grant allows; None if the file does not tell."""
    supply = supplies.by_supply[grant.supply]
    if supply.max_devices is None or not supply.gpu_part:
        return None
    devices = supply.max_devices if grant.ceiling is None else min(grant.ceiling, supply.max_devices)
    return devices * supply.gpu_part
