"""Take and verify leases with fencing tokens: the right to write for one loop on one cluster.

Only the database's clock counts, read when a row is read (`clock_timestamp()`, not `now()`, which
is fixed within a transaction). A token grows by one with every new holder; a row is never deleted, so no
token is used twice.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Final

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import LedgerStore
from fairway.ledger.errors import LeaseLost
from fairway.ledger.records.fleet import Lease
from fairway.model.names import ClusterName

FLEET: Final = ClusterName("*")
"""The cluster name under which fleet-wide loops hold their lease: no cluster can have it."""

# One statement that never waits: a row locked by a write in progress is skipped (it is held, whatever its
# expiry), and only the first two takers of a new lease can conflict, on the insert.
# The holder gets its own live lease back with the same token: the reply to its first call may be lost.
_TAKE = text("""
    WITH free AS (
        SELECT 1 FROM lease
        WHERE loop = :loop AND cluster = :cluster AND (expires_at <= clock_timestamp() OR holder = :holder)
        FOR UPDATE SKIP LOCKED
    ), taken AS (
        UPDATE lease SET
            token = token + CASE WHEN holder = :holder AND expires_at > clock_timestamp() THEN 0 ELSE 1 END,
            holder = :holder,
            expires_at = clock_timestamp() + make_interval(secs => :seconds)
        WHERE loop = :loop AND cluster = :cluster AND EXISTS (SELECT FROM free)
        RETURNING token, expires_at
    ), born AS (
        INSERT INTO lease (loop, cluster, holder, token, expires_at)
        SELECT :loop, :cluster, :holder, 1, clock_timestamp() + make_interval(secs => :seconds)
        WHERE NOT EXISTS (SELECT FROM lease WHERE loop = :loop AND cluster = :cluster)
        ON CONFLICT DO NOTHING
        RETURNING token, expires_at
    )
    SELECT token, expires_at FROM taken UNION ALL SELECT token, expires_at FROM born
""")

_ALL = text("SELECT loop, cluster, holder, token, expires_at FROM lease ORDER BY loop, cluster LIMIT 2000")

_IS_HOLDER = "loop = :loop AND cluster = :cluster AND holder = :holder AND token = :token"

_RENEW = text(f"""
    UPDATE lease SET expires_at = clock_timestamp() + make_interval(secs => :seconds)
    WHERE {_IS_HOLDER} AND expires_at > clock_timestamp()
    RETURNING expires_at
""")  # noqa: S608

_RELEASE = text(f"UPDATE lease SET holder = '', expires_at = clock_timestamp() WHERE {_IS_HOLDER}")  # noqa: S608

# Locks, verifies and renews at once, and sets limits for this transaction only: if its server is frozen or
# cut off, PostgreSQL itself ends it, so a row lock outlives its lease by less than the lease's length.
_BEGIN = text(f"""
    WITH locked AS (
        UPDATE lease SET expires_at = clock_timestamp() + make_interval(secs => :seconds)
        WHERE {_IS_HOLDER} AND expires_at > clock_timestamp()
        RETURNING 1
    )
    SELECT set_config('idle_in_transaction_session_timeout', :idle, true),
           set_config('statement_timeout', :statement, true)
    FROM locked
""")  # noqa: S608

_HELD = text(f"SELECT 1 FROM lease WHERE {_IS_HOLDER} AND expires_at > clock_timestamp()")  # noqa: S608


class LeaseStore(LedgerStore):
    """Takes, renews and releases leases."""

    async def take(self, loop: str, cluster: str, holder: str, seconds: float) -> Lease | None:
        """Take the lease if it is free. Returns None, without waiting, if another server holds it."""
        values = {"loop": loop, "cluster": cluster, "holder": holder, "seconds": float(seconds)}
        row = await self._fetch_first(_TAKE, values)
        if row is None:
            return None
        return Lease(loop, ClusterName(cluster), holder, row.token, float(seconds), row.expires_at)

    async def all(self) -> list[Lease]:
        """Return every lease there ever was, by loop and cluster, with who holds it or held it last."""
        rows = await self._fetch(_ALL)
        return [Lease(r.loop, ClusterName(r.cluster), r.holder, r.token, 0.0, r.expires_at) for r in rows]

    async def renew(self, lease: Lease) -> Lease | None:
        """Extend the lease by its own length from now. Returns None if it is lost."""
        row = await self._fetch_first(_RENEW, asdict(lease))
        return None if row is None else replace(lease, expires_at=row.expires_at)

    async def release(self, lease: Lease) -> None:
        """Release the lease, if it is still held."""
        async with self._connections.single() as connection:
            await connection.execute(_RELEASE, asdict(lease))


class FencedWriter:
    """The writes of one subject in a transaction under a lease; see `Ledger.writing`."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease


async def begin(connection: AsyncConnection, lease: Lease, statement_seconds: float) -> None:
    """Lock the lease's row: until the transaction ends nobody else can take it, even after it expires."""
    limits = {
        "idle": f"{round(lease.seconds * 500)}ms",
        "statement": f"{round(min(lease.seconds, statement_seconds) * 1000)}ms",
    }
    if (await connection.execute(_BEGIN, asdict(lease) | limits)).first() is None:
        raise lost(lease)


async def check_held(connection: AsyncConnection, lease: Lease) -> None:
    """Raise LeaseLost if the lease has expired. Run last before COMMIT: the row lock keeps it true."""
    if (await connection.execute(_HELD, asdict(lease))).first() is None:
        raise lost(lease)


def lost(lease: Lease) -> LeaseLost:
    """Return the error for a writer whose fencing token is stale or whose lease expired."""
    return LeaseLost(
        "LeaseLost",
        f"the {lease.loop} lease of cluster {lease.cluster} (token {lease.token}) is no longer held here",
        "nothing to do: another server has taken over",
    )
