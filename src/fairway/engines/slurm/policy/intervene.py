"""Intervene for jobs by Slurm's own commands: urgent jobs at a limit, and jobs from before the policy.

Slurm checks a limit before it looks for jobs to preempt, so a team at its guarantee (with nothing idle to
borrow) or at its ceiling never makes room for its own urgent job; `PreemptMode=PRIORITY` of 26.05 would help
with the first, but slurmrestd cannot write it. What helps on every version is `scontrol requeue` of the job
that harms least, and before all others of one that an idle rule has lowered.

A job that waited when a pool's own partition got its gate would wait there for ever. A team's GPU job is
given the default priority's name, for which job_submit.lua gives it its team's list; any other job is moved
to the second partition, where it runs as before.
"""

from __future__ import annotations

import re
import time
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final

from fairway.engines.slurm.nodes.hostlist import expand
from fairway.engines.slurm.policy import names
from fairway.engines.slurm.policy.activity import RUNNING, WAITING, active_jobs, in_parts
from fairway.engines.slurm.policy.preemption import RunningJob, WaitingJob, select_victims
from fairway.engines.slurm.policy.read import CTL, DB
from fairway.engines.slurm.policy.requeue import requeue_job
from fairway.engines.slurm.policy.translate import PolicyContext, ceiling_of
from fairway.engines.slurm.rest.client import SlurmRest
from fairway.model.errors import FairwayError, Refused
from fairway.model.names import PriorityName
from fairway.model.team import Team
from fairway.policy.objects import Intervention

GRACE_SECONDS: Final = 4
"""Time for Slurm to start an urgent job by itself: it preempts lent jobs in about one second."""
REPEAT_SECONDS: Final = 60
"""A job that was helped is not helped again before this: the preempted GPUs may only just be coming free."""
MAX_JOBS: Final = 50
"""Further jobs are helped in later runs."""
OLD_JOBS_SECONDS: Final = 30
"""How often jobs from before the policy are queried."""

HIGHEST_RANK: Final = 2**31
"""Of a job whose rank is not known: it is never preempted."""

# Reasons of waiting jobs that freed GPUs can help; others (held, dependency, over its own limit) they cannot.
HELPABLE_REASONS: Final = frozenset(
    {"None", "Priority", "Resources", "AssocGrpGRES", "QOSGrpGRES", "MaxJobsPerAccount"}
)
_PRIORITY_COMMENT: Final = re.compile(r"fairway:([a-z][a-z0-9-]*)")
_REQUESTED_GPUS: Final = re.compile(r"(?:^|,)gres/(gpu|shard|mps)=(\d+)(?:,|$)")


