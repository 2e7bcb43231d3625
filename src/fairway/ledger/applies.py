"""Applies: asked for by anybody, carried out under a cluster's lease, kept for ever."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import fleets, leases
from fairway.ledger.connection import Connections
from fairway.ledger.observations import kept
from fairway.ledger.policy_records import (
    OPEN_STATES,
    AppliedCluster,
    Apply,
    ApplyCluster,
    ApplyKind,
    ApplyState,
    ApplyWork,
    KeptChange,
)
from fairway.ledger.records import Lease, Revision
from fairway.ledger.states import LONGEST_PAGE
from fairway.ledger.tables import applied_cluster, apply, apply_cluster, fleet_revision
from fairway.model.errors import FairwayError
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Action, Change, FieldChange, ObjectKey, Value

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_STATES)

_APPLY = select(
    apply.c.id,
    apply.c.kind,
    apply.c.created_at,
    apply.c.created_by,
    apply.c.revision,
    fleet_revision.c.digest,
    apply.c.force,
    apply.c.objects,
).select_from(apply.outerjoin(fleet_revision, fleet_revision.c.id == apply.c.revision))

_CLUSTER_FIELDS = (
    apply_cluster.c.cluster,
    apply_cluster.c.state,
    apply_cluster.c.fingerprint,
    apply_cluster.c.total,
    apply_cluster.c.done,
    apply_cluster.c.current,
    apply_cluster.c.code,
    apply_cluster.c.message,
    apply_cluster.c.hint,
    apply_cluster.c.started_at,
    apply_cluster.c.finished_at,
)

_WORK = (
    select(
        apply.c.id,
        apply.c.kind,
        apply.c.created_by,
        apply.c.force,
        apply.c.objects,
        apply_cluster.c.state,
        apply_cluster.c.fingerprint,
        apply_cluster.c.changes,
        fleet_revision.c.id.label("revision"),
        fleet_revision.c.created_at.label("revision_at"),
        fleet_revision.c.created_by.label("revision_by"),
        fleet_revision.c.digest,
        fleet_revision.c.text,
    )
    .select_from(
        apply_cluster.join(apply, apply.c.id == apply_cluster.c.apply).outerjoin(
            fleet_revision, fleet_revision.c.id == apply.c.revision
        )
    )
    # As text, so that the index of what is open serves.
    .where(text(f"apply_cluster.cluster = :cluster AND apply_cluster.state IN ({_OPEN})"))
    .order_by(apply_cluster.c.apply)
    .limit(1)
)

_MINE = f"""
    apply = :apply AND cluster = :cluster AND state IN ({_OPEN}) AND token <= :token
    RETURNING 1
"""

_START = text(f"""
    UPDATE apply_cluster SET
        state = 'running', started_at = COALESCE(started_at, now()), changes = CAST(:changes AS jsonb),
        total = :total, done = :done, code = '', message = '', hint = '', token = :token
    WHERE {_MINE}
""")  # noqa: S608

_PROGRESS = text(f"""
    UPDATE apply_cluster SET
        done = :done, current = :current, code = :code, message = :message, hint = :hint, token = :token
    WHERE {_MINE}
""")  # noqa: S608

_FINISH = text(f"""
    UPDATE apply_cluster SET
        state = :state, changes = CAST(:changes AS jsonb), total = :total, done = :done, current = '',
        code = :code, message = :message, hint = :hint,
        started_at = COALESCE(started_at, now()), finished_at = now(), token = :token
    WHERE {_MINE}
""")  # noqa: S608

_APPLIED = text("""
    INSERT INTO applied_cluster (cluster, apply, applied_at) VALUES (:cluster, :apply, now())
    ON CONFLICT (cluster) DO UPDATE SET apply = excluded.apply, applied_at = now(), looked_at = NULL
    WHERE applied_cluster.apply <= excluded.apply
