"""Read and write revisions of the fleet file, and update the clusters that the newest one defines."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Final

from sqlalchemy import insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.leases import FLEET
from fairway.ledger.records.fleet import Revision
from fairway.ledger.schema.tables import fleet_revision
from fairway.ledger.sql_values import page_limit
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName

LOCK: Final = 0x6661_6972_7761_7A
"""Advisory lock held while the newest revision, or what follows from it, changes."""

_NEWEST = select(fleet_revision).order_by(fleet_revision.c.id.desc()).limit(1)
_NEWEST_ID = select(fleet_revision.c.id).order_by(fleet_revision.c.id.desc()).limit(1)

# A cluster that left the fleet may still be written by a server that has not noticed: its token is
# increased, so that such a write finds its lease lost. The row stays, for tokens must never start over.
# Leases of fleet-wide loops are not affected.
_REVOKE_LEASES = text("""
    UPDATE lease SET holder = '', token = token + 1, expires_at = clock_timestamp()
    WHERE cluster <> :fleet AND holder <> '' AND cluster <> ALL (CAST(:clusters AS text[]))
""")

_ADD = text("""
    INSERT INTO cluster_state (cluster, engine, reachable, code, message, hint, since)
    SELECT cluster, engine, false, 'NotObserved', 'not observed yet',
        'wait a few seconds; if this does not change, check the log of  fairway server', now()
    FROM unnest(CAST(:clusters AS text[]), CAST(:engines AS text[])) AS wanted (cluster, engine)
    ON CONFLICT (cluster) DO UPDATE SET engine = excluded.engine WHERE cluster_state.engine <> excluded.engine
""")

# Before its state is removed: nothing after the last observation is known of its jobs.
_LEAVE = text("""
    INSERT INTO left_cluster (cluster, revision, seen_at)
    SELECT cluster, :revision, COALESCE(observed_at, now()) FROM cluster_state
    WHERE cluster <> ALL (CAST(:clusters AS text[]))
    ON CONFLICT (cluster)
    DO UPDATE SET revision = excluded.revision, left_at = now(), seen_at = excluded.seen_at
""")

_RETURN = text("DELETE FROM left_cluster WHERE cluster = ANY (CAST(:clusters AS text[]))")

_REMOVE = tuple(
    text(f"DELETE FROM {table} WHERE cluster <> ALL (CAST(:clusters AS text[]))")  # noqa: S608
    for table in ("cluster_state", "node", "device", "pool_total", "drift", "cluster_condition")
)

# No server will carry out the applies of a cluster that left.
_SKIP_APPLIES = text("""
    UPDATE apply_cluster SET state = 'skipped', finished_at = now(), current = '', code = 'ClusterLeft',
        message = 'the cluster is no longer part of the fleet',
        hint = 'put it back into the fleet file and apply again'
    WHERE state IN ('waiting', 'running') AND cluster <> ALL (CAST(:clusters AS text[]))
""")


class RevisionStore(LedgerStore):
    """Reads and writes revisions of the fleet file."""

    async def add(self, text: str, digest: str, by: str) -> Revision:
        """Store a newest revision of the fleet. Returns the existing newest one if its digest is the same."""
        async with self._connections.transaction() as connection:
            return await add_in(connection, text, digest, by)

    async def newest(self) -> Revision | None:
        """Return the newest revision. Returns None if there is none."""
        row = await self._fetch_first(_NEWEST)
        return None if row is None else Revision(*row)

    async def newest_id(self) -> int | None:
        """Return the id of the newest revision: cheap, for polling. Returns None if there is none."""
        async with self._connections.single() as connection:
            return (await connection.execute(_NEWEST_ID)).scalar()

    async def one(self, number: int) -> Revision | None:
        """Return a revision by its id. Returns None if it is unknown."""
        row = await self._fetch_first(select(fleet_revision).where(fleet_revision.c.id == number))
        return None if row is None else Revision(*row)

    async def page(self, *, before: int | None = None, limit: int = 100) -> tuple[Revision, ...]:
        """Return at most `limit` (≤ 2000) revisions without their text, newest first."""
        columns = (c for c in fleet_revision.c if c.name != "text")
        query = select(*columns).order_by(fleet_revision.c.id.desc()).limit(page_limit(limit))
        if before is not None:
            query = query.where(fleet_revision.c.id < before)
        return tuple(
            Revision(row.id, row.created_at, row.created_by, row.digest, "")
            for row in await self._fetch(query)
        )

    async def stored(self, before: datetime | None) -> list[tuple[datetime, int]]:
        """Return when each revision was stored, in order; before a point in time, or all."""
        query = select(fleet_revision.c.created_at, fleet_revision.c.id).order_by(fleet_revision.c.id)
        if before is not None:
            query = query.where(fleet_revision.c.created_at < before)
        return [(row.created_at, row.id) for row in await self._fetch(query)]

    async def follow(self, revision: int, engines: Mapping[ClusterName, EngineKind]) -> None:
        """Make the known clusters exactly those of `revision`; does nothing if a newer one exists."""
        clusters = {"clusters": list(engines)}
        async with self._connections.transaction() as connection:
            await _lock(connection)
            if (await connection.execute(_NEWEST_ID)).scalar() != revision:
                return
            await connection.execute(_REVOKE_LEASES, clusters | {"fleet": FLEET})
            await connection.execute(_LEAVE, clusters | {"revision": revision})
            await connection.execute(_RETURN, clusters)
            for statement in _REMOVE:
                await connection.execute(statement, clusters)
            await connection.execute(_SKIP_APPLIES, clusters)
            await connection.execute(_ADD, clusters | {"engines": [e.value for e in engines.values()]})


async def add_in(connection: AsyncConnection, content: str, digest: str, by: str) -> Revision:
    """Store a newest revision within an open transaction; see `RevisionStore.add`."""
    await _lock(connection)
    newest = (await connection.execute(_NEWEST)).first()
    if newest is None or newest.digest != digest:
        revision = insert(fleet_revision).values(text=content, digest=digest, created_by=by)
        newest = (await connection.execute(revision.returning(fleet_revision))).one()
    return Revision(*newest)


async def _lock(connection: AsyncConnection) -> None:
    await connection.execute(text("SELECT pg_advisory_xact_lock(:lock)"), {"lock": LOCK})
