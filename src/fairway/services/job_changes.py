"""Change jobs that have not started: pool, GPUs, nodes, time limit and priority, checked like new jobs."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from fairway.ledger import JobNotChanged, Ledger
from fairway.ledger.jobs.changes import other_cluster, require_waiting
from fairway.ledger.records.jobs import ChangeableJob, JobRow, NewJob
from fairway.model.access import JobPermission
from fairway.model.errors import PermanentError, Refused
from fairway.model.job import Order, format_job_id
from fairway.model.job_change import JobChange, changed_fields, text_of_changes
from fairway.model.names import PoolName, PriorityName
from fairway.model.team import Supply
from fairway.services.convert import jobs as convert
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.jobs import Submitter, placement_refusal
from fairway.services.rights import Person, require_permission
from fairway.services.wakeup import Wakeup
from fairway.wire import jobs as wire

_AGAIN: Final = "submit it again with the change, and cancel this one:  fairway submit --again {job}"


class JobChanger:
    """Changes waiting jobs of every cluster. Safe for concurrent use."""

    def __init__(self, ledger: Ledger, submitter: Submitter, wakeup: Wakeup | None = None) -> None:
        """`wakeup` is notified of the cluster of each job that is to be changed."""
        self._ledger = ledger
        self._submitter = submitter
        self._wakeup = wakeup or Wakeup()

    async def change(
        self, who: Person, row: JobRow, request: wire.JobChangeRequest, *, by: str
    ) -> wire.JobChanged:
        """Request a change of a job. Raises RequestError if it is not permitted, or cannot be made."""
        require_permission(who, JobPermission.CHANGE, [row])
        before = await self._changeable(row)
        change = JobChange(
            PoolName(request.pool) if request.pool is not None else None,
            request.gpus,
            request.nodes,
            request.time_seconds,
            PriorityName(request.priority) if request.priority is not None else None,
        )
        try:
            after = await self._place(row, before, change)
        except Refused as error:
            raise RequestError(
                ErrorKind.CONFLICT, error.code, error.message, _for_job(error.hint, row)
            ) from error
        except PermanentError as error:
            refusal = placement_refusal(error)
            raise RequestError(refusal.kind, error.code, error.message, error.hint) from error
        changes = changed_fields(before.wanted.order(), _order(before, after))
        if changes and not request.dry_run:
            try:
                await self._ledger.job_changes.request(row.id, before, after, text_of_changes(changes), by)
            except JobNotChanged as error:
                raise RequestError.wrap(ErrorKind.CONFLICT, error) from error
            self._wakeup.notify(before.cluster)
        return wire.JobChanged(
            id=format_job_id(row.id),
            requested=bool(changes) and not request.dry_run,
            changes=[wire.ChangedValue(name=name, before=old, after=new) for name, old, new in changes],
            placement=convert.placement(after.placement),
        )

    async def _changeable(self, row: JobRow) -> ChangeableJob:
        """Read a job with the change that is pending. Raises RequestError if it cannot be changed at all."""
        word = format_job_id(row.id)
        try:
            require_waiting(row.id, row.state, row.desired_state)
        except JobNotChanged as error:
            raise RequestError.wrap(ErrorKind.CONFLICT, error) from error
        found = None if row.native else await self._ledger.job_changes.one(row.id)
        if found is None:
            raise RequestError(
                ErrorKind.CONFLICT,
                "NativeJob",
                f"{word} was submitted with the tools of {row.cluster}, so Fairway does not change it",
                f"change it with them; on Slurm:  scontrol update jobid={row.engine_id or 'ID'} ...",
            )
        if row.array is not None:
            raise RequestError(
                ErrorKind.CONFLICT,
                "ArrayNotChanged",
                f"{word} is a task of an array, whose tasks have one request in common",
                _AGAIN.format(job=format_job_id(row.array)),
            )
        if found.current.spec.manifest is not None:
            raise RequestError(
                ErrorKind.CONFLICT,
                "ManifestNotChanged",
                f"{word} was submitted as a Kubernetes manifest, which says itself what it requests",
                f"change the manifest and submit it, and cancel this one:  fairway cancel {word}",
            )
        return found

    async def _place(self, row: JobRow, before: ChangeableJob, change: JobChange) -> NewJob:
        """Check a changed job as a new one. Raises NotAllowed, NoPoolFits or Refused."""
        wanted = before.wanted
        spec = change.apply_to(wanted.spec)
        # As placed: a default that has changed since must not move it to another team, pool or priority.
        asked = replace(
            spec,
            team=wanted.team,
            pool=change.pool or wanted.pool,
            priority=change.priority or wanted.priority,
        )
        stays_on = Supply(wanted.pool, wanted.slice) if change.pool in {None, wanted.pool} else None
        placed = await self._submitter.place_again(asked, wanted.user, stays_on)
        after = replace(placed, spec=spec)
        if placed.placement.supply.pool != before.current.pool:
            self._require_movable(row, before, after)
        if before.engine_id is not None:
            await self._submitter.check_change(before.cluster, before.current.order(), _order(before, after))
        return after

    @staticmethod
    def _require_movable(row: JobRow, before: ChangeableJob, after: NewJob) -> None:
        """Raise Refused for a job that has run, or that another cluster has."""
        if row.attempts:
            raise Refused(
                "HasRun",
                f"{format_job_id(row.id)} has run in {before.current.pool} before, and what it used there "
                "is counted with its pool",
                _AGAIN.format(job=format_job_id(row.id)),
            )
        sent = before.engine_id is not None or before.current.sending_until is not None
        if after.placement.cluster != before.cluster and (sent or before.current.submission > 1):
            raise other_cluster(before.cluster, after.placement.cluster)


def _order(before: ChangeableJob, after: NewJob) -> Order:
    """Return the order of a changed job."""
    supply = after.placement.supply
    return replace(before.current.order(), spec=after.spec, priority=after.priority, supply=supply)


def _for_job(hint: str, row: JobRow) -> str:
    """Fill the job and its pool into a hint for any job."""
    return hint.replace("--again JOB", f"--again {format_job_id(row.id)}")
