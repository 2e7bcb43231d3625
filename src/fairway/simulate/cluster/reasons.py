"""Show jobs: their state, why they wait, and whether they are on loan or protected. Not on a hot path."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet

from fairway.model.names import TeamName
from fairway.model.text import count, first_few
from fairway.simulate.cluster.accounting import Accounting
from fairway.simulate.cluster.jobs import ENDED, JobView, SimJob, SimState, TeamQuota, Wait
from fairway.simulate.cluster.quota import UNLIMITED, share_orders
from fairway.simulate.cluster.scheduler import SupplyScheduler


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
        return Wait("Held", "On hold by its owner or an operator")
    if quota.preemptible_stopped if job.preemptible else quota.stopped:
        return _stopped_reason(quota)
    user_holds = quota.user_held.get(job.user, 0)
    if user_holds + job.devices > quota.user_limit:
        return Wait(
            "UserLimit",
            f"User {job.user} already uses {user_holds} of the {count(quota.user_limit, supply.noun)} that "
            f"one user of {quota.name} may use in {supply.pool}, and the job needs {job.devices}",
        )
    for team in quota.path:
        if team.held + job.devices > team.ceiling:
            return Wait(
                "TeamAtCeiling",
                f"Team {team.name} already uses {team.held} of the {count(team.ceiling, supply.noun)} it may "
                f"use in {supply.pool}, and the job needs {job.devices}",
            )
    first = quota.quota_reserved_for
    if first is not None and first is not job and first.queued and job.id > first.id:
        return Wait(
            "BehindAnother",
            f"{{job}} of team {quota.name} has waited longer and starts first",
            first.id,
        )
    return _placement_reason(job, scheduler)


def jobs_ahead(job: SimJob, waiting: Iterable[SimJob], scheduler: SupplyScheduler) -> list[SimJob]:
    """Return those of the waiting jobs of a supply that the scheduler would try before `job` now, in order.

    The job with a reservation comes first, then jobs within a guarantee, then the others by fair share, then
    preemptible jobs; within a team by rank and age.
    """
    reserved = scheduler.reservation.job if scheduler.reservation else None
    alike: dict[tuple[TeamQuota, bool, int, int], list[SimJob]] = {}
    for other in waiting:
        if other.queued and other is not reserved:
            alike.setdefault((other.quota, other.preemptible, other.rank, other.devices), []).append(other)
    quotas = dict.fromkeys((job.quota, *(quota for quota, _, _, _ in alike)))
    shares = {quota: place for place, (_, quota) in enumerate(sorted(share_orders(quotas)))}

    def order(quota: TeamQuota, preemptible: bool, rank: int, devices: int) -> tuple[bool, bool, int, int]:
        return preemptible, not quota.within_guarantee(devices), shares[quota], -rank

    if job is reserved:
        return []
    own = order(job.quota, job.preemptible, job.rank, job.devices)
    ahead: dict[tuple[bool, bool, int, int], list[SimJob]] = {}
    for of, jobs in alike.items():
        if (place := order(*of)) < own:
            ahead.setdefault(place, []).extend(jobs)
        elif place == own:
            ahead.setdefault(place, []).extend(other for other in jobs if other.id < job.id)
    first = [] if reserved is None or not reserved.queued else [reserved]
    return first + [o for place in sorted(ahead) for o in sorted(ahead[place], key=lambda other: other.id)]


def _stopped_reason(quota: TeamQuota) -> Wait:
    for team in quota.path:
        if team.draining:
            return Wait("TeamDraining", f"Team {team.name} is being closed: no new jobs start")
    effect = "no jobs start" if quota.preemptible_stopped else "only preemptible jobs start"
    return Wait("TeamHeld", f"Team {quota.name} is on hold: {effect}")


def _placement_reason(job: SimJob, scheduler: SupplyScheduler) -> Wait:
    index, supply = scheduler.index, scheduler.index.supply
    enough = index.free_at_least[job.per_node]
    reservation = scheduler.reservation
    if reservation is not None and reservation.job is job:
        nodes = first_few([index.nodes[p] for p in reservation.places], 4)
        all_free = "it is free" if len(reservation.places) == 1 else "all of them are free"
        return Wait("NodesReserved", f"Reserved for this job: {nodes}. It starts when {all_free}")
    if job.together and enough >= job.nodes:
        return Wait(
            "NoRackFits",
            f"No rack has {job.nodes} nodes with {count(job.per_node, f'free {supply.noun}')} each, "
            f"but {enough} nodes in different racks have",
        )
    reserved_free = sum(index.free[p] for p in reservation.places) if reservation is not None else 0
    if reservation is not None and index.free_total + reserved_free >= job.devices:
        text = f"The free {supply.pool} {supply.noun}s are reserved for {{job}}, which is ahead"
        return Wait("ReservedForAnother", text, reservation.job.id)
    pool, free = f"{index.free_total} free in the whole pool", count(job.per_node, f"free {supply.noun}")
    other = None
    if reservation is not None and reserved_free:
        pool, other = f"{pool}, {reserved_free} more reserved for {{job}}", reservation.job.id
    if not enough:
        return Wait("NotEnoughFree", f"No {supply.pool} node has {free} ({pool})", other)
    nodes = "1 node has" if enough == 1 else f"{enough} nodes have"
    text = f"Only {nodes} {free}, and the job needs {job.nodes} such nodes ({pool})"
    return Wait("NotEnoughFree", text, other)
