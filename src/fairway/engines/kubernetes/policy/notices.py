"""What a reader of a plan should know: where Kueue falls short of a promise, and what to do instead."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairway.engines.kubernetes.policy import kinds
from fairway.engines.kubernetes.policy.configuration import KNOWN, NOT_KNOWN
from fairway.engines.kubernetes.policy.guards import EXEMPT, STRAYS
from fairway.engines.kubernetes.policy.users import can_place
from fairway.model.fleet import Capacity, Fleet, KubernetesPlace
from fairway.model.team import Team
from fairway.policy.objects import FoundPolicy, Notice, ObjectKey

MEMBER_ROLE_SETTING: Final = "rbac.fairway-member"


def notices(
    fleet: Fleet, teams: Sequence[Team], capped: Sequence[Team], found: FoundPolicy
) -> Iterator[Notice]:
    """Everything worth saying about `teams`, those that have something on this cluster.

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