""")
# What was just made is as it was wanted: nobody should read the differences it healed until the next look.
_HEALED = text("DELETE FROM drift WHERE cluster = :cluster")

_APPLIED_CLUSTERS = (
    select(
        applied_cluster.c.cluster,
        applied_cluster.c.apply,
        apply.c.revision,
        applied_cluster.c.applied_at,
        apply.c.created_by,
        applied_cluster.c.looked_at,
    )
    .join(apply, apply.c.id == applied_cluster.c.apply)
    .order_by(applied_cluster.c.cluster)
)


async def queue(
    connections: Connections,
    content: str,
    digest: str,
    fingerprints: Mapping[ClusterName, str],
    *,
    force: bool,
    by: str,
) -> int:
    async with connections.transaction() as connection:
        revision = await fleets.keep_in(connection, content, digest, by)
        values = {"kind": ApplyKind.APPLY.value, "created_by": by, "force": force, "revision": revision.id}
        return await _queue(connection, values, fingerprints)


async def queue_adoption(
    connections: Connections, cluster: ClusterName, keys: Sequence[ObjectKey], *, by: str
) -> int:
    async with connections.transaction() as connection:
        objects = [[key.kind, key.name] for key in keys]
        values = {"kind": ApplyKind.ADOPT.value, "created_by": by, "force": False, "objects": objects}
        return await _queue(connection, values, {cluster: ""})


async def one(connections: Connections, number: int) -> Apply | None:
    wanted = select(*_CLUSTER_FIELDS, apply_cluster.c.changes).where(apply_cluster.c.apply == number)
    async with connections.transaction() as connection:
        row = (await connection.execute(_APPLY.where(apply.c.id == number))).first()
        if row is None:
            return None
        clusters = (await connection.execute(wanted.order_by(apply_cluster.c.cluster))).all()
    return _apply(row, [_cluster(c, c.changes) for c in clusters])


async def page(
    connections: Connections, *, cluster: str | None, before: int | None, limit: int
) -> tuple[Apply, ...]:
    wanted = _APPLY.order_by(apply.c.id.desc()).limit(max(1, min(limit, LONGEST_PAGE)))
    if before is not None:
        wanted = wanted.where(apply.c.id < before)
    if cluster is not None:
        concerned = select(apply_cluster.c.apply).where(apply_cluster.c.cluster == cluster)
        wanted = wanted.where(apply.c.id.in_(concerned))
    async with connections.transaction() as connection:
        rows = (await connection.execute(wanted)).all()
        clusters = await connection.execute(
            select(apply_cluster.c.apply, *_CLUSTER_FIELDS)
            .where(apply_cluster.c.apply.in_([row.id for row in rows]))
            .order_by(apply_cluster.c.apply, apply_cluster.c.cluster)
        )
    by_apply: dict[int, list[ApplyCluster]] = {}
    for row in clusters:
        by_apply.setdefault(row.apply, []).append(_cluster(row, ()))
    return tuple(_apply(row, by_apply.get(row.id, [])) for row in rows)


async def next_work(connections: Connections, cluster: str) -> ApplyWork | None:
    async with connections.single() as connection:
        row = (await connection.execute(_WORK, {"cluster": cluster})).first()
    if row is None:
        return None
    revision = (
        None
        if row.revision is None
        else Revision(row.revision, row.revision_at, row.revision_by, row.digest, row.text)
    )
    return ApplyWork(
        apply=row.id,
        kind=ApplyKind(row.kind),
        cluster=ClusterName(cluster),
        created_by=row.created_by,
        revision=revision,
        objects=_keys(row.objects),
        force=row.force,
        state=ApplyState(row.state),
        fingerprint=row.fingerprint,
        changes=_decoded(row.changes),
    )


async def applied(connections: Connections, cluster: str | None = None) -> tuple[AppliedCluster, ...]:
    wanted = _APPLIED_CLUSTERS
    if cluster is not None:
        wanted = wanted.where(applied_cluster.c.cluster == cluster)
    async with connections.single() as connection:
        return tuple(AppliedCluster(*row) for row in await connection.execute(wanted))


async def start(
    connection: AsyncConnection, lease: Lease, number: int, changes: Sequence[KeptChange]
) -> None:
    await _write(connection, lease, _START, number, _counted(changes))


async def progress(
    connection: AsyncConnection,
    lease: Lease,
    number: int,
    done: int,
    current: str,
    trouble: FairwayError | None,
) -> None:
    values = {"done": done, "current": kept(current)} | _said(trouble)
    await _write(connection, lease, _PROGRESS, number, values)


async def finish(
    connection: AsyncConnection,
    lease: Lease,
    number: int,
    state: ApplyState,
    changes: Sequence[KeptChange],
    *,
    error: FairwayError | None,
    applied: bool,
) -> None:
    await _write(
        connection, lease, _FINISH, number, {"state": state.value} | _counted(changes) | _said(error)
    )
    if applied:
        await connection.execute(_APPLIED, {"cluster": lease.cluster, "apply": number})
        await connection.execute(_HEALED, {"cluster": lease.cluster})


async def _queue(
    connection: AsyncConnection, values: Mapping[str, object], fingerprints: Mapping[ClusterName, str]
) -> int:
    number = (await connection.execute(insert(apply).values(values).returning(apply.c.id))).scalar_one()
    await connection.execute(
        insert(apply_cluster),
        [
            {"apply": number, "cluster": cluster, "state": ApplyState.WAITING.value, "fingerprint": mark}
            for cluster, mark in fingerprints.items()
        ],
    )
    return int(number)


async def _write(
    connection: AsyncConnection, lease: Lease, statement: Any, number: int, values: dict[str, object]
) -> None:
    mine = {"apply": number, "cluster": lease.cluster, "token": lease.token}
    if (await connection.execute(statement, mine | values)).first() is None:
        # Ended by somebody else: by a later holder of the lease, or because the cluster left the fleet.
        raise leases.lost(lease)


def _counted(changes: Sequence[KeptChange]) -> dict[str, object]:
    return {"changes": encoded_changes(changes), "total": len(changes), "done": sum(c.made for c in changes)}


def _said(error: FairwayError | None) -> dict[str, object]:
    if error is None:
        return {"code": "", "message": "", "hint": ""}
    return {"code": error.code, "message": kept(error.message), "hint": kept(error.hint)}


def _apply(row: Row[*tuple[Any, ...]], clusters: Sequence[ApplyCluster]) -> Apply:
    return Apply(
        id=row.id,
        kind=ApplyKind(row.kind),
        created_at=row.created_at,
        created_by=row.created_by,
        revision=row.revision,
        digest=row.digest or "",
        force=row.force,
        objects=_keys(row.objects),
        clusters=tuple(clusters),
    )


def _cluster(row: Row[*tuple[Any, ...]], changes: Iterable[Any]) -> ApplyCluster:
    fields = {c.name: getattr(row, c.name) for c in _CLUSTER_FIELDS}
    return ApplyCluster(**fields | {"state": ApplyState(row.state)}, changes=_decoded(changes))


def _keys(pairs: Iterable[tuple[str, str]]) -> tuple[ObjectKey, ...]:
    return tuple(ObjectKey(kind, name) for kind, name in pairs)


def encoded_changes(changes: Iterable[KeptChange]) -> str:
    """In a fixed order of columns: field names would be most of a long apply."""
    rows = [
        (
            c.change.action.value,
            c.change.key.kind,
            c.change.key.name,
            c.change.team,
            c.change.stage,
            c.made,
            [(f.field, storable(f.before), storable(f.after)) for f in c.change.fields],
        )
        for c in changes
    ]
    return msgspec.json.encode(rows).decode()


def _decoded(rows: Iterable[Any]) -> tuple[KeptChange, ...]:
    return tuple(
        KeptChange(
            Change(
                Action(action),
                ObjectKey(kind, name),
                tuple(
                    FieldChange(field, restored(before), restored(after)) for field, before, after in fields
                ),
                stage=stage,
                team=None if team is None else TeamName(team),
            ),
            made,
        )
        for action, kind, name, team, stage, made, fields in rows
    )


def storable(value: Value) -> Value:
    """A field's value as PostgreSQL can keep it."""
    if isinstance(value, str):
        return kept(value)
    return tuple(storable(v) for v in value) if isinstance(value, tuple) else value


def restored(value: Any) -> Value:
    """A field's value from JSON, where tuples are lists."""
    restored_: Value = tuple(restored(v) for v in value) if isinstance(value, list) else value
    return restored_
