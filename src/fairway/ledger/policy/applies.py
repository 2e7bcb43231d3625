"""Applies: queued by any user, carried out under a cluster's lease, stored permanently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
from sqlalchemy import Row, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import leases
from fairway.ledger.connection import Connections
from fairway.ledger.fleet import revisions
from fairway.ledger.fleet.clusters import LONGEST_PAGE
from fairway.ledger.fleet.observations import kept
from fairway.ledger.fleet.revisions import RevisionStore
from fairway.ledger.records.fleet import Lease, Revision
from fairway.ledger.records.policy import (
    AppliedCluster,
    Apply,
    ApplyCluster,
    ApplyKind,
    ApplyState,
    ApplyWork,
    StoredChange,
)
from fairway.ledger.schema.tables import (
    OPEN_APPLIES_SQL,
    applied_cluster,
    apply,
    apply_cluster,
    fleet_revision,
)
from fairway.model.errors import FairwayError
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Action, Change, FieldChange, ObjectKey, Value

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
    .where(text(f"apply_cluster.cluster = :cluster AND apply_cluster.state IN ({OPEN_APPLIES_SQL})"))
    .order_by(apply_cluster.c.apply)
    .limit(1)
)

_MINE = f"""
    apply = :apply AND cluster = :cluster AND state IN ({OPEN_APPLIES_SQL}) AND token <= :token
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


class ApplyStore:
    """Reads and queues applies."""

    def __init__(self, connections: Connections) -> None:
        self._connections = connections

    async def queue(
        self, text: str, digest: str, fingerprints: Mapping[ClusterName, str], *, force: bool, by: str
    ) -> int:
        """Store a newest fleet revision and queue its apply to the given clusters. Returns the apply's id.

        Each cluster comes with the fingerprint of the plan that was reviewed.
        """
        async with self._connections.transaction() as connection:
            revision = await revisions.keep_in(connection, text, digest, by)
            values = {
                "kind": ApplyKind.APPLY.value,
                "created_by": by,
                "force": force,
                "revision": revision.id,
            }
            return await _queue(connection, values, fingerprints)

    async def queue_adoption(self, cluster: ClusterName, keys: Sequence[ObjectKey], *, by: str) -> int:
        """Queue an apply that puts Fairway's ownership mark on these objects. Returns its id."""
        async with self._connections.transaction() as connection:
            objects = [[key.kind, key.name] for key in keys]
            values = {"kind": ApplyKind.ADOPT.value, "created_by": by, "force": False, "objects": objects}
            return await _queue(connection, values, {cluster: ""})

    async def one(self, number: int) -> Apply | None:
        """Return one apply with all its changes. Returns None if it is unknown."""
        wanted = select(*_CLUSTER_FIELDS, apply_cluster.c.changes).where(apply_cluster.c.apply == number)
        async with self._connections.transaction() as connection:
            row = (await connection.execute(_APPLY.where(apply.c.id == number))).first()
            if row is None:
                return None
            clusters = (await connection.execute(wanted.order_by(apply_cluster.c.cluster))).all()
        return _apply(row, [_cluster(c, c.changes) for c in clusters])

    async def page(
        self, *, cluster: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Apply, ...]:
        """Return at most `limit` (≤ 2000) applies without changes, newest first; `before`: last id seen."""
        wanted = _APPLY.order_by(apply.c.id.desc()).limit(max(1, min(limit, LONGEST_PAGE)))
        if before is not None:
            wanted = wanted.where(apply.c.id < before)
        if cluster is not None:
            concerned = select(apply_cluster.c.apply).where(apply_cluster.c.cluster == cluster)
            wanted = wanted.where(apply.c.id.in_(concerned))
        async with self._connections.transaction() as connection:
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

    async def next_work(self, cluster: str) -> ApplyWork | None:
        """Return the oldest open work of a cluster. Returns None if there is none."""
        async with self._connections.single() as connection:
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

    async def applied(self, cluster: str | None = None) -> tuple[AppliedCluster, ...]:
        """Return what was last applied to each cluster, or to one, by cluster name."""
        wanted = _APPLIED_CLUSTERS
        if cluster is not None:
            wanted = wanted.where(applied_cluster.c.cluster == cluster)
        async with self._connections.single() as connection:
            return tuple(AppliedCluster(*row) for row in await connection.execute(wanted))

    async def applied_to(self, cluster: str) -> AppliedCluster | None:
        """Return what was last applied to a cluster: cheap, for polling. Returns None if nothing was."""
        return next(iter(await self.applied(cluster)), None)

    async def applied_fleet(self, cluster: str) -> Revision | None:
        """Return the fleet that was last applied to a cluster. Returns None if none was."""
        known = await self.applied_to(cluster)
        return None if known is None else await RevisionStore(self._connections).one(known.revision)


class ApplyWriter:
    """Writes the progress of an apply on the lease's cluster."""

    def __init__(self, connection: AsyncConnection, lease: Lease) -> None:
        self._connection = connection
        self._lease = lease

    async def start(self, apply: int, changes: Sequence[StoredChange]) -> None:
        """Record, before the first write, that an apply begins or goes on, and its changes."""
        await _write(self._connection, self._lease, _START, apply, _counted(changes))

    async def progress(
        self, apply: int, done: int, current: str = "", trouble: FairwayError | None = None
    ) -> None:
        """Record how far an apply is, and what delays it."""
        values = {"done": done, "current": kept(current)} | _said(trouble)
        await _write(self._connection, self._lease, _PROGRESS, apply, values)

    async def finish(
        self,
        apply: int,
        state: ApplyState,
        changes: Sequence[StoredChange],
        *,
        error: FairwayError | None = None,
        applied: bool = False,
    ) -> None:
        """Record how an apply ended; `applied`: its fleet is now what drift is measured against."""
        await _write(
            self._connection,
            self._lease,
            _FINISH,
            apply,
            {"state": state.value} | _counted(changes) | _said(error),
        )
        if applied:
            await self._connection.execute(_APPLIED, {"cluster": self._lease.cluster, "apply": apply})
            await self._connection.execute(_HEALED, {"cluster": self._lease.cluster})


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


def _counted(changes: Sequence[StoredChange]) -> dict[str, object]:
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


def encoded_changes(changes: Iterable[StoredChange]) -> str:
    """Encode changes as JSON rows in a fixed column order: field names would be most of a long apply."""
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


def _decoded(rows: Iterable[Any]) -> tuple[StoredChange, ...]:
    return tuple(
        StoredChange(
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
    """Sanitize a field's value for PostgreSQL."""
    if isinstance(value, str):
        return kept(value)
    return tuple(storable(v) for v in value) if isinstance(value, tuple) else value


def restored(value: Any) -> Value:
    """Restore a field's value from JSON, where tuples are lists."""
    restored_: Value = tuple(restored(v) for v in value) if isinstance(value, list) else value
    return restored_
