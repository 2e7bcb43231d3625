"""What the simulator shows: jobs and why they wait, what teams hold, what is lent. Never on a hot path."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from fairway.engines.virtual.desk import Desk
from fairway.engines.virtual.jobs import ENDED, Job, JobState, JobView, Wait
from fairway.engines.virtual.quota import BOUNDLESS, Branch
from fairway.model.names import TeamName
from fairway.model.wording import count


@dataclass(frozen=True, slots=True)
class Holding:
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


def holdings(branches: Mapping[TeamName, Branch], now: float, half_life: float) -> dict[TeamName, Holding]:
    return {
        name: Holding(
            branch.held,
            branch.guarantee,
            None if branch.ceiling >= BOUNDLESS else branch.ceiling,
            branch.beyond,
            branch.averaged(now, half_life),
            branch.waiting,
        )
        for name, branch in branches.items()
    }


def view(job: Job, desk: Desk) -> JobView:
    """One job as it is now."""
    runs = bool(job.places)
    return JobView(
        id=job.id,
        request=job.request,
        team=TeamName(job.branch.name),
        priority=job.priority,
        state=job.state,
        attempts=job.attempt,
        nodes=tuple(job.stock.nodes[p] for p in job.places),
        devices=job.devices if runs else 0,
        lent=runs and is_lent(job),
        wait=why(job, desk) if job.state in (JobState.WAITING, JobState.HELD) else None,
        submitted=job.submitted,
        started=job.started if job.attempt else None,
        ended=job.ended if job.state in ENDED else None,
    )


def is_lent(job: Job) -> bool:
    """Whether a running job is on what its team has beyond every guarantee over it.

    Of a team's jobs the weakest (lowest rank, youngest) are the lent ones: as many as cover what is beyond.
    """
    return job.low or (not job.kept and any(other is job for other in _lent_of(job.branch)))


def _lent_of(branch: Branch) -> Iterator[Job]:
    if any(b.firm <= b.guarantee for b in branch.path):
        return
    beyond = branch.firm - branch.guarantee
    for job in branch.weakest_first(BOUNDLESS):
        if job.low:
            continue
        if beyond <= 0:
            return
        beyond -= job.devices
        yield job


def protected(desk: Desk) -> Iterator[Job]:
    """What runs within a guarantee now."""
    for branch in desk.root.all_inside():
        lent = {job.id for job in _lent_of(branch) if not job.kept}
        yield from (j for j in branch.weakest_first(BOUNDLESS) if not j.low and j.id not in lent)


def keep(desk: Desk, before: AbstractSet[Job]) -> None:
    """Mark what was protected before, where the terms of now protect less: it ends by itself only."""
    for branch in desk.root.all_inside():
        less = any(job in before for job in _lent_of(branch))
        for job in branch.weakest_first(BOUNDLESS):
            job.kept = less and job in before


def why(job: Job, desk: Desk) -> Wait:
    """What keeps a waiting job from starting: the first thing that binds."""
    branch, supply = job.branch, job.stock.supply
    if job.state is JobState.HELD:
        return Wait("Held", "somebody holds it back")
    if branch.stopped_low if job.low else branch.stopped:
        return _closed(branch)
    user_holds = branch.user_held.get(job.request.user, 0)
    if user_holds + job.devices > branch.user_most:
        return Wait(
            "UserLimit",
            f"{job.request.user} holds {user_holds}, a user of {branch.name} may hold {branch.user_most}",
        )
    for team in branch.path:
        if team.held + job.devices > team.ceiling:
            return Wait(
                "TeamAtCeiling",
                f"{team.name} holds {team.held} of the {team.ceiling} it may hold of {supply}",
            )
    first = branch.saving
    if first is not None and first is not job and first.line is not None and job.id > first.id:
        return Wait(
            "BehindAnother", f"team {branch.name} has long had job {first.id} waiting for room: it goes first"
        )
    return _lacks_places(job, desk)


def _closed(branch: Branch) -> Wait:
    for team in branch.path:
        if team.draining:
            return Wait("TeamDraining", f"team {team.name} is draining: nothing of it starts any more")
    left = "nothing of it starts" if branch.stopped_low else "only what is always preemptible starts"
    return Wait("TeamHeld", f"team {branch.name} is held: {left}")


def _lacks_places(job: Job, desk: Desk) -> Wait:
    stock = job.stock
    enough = stock.at_least[job.per_node]
    kept = desk.reservation
    if kept is not None and kept.job is job:
        nodes = ", ".join(stock.nodes[p] for p in kept.places[:4])
        more = f" and {len(kept.places) - 4} more" if len(kept.places) > 4 else ""
        return Wait("PlacesKept", f"{nodes}{more} are kept for it as they become free")
    if job.together and enough >= job.nodes:
        return Wait(
            "NoRackFits", f"no rack has {job.nodes} nodes with {job.per_node} free, though {enough} nodes do"
        )
    kept_free = sum(stock.free[p] for p in kept.places) if kept is not None else 0
    if kept is not None and stock.free_total + kept_free >= job.devices:
        return Wait("KeptForAnother", f"free devices of {stock.supply} are kept for job {kept.job.id}")
    more = f", {kept_free} more are kept for job {kept.job.id}" if kept is not None and kept_free else ""
    free = stock.free_total
    if not enough:
        return Wait(
            "NotEnoughFree",
            f"no node of {stock.supply} has {job.per_node} free; {free} devices are free in all{more}",
        )
    return Wait(
        "NotEnoughFree",
        f"only {count(enough, 'node')} of {stock.supply} with {job.per_node} free, the job needs {job.nodes};"
        f" {free} devices are free in all{more}",
    )
