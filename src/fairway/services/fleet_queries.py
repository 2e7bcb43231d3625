"""Read the clusters, pools and nodes of the fleet with their observed state."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import by_team
from fairway.model.job import PENDING_JOBS
from fairway.model.observation import Health
from fairway.services.convert import fleet as convert
from fairway.services.fleets import Fleets
from fairway.wire import fleet as wire


async def list_clusters(ledger: Ledger, fleets: Fleets) -> list[wire.Cluster]:
    """List every cluster of the fleet by name. An unreachable one has its last known state."""
    return convert.clusters(await _fleet_state(ledger, fleets))


async def list_pools(ledger: Ledger, fleets: Fleets, cluster: str | None = None) -> list[wire.Pool]:
    """List every pool of the fleet, or of one cluster, by name."""
    counts = by_team(await ledger.jobs.counts(cluster), *PENDING_JOBS)
    waiting = {supply: sum(teams.values()) for supply, teams in counts.items()}
    state = replace(await _fleet_state(ledger, fleets), waiting=waiting)
    return [p for p in convert.pools(state) if cluster is None or p.cluster == cluster]


async def list_nodes(
    ledger: Ledger,
    *,
    cluster: str | None = None,
    pool: str | None = None,
    health: Health | None = None,
    after: tuple[str, str] | None = None,
    limit: int,
) -> list[wire.Node]:
    """List nodes by cluster and name, those after the node `after`."""
    states = {s.cluster: s for s in await ledger.clusters.all()}
    rows = await ledger.clusters.nodes(cluster=cluster, pool=pool, health=health, after=after, limit=limit)
    now = datetime.now(UTC)
    return [convert.node(row, states.get(row.cluster), now) for row in rows]


async def _fleet_state(ledger: Ledger, fleets: Fleets) -> convert.FleetState:
    return convert.FleetState(
        fleet=await fleets.current(),
        clusters={s.cluster: s for s in await ledger.clusters.all()},
        pools=await ledger.clusters.pools(),
        now=datetime.now(UTC),
        conditions=await ledger.conditions.all(),
        lifted={
            a.cluster: wire.LiftedPolicy(state=a.lifted, by=a.lifted_by, since=a.lifted_at)
            for a in await ledger.applies.applied()
            if a.lifted is not None and a.lifted_at is not None
        },
    )
