"""What a client can ask about the fleet, its tokens and its policy."""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence

from fairway.api import budget_wire, policy_wire, wire
from fairway.client import fleet_calls as calls
from fairway.client.calls import Answer, Call
from fairway.model.access import Role
from fairway.model.observation import Health


class FleetVerbs(ABC):
    """Clusters, pools, nodes, tokens, plans, applies. `Client` has these; `AsyncClient` the same to await."""

    def whoami(self) -> wire.Whoami:
        """Who the server takes this client for."""
        return self._send(calls.whoami())

    def clusters(self) -> list[wire.Cluster]:
        """Every cluster of the fleet."""
        return list(self._every(calls.clusters()))

    def pools(self, cluster: str | None = None) -> list[wire.Pool]:
        """Every pool of the fleet, or of one cluster."""
        return list(self._every(calls.pools(cluster)))

    def nodes(
        self, cluster: str | None = None, pool: str | None = None, health: Health | None = None
    ) -> Iterator[wire.Node]:
        """Every node that fits, page by page."""
        return self._every(calls.nodes(cluster, pool, health))

    def tokens(self) -> list[wire.Token]:
        """Every token ever made."""
        return list(self._every(calls.tokens()))

    def create_token(
        self, name: str, role: Role, expires_in_seconds: int | None, user: str | None = None
    ) -> wire.MadeToken:
        """Make a token; the answer holds its secret."""
        return self._send(calls.create_token(name, role, expires_in_seconds, user))

    def revoke_token(self, name: str) -> wire.Token:
        """End a token's life."""
        return self._send(calls.revoke_token(name))

    def plan(self, fleet: str, source: str, cluster: str | None = None) -> policy_wire.Plan:
        """What a fleet file would change."""
        return self._send(calls.plan(fleet, source, cluster))

    def apply(
        self, fleet: str, source: str, fingerprints: Mapping[str, str], *, force: bool
    ) -> policy_wire.Apply:
        """Ask for a planned fleet to be made so; the answer says how to follow it."""
        return self._send(calls.apply(fleet, source, fingerprints, force=force))

    def adopt(self, cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> policy_wire.Apply:
        """Ask for Fairway's mark on these objects."""
        return self._send(calls.adopt(cluster, objects))

    def applies(self, cluster: str | None = None, most: int = 20) -> list[policy_wire.Apply]:
        """The newest applies, of one cluster if it is named."""
        return list(itertools.islice(self._every(calls.applies(cluster, most)), most))

    def apply_detail(self, number: int) -> policy_wire.ApplyDetail:
        """One apply with every change."""
        return self._send(calls.apply_detail(number))

    def apply_progress(self, number: int) -> policy_wire.Apply:
        """One apply without its changes: cheap enough to ask twice a second."""
        return self._send(calls.apply_progress(number))

    def drift(self, cluster: str | None = None) -> list[policy_wire.Drift]:
        """Every difference between the clusters and what was last applied to them."""
        return list(self._every(calls.drift(cluster)))

    def budgets(self) -> budget_wire.Budgets:
        """How the budgets the caller may see stand."""
        return self._send(calls.budgets())

    def teams(self) -> list[policy_wire.Team]:
        """The teams as last applied."""
        return list(self._every(calls.teams()))

    def nudges(self, cluster: str | None = None, most: int = 100) -> list[policy_wire.Nudge]:
        """The newest nudges, of one cluster if it is named."""
        return list(itertools.islice(self._every(calls.nudges(cluster, most)), most))

    def render(self, fleet: str, source: str, cluster: str) -> policy_wire.Rendered:
        """The files of an engine that Fairway does not write itself."""
        return self._send(calls.render(fleet, source, cluster))

    def import_policy(self, cluster: str) -> policy_wire.Imported:
        """An existing cluster as a fleet file."""
        return self._send(calls.import_policy(cluster))

    @abstractmethod
    def _send(self, call: Call[Answer]) -> Answer: ...

    @abstractmethod
    def _every(self, call: Call[wire.Page[wire.Item]]) -> Iterator[wire.Item]: ...
