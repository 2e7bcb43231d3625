"""What a client that awaits can ask about the fleet, its tokens and its policy."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Mapping, Sequence

from fairway.api import budget_wire, policy_wire, wire
from fairway.client import fleet_calls as calls
from fairway.client.calls import Answer, Call
from fairway.model.access import Role
from fairway.model.observation import Health


class AsyncFleetVerbs(ABC):
    """What each verb does stands in `FleetVerbs`."""

    async def whoami(self) -> wire.Whoami:
        """Who the server takes this client for."""
        return await self._send(calls.whoami())

    async def clusters(self) -> list[wire.Cluster]:
        """Every cluster of the fleet."""
        return [one async for one in self._every(calls.clusters())]

    async def pools(self, cluster: str | None = None) -> list[wire.Pool]:
        """Every pool of the fleet, or of one cluster."""
        return [one async for one in self._every(calls.pools(cluster))]

    def nodes(
        self, cluster: str | None = None, pool: str | None = None, health: Health | None = None
    ) -> AsyncIterator[wire.Node]:
        """Every node that fits, page by page."""
        return self._every(calls.nodes(cluster, pool, health))

    async def tokens(self) -> list[wire.Token]:
        """Every token ever made."""
        return [one async for one in self._every(calls.tokens())]

    async def create_token(
        self, name: str, role: Role, expires_in_seconds: int | None, user: str | None = None
    ) -> wire.MadeToken:
        """Make a token; the answer holds its secret."""
        return await self._send(calls.create_token(name, role, expires_in_seconds, user))

    async def revoke_token(self, name: str) -> wire.Token:
        """End a token's life."""
        return await self._send(calls.revoke_token(name))

    async def plan(self, fleet: str, source: str, cluster: str | None = None) -> policy_wire.Plan:
        """What a fleet file would change."""
        return await self._send(calls.plan(fleet, source, cluster))

    async def apply(
        self, fleet: str, source: str, fingerprints: Mapping[str, str], *, force: bool
    ) -> policy_wire.Apply:
        """Ask for a planned fleet to be made so; the answer says how to follow it."""
        return await self._send(calls.apply(fleet, source, fingerprints, force=force))

    async def adopt(self, cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> policy_wire.Apply:
        """Ask for Fairway's mark on these objects."""
        return await self._send(calls.adopt(cluster, objects))

    async def applies(self, cluster: str | None = None, most: int = 20) -> list[policy_wire.Apply]:
        """The newest applies, of one cluster if it is named."""
        return await self._first(calls.applies(cluster, most), most)

    async def apply_detail(self, number: int) -> policy_wire.ApplyDetail:
        """One apply with every change."""
        return await self._send(calls.apply_detail(number))

    async def apply_progress(self, number: int) -> policy_wire.Apply:
        """One apply without its changes: cheap enough to ask twice a second."""
        return await self._send(calls.apply_progress(number))

    async def drift(self, cluster: str | None = None) -> list[policy_wire.Drift]:
        """Every difference between the clusters and what was last applied to them."""
        return [one async for one in self._every(calls.drift(cluster))]

    async def budgets(self) -> budget_wire.Budgets:
        """How the budgets the caller may see stand."""
        return await self._send(calls.budgets())

    async def teams(self) -> list[policy_wire.Team]:
        """The teams as last applied."""
        return [one async for one in self._every(calls.teams())]

    async def nudges(self, cluster: str | None = None, most: int = 100) -> list[policy_wire.Nudge]:
        """The newest nudges, of one cluster if it is named."""
        return await self._first(calls.nudges(cluster, most), most)

    async def render(self, fleet: str, source: str, cluster: str) -> policy_wire.Rendered:
        """The files of an engine that Fairway does not write itself."""
        return await self._send(calls.render(fleet, source, cluster))

    async def import_policy(self, cluster: str) -> policy_wire.Imported:
        """An existing cluster as a fleet file."""
        return await self._send(calls.import_policy(cluster))

    async def _first(self, call: Call[wire.Page[wire.Item]], most: int) -> list[wire.Item]:
        """The first so many of a list that begins with the newest."""
        found: list[wire.Item] = []
        async for one in self._every(call):
            if len(found) >= most:
                break
            found.append(one)
        return found

    @abstractmethod
    async def _send(self, call: Call[Answer]) -> Answer: ...

    @abstractmethod
    def _every(self, call: Call[wire.Page[wire.Item]]) -> AsyncIterator[wire.Item]: ...
