"""The door to PostgreSQL: every read and write of Fairway goes through one `Ledger`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import select

from fairway.ledger import (
    applies,
    capacity,
    drifting,
    fleets,
    job_details,
    job_pages,
    jobs,
    leases,
    metering,
    migrate,
    mirroring,
    pulse,
    sending,
    sessions,
    states,
    tokens,
)
from fairway.ledger.connection import Connections, Limits
from fairway.ledger.cost_answers import CostAnswers
from fairway.ledger.job_records import JobCount, JobDetail, JobFilter, JobRow, NewJob, ToDo, ToSend, Wish
from fairway.ledger.job_search import JobLists
from fairway.ledger.migrate import TableVersion
from fairway.ledger.policy_records import AppliedCluster, Apply, ApplyWork, Drift, KeptNudge
from fairway.ledger.pool_answers import PoolAnswers
from fairway.ledger.pulse import Topic
from fairway.ledger.records import ClusterState, Lease, NodeState, PoolState, Revision, Token
from fairway.ledger.writing import Writing
from fairway.model.access import Role
from fairway.model.fleet import EngineKind
from fairway.model.job import EngineId, JobId
from fairway.model.names import ClusterName, UserName
from fairway.model.observation import Health
from fairway.model.team import Supply
from fairway.policy.objects import ObjectKey
from fairway.policy.shelves import Alike, Known


class Ledger(CostAnswers, PoolAnswers, JobLists):
    """All that Fairway knows. Safe to share between tasks; every call is bounded in time."""

    def __init__(self, connections: Connections) -> None:
        super().__init__(connections)

    @classmethod
    async def connect(cls, url: str, limits: Limits | None = None) -> Ledger:
        """Open the ledger at `postgresql://…`; raises LedgerUnreachable or LedgerRefused."""
        ledger = cls(Connections(url, limits or Limits()))
        try:
            async with ledger._connections.single() as connection:
                await connection.execute(select(1))
        except BaseException:
            await ledger.close()
            raise
        return ledger

    async def close(self) -> None:
        """Let go of every connection. Safe to call twice."""
        await self._connections.close()

    async def migrate(self) -> None:
        """Bring the tables forward to what this code needs; any number of servers may do so at once."""
        await migrate.migrate(self._connections)

    async def table_version(self) -> TableVersion:
        """Which step the tables are at; asks only."""
        return await migrate.version(self._connections)

    async def downgrade(self, to: str, *, force: bool = False) -> TableVersion:
        """Take the tables back to step `to`; raises DowngradeRefused, then nothing was changed."""
        return await migrate.downgrade(self._connections, to, force=force)

    async def ready(self) -> None:
        """Return if the ledger can serve now; raises LedgerUnreachable, LedgerBusy or LedgerNotMigrated."""
        async with self._connections.single() as connection:
            await migrate.check_version(connection)

    # the fleet

    async def keep_fleet(self, text: str, digest: str, by: str) -> Revision:
        """Make this the fleet's newest revision; the same digest as the newest gives that one back."""
        return await fleets.keep(self._connections, text, digest, by)

    async def fleet(self) -> Revision | None:
        """The newest revision."""
        return await fleets.newest(self._connections)

    async def fleet_revision(self) -> int | None:
        """The id of the newest revision: cheap, for polling."""
        return await fleets.newest_id(self._connections)

    async def revision(self, number: int) -> Revision | None:
        """Any revision by its id."""
        return await fleets.one(self._connections, number)

    async def follow_fleet(self, revision: int, engines: Mapping[ClusterName, EngineKind]) -> None:
        """Show exactly the clusters of `revision`; does nothing if a newer one exists."""
        await fleets.follow(self._connections, revision, engines)

    # what is known

    async def clusters(self) -> tuple[ClusterState, ...]:
        """Every cluster, by name."""
        return await states.clusters(self._connections)

    async def pools(self) -> tuple[PoolState, ...]:
        """Every pool that has nodes, by cluster, pool and slice."""
        return await states.pools(self._connections)

    async def nodes(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        health: Health | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> tuple[NodeState, ...]:
        """At most `limit` (≤ 2000) nodes by (cluster, name); `after` is the pair of the last one seen."""
        return await states.nodes(
            self._connections, cluster=cluster, pool=pool, health=health, after=after, limit=limit
        )

    # policy

    async def queue_apply(
        self, text: str, digest: str, fingerprints: Mapping[ClusterName, str], *, force: bool, by: str
    ) -> int:
        """Make this the fleet's newest revision and have it applied to the named clusters; the apply's id.

        Each cluster comes with the fingerprint of the plan that was read.
        """
        return await applies.queue(self._connections, text, digest, fingerprints, force=force, by=by)

    async def queue_adoption(self, cluster: ClusterName, keys: Sequence[ObjectKey], *, by: str) -> int:
        """Have Fairway's mark put on these objects; the id of the apply that does."""
        return await applies.queue_adoption(self._connections, cluster, keys, by=by)

    async def apply(self, number: int) -> Apply | None:
        """One apply with all its changes."""
        return await applies.one(self._connections, number)

    async def applies(
        self, *, cluster: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Apply, ...]:
        """At most `limit` (≤ 2000), newest first, without their changes; `before` is the last id seen."""
        return await applies.page(self._connections, cluster=cluster, before=before, limit=limit)

    async def next_apply(self, cluster: str) -> ApplyWork | None:
        """What the cluster has to do next: the oldest that is not ended."""
        return await applies.next_work(self._connections, cluster)

    async def applied_clusters(self) -> tuple[AppliedCluster, ...]:
        """What each cluster was last made to be, by name."""
        return await applies.applied(self._connections)

    async def applied_cluster(self, cluster: str) -> AppliedCluster | None:
        """What one cluster was last made to be: cheap, for polling."""
        return next(iter(await applies.applied(self._connections, cluster)), None)

    async def applied_fleet(self, cluster: str) -> Revision | None:
        """The fleet that was last applied to a cluster."""
        known = await self.applied_cluster(cluster)
        return None if known is None else await self.revision(known.revision)

    async def drift(
        self,
        *,
        cluster: str | None = None,
        after: tuple[str, str, str, str] | None = None,
        limit: int = 100,
    ) -> tuple[Drift, ...]:
        """At most `limit` (≤ 2000) differences by (cluster, kind, name, field); `after`: of the last seen."""
        return await drifting.page(self._connections, cluster=cluster, after=after, limit=limit)

    async def nudges(
        self, *, cluster: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[KeptNudge, ...]:
        """At most `limit` (≤ 2000) nudges, newest first; `before` is the last id seen."""
        return await drifting.nudges(self._connections, cluster=cluster, before=before, limit=limit)

    # jobs

    async def ledger_mark(self) -> str:
        """Four characters that tell this ledger's engine jobs from another's; made once."""
        return await jobs.ledger_mark(self._connections)

    async def submit_jobs(
        self, new: Sequence[NewJob], *, by: str, key: str | None = None
    ) -> tuple[tuple[JobId, ...], ...]:
        """Keep jobs, all or none; for each its id, or its tasks' ids.

        The same `by` and `key` again give the same ids, and nothing is kept twice; raises KeyReused if the
        jobs are others.
        """
        return await jobs.submit(self._connections, new, by=by, key=key)

    async def jobs(
        self, which: JobFilter, *, before: JobId | None = None, limit: int = 100
    ) -> tuple[JobRow, ...]:
        """At most `limit` (≤ 2000) jobs, newest id first; `before` is the last id seen."""
        return await job_pages.page(self._connections, which, before=before, limit=limit)

    async def job(self, number: JobId) -> JobDetail | None:
        """One job with its attempts and events."""
        return await job_details.one(self._connections, number)

    async def job_rows(self, numbers: Sequence[JobId]) -> tuple[JobRow, ...]:
        """Those of these jobs that exist, by id."""
        return await job_pages.rows(self._connections, numbers)

    async def job_counts(self, cluster: str | None = None) -> tuple[JobCount, ...]:
        """Jobs that are not over, counted; cheap, whatever ended before."""
        return await job_details.counts(self._connections, cluster)

    async def wish(self, numbers: Sequence[JobId], wish: Wish, *, by: str) -> tuple[JobId, ...]:
        """Ask for something of jobs; those it changes.

        What was never sent is held, released or cancelled at once. One that is over, or whose end was asked
        for already, stays as it is.
        """
        return await jobs.wish(self._connections, numbers, wish, by=by)

    async def to_send(self, cluster: str, limit: int) -> tuple[ToSend, ...]:
        """Jobs to be sent to an engine now, those that wait longest first."""
        return await sending.to_send(self._connections, cluster, limit)

    async def to_do(self, cluster: str, limit: int) -> tuple[ToDo, ...]:
        """Engine jobs that are not yet what people asked for."""
        return await sending.to_do(self._connections, cluster, limit)

    async def order_of(self, number: JobId) -> ToSend | None:
        """What was, or will be, sent of a job; None: native or unknown."""
        return await sending.order_of(self._connections, number)

    async def open_engine_ids(self, cluster: str, sent_before_seconds: float = 15) -> frozenset[EngineId]:
        """Engine jobs that are not over as far as the ledger knows, sent longer ago than that."""
        return await sending.open_engine_ids(self._connections, cluster, float(sent_before_seconds))

    async def mirror_mark(self, cluster: str) -> str | None:
        """Where the mirror of a cluster goes on."""
        return await mirroring.mark(self._connections, cluster)

    # the meter

    async def meter_mark(self, cluster: str) -> int | None:
        """Up to when what runs on a cluster is metered."""
        return await metering.mark(self._connections, cluster)

    async def metering_span(self, cluster: str, most: int) -> tuple[int, int] | None:
        """From when to when the first `most` jobs that wait to be metered held something; None: none did."""
        return await metering.span(self._connections, cluster, most)

    async def capacity_nodes(self, cluster: str) -> tuple[Alike, ...]:
        """The nodes of a cluster that pools have devices on, counted by what they have in common."""
        return await capacity.nodes(self._connections, cluster)

    async def capacity_waiting(self, cluster: str, want_of_room: str) -> Mapping[Supply, int]:
        """The least asked for on each node by any job that waits, and whose reason matches, by supply."""
        return await capacity.waiting(self._connections, cluster, want_of_room)

    async def capacity_known(self, cluster: str) -> tuple[Known, ...]:
        """What the pools of a cluster were last seen to have, and up to when that is written."""
        return await capacity.known(self._connections, cluster)

    # tokens

    async def create_token(
        self,
        name: str,
        role: Role,
        digest: bytes,
        by: str,
        expires_at: datetime | None = None,
        *,
        user: UserName | None = None,
    ) -> Token:
        """Keep a new token by its hash, of a user (None: the one called as the token); or TokenNameTaken."""
        return await tokens.create(
            self._connections, name, role, digest, by=by, expires_at=expires_at, user=user
        )

    async def token_by_hash(self, digest: bytes) -> Token | None:
        """The live token with this hash; None if unknown, revoked or expired (by the database's clock)."""
        return await tokens.by_hash(self._connections, digest)

    async def tokens(self) -> tuple[Token, ...]:
        """Every token ever made, by name, revoked and expired ones too."""
        return await tokens.every(self._connections)

    async def revoke_token(self, name: str) -> Token | None:
        """End a token's life; None: there is none of that name. Twice keeps the first time; or LastAdmin."""
        return await tokens.revoke(self._connections, name)

    async def touch_token(self, token: Token) -> None:
        """Note that a token was used; writes at most once a minute."""
        await tokens.touch(self._connections, token)

    async def has_tokens(self) -> bool:
        """Whether any live token exists."""
        return await tokens.any_live(self._connections)

    # sessions of the pages

    async def create_session(
        self,
        digest: bytes,
        *,
        token: Token | None,
        user: UserName,
        role: Role,
        issuer: str = "",
        seconds: float,
    ) -> None:
        """Keep a session by the hash of its cookie: of a token, or of whom an issuer vouches for."""
        await sessions.create(
            self._connections,
            digest,
            token=token,
            user=user,
            role=role,
            issuer=issuer,
            seconds=float(seconds),
        )

    async def session_caller(self, digest: bytes) -> Token | None:
        """Who is behind a session; None: it is unknown, ran out, or its token is no longer valid."""
        return await sessions.caller(self._connections, digest)

    async def end_session(self, digest: bytes) -> None:
        """End one session; nothing happens if there is none."""
        await sessions.end(self._connections, digest)

    async def live_sessions(self, digests: Sequence[bytes]) -> frozenset[bytes]:
        """Those of these sessions that are still good."""
        return await sessions.live(self._connections, digests)

    async def versions(self) -> Mapping[Topic, str]:
        """A word for each topic that is another one whenever it changed: cheap, for polling."""
        return await pulse.versions(self._connections)

    # leases

    async def take_lease(self, loop: str, cluster: str, holder: str, seconds: float) -> Lease | None:
        """Take the lease if it is free; None, without waiting, if somebody holds it."""
        return await leases.take(self._connections, loop, cluster, holder, float(seconds))

    async def renew_lease(self, lease: Lease) -> Lease | None:
        """Extend the lease by its own length from now; None if it is lost."""
        return await leases.renew(self._connections, lease)

    async def release_lease(self, lease: Lease) -> None:
        """Give the lease back, if it is still held."""
        await leases.release(self._connections, lease)

    @asynccontextmanager
    async def writing(self, lease: Lease) -> AsyncIterator[Writing]:
        """A short transaction that only the holder of the lease can commit; raises LeaseLost otherwise.

        It begins by locking the lease's row where holder and token match and the database's clock is before
        its end, and ends by looking at that clock again. Nobody can take the lease while the row is locked:
        what was verified is still true when the commit is done. No network call belongs inside.
        """
        limit = self._connections.limits.statement_seconds
        async with self._connections.transaction() as connection:
            await leases.begin(connection, lease, limit)
            yield Writing(connection, lease)
            await leases.still_held(connection, lease)
