"""The door to PostgreSQL: every read and write of Fairway goes through one `Ledger`."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import datetime

from fairway.ledger.observations import Writing
from fairway.ledger.records import ClusterState, Lease, NodeState, PoolState, Revision, Token
from fairway.model.access import Role
from fairway.model.fleet import EngineKind
from fairway.model.names import ClusterName
from fairway.model.observation import Health


class Ledger:
    """All that Fairway knows. Safe to share between tasks; every call is bounded in time."""

    @classmethod
    async def connect(cls, url: str) -> Ledger:
        """Open the ledger at `postgresql://…`; raises LedgerUnreachable or LedgerRefused."""
        raise NotImplementedError

    async def close(self) -> None:
        """Let go of every connection. Safe to call twice."""
        raise NotImplementedError

    async def migrate(self) -> None:
        """Bring the tables forward to what this code needs; any number of servers may do so at once."""
        raise NotImplementedError

    async def ready(self) -> None:
        """Return if the ledger can serve now; raises LedgerUnreachable, LedgerBusy or LedgerNotMigrated."""
        raise NotImplementedError

    # the fleet

    async def keep_fleet(self, text: str, digest: str, by: str) -> Revision:
        """Make this the fleet's newest revision; the same digest as the newest gives that one back."""
        raise NotImplementedError

    async def fleet(self) -> Revision | None:
        """The newest revision."""
        raise NotImplementedError

    async def fleet_revision(self) -> int | None:
        """The id of the newest revision: cheap, for polling."""
        raise NotImplementedError

    async def follow_fleet(self, revision: int, engines: Mapping[ClusterName, EngineKind]) -> None:
        """Show exactly the clusters of `revision`; does nothing if a newer one exists."""
        raise NotImplementedError

    # what is known

    async def clusters(self) -> tuple[ClusterState, ...]:
        """Every cluster, by name."""
        raise NotImplementedError

    async def pools(self) -> tuple[PoolState, ...]:
        """Every pool that has nodes, by cluster, pool and slice."""
        raise NotImplementedError

    async def nodes(
        self,
        *,
        cluster: str | None = None,
        pool: str | None = None,
        health: Health | None = None,
        after: tuple[str, str] | None = None,
        limit: int = 100,
    ) -> tuple[NodeState, ...]:
        """At most `limit` (≤ 1000) nodes by (cluster, name); `after` is the pair of the last one seen."""
        raise NotImplementedError

    # tokens

    async def create_token(
        self, name: str, role: Role, digest: bytes, by: str, expires_at: datetime | None = None
    ) -> Token:
        """Keep a new token by its hash; raises TokenNameTaken."""
        raise NotImplementedError

    async def token_by_hash(self, digest: bytes) -> Token | None:
        """The live token with this hash; None if unknown, revoked or expired (by the database's clock)."""
        raise NotImplementedError

    async def tokens(self) -> tuple[Token, ...]:
        """Every token ever made, by name, revoked and expired ones too."""
        raise NotImplementedError

    async def revoke_token(self, name: str) -> Token | None:
        """End a token's life; None if there is none of that name. Revoking twice keeps the first time."""
        raise NotImplementedError

    async def touch_token(self, token: Token) -> None:
        """Note that a token was used; writes at most once a minute."""
        raise NotImplementedError

    async def has_tokens(self) -> bool:
        """Whether any live token exists."""
        raise NotImplementedError

    # leases

    async def take_lease(self, loop: str, cluster: str, holder: str, seconds: float) -> Lease | None:
        """Take the lease if it is free; None, without waiting, if somebody holds it."""
        raise NotImplementedError

    async def renew_lease(self, lease: Lease) -> Lease | None:
        """Extend the lease by its own length from now; None if it is lost."""
        raise NotImplementedError

    async def release_lease(self, lease: Lease) -> None:
        """Give the lease back, if it is still held."""
        raise NotImplementedError

    @asynccontextmanager
    async def writing(self, lease: Lease) -> AsyncIterator[Writing]:
        """A short transaction that only the holder of the lease can commit; raises LeaseLost otherwise."""
        raise NotImplementedError
        yield Writing()
