"""Show jobs: their state, why they wait, and whether they are lent or protected. Not on a hot path."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Set as AbstractSet

from fairway.engines.virtual.simulator.accounting import Accounting
from fairway.engines.virtual.simulator.jobs import ENDED, JobView, SimJob, SimState, TeamQuota, Wait
from fairway.engines.virtual.simulator.quota import UNLIMITED
from fairway.engines.virtual.simulator.scheduler import SupplyScheduler
from fairway.model.names import TeamName
from fairway.model.text import count, first_few


def view(job: SimJob, scheduler: SupplyScheduler) -> JobView:
    """Return the current state of a job."""
    runs = bool(job.places)
    return JobView(
        id=job.id,
        request=job.request,
        team=TeamName(job.quota.name),
        priority=job.priority,
        state=job.state,
        attempts=job.attempt,
        nodes=tuple(scheduler.index.nodes[p] for p in job.places),
        devices=job.devices if runs else 0,
        lent=runs and is_lent(job),
        wait=wait_reason(job, scheduler) if job.state in (SimState.WAITING, SimState.HELD) else None,
        submitted=job.submitted,
        started=job.started if job.attempt else None,
        ended=job.ended if job.state in ENDED else None,
    )


def is_lent(job: SimJob) -> bool:
    """Return whether a running job holds devices beyond the guarantees of its team and all its ancestors.

    The lent jobs of a team are its weakest ones (lowest rank, then youngest) that cover what it borrows.
    """
    return job.preemptible or (not job.protected and any(other is job for other in _lent_of(job.quota)))


def _lent_of(quota: TeamQuota) -> Iterator[SimJob]:
    if any(q.firm <= q.guarantee for q in quota.path):
        return
    borrowed = quota.firm - quota.guarantee
    for job in quota.weakest_first(UNLIMITED):
        if job.preemptible:
            continue
        if borrowed <= 0:
            return
        borrowed -= job.devices
        yield job


def protected_jobs(accounting: Accounting) -> Iterator[SimJob]:
    """Generate the jobs that run within a guarantee now."""
    for quota in accounting.root.iter_subtree():
        lent = {job.id for job in _lent_of(quota) if not job.protected}
        yield from (j for j in quota.weakest_first(UNLIMITED) if not j.preemptible and j.id not in lent)


def protect(accounting: Accounting, before: AbstractSet[SimJob]) -> None:
    """Mark the jobs that were within a guarantee before, where the new terms guarantee less."""
    for quota in accounting.root.iter_subtree():
        less = any(job in before for job in _lent_of(quota))
        for job in quota.weakest_first(UNLIMITED):
            job.protected = less and job in before


def wait_reason(job: SimJob, scheduler: SupplyScheduler) -> Wait:
    """Return the first reason that keeps a waiting job from starting."""
    quota, supply = job.quota, scheduler.index.supply
    if job.state is SimState.HELD:
        return Wait("Held", "somebody holds it back")
    if quota.preemptible_stopped if job.preemptible else quota.stopped:
        return _stopped_reason(quota)
    user_holds = quota.user_held.get(job.user, 0)
    if user_holds + job.devices > quota.user_limit:
        return Wait(
            "UserLimit",
            f"{job.user} holds {user_holds}, a user of {quota.name} may hold {quota.user_limit}",
        )
    for team in quota.path:
        if team.held + job.devices > team.ceiling:
            return Wait(
                "TeamAtCeiling",
                f"{team.name} holds {team.held} of the {team.ceiling} it may hold of {supply}",
            )
    first = quota.quota_reserved_for
    if first is not None and first is not job and first.queued and job.id > first.id:
        return Wait(
            "BehindAnother", f"team {quota.name} has long had job {first.id} waiting for room: it goes first"
        )
    return _placement_reason(job, scheduler)


def _stopped_reason(quota: TeamQuota) -> Wait:
    for team in quota.path:
        if team.draining:
            return Wait("TeamDraining", f"team {team.name} is draining: nothing of it starts any more")
    left = "nothing of it starts" if quota.preemptible_stopped else "only what is always preemptible starts"
    return Wait("TeamHeld", f"team {quota.name} is held: {left}")


def _placement_reason(job: SimJob, scheduler: SupplyScheduler) -> Wait:
    index = scheduler.index
    enough = index.free_at_least[job.per_node]
    reservation = scheduler.reservation
    if reservation is not None and reservation.job is job:
        nodes = first_few([index.nodes[p] for p in reservation.places], 4)
        return Wait("PlacesKept", f"{nodes} are kept for it as they become free")
    if job.together and enough >= job.nodes:
        return Wait(
            "NoRackFits", f"no rack has {job.nodes} nodes with {job.per_node} free, though {enough} nodes do"
        )
    reserved_free = sum(index.free[p] for p in reservation.places) if reservation is not None else 0
    if reservation is not None and index.free_total + reserved_free >= job.devices:
        return Wait("KeptForAnother", f"free devices of {index.supply} are kept for job {reservation.job.id}")
    more = (
        f", {reserved_free} more are kept for job {reservation.job.id}"
        if reservation and reserved_free
        else ""
    )
    free = index.free_total
    if not enough:
        return Wait(
            "NotEnoughFree",
            f"no node of {index.supply} has {job.per_node} free; {free} devices are free in all{more}",
        )
    return Wait(
        "NotEnoughFree",
        f"only {count(enough, 'node')} of {index.supply} with {job.per_node} free, the job needs {job.nodes};"
        f" {free} devices are free in all{more}",
    )
