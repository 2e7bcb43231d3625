"""Notices in a plan about where Kueue falls short of a promise, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.policy.admission_policies import EXEMPT, STRAYS
from fairway.engines.kubernetes.policy.users import can_place
from fairway.model.fleet import Capacity, Fleet, KubernetesPlace
from fairway.model.team import Team
from fairway.policy.objects import Advice, FoundPolicy, Notice, ObjectKey

MEMBER_ROLE_SETTING: Final = "rbac.fairway-member"


def notices(
    fleet: Fleet, teams: Sequence[Team], capped: Sequence[Team], found: FoundPolicy
) -> Iterator[Notice]:
    """Yield the notices about `teams`, those that may hold something on this cluster.

    Low jobs of those that are `capped` count against their team's ceiling.
    """
    if not teams:
        return
    yield from _of_promises(teams, capped, found)
    yield from _of_pools(fleet, teams, found)
    yield from _of_the_cluster(teams, found)


def _of_promises(teams: Sequence[Team], capped: Sequence[Team], found: FoundPolicy) -> Iterator[Notice]:
    limited = [t.name for t in teams if t.limits.user_gpus is not None]
    if limited and can_place(found):
        yield Notice(
            "PriorityWithinUsers",
            f"{', '.join(limited)} counts by user: an urgent job takes the place of its own user's jobs only",
            "leave the limit of a user out where urgent must come before everybody's in the team",
            promise="priority",
        )
    elif limited:
        yield Notice(
            "UserLimitPerJobOnly",
            f"Kueue counts teams, not users: of {', '.join(limited)} a single job over the limit of a "
            "user is refused, several small ones together are not",
            "make a team inside the team for whoever needs a ceiling; Kubernetes 1.36 can count users",
            promise="limits",
        )
    if len(teams) > 1:
        yield Notice(
            "VictimsInKueuesOrder",
            "Kueue takes back by priority and the latest start, whole jobs at a time: at times it takes more "
            "GPUs than the least that would do, never from a team within its guarantee",
            "jobs of few sizes in one pool keep it exact",
            promise="least-harm",
        )
    if capped:
        yield Notice(
            "LowWithinGuarantee",
            f"low jobs of {', '.join(t.name for t in capped)} count against its ceiling, so within its "
            "guarantee they keep their place against teams that only borrow",
            "leave borrow out where low jobs shall always yield",
            promise="low-only-idle",
        )


def _of_pools(fleet: Fleet, teams: Sequence[Team], found: FoundPolicy) -> Iterator[Notice]:
    used = {g.supply for t in teams for g in t.grants}
    for pool in fleet.pools:
        if not isinstance(pool.place, KubernetesPlace) or not used & set(pool.supplies):
            continue
        here = [s for s in pool.supplies if f"capacity.{s}" in found.settings]
        unknown = [s for s in here if found.settings[f"capacity.{s}"] == "0" and pool.gpus is None]
        if unknown:
            yield Notice(
                "NothingToLend",
                f"no node of pool {pool.name} has {' or '.join(str(s) for s in unknown)} now: beyond "
                "guarantees nothing of it is lent",
                f"say how many GPUs it has when it is full: gpus, in pool {pool.name}; then plan again",
                promise="borrow",
            )
        if here and pool.capacity is Capacity.SPOT and not pool.place.taints:
            yield Notice(
                "SpotWithoutTaint",
                f"pool {pool.name} is spot and names no taint: any job may be put there, whether it "
                "tolerates loss or not",
                "taint its nodes and say so:  kubernetes: { taints: [fairway/spot=true:NoSchedule] }",
                promise="tolerance",
            )


def _of_the_cluster(teams: Sequence[Team], found: FoundPolicy) -> Iterator[Notice]:
    if ObjectKey(kinds.ADMISSION_POLICY.name, STRAYS) not in {o.key for o in found.objects}:
        yield Notice(
            "GpuPodsOnlyInTeams",
            "new GPU pods outside teams' namespaces will be refused; those that run stay",
            f"for drivers and monitoring:  kubectl label namespace NAMESPACE {EXEMPT}=true",
            promise="native",
        )
    if not can_place(found):
        yield Notice(
            "JobsWithoutGpusWait",
            "Kueue puts every job of a team's namespace into its queue here, and one without GPUs "
            "never starts there",
            "run those in another namespace; from Kubernetes 1.36 on only GPU jobs are put into queues",
        )
    if found.settings.get(KNOWN, NOT_KNOWN) == NOT_KNOWN:
        yield Notice(
            "KueueConfigurationNotKnown",
            "Kueue's configuration cannot be read: whether shares are kept and jobs with cpu requests start "
            "is not known",
            "let Fairway read it:  kubectl apply -f deploy/kubernetes/rights.yaml",
        )
    if found.settings.get(MEMBER_ROLE_SETTING) == "missing" and any(t.members for t in teams):
        yield Notice(
            "MemberRoleMissing",
            "ClusterRole fairway-member does not exist: members are named, and may do nothing",
            "make it:  kubectl apply -f deploy/kubernetes/rights.yaml",
            promise="access",
        )


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
    """Return the relevant part of Kueue's configuration as text; `not known` where it cannot be read."""
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
    """Yield the lines that must change; none where the configuration cannot be read, see `notices`."""
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
