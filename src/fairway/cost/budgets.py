"""How a budget stands, and what that keeps from starting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import date
from enum import StrEnum
from fractions import Fraction

from fairway.cost.calendar import Calendar, next_month
from fairway.model.budget import AtLimit, Budget, Every, Hold
from fairway.model.charge import Span
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName

DAY_SECONDS = 86400
BURN_SECONDS = 7 * DAY_SECONDS


class Level(StrEnum):
    """How far a budget is spent."""

    OK = "ok"
    WARNED = "warned"
    """`warn_at` of it is spent."""
    SPENT = "spent"


@dataclass(frozen=True, slots=True)
class Standing:
    """How a budget stands at a moment."""

    level: Level
    hold: Hold | None
    """What it keeps from starting."""
    runs_out: date | None
    """The day it will be spent at the present rate, or today if it is; None: not in this period."""


def period_start(every: Every, day: date) -> date:
    """The first day of the month or quarter that `day` is in."""
    first = day.replace(day=1)
    return first if every is Every.MONTH else first.replace(month=1 + 3 * ((day.month - 1) // 3))


def period(every: Every, day: date, calendar: Calendar) -> Span:
    """The month or quarter that `day` is in."""
    first = period_start(every, day)
    after = next_month(first)
    if every is Every.QUARTER:
        after = next_month(next_month(after))
    return Span(calendar.day_start(first), calendar.day_start(after))


def burn_window(every: Every, now: int, calendar: Calendar) -> Span:
    """Over which the rate of spending is taken: the last seven days, of this period; a day at least.

    Its end is the end of the hour that runs. A day at least, though it reaches into the period before: one
    costly hour after midnight says little of a month.
    """
    end = calendar.next_hour(now)
    began = max(period(every, calendar.day_of(now), calendar).start, end - BURN_SECONDS)
    return Span(calendar.hour_start(min(began, end - DAY_SECONDS)), end)


def per_day(spent: Fraction, window: Span, now: int) -> Fraction:
    """What is spent a day, when `spent` was since `window` began."""
    return spent * DAY_SECONDS / max(1, min(window.end, now) - window.start)


def standing(budget: Budget, spent: Fraction, per_day: Fraction, now: int, calendar: Calendar) -> Standing:
    """How `budget` stands when `spent` of it is, in the period that `now` is in."""
    amount = Fraction(budget.amount)
    today = calendar.day_of(now)
    if spent >= amount:
        return Standing(Level.SPENT, _HOLDS[budget.at_limit], today)
    level = Level.WARNED if spent >= amount * Fraction(budget.warn_at) else Level.OK
    return Standing(level, None, _runs_out(budget.every, amount - spent, per_day, now, calendar))


_HOLDS = {AtLimit.WARN: None, AtLimit.LOW_ONLY: Hold.LOW_ONLY, AtLimit.STOP: Hold.STOP}


def _runs_out(every: Every, left: Fraction, per_day: Fraction, now: int, calendar: Calendar) -> date | None:
    if per_day <= 0:
        return None
    seconds = left / per_day * DAY_SECONDS
    if now + seconds >= period(every, calendar.day_of(now), calendar).end:
        return None
    return calendar.day_of(now + int(seconds))


def with_holds(fleet: Fleet, holds: Mapping[TeamName, Hold]) -> Fleet:
    """The fleet with what spent budgets keep from starting.

    A team inside another is held as that one is, or more strictly if it says so itself. Whatever holds the
    teams had before are gone: `holds` is complete.
    """
    held: dict[TeamName, Hold | None] = {}
    for team in fleet.teams:  # parents before children
        own = holds.get(team.name)
        above = held[team.parent] if team.parent is not None else None
        held[team.name] = stricter(own, above)
    if all(team.hold is held[team.name] for team in fleet.teams):
        return fleet
    return replace(fleet, teams=tuple(replace(team, hold=held[team.name]) for team in fleet.teams))


def stricter(one: Hold | None, other: Hold | None) -> Hold | None:
    """Of two holds the one that keeps more from starting."""
    if Hold.STOP in (one, other):
        return Hold.STOP
    return one or other
