"""Say how a service level objective does, for the CLI and the pages. Pure."""

from __future__ import annotations

from fairway.policy.slo_alerts import percent
from fairway.wire import slos as wire


def compliance_text(slo: wire.Slo) -> str:
    """Format the good part: `94.2%`; empty if nothing was counted."""
    return "" if slo.compliance is None else percent(slo.compliance)


def target_text(slo: wire.Slo) -> str:
    """Format the target: `95%`."""
    return f"{(slo.target * 100).normalize():f}%"


def budget_left_text(slo: wire.Slo) -> str:
    """Format what is left of the error budget: `38%`, `overspent 1.4x`; empty if nothing was counted."""
    if slo.budget_left is None:
        return ""
    return f"{slo.budget_left * 100:.0f}%" if slo.budget_left >= 0 else f"spent {1 - slo.budget_left:.1f}x"


def burn_text(slo: wire.Slo, window: str) -> str:
    """Format the burn rate of a window: `14x`, `0.3x`; empty if it was not measured."""
    rates = [burn.rate for burn in slo.burns if burn.window == window]
    if not rates:
        return ""
    return f"{rates[0]:.0f}x" if rates[0] >= 10 or not rates[0] else f"{rates[0]:.1f}x"


def tone(slo: wire.Slo) -> str:
    """Return how it does: `bad` if the target is missed or burns fast, `warn` if it will be, `ok`, or ``."""
    if slo.met is None:
        return ""
    if not slo.met or slo.alert in ("fast-burn", "burn"):
        return "bad"
    return "warn" if slo.alert or slo.missed_at is not None else "ok"
