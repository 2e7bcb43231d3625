"""What Slurm does not quite do of a policy, said in a plan. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from fairway.engines.slurm.policy.wanted import Ground, ceiling_of
from fairway.policy.objects import Advice, Notice


def notices(ground: Ground, advice: Iterable[Advice] = ()) -> Iterator[Notice]:
    """Only what this fleet meets: a notice about something it does not use would be noise."""
    if ground.teams and any(a.line.startswith("PartitionName=") for a in advice):
        yield Notice(
            "FilesAfterApply",
            "between apply and the new slurm.conf and job_submit.lua, plain sbatch of these teams is refused "
            "(Invalid qos specification) and their waiting jobs wait; what runs goes on",
            "have the files ready, apply, then install them at once:  fairway render slurm --out DIR",
            promise="native",
        )
    yield from _shared_types(ground)
    yield from _unknown_types(ground)
    if any(ground.has_urgent(team) for team in ground.teams):
        yield Notice(
            "UrgentByNudge",
            "Slurm tests a team's limit before it looks for a place to take, so an urgent job of a team that "
            "is at its limit waits until Fairway requeues a job of the same team",
            "keep fairway server running; by hand:  scontrol requeue JOB",
            promise="priority",
        )
    if any(ground.kin(team, site.supply) for team in ground.teams for site in ground.sites):
        yield Notice(
            "KinCountsApart",
            "Slurm counts what children leave to each other apart from what the family uses: a family at its "
            "guarantee can take back more that is lent, up to its children's guarantees; any guarantee takes "
            "that back in turn",
            "where that matters, give the guarantee to the parent and none to its children",
            promise="hierarchy",
        )
    if any(ceiling_of(ground, team, site) for team in ground.teams for site in ground.sites if site.gres):
        yield Notice(
            "NoRoomKeptUnderLimit",
            "Slurm keeps nodes for a large job that waits, but no room under its team's limit: while smaller "
            "jobs of the same team keep the team there, a job about as large as the limit waits on",
            "hold the smaller ones until it starts:  scontrol hold JOB,JOB; or leave borrow out",
            promise="no-starvation",
        )
    if len(ground.teams) > 1:
        yield Notice(
            "LargerVictim",
            "Slurm may requeue a larger lent job than needed when several are on the node it chose",
            "lend to jobs of like size, or accept it:  man slurm.conf, preempt_reorder_count does not help",
            promise="least-harm",
        )


def _shared_types(ground: Ground) -> Iterator[Notice]:
    by_type: dict[str, list[str]] = {}
    for site in ground.sites:
        if site.gres is not None:
            by_type.setdefault(site.gres, []).append(str(site.supply))
    for kind, supplies in by_type.items():
        if len(supplies) > 1:
            yield Notice(
                "PoolsShareType",
                f"{' and '.join(supplies)} have one GRES type, {kind}: Slurm limits what a team holds of "
                "them together, and only job_submit.lua keeps a team without a grant out of one of them",
                f"give their GPUs types of their own in gres.conf and slurm.conf, e.g. {kind}-spot",
                promise="ceiling",
            )


def _unknown_types(ground: Ground) -> Iterator[Notice]:
    for site in ground.sites:
        if site.gres is None:
            yield Notice(
                "GresTypeUnknown",
                f"the GPUs of {site.supply} in partition {site.partition} have no GRES type, or several: no "
                "ceiling and no limit of a job or user can be set on them",
                f"name it:  pools.{site.supply.pool}.slurm.gres, and AccountingStorageTRES=gres/gpu:TYPE",
                promise="ceiling",
            )
