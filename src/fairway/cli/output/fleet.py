"""Format clusters, pools, nodes, tokens and contexts as tables. Pure: wire types in, a TableView out."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from fairway.cli.output.format import UNKNOWN, Column, Fit, TableView, age, moment, number, price, since, span
from fairway.model.condition import ConditionType
from fairway.model.observation import Health
from fairway.views.conditions import condition_text

if TYPE_CHECKING:
    from fairway.client.contexts import Contexts
    from fairway.wire import fleet as wire
    from fairway.wire import gpu_use as gpu_wire

_STALE = " !"
"""Suffix of an age: the cluster does not respond, so this is its last known state."""

_COUNTS = Column.numbers("IN USE", "FREE", "UNHEALTHY")


def clusters_view(clusters: Sequence[wire.Cluster], now: datetime, *, wide: bool) -> TableView:
    """Return a table with one row for each cluster; reasons of unreachable clusters are notes below it."""
    columns = [
        *Column.names("CLUSTER", "ENGINE"),
        Column("STATE"),
        *Column.numbers("SINCE", "GPUS"),
        *_COUNTS,
        Column("SLICES", right=True, hide_if_empty=True),
        Column("AGE", right=True),
        Column("POLICY", hide_if_empty=True),
    ]
    rows = [
        [
            c.name,
            c.engine_version or str(c.engine),
            _state(c),
            since(c.since, now),
            *_counts(c.gpus),
            _slices_text(c),
            _age(c),
            f"{c.lifted.state} by {c.lifted.by} {since(c.lifted.since, now)} ago" if c.lifted else "",
        ]
        for c in clusters
    ]
    if wide:
        columns += [Column("BY KIND"), Column("IN NO POOL", right=True), Column("POOLS"), Column("REASON")]
        for row, c in zip(rows, clusters, strict=True):
            row += [
                ", ".join(f"{s.slice} {s.in_use}/{s.total}" for s in c.slices or ()) or UNKNOWN,
                number(c.gpus_in_no_pool),
                ", ".join(c.pools) or UNKNOWN,
                f"{c.reason.code}: {c.reason.message}" if c.reason else "",
            ]
    return TableView(
        columns,
        rows,
        empty="no clusters yet",
        hint="give the server a fleet:  fairway server -f fleet.yaml",
        notes=[note for c in clusters for note in _cluster_notes(c, now)],
        alarming=frozenset(i for i, c in enumerate(clusters) if c.reachable is False or c.conditions),
    )


def pools_view(
    pools: Sequence[wire.Pool], *, wide: bool, used: Sequence[gpu_wire.SupplyUse] = ()
) -> TableView:
    """Return a table with one row for each pool and kind of device: whole GPUs, and each kind of slice.

    `used`: what those in use did in the last window that was read, for the wide table.
    """
    by_supply = {(u.pool, u.slice or ""): u for u in used}
    currency = pools[0].currency if pools else "PRICE"
    columns = [
        *Column.names("POOL", "CLUSTER", "GPU"),
        Column("SLICE", hide_if_empty=True),
        Column("CAPACITY"),
        Column("TOTAL", right=True),
        *_COUNTS,
        *Column.numbers("WAITING", "AGE"),
    ]
    if wide:
        columns += [Column("NODES", right=True), Column("DRAINED", right=True), Column("DOWN", right=True)]
        columns += [Column(f"{currency}/GPU-HOUR", right=True)]
        columns += [
            Column(title, right=True, hide_if_empty=True) for title in ("MEASURED", "BUSY", "IDLE NOW")
        ]
    rows: list[list[str]] = []
    alarming: set[int] = set()
    for pool in pools:
        for kind, counts in _pool_rows(pool):
            if pool.reachable is False or (counts and counts.unhealthy):
                alarming.add(len(rows))
            row = [
                pool.name,
                pool.cluster,
                pool.gpu,
                kind,
                str(pool.capacity),
                *_counts(counts),
                number(counts.waiting if counts else None),
                _age(pool),
            ]
            if wide:
                nodes = (counts.nodes, counts.nodes_drained, counts.nodes_down) if counts else (None,) * 3
                row += [*map(number, nodes), price(pool.price_per_gpu_hour)]
                row += _use_cells(by_supply.get((pool.name, kind)))
            rows.append(row)
    return TableView(
        columns,
        rows,
        empty="no pools yet",
        hint="create a fleet file from a cluster:  fairway import CLUSTER --out fleet.yaml",
        notes=_stale_notes(pools),
        alarming=frozenset(alarming),
    )


def _use_cells(used: gpu_wire.SupplyUse | None) -> list[str]:
    """Format how many of those in use were measured, were busy on average, and did nothing at all."""
    if used is None:
        return [""] * 3
    return [f"{used.measured_gpus:.0f}", f"{used.busy_gpus:.1f}", str(used.idle_gpus)]


def nodes_view(nodes: Sequence[wire.Node], now: datetime, *, wide: bool, filtered: bool) -> TableView:
    """Return a table with one row for each node and kind of device."""
    columns = [
        *Column.names("NODE", "CLUSTER", "POOL"),
        Column("SLICE", hide_if_empty=True),
        Column("HEALTH"),
        Column("TOTAL", right=True),
        *_COUNTS,
        Column("AGE", right=True),
        Column("REASON", fit=Fit.END, hide_if_empty=True),
    ]
    if wide:
        columns += [Column("SINCE", right=True), Column("KIND")]
    rows: list[list[str]] = []
    alarming: set[int] = set()
    for node in nodes:
        for devices in node.devices or (None,):
            if node.health is Health.DOWN or node.reachable is False:
                alarming.add(len(rows))
            row = [
                node.name,
                node.cluster,
                (devices and devices.pool) or UNKNOWN,
                (devices and devices.slice) or "",
                node.health.value,
                *_counts(devices),
                _age(node),
                node.reason,
            ]
            if wide:
                row += [since(node.since, now), devices.kind if devices else UNKNOWN]
            rows.append(row)
    return TableView(
        columns,
        rows,
        empty="no node fits" if filtered else "no nodes yet",
        hint="remove filters:  fairway get nodes"
        if filtered
        else "check that the clusters are reachable:  fairway get clusters",
        notes=_stale_notes(nodes),
        alarming=frozenset(alarming),
    )


def tokens_view(tokens: Sequence[wire.Token], now: datetime) -> TableView:
    """Return a table with one row for each token."""
    columns = [Column("TOKEN", fit=Fit.MIDDLE), Column("ROLE"), Column("USER", fit=Fit.MIDDLE)]
    columns += [Column("STATE"), Column("EXPIRES")]
    columns += [Column("LAST USED"), Column("MADE"), Column("BY", fit=Fit.MIDDLE)]
    rows = [
        [
            t.name,
            t.role.value,
            t.user,
            _token_state(t, now),
            moment(t.expires_at, "never"),
            moment(t.last_used_at, "never"),
            moment(t.created_at, UNKNOWN),
            t.created_by,
        ]
        for t in tokens
    ]
    return TableView(
        columns, rows, empty="no tokens", hint="create one:  fairway token create NAME --role viewer"
    )


def sessions_view(sessions: Sequence[wire.Session]) -> TableView:
    """Return a table with one row for each session of the pages."""
    columns = [Column("USER", fit=Fit.MIDDLE), Column("ROLE"), Column("SIGNED IN BY", fit=Fit.MIDDLE)]
    columns += [Column("SINCE"), Column("EXPIRES"), Column("ID")]
    rows = [
        [
            s.user,
            s.role.value,
            s.issuer if s.token is None else f"token {s.token}",
            moment(s.created_at, UNKNOWN),
            moment(s.expires_at, UNKNOWN),
            s.id,
        ]
        for s in sessions
    ]
    return TableView(columns, rows, empty="nobody is signed in", hint="list tokens:  fairway token list")


def contexts_view(contexts: Contexts) -> TableView:
    """Return a table with one row for each context; the current one is marked."""
    columns = [Column("USED"), Column("CONTEXT", fit=Fit.MIDDLE), Column("URL", fit=Fit.MIDDLE)]
    columns += [Column("TOKEN FILE", fit=Fit.MIDDLE)]
    rows = [
        ["*" if c.name == contexts.current else "", c.name, c.url, c.token_file or UNKNOWN]
        for c in contexts.entries
    ]
    return TableView(
        columns,
        rows,
        empty="no contexts yet",
        hint="add one:  fairway context add NAME --url URL --token-file FILE   or try:  fairway demo",
    )


def _state(observed: wire.Seen) -> str:
    match observed.reachable:
        case None:
            return "not observed yet"
        case True:
            return "reachable"
        case False:
            return "unreachable"


def _slices_text(cluster: wire.Cluster) -> str:
    """Format the slices in use and in total, of all kinds. Returns an empty string if there are none."""
    slices = cluster.slices or ()
    return f"{sum(s.in_use for s in slices)}/{sum(s.total for s in slices)}" if slices else ""


def _age(observed: wire.Seen) -> str:
    return age(observed.age_seconds) + (_STALE if observed.reachable is False else "")


def loops_view(loops: Sequence[wire.Loop]) -> TableView:
    """Return a table with one row for each loop; one that no server runs is alarming."""
    columns = [
        *Column.names("LOOP", "CLUSTER", "SERVER"),
        *Column.numbers("LAST SUCCESS", "MEAN ROUND", "FAILED ROUNDS"),
    ]
    rows = [
        [
            loop.loop,
            loop.cluster or "whole fleet",
            loop.server or f"none since {moment(loop.lease_expires_at, UNKNOWN)}",
            UNKNOWN if loop.age_seconds is None else f"{span(loop.age_seconds)} ago",
            UNKNOWN if loop.mean_seconds is None else f"{loop.mean_seconds:.2f} s",
            number(loop.errors),
        ]
        for loop in loops
    ]
    return TableView(
        columns,
        rows,
        alarming=frozenset(i for i, loop in enumerate(loops) if loop.server is None),
        empty="no loop has run yet",
        hint="start a server that runs loops:  fairway server -f fleet.yaml",
    )


def _counts(counts: wire.Counts | None) -> list[str]:
    if counts is None:
        return [UNKNOWN] * 4
    return [str(n) for n in (counts.total, counts.in_use, counts.free, counts.unhealthy)]


def _pool_rows(pool: wire.Pool) -> list[tuple[str, wire.PoolCounts | None]]:
    """List whole GPUs, unless the pool has only slices, then each kind of slice."""
    if pool.slices is None:
        return [(kind, None) for kind in pool.slice_kinds or [""]]
    whole_gpus = [("", pool.gpus)] if not pool.slices or (pool.gpus and pool.gpus.total) else []
    return [*whole_gpus, *((s.slice, s) for s in pool.slices)]


def _cluster_notes(cluster: wire.Cluster, now: datetime) -> list[str]:
    if cluster.reason is None:
        return condition_notes([cluster], now)
    if cluster.reachable is None:
        return [f"{cluster.name}: {cluster.reason.message}"]
    shown = "its last known state is shown" if cluster.observed_at else "it was never observed"
    return [
        f"{cluster.name} has been unreachable for {since(cluster.since, now)}; {shown}",
        f"  {cluster.reason.code}: {cluster.reason.message}",
        f"  hint: {cluster.reason.hint}",
    ]


def condition_notes(
    clusters: Sequence[wire.Cluster], now: datetime, types: Collection[ConditionType] = tuple(ConditionType)
) -> list[str]:
    """Return the conditions of these types of clusters, each as a note with its hint."""
    return [
        line
        for c in clusters
        for condition in c.conditions
        if condition.type in types
        for line in (condition_text(c.name, condition, now), f"  hint: {condition.hint}")
    ]


def _stale_notes(rows: Sequence[wire.Pool] | Sequence[wire.Node]) -> list[str]:
    notes = []
    for observed, text in ((True, "their last known state is shown"), (False, "they were never observed")):
        clusters = sorted(
            {r.cluster for r in rows if r.reachable is False and (r.observed_at is not None) is observed}
        )
        if clusters:
            what = text if len(clusters) > 1 else text.replace("their", "its").replace("they were", "it was")
            notes.append(f"! {', '.join(clusters)} cannot be reached; {what}")
    return [*notes, "  hint: see the reason with  fairway get clusters"] if notes else []


def _token_state(token: wire.Token, now: datetime) -> str:
    if token.revoked_at is not None:
        return "revoked"
    if token.expires_at is not None and token.expires_at.astimezone(UTC) <= now:
        return "expired"
    return "live"