class SlurmIntervener:
    """Finds waiting urgent jobs and helps each at most once a minute."""

    def __init__(
        self,
        rest: SlurmRest,
        clock: Callable[[], float] = time.time,
        lowered: Callable[[str], Awaitable[Collection[int]]] | None = None,
    ) -> None:
        """`lowered` returns the running jobs of an account that idle rules have lowered."""
        self._rest = rest
        self._lowered = lowered
        self._clock = clock
        self._helped: dict[int, float] = {}
        self._last_old_jobs = 0.0

    async def intervene(self, context: PolicyContext) -> tuple[Intervention, ...]:
        """Check once. One small request when nothing urgent waits, and twice a minute a few more."""
        now = self._clock()
        old_jobs: tuple[Intervention, ...] = ()
        if now - self._last_old_jobs >= OLD_JOBS_SECONDS:
            self._last_old_jobs = now
            old_jobs = await self._help_old_jobs(context)
        return (*old_jobs, *await self._help_urgent_jobs(context, now))

    async def _help_old_jobs(self, context: PolicyContext) -> tuple[Intervention, ...]:
        """Help jobs that waited when the gate of their partition was installed, which they cannot pass.

        Before that there is nothing to help: they run with the QOS and the limits they were submitted with.
        """
        reply = await self._rest.request("GET", f"{CTL}/partitions/")
        assigned = {p["name"]: p["qos"]["assigned"] or "" for p in (reply or {}).get("partitions") or ()}
        gated = [p for p in context.partitions if names.is_gate(assigned.get(p, ""))]
        if not gated:
            return ()
        reply = await self._rest.request("GET", f"{DB}/qos/")
        unmanaged = [q for q in reply["qos"] if not names.is_marked(q.get("description") or "")]
        ids = ",".join(str(q["id"]) for q in unmanaged)
        done: list[Intervention] = []
        for partitions in in_parts(gated):
            jobs = await active_jobs(self._rest, WAITING, qos=ids, partition=",".join(partitions))
            for job in jobs[: MAX_JOBS - len(done)]:
                if job["job_id"] in self._helped:
                    continue
                self._helped[job["job_id"]] = self._clock()
                update = _update_of_old_job(context, job)
                try:
                    await self._rest.request("POST", f"{CTL}/job/{job['job_id']}", update)
                except Refused:
                    continue  # job_submit.lua is not installed, or the team may not: the job shows why
                changed = " ".join(f"{key}={value}" for key, value in update.items())
                done.append(
                    Intervention(
                        promise="no-surprise",
                        verb=f"scontrol update jobid={job['job_id']} {changed}",
                        job=str(job["job_id"]),
                        why=f"it waited in {job['partition']} with QOS {job['qos']} before the policy, and "
                        "jobs start there within guarantees only",
                    )
                )
        return tuple(done)

    async def _help_urgent_jobs(self, context: PolicyContext, now: float) -> tuple[Intervention, ...]:
        self._helped = {job: at for job, at in self._helped.items() if now - at < REPEAT_SECONDS}
        waiting = [w for w in await self._waiting(context, now) if w.id not in self._helped]
        done: list[Intervention] = []
        taken: set[int] = set()
        for job in waiting[:MAX_JOBS]:
            running = [r for r in await self._running(context, job) if r.id not in taken]
            victims = await self._select(job, running)
            for victim in victims:
                await self._requeue(context, victim.id, job)
                taken.add(victim.id)
                done.append(_intervention(job, victim))
            if victims:
                self._helped[job.id] = now
        return tuple(done)

    async def _select(self, job: WaitingJob, running: Sequence[RunningJob]) -> tuple[RunningJob, ...]:
        """Choose whom to requeue: of the lowered jobs if that is enough, else of all."""
        lowered: Collection[int] = ()
        if self._lowered is not None and running:
            with suppress(FairwayError):  # who harms least is known without it
                lowered = await self._lowered(job.account)
        idle = [replace(r, rank=min(r.rank, job.rank - 1)) for r in running if r.id in lowered]
        return select_victims(job, idle) or select_victims(job, running)

    async def _waiting(self, context: PolicyContext, now: float) -> list[WaitingJob]:
        reply = await self._rest.request("GET", f"{DB}/qos/{names.WAITING_URGENT}")
        found = [q["id"] for q in (reply or {}).get("qos") or () if q["name"] == names.WAITING_URGENT]
        if not found:
            return []
        waiting = []
        for job in await active_jobs(self._rest, WAITING, qos=str(found[0])):
            if now - max(job["time"]["submission"], job["time"]["eligible"]) < GRACE_SECONDS:
                continue
            if (helpable := await self._helpable(context, job["job_id"])) is not None:
                waiting.append(helpable)
        return sorted(waiting, key=lambda w: (-w.rank, w.id))

    async def _helpable(self, context: PolicyContext, job_id: int) -> WaitingJob | None:
        """Return the job as slurmctld has it. Returns None if freed GPUs would not let it start."""
        reply = await self._rest.get_if_served(f"{CTL}/job/{job_id}")
        for job in (reply or {}).get("jobs") or ():
            team = next((t for t in context.teams if t.account_name == job["account"]), None)
            rank = _rank(context, job.get("admin_comment") or "")
            if team is None or rank is None or "PENDING" not in job["job_state"]:
                continue
            if job["state_reason"] not in HELPABLE_REASONS:
                continue
            gpus = _REQUESTED_GPUS.search(job["tres_req_str"] or "")
            waiting = WaitingJob(
                id=job["job_id"],
                rank=rank,
                account=job["account"],
                user=job["user_name"],
                partition=_own_partition(context, job["partition"]),
                gpus=int(gpus[2]) if gpus else 0,
                resource=gpus[1] if gpus else "gpu",
                nodes=max(1, job["node_count"]["number"]),
            )
            if waiting.gpus and _could_ever(context, team, waiting):
                return waiting
        return None

    async def _running(self, context: PolicyContext, waiting: WaitingJob) -> list[RunningJob]:
        """Return the team's running jobs in the same pool. GPUs of multi-node jobs are split evenly."""
        jobs = []
        for job in await active_jobs(self._rest, RUNNING, account=waiting.account):
            if _own_partition(context, job["partition"]) != waiting.partition:
                continue
            gpus = sum(
                t["count"]
                for t in job["tres"]["allocated"]
                if (t["type"], t["name"]) == ("gres", waiting.resource)
            )
            rank = await self._rank_of(context, job)
            nodes = expand(job["nodes"] or "")
            if gpus and nodes:
                per_node = -(-gpus // len(nodes))
                started = job["time"]["start"]
                jobs.append(RunningJob(job["job_id"], rank, started, dict.fromkeys(nodes, per_node)))
        return jobs

    async def _rank_of(self, context: PolicyContext, job: Mapping[str, Any]) -> int:
        """Return the rank of a running job: from its QOS, or from slurmctld's record of an urgent one."""
        if names.WAITING_URGENT in job["qosreq"].split(","):
            reply = await self._rest.get_if_served(f"{CTL}/job/{job['job_id']}")
            ranks = [_rank(context, j.get("admin_comment") or "") for j in (reply or {}).get("jobs") or ()]
            return max((rank for rank in ranks if rank is not None), default=HIGHEST_RANK)
        if job["qos"] == names.LOW:
            return max((p.rank for p in context.fleet.priorities if p.preemptible), default=0)
        return context.fleet.default_priority.rank

    async def _requeue(self, context: PolicyContext, victim: int, waiting: WaitingJob) -> None:
        partition = next(s.lent_partition for s in context.sites if s.partition == waiting.partition)
        # The script checks once more: by the time it runs, the urgent job may have started elsewhere.
        check = f'[ -n "$(squeue --noheader --states=PENDING --jobs={waiting.id})" ]'
        await requeue_job(self._rest, victim, partition, check, self._clock)


def _update_of_old_job(context: PolicyContext, job: Mapping[str, Any]) -> dict[str, str]:
    """Return the change that lets a job from before the policy start.

    A team's GPU job gets the default priority's name, for which job_submit.lua gives it its team's list. Any
    other job keeps its QOS and goes to the second partitions.
    """
    counted = {"gpu", *(site.shares for site in context.sites)}
    gpus = any(
        t["count"]
        for t in job["tres"]["requested"]
        if t["type"] == "gres" and t["name"].partition(":")[0] in counted
    )
    if gpus and job["account"] in {team.account_name for team in context.teams}:
        return {"qos": str(context.fleet.default_priority.name)}
    asked = job["partition"].split(",")
    return {"partition": ",".join(names.lent_partition(p) if p in context.partitions else p for p in asked)}


def _intervention(waiting: WaitingJob, victim: RunningJob) -> Intervention:
    return Intervention(
        promise="priority",
        verb=f"scontrol requeue {victim.id}",
        job=str(victim.id),
        why=f"urgent job {waiting.id} of the same team {waiting.account} waits for {waiting.gpus} GPUs, and "
        "Slurm makes no room at a team's limit; of its lower jobs this one holds the fewest that are enough",
    )


def _rank(context: PolicyContext, comment: str) -> int | None:
    """Return the rank of the priority that job_submit.lua recorded. Returns None if there is none."""
    found = _PRIORITY_COMMENT.match(comment)
    ranks = {p.name: p.rank for p in context.fleet.priorities}
    return ranks.get(PriorityName(found[1])) if found else None


def _could_ever(context: PolicyContext, team: Team, waiting: WaitingJob) -> bool:
    """Return whether the team's limits would let it run if nothing else did."""
    for above in (team, *context.tree.ancestors(team)):
        for site in context.sites:
            if waiting.partition in site.partitions and site.gres is not None:
                ceiling = ceiling_of(context, above, site)
                if ceiling is not None and waiting.gpus > ceiling:
                    return False
    if team.draining or team.hold is not None:  # urgent jobs are never low, so any hold stops them
        return False
    limits = (team.limits.job_gpus, team.limits.user_gpus)
    return all(limit is None or waiting.gpus <= limit for limit in limits)


def _own_partition(context: PolicyContext, partitions: str) -> str:
    """Return the partition that a pool names, for it or its second one over the same nodes."""
    first = partitions.partition(",")[0]
    for site in context.sites:
        if first in site.partitions or first in map(names.lent_partition, site.partitions):
            return site.partition
    return first
