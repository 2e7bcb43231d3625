"""Read the output of jobs from their engines."""

from __future__ import annotations

from dataclasses import replace

from fairway.engines.port import LogPart, Runs
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, StoredAttempt
from fairway.model.errors import PermanentError
from fairway.model.job import ENDED_JOBS, EngineId, Order, engine_name, format_job_id
from fairway.model.names import ClusterName
from fairway.services.engine_cache import EngineCache
from fairway.services.jobs import FleetSource


class JobLogReader:
    """Reads logs from the engine of each job's cluster. Safe for concurrent use."""

    def __init__(self, ledger: Ledger, fleets: FleetSource, engines: EngineCache) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._engines = engines

    async def read(
        self, detail: JobDetail, attempt: int | None, offset: int, limit: int, node: int = 0
    ) -> LogPart:
        """Read the output of an attempt (None: the last) from a byte offset.

        Raises PermanentError if there is no output, Unreachable if it cannot be read now.
        """
        row = detail.row
        if detail.spec is None:
            raise PermanentError(
                "NoLog",
                f"{format_job_id(row.id)} was submitted outside Fairway, so its output is unknown",
                f"read it where it runs, as {row.engine_id} on {row.cluster}",
            )
        chosen = _chosen(detail, attempt)
        if chosen is None:
            return LogPart(b"", offset, ended=row.state in ENDED_JOBS)
        replica = chosen.attempt.replica
        if replica and any(
            a.attempt.replica == replica and a.number > chosen.number for a in detail.attempts
        ):
            raise PermanentError(
                "NoLog",
                f"pod {replica} was created anew since, and its earlier output is gone",
                f"fairway logs {format_job_id(row.id)}  reads the newest replica",
            )
        order = await self._order(detail, chosen.engine_id)
        run = 1 + sum(
            1 for a in detail.attempts if a.engine_id == chosen.engine_id and a.number < chosen.number
        )
        engine = await self._engine(row.cluster)
        return await engine.read_log(order, chosen.engine_id, run, offset, limit, node, replica)

    async def _order(self, detail: JobDetail, engine_id: EngineId) -> Order:
        """Rebuild the order that created an engine job, also that of an earlier submission."""
        stored = await self._ledger.dispatch.order_of(detail.row.id)
        if stored is None:
            raise PermanentError(
                "NoLog", f"{format_job_id(detail.row.id)} is no longer known", "fairway get jobs"
            )
        order = stored.order()
        seen = (i for i, a in enumerate(detail.attempts) if a.engine_id == engine_id)
        before = next(seen, len(detail.attempts))
        if engine_id == detail.row.engine_id:
            return replace(order, attempts_before=before)
        # Each submission that ran is one engine job, in the order of their attempts.
        engine_ids = list(dict.fromkeys(a.engine_id for a in detail.attempts))
        submission = engine_ids.index(engine_id) + 1
        mark = await self._ledger.jobs.mark()
        name = engine_name(mark, order.job, submission, order.spec.name)
        return replace(order, submission=submission, engine_name=name, attempts_before=before, hold=False)

    async def _engine(self, name: ClusterName) -> Runs:
        fleet = await self._fleets.current()
        if name not in {c.name for c in fleet.clusters}:
            raise PermanentError(
                "NoLog", f"cluster {name} is no longer part of the fleet", "read it on the cluster itself"
            )
        return await self._engines.get(*fleet.engine_parts(name))


def _chosen(detail: JobDetail, attempt: int | None) -> StoredAttempt | None:
    if attempt is None:
        return detail.attempts[-1] if detail.attempts else None
    found = next((a for a in detail.attempts if a.number == attempt), None)
    if found is None:
        total = detail.row.attempts
        raise PermanentError(
            "NoSuchAttempt",
            f"{format_job_id(detail.row.id)} has no attempt {attempt}",
            f"it had {total}: say one from 1 to {total}" if total else "it has not started yet",
        )
    return found
