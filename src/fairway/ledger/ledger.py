"""The door to PostgreSQL: every read and write of Fairway goes through one `Ledger`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from sqlalchemy import select

from fairway.ledger import fleets, leases, migrate, states, tokens
from fairway.ledger.connection import Connections, Limits
from fairway.ledger.observations import Writing
from fairway.ledger.records import ClusterState, Lease, NodeState, PoolState, Revision, Token
from fairway.model.access import Role
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.model.observation import Health


class Ledger:
    """All that Fairway knows. Safe to share between tasks; every call is bounded in time."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

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

    # tokens

    async def create_token(
        self, name: str, role: Role, digest: bytes, by: str, expires_at: datetime | None = None
    ) -> Token:
        """Keep a new token by its hash; raises TokenNameTaken."""
        return await tokens.create(self._connections, name, role, digest, by=by, expires_at=expires_at)

    async def token_by_hash(self, digest: bytes) -> Token | None:
        """The live token with this hash; None if unknown, revoked or expired (by the database's clock)."""
        return await tokens.by_hash(self._connections, digest)

    async def tokens(self) -> tuple[Token, ...]:
        """Every token ever made, by name, revoked and expired ones too."""
        return await tokens.every(self._connections)

    async def revoke_token(self, name: str) -> Token | None:
        """End a token's life; None if there is none of that name. Revoking twice keeps the first time."""
        return await tokens.revoke(self._connections, name)

    async def touch_token(self, token: Token) -> None:
        """Note that a token was used; writes at most once a minute."""
        await tokens.touch(self._connections, token)

    async def has_tokens(self) -> bool:
        """Whether any live token exists."""
        return await tokens.any_live(self._connections)

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
