"""Decide when an objective alerts: by how fast it spends its error budget in a long and a short window. Pure.

As in the SRE workbook: the long window shows that enough of the budget was spent to matter, the short one
that it is still being spent. A least part of the budget, beside the rate, keeps one late job of a quiet night
from alerting anybody.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from fairway.model.slo import DAY
from fairway.model.text import duration_text, span
from fairway.policy.slo import HOUR, SHORT_BURN, SloStatus


class SloAlert(StrEnum):
    """The alert of an objective, the most urgent that applies."""

    NONE = ""
    FAST_BURN = "fast-burn"
    """2% of the error budget was spent within an hour, and it still is."""
    BURN = "burn"
    """5% of the error budget was spent within six hours, and it still is."""
    SLOW_BURN = "slow-burn"
    """10% of the error budget was spent within a day, and it still is."""
    SPENT = "spent"
    """The error budget is used up: the target is missed."""


@dataclass(frozen=True, slots=True)
class BurnRule:
    """When an objective alerts for the rate at which it spends its error budget."""

    alert: SloAlert
    seconds: int
    """The long window."""
    short_seconds: int
    part: float
    """The part of the whole budget that is spent in the long window."""

    def rate(self, window_seconds: int) -> float:
        """Return the burn rate that spends this part in the long window."""
        return self.part * window_seconds / self.seconds


BURN_RULES: Final = (
    BurnRule(SloAlert.FAST_BURN, HOUR, SHORT_BURN, 0.02),
    BurnRule(SloAlert.BURN, 6 * HOUR, HOUR, 0.05),
    BurnRule(SloAlert.SLOW_BURN, DAY, 6 * HOUR, 0.1),
)


def alert_of(status: SloStatus) -> SloAlert:
    """Return the most urgent alert of an objective: a fast burn first, as it can still be stopped."""
    burns = {burn.seconds: burn for burn in status.burns}
    for rule in BURN_RULES:
        long, short = burns.get(rule.seconds), burns.get(rule.short_seconds)
        least = rule.rate(status.slo.window_seconds)
        if long is None or short is None:
            continue
        if long.spent >= rule.part and long.rate >= least and short.rate >= least:
            return rule.alert
    left = status.budget_left
    return SloAlert.SPENT if left is not None and left < 0 else SloAlert.NONE


def alert_text(alert: SloAlert, status: SloStatus) -> str | None:
    """Say what an alert means: `error budget used up`, `burning 14x over 1h`. Returns None without one."""
    if alert is SloAlert.SPENT:
        return "error budget used up"
    for rule in BURN_RULES:
        if rule.alert is alert:
            rates = (burn.rate for burn in status.burns if burn.seconds == rule.seconds)
            return f"burning {next(rates, 0.0):.0f}x over {duration_text(rule.seconds)}"
    return None


def outlook_text(alert: SloAlert, status: SloStatus) -> str:
    """Say what becomes of an objective: its alert, or when the target is missed if the last day goes on."""
    said = alert_text(alert, status)
    if said is not None:
        return said
    if status.compliance is None:
        return "nothing counted yet"
    outlook = status.outlook
    if outlook is None or outlook.missed_at is None:
        return "on target"
    return f"missed in {span(outlook.missed_at - status.until)} if the last day goes on"


def budget_text(status: SloStatus) -> str:
    """Say how an objective does: `94.2% were good, 38% of the error budget is left`."""
    part, left = status.compliance, status.budget_left
    if part is None or left is None:
        return "Nothing was counted yet."
    said = f"{percent(part)} were good"
    if left >= 0:
        return f"{said}, {left * 100:.0f}% of the error budget is left."
    return f"{said}, {1 - left:.1f} times as much as the error budget was spent."


def percent(part: float) -> str:
    """Format a part of events, never as 100% if one was bad: `94.2%`, `99.97%`."""
    if part >= 1:
        return "100%"
    for digits in range(1, 6):
        if (text := f"{part * 100:.{digits}f}") != f"{100:.{digits}f}":
            return f"{text}%"
    return "99.99999%"
