"""Kueue's own configuration: what a policy needs of it, against what runs. Fairway never writes it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from fairway.model.fleet import Fleet
from fairway.policy.objects import Advice, FoundPolicy

KNOWN: Final = "kueue.configuration"
VERSION: Final = "kueue.version"
STRATEGIES: Final = "kueue.fairSharing.preemptionStrategies"
UNDECLARED: Final = "kueue.resources.quotaCheckStrategy"
FRAMEWORKS: Final = "kueue.integrations.frameworks"
GATES: Final = "kueue.featureGates"
NOT_KNOWN: Final = "not known"

_FILE: Final = "Kueue's configuration"
_RESTART: Final = "kubectl -n kueue-system rollout restart deployment/kueue-controller-manager"
_WANTED_STRATEGIES: Final = "LessThanOrEqualToFinalShare, LessThanInitialShare"


def settings_of(configuration: Mapping[str, Any] | None) -> dict[str, str]:
    """What of Kueue's configuration matters, as text; `not known` where it cannot be read."""
    if configuration is None:
        return {KNOWN: NOT_KNOWN}
    fair = configuration.get("fairSharing")
    resources = configuration.get("resources") or {}
    gates = configuration.get("featureGates") or {}
    return {
        KNOWN: "read",
        STRATEGIES: _strategies(fair),
        UNDECLARED: _undeclared(resources),
        FRAMEWORKS: ", ".join((configuration.get("integrations") or {}).get("frameworks") or ["batch/job"]),
        GATES: ", ".join(f"{name}={str(on).lower()}" for name, on in sorted(gates.items())),
    }


def _strategies(fair: object) -> str:
    if not isinstance(fair, Mapping) or fair.get("enable") is False:
        return ""
    return ", ".join(fair.get("preemptionStrategies") or ()) or _WANTED_STRATEGIES  # Kueue's own default


def _undeclared(resources: Mapping[str, Any]) -> str:
    left_out = resources.get("excludeResourcePrefixes") or ()
    if {"cpu", "memory"} <= set(left_out):
        return f"excludeResourcePrefixes: {', '.join(left_out)}"
    return str(resources.get("quotaCheckStrategy") or "")


def advise(fleet: Fleet, found: FoundPolicy) -> Iterator[Advice]:
    """The lines that must change; none where the configuration cannot be read, see `notices`."""
    runs = found.settings
    if runs.get(KNOWN, NOT_KNOWN) == NOT_KNOWN:
        return
    if runs[STRATEGIES] != _WANTED_STRATEGIES:
        yield Advice(
            _FILE,
            f"fairSharing: {{preemptionStrategies: [{_WANTED_STRATEGIES}]}}",
            _said("fairSharing.preemptionStrategies", runs[STRATEGIES]),
            "else shares are not kept, and what a team lends comes back by order of arrival only",
            _RESTART,
        )
    if not runs[UNDECLARED].startswith(("IgnoreUndeclared", "excludeResourcePrefixes")):
        yield Advice(
            _FILE,
            "resources: {quotaCheckStrategy: IgnoreUndeclared}",
            _said("resources.quotaCheckStrategy", runs[UNDECLARED]),
            "else a job that asks for cpu or memory never starts: only GPUs have quota",
            _RESTART,
        )
    if "batch/job" not in runs[FRAMEWORKS]:
        yield Advice(
            _FILE,
            "integrations: {frameworks: [batch/job]}",
            _said("integrations.frameworks", runs[FRAMEWORKS]),
            "else Kueue does not govern Jobs at all",
            _RESTART,
        )
    if "TopologyAwareScheduling=false" in runs[GATES]:
        yield Advice(
            _FILE,
            "featureGates: {TopologyAwareScheduling: true}",
            _said("featureGates", runs[GATES]),
            "else Kueue gives out quota and not places: a guaranteed job may wait in the scheduler",
            _RESTART,
        )


def _said(what: str, value: str) -> str:
    return f"{what}: {value}" if value else ""
