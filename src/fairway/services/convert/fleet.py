"""Convert clusters, pools and nodes to wire types: names from the fleet file, state from the ledger. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import TypedDict
from zoneinfo import ZoneInfo

from fairway.ledger import ClusterState, NodeState, PoolState, StoredCondition
from fairway.model.fleet import Cluster, Fleet, Pool
from fairway.model.names import SliceName
from fairway.model.observation import Devices, Health, free_devices
from fairway.model.team import Supply
from fairway.wire import fleet as wire

_NOT_OBSERVED = wire.Reason(
    code="NotObserved",
    message="not observed yet",
    hint="wait a few seconds; if this does not change, check the server's log",
)


@dataclass(frozen=True, slots=True)
class FleetState:
    """The fleet and the last observed state of its clusters and pools, read at one moment."""

    fleet: Fleet
    clusters: Mapping[str, ClusterState]
    pools: tuple[PoolState, ...]
    now: datetime
    conditions: tuple[StoredCondition, ...] = ()
    lifted: Mapping[str, wire.LiftedPolicy] = field(default_factory=dict)
    """By cluster: policies that are no longer enforced."""
    waiting: Mapping[Supply, int] | None = None
    """Devices that waiting jobs request. None if they were not counted."""


class _Freshness(TypedDict):
    reachable: bool | None
    observed_at: datetime | None
    age_seconds: int | None


def clusters(state: FleetState) -> list[wire.Cluster]:
    """Convert the clusters of the fleet by name, including those never observed."""
    return [_cluster(state, c) for c in sorted(state.fleet.clusters, key=lambda c: c.name)]


def pools(state: FleetState) -> list[wire.Pool]:
    """Convert the pools of the fleet by name, including those never observed."""
    return [_pool(state, p) for p in sorted(state.fleet.pools, key=lambda p: p.name)]


def node(state: NodeState, cluster: ClusterState | None, now: datetime) -> wire.Node:
    """Convert one node, with the age of its state."""
    return wire.Node(
        name=state.name,
        cluster=state.cluster,
        health=state.health,
        reason=state.reason,
        since=state.since,
        devices=[_devices(state.health, d) for d in state.devices],
        **_freshness(cluster, now),
    )


def condition(stored: StoredCondition) -> wire.Condition:
    """Convert one condition of a cluster."""
    c = stored.condition
    return wire.Condition(
        type=c.type, code=c.code, message=c.message, hint=c.hint, detail=c.detail, since=stored.since
    )


def _cluster(fleet_state: FleetState, cluster: Cluster) -> wire.Cluster:
    state = fleet_state.clusters.get(cluster.name)
    rows = [p for p in fleet_state.pools if p.cluster == cluster.name]
    whole_gpus = [p for p in rows if p.slice is None]
    observed = state is not None and state.observed_at is not None
    return wire.Cluster(
        name=cluster.name,
        engine=cluster.engine,
        engine_version=state.engine_version or None if state else None,
        reason=_reason(state),
        since=state.since if state and state.attempted_at else None,
        conditions=[condition(c) for c in fleet_state.conditions if c.cluster == cluster.name],
        pools=sorted(p.name for p in fleet_state.fleet.pools_of(cluster.name)),
        gpus=_sum(whole_gpus) if observed else None,
        lifted=fleet_state.lifted.get(cluster.name),
        slices=[
            wire.SliceCounts(slice=kind, **_sum([p for p in rows if p.slice == kind]).model_dump())
            for kind in sorted({p.slice for p in rows if p.slice is not None})
        ]
        if observed
        else None,
        gpus_in_no_pool=sum(p.total for p in whole_gpus if p.pool is None) if observed else None,
        **_freshness(state, fleet_state.now),
    )


def _pool(fleet_state: FleetState, pool: Pool) -> wire.Pool:
    fleet, state = fleet_state.fleet, fleet_state.clusters.get(pool.cluster)
    rows = {p.slice: p for p in fleet_state.pools if p.cluster == pool.cluster and p.pool == pool.name}
    observed = state is not None and state.observed_at is not None
    # Slices that the file names but no node has are shown as 0: that is a finding, not an unknown.
    kinds = sorted({*pool.slices, *(kind for kind in rows if kind is not None)})
    waiting = fleet_state.waiting
    requested = {
        kind: None if waiting is None else waiting.get(Supply(pool.name, kind), 0) for kind in (None, *kinds)
    }
    today = fleet_state.now.astimezone(ZoneInfo(fleet.cost.timezone)).date()
    return wire.Pool(
        name=pool.name,
        cluster=pool.cluster,
        gpu=pool.gpu.name,
        slice_kinds=list(pool.slices),
        capacity=pool.capacity,
        price_per_gpu_hour=pool.list_price(today),
        currency=fleet.currency,
        gpus=_pool_counts(rows.get(None), requested[None]) if observed else None,
        slices=[_slice_counts(kind, rows.get(kind), requested[kind]) for kind in kinds] if observed else None,
        **_freshness(state, fleet_state.now),
    )


def _freshness(state: ClusterState | None, now: datetime) -> _Freshness:
    if state is None or state.attempted_at is None:
        return {"reachable": None, "observed_at": None, "age_seconds": None}
    age = None
    if state.observed_at is not None:
        # The ledger's clock and this server's may differ a little; no age is negative.
        age = max(0, int((now - state.observed_at).total_seconds()))
    return {"reachable": state.reachable, "observed_at": state.observed_at, "age_seconds": age}


def _reason(state: ClusterState | None) -> wire.Reason | None:
    if state is None or state.attempted_at is None:
        return _NOT_OBSERVED
    if state.reachable:
        return None
    return wire.Reason(code=state.code, message=state.message, hint=state.hint)


def _sum(rows: Iterable[PoolState]) -> wire.Counts:
    totals = [(p.total, p.in_use, p.free, p.unhealthy) for p in rows]
    total, in_use, free, unhealthy = (
        (sum(column) for column in zip(*totals, strict=True)) if totals else (0,) * 4
    )
    return wire.Counts(total=total, in_use=in_use, free=free, unhealthy=unhealthy)


def _pool_counts(row: PoolState | None, waiting: int | None) -> wire.PoolCounts:
    if row is None:
        return wire.PoolCounts(
            total=0, in_use=0, free=0, unhealthy=0, nodes=0, nodes_drained=0, nodes_down=0, waiting=waiting
        )
    return wire.PoolCounts(waiting=waiting, **asdict(row))


def _slice_counts(kind: SliceName, row: PoolState | None, waiting: int | None) -> wire.PoolSliceCounts:
    return wire.PoolSliceCounts(slice=kind, **_pool_counts(row, waiting).model_dump())


def _devices(health: Health, devices: Devices) -> wire.Devices:
    free = free_devices(health, devices)
    return wire.Devices(
        pool=devices.pool,
        kind=devices.kind,
        slice=devices.slice,
        total=devices.total,
        in_use=devices.in_use,
        free=free,
        unhealthy=devices.total - devices.in_use - free,
    )
