"""What may be written under a lease."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import (
    applies,
    budget_rows,
    capacity,
    drifting,
    metering,
    mirroring,
    observations,
    sending,
)
from fairway.ledger.cost_records import BudgetStanding
from fairway.ledger.job_records import Kept
from fairway.ledger.metering import Hours, MeteredBatch
from fairway.ledger.policy_records import ApplyState, DriftEntry, KeptChange
from fairway.ledger.records import Lease
from fairway.model.errors import FairwayError
from fairway.model.fleet import EngineKind
from fairway.model.job import EngineId, JobId, SeenJob
from fairway.model.names import TeamName
from fairway.model.observation import Observation
from fairway.policy.objects import Nudge
from fairway.policy.shelves import Turn


class Writing:
    """A short transaction under a lease, of the lease's cluster alone; see `Ledger.writing`."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def keep_observation(self, observation: Observation, *, engine: EngineKind | None = None) -> None:
        """Make the ledger show this observation; rows that did not change are not touched."""
        self._check_cluster(observation.cluster)
        await observations.keep(self._connection, self._lease, observation, engine)

    async def keep_failure(
        self, cluster: str, error: FairwayError, *, engine: EngineKind | None = None
    ) -> None:
        """Note why the cluster cannot be reached; its last known state stays."""
        self._check_cluster(cluster)
        await observations.keep_failure(self._connection, self._lease, error, engine)

    async def start_apply(self, apply: int, changes: Sequence[KeptChange]) -> None:
        """Note, before the first write, that it begins or goes on, and with what."""
        await applies.start(self._connection, self._lease, apply, changes)

    async def progress_apply(
        self, apply: int, done: int, current: str = "", trouble: FairwayError | None = None
    ) -> None:
        """Note how far it is, and what it is held up by."""
        await applies.progress(self._connection, self._lease, apply, done, current, trouble)

    async def finish_apply(
        self,
        apply: int,
        state: ApplyState,
        changes: Sequence[KeptChange],
        *,
        error: FairwayError | None = None,
        applied: bool = False,
    ) -> None:
        """Note how it ended; `applied`: its fleet is now what drift is measured against."""
        await applies.finish(
            self._connection, self._lease, apply, state, changes, error=error, applied=applied
        )

    async def keep_drift(self, apply: int, entries: Sequence[DriftEntry]) -> bool:
        """Make the ledger show exactly these differences from what `apply` made.

        False, and nothing is kept, if something else was applied since or is being applied now.
        """
        return await drifting.keep(self._connection, self._lease, apply, entries)

    async def keep_nudges(self, nudges: Sequence[Nudge]) -> None:
        """Add to what was done."""
        await drifting.keep_nudges(self._connection, self._lease, nudges)

    async def begin_sending(self, numbers: Sequence[JobId], seconds: float) -> frozenset[JobId]:
        """Note, before it goes out, that these are being sent and may arrive until then.

        Gives those that are still to be sent: whoever was cancelled or held meanwhile is not among them.
        """
        return await sending.begin(self._connection, self._lease, numbers, float(seconds))

    async def keep_sent(self, sent: Sequence[tuple[JobId, int, EngineId]]) -> None:
        """Engine jobs were made: job, submission, engine id. Saying so twice changes nothing."""
        await sending.keep_sent(self._connection, self._lease, sent)

    async def keep_refused(self, refused: Sequence[tuple[JobId, int, FairwayError]]) -> None:
        """The engine would not take them: job, submission, why."""
        await sending.keep_refused(self._connection, self._lease, refused)

    async def keep_wish_refused(self, refused: Sequence[tuple[JobId, FairwayError]]) -> None:
        """The engine would not do what was asked of these; nobody asks it again."""
        await sending.keep_wish_refused(self._connection, self._lease, refused)

    async def keep_seen(self, jobs: Sequence[SeenJob], mark: str | None = None) -> Kept:
        """Make the ledger show these engine jobs, and note where the mirror goes on.

        Rows that did not change are not touched. What failed and has retries left comes back.
        """
        return await mirroring.keep_seen(self._connection, self._lease, jobs, mark)

    async def keep_lost(self, ids: Sequence[EngineId]) -> None:
        """The engine knows nothing of these any more."""
        await mirroring.keep_lost(self._connection, self._lease, ids)

    async def settle_after(self, limit: int = 1000) -> int:
        """Cancel jobs whose `after` can no longer come true, and what was cancelled while it was being sent
        and never arrived; how many.
        """
        return await sending.settle_after(self._connection, self._lease, limit)

    async def keep_budgets(
        self, standings: Sequence[BudgetStanding], events: Sequence[tuple[TeamName, str]] = ()
    ) -> None:
        """Make the ledger show exactly these standings, and add to what happened."""
        await budget_rows.keep(self._connection, standings, events)

    async def meter(self, hours: Hours, most: int) -> MeteredBatch:
        """Write the usage of the first `most` jobs that wait for it; what runs counts up to the mark.

        Raises HoursTooFew, and the transaction must end without a commit, if `hours` do not hold it all.
        """
        return await metering.meter(self._connection, self._lease, hours, most)

    async def meter_running(self, hours: Hours, upto: int) -> MeteredBatch:
        """Write the usage of all that runs on the cluster from the mark to `upto`, where the mark is then."""
        return await metering.meter_running(self._connection, self._lease, hours, upto)

    async def keep_capacity(self, turn: Turn, hours: Hours) -> None:
        """Add what pools had to what is known; `hours` hold all that is closed."""
        await capacity.keep(self._connection, self._lease, turn, hours)

    def _check_cluster(self, cluster: str) -> None:
        if cluster != self._lease.cluster:
            raise ValueError(f"a lease of cluster {self._lease.cluster} cannot write for {cluster}")
