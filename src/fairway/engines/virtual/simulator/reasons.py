"""What the simulator shows: jobs and why they wait, what teams hold, what is lent. Never on a hot path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fairway.engines.virtual.simulator.accounting import Accounting
from fairway.engines.virtual.simulator.jobs import ENDED, JobView, SimJob, SimState, TeamQuota, Wait
from fairway.engines.virtual.simulator.quota import BOUNDLESS
from fairway.engines.virtual.simulator.scheduler import SupplyScheduler
from fairway.model.names import TeamName
from fairway.model.text import count, first_few


@dataclass(frozen=True, slots=True)
class HeldDevices:
    """What a team holds of one supply, everything inside it counted in."""

    held: int
    guarantee: int
    ceiling: int | None
    """None: only what its parent may hold."""
    lent: int
    """Beyond its guarantee, or by jobs that are preemptible always: may be taken back."""
    lately: float
    """What it held beyond its guarantee lately, in devices: the half-life forgives."""
    waiting: int
    """Jobs."""


def held_devices(
    quotas: Mapping[TeamName, TeamQuota], now: float, half_life: float
) -> dict[TeamName, HeldDevices]:
    return {
        name: HeldDevices(
            quota.held,
            quota.guarantee,
            None if quota.ceiling >= BOUNDLESS else quota.ceiling,
            quota.beyond,
            quota.averaged(now, half_life),
            quota.waiting,
        )
        for name, quota in quotas.items()
    }


def view(job: SimJob, scheduler: SupplyScheduler) -> JobView:
    """One job as it is now."""
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
        wait=why(job, scheduler) if job.state in (SimState.WAITING, SimState.HELD) else None,
        submitted=job.submitted,
        started=job.started if job.attempt else None,
        ended=job.ended if job.state in ENDED else None,
    )


def is_lent(job: SimJob) -> bool:
    """Whether a running job is on what its team has beyond every guarantee over it.

    Of a team's jobs the weakest (lowest rank, youngest) are the lent ones: as many as cover what is beyond.
    """
    return job.low or (not job.kept and any(other is job for other in _lent_of(job.quota)))


def _lent_of(quota: TeamQuota) -> Iterator[SimJob]:
    if any(b.firm <= b.guarantee for b in quota.path):
        return
    beyond = quota.firm - quota.guarantee
    for job in quota.weakest_first(BOUNDLESS):
        if job.low:
            continue
        if beyond <= 0:
            return
        beyond -= job.devices
        yield job


def protected(accounting: Accounting) -> Iterator[SimJob]:
    """What runs within a guarantee now."""
    for quota in accounting.root.all_inside():
        lent = {job.id for job in _lent_of(quota) if not job.kept}
        yield from (j for j in quota.weakest_first(BOUNDLESS) if not j.low and j.id not in lent)


def keep(accounting: Accounting, before: AbstractSet[SimJob]) -> None:
    """Mark what was protected before, where the terms of now protect less: it ends by itself only."""
    for quota in accounting.root.all_inside():
        less = any(job in before for job in _lent_of(quota))
        for job in quota.weakest_first(BOUNDLESS):
            job.kept = less and job in before


def why(job: SimJob, scheduler: SupplyScheduler) -> Wait:
    """What keeps a waiting job from starting: the first thing that binds."""
    quota, supply = job.quota, scheduler.index.supply
    if job.state is SimState.HELD:
        return Wait("Held", "somebody holds it back")
    if quota.stopped_low if job.low else quota.stopped:
        return _closed(quota)
    user_holds = quota.user_held.get(job.user, 0)
    if user_holds + job.devices > quota.user_most:
        return Wait(
            "UserLimit",
            f"{job.user} holds {user_holds}, a user of {quota.name} may hold {quota.user_most}",
        )
    for team in quota.path:
        if team.held + job.devices > team.ceiling:
            return Wait(
                "TeamAtCeiling",
                f"{team.name} holds {team.held} of the {team.ceiling} it may hold of {supply}",
            )
    first = quota.saving
    if first is not None and first is not job and first.queued and job.id > first.id:
        return Wait(
            "BehindAnother", f"team {quota.name} has long had job {first.id} waiting for room: it goes first"
        )
    return _lacks_places(job, scheduler)


def _closed(quota: TeamQuota) -> Wait:
    for team in quota.path:
        if team.draining:
            return Wait("TeamDraining", f"team {team.name} is draining: nothing of it starts any more")
    left = "nothing of it starts" if quota.stopped_low else "only what is always preemptible starts"
    return Wait("TeamHeld", f"team {quota.name} is held: {left}")


def _lacks_places(job: SimJob, scheduler: SupplyScheduler) -> Wait:
    index = scheduler.index
    enough = index.at_least[job.per_node]
    kept = scheduler.reservation
    if kept is not None and kept.job is job:
        nodes = first_few([index.nodes[p] for p in kept.places], 4)
        return Wait("PlacesKept", f"{nodes} are kept for it as they become free")
    if job.together and enough >= job.nodes:
        return Wait(
            "NoRackFits", f"no rack has {job.nodes} nodes with {job.per_node} free, though {enough} nodes do"
        )
    kept_free = sum(index.free[p] for p in kept.places) if kept is not None else 0
    if kept is not None and index.free_total + kept_free >= job.devices:
        return Wait("KeptForAnother", f"free devices of {index.supply} are kept for job {kept.job.id}")
    more = f", {kept_free} more are kept for job {kept.job.id}" if kept is not None and kept_free else ""
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
