"""Read and write applies: queued by any user, carried out under a cluster's lease, stored permanently."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import fields
from datetime import datetime
from typing import Any

from sqlalchemy import TextClause, func, insert, select, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import leases
from fairway.ledger.connection import LedgerStore
from fairway.ledger.fleet import revisions
from fairway.ledger.fleet.revisions import RevisionStore
from fairway.ledger.leases import FencedWriter
from fairway.ledger.records.fleet import Revision
from fairway.ledger.records.policy import (
    AppliedCluster,
    Apply,
    ApplyCluster,
    ApplyWork,
    StoppedApply,
    StoredChange,
)
from fairway.ledger.schema.tables import (
    OPEN_APPLIES_SQL,
    applied_cluster,
    apply,
    apply_cluster,
    fleet_revision,
    saved_object,
)
from fairway.ledger.sql_values import AnyRow, json_rows, page_limit, sanitize
from fairway.model.apply import ApplyKind, ApplyState, Lifted
from fairway.model.errors import FairwayError
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Action, Change, FieldChange, ObjectKey, SavedObject, Value

# A revision with the text of an older one: somebody went back to it.
_SAME_TEXT = select(
    fleet_revision.c.id,
    func.max(fleet_revision.c.id)
    .over(partition_by=fleet_revision.c.digest, order_by=fleet_revision.c.id, rows=(None, -1))
    .label("earlier"),
).subquery()

_SUCCESSFUL = text("""
    SELECT COALESCE(min(finished_at), apply.created_at) AS at, revision
    FROM apply JOIN apply_cluster ON apply_cluster.apply = apply.id
    WHERE kind = 'apply' AND revision IS NOT NULL AND state = 'done'
    GROUP BY apply.id ORDER BY 1, apply.id
""")

_APPLY = select(
    apply.c.id,
    apply.c.kind,
    apply.c.created_at,
    apply.c.created_by,
    apply.c.revision,
    fleet_revision.c.digest,
    apply.c.force,
    apply.c.reprice_past,
    apply.c.objects,
    _SAME_TEXT.c.earlier.label("rollback_to"),
).select_from(
    apply.outerjoin(fleet_revision, fleet_revision.c.id == apply.c.revision).outerjoin(
        _SAME_TEXT, _SAME_TEXT.c.id == apply.c.revision
    )
)

_CLUSTER_FIELDS = tuple(
    apply_cluster.c[field.name] for field in fields(ApplyCluster) if field.name != "changes"
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
    # As text, so that the index of open applies serves.
    .where(text(f"apply_cluster.cluster = :cluster AND apply_cluster.state IN ({OPEN_APPLIES_SQL})"))
    .order_by(apply_cluster.c.apply)
    .limit(1)
)

_IS_CURRENT = f"""
    apply = :apply AND cluster = :cluster AND state IN ({OPEN_APPLIES_SQL}) AND token <= :token
    RETURNING 1
"""

_START = text(f"""
    UPDATE apply_cluster SET
        state = 'running', started_at = COALESCE(started_at, now()), changes = CAST(:changes AS jsonb),
        total = :total, done = :done, code = '', message = '', hint = '', token = :token
    WHERE {_IS_CURRENT}
""")  # noqa: S608

_PROGRESS = text(f"""
    UPDATE apply_cluster SET
        done = :done, current = :current, code = :code, message = :message, hint = :hint, token = :token
    WHERE {_IS_CURRENT}
""")  # noqa: S608

_FINISH = text(f"""
    UPDATE apply_cluster SET
        state = :state, changes = CAST(:changes AS jsonb), total = :total, done = :done, current = '',
        code = :code, message = :message, hint = :hint,
        started_at = COALESCE(started_at, now()), finished_at = now(), token = :token
    WHERE {_IS_CURRENT}
""")  # noqa: S608

_APPLIED = text("""
    INSERT INTO applied_cluster (cluster, apply, applied_at) VALUES (:cluster, :apply, now())
    ON CONFLICT (cluster) DO UPDATE SET apply = excluded.apply, applied_at = now(), looked_at = NULL,
        lifted = '', lifted_by = '', lifted_at = NULL
    WHERE applied_cluster.apply <= excluded.apply
""")
# The cluster is now as the fleet defines it: differences that the apply removed must not show until the next
# comparison.
_REMOVE_DRIFT = text("DELETE FROM drift WHERE cluster = :cluster")

_LIFTED = text("""
    UPDATE applied_cluster SET lifted = :lifted, lifted_by = :by, lifted_at = now()
    WHERE cluster = :cluster
""")

_RELEASED_DRIFT = text("""
    INSERT INTO drift (cluster, object_kind, object_name, field, kind, wanted, found, changed_by, since)
    VALUES (:cluster, 'policy', :cluster, 'guards', 'changed', '"enforced"', '"released"', :by, now())
""")

# The first state is kept until the cluster is left, however often an object is adopted.
_SAVE = text("""
    INSERT INTO saved_object (cluster, kind, name, fields, record)
    SELECT :cluster, kind, name, COALESCE(fields, '{}'), NULLIF(record, 'null')
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS row (kind text, name text, fields jsonb, record jsonb)
    ON CONFLICT (cluster, kind, name) DO NOTHING
""")
_FORGET = text("""
    DELETE FROM saved_object USING jsonb_to_recordset(CAST(:rows AS jsonb)) AS row (kind text, name text)
    WHERE saved_object.cluster = :cluster AND saved_object.kind = row.kind AND saved_object.name = row.name
        AND (saved_object.record IS NULL OR :restored)
""")
_FORGET_OTHERS = text("""
    DELETE FROM saved_object WHERE cluster = :cluster AND NOT EXISTS (
        SELECT FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS row (kind text, name text)
        WHERE saved_object.kind = row.kind AND saved_object.name = row.name
    )
""")

_APPLIED_CLUSTERS = (
    select(
        applied_cluster.c.cluster,
        applied_cluster.c.apply,
        apply.c.revision,
        applied_cluster.c.applied_at,
        apply.c.created_by.label("applied_by"),
        applied_cluster.c.looked_at,
        applied_cluster.c.lifted,
        applied_cluster.c.lifted_by,
        applied_cluster.c.lifted_at,
    )
    .join(apply, apply.c.id == applied_cluster.c.apply)
    .order_by(applied_cluster.c.cluster)
)


# Of clusters that are part of the fleet: nobody can finish the apply of another one.
_STOPPED = text("""
    SELECT * FROM (
        SELECT DISTINCT ON (apply_cluster.cluster) apply_cluster.apply, apply_cluster.cluster, apply.kind,
            apply.revision, apply_cluster.state, apply_cluster.total, apply_cluster.done, apply_cluster.code,
            apply_cluster.message, apply_cluster.hint, apply_cluster.finished_at, apply_cluster.changes
        FROM apply_cluster JOIN apply ON apply.id = apply_cluster.apply
        JOIN cluster_state ON cluster_state.cluster = apply_cluster.cluster
        WHERE apply.kind <> 'adopt' AND apply_cluster.state IN ('done', 'failed')
        ORDER BY apply_cluster.cluster, apply_cluster.apply DESC
    ) AS newest WHERE kind = 'apply' AND state = 'failed'
""")


class ApplyStore(LedgerStore):
    """Reads and queues applies."""

    async def queue(
        self,
        text: str,
        digest: str,
        fingerprints: Mapping[ClusterName, str],
        *,
        force: bool,
        by: str,
        reprice_past: bool = False,
    ) -> int:
        """Store a newest fleet revision and queue its apply to the given clusters. Returns the apply's id.

        Each cluster comes with the fingerprint of the plan that was reviewed.
        """
        async with self._connections.transaction() as connection:
            revision = await revisions.add_in(connection, text, digest, by)
            values = {
                "kind": ApplyKind.APPLY.value,
                "created_by": by,
                "force": force,
                "reprice_past": reprice_past,
                "revision": revision.id,
            }
            return await _queue(connection, values, fingerprints)

    async def queue_adoption(self, cluster: ClusterName, keys: Sequence[ObjectKey], *, by: str) -> int:
        """Queue an apply that puts Fairway's ownership mark on these objects. Returns its id."""
        async with self._connections.transaction() as connection:
            objects = [[key.kind, key.name] for key in keys]
            values = {"kind": ApplyKind.ADOPT.value, "created_by": by, "force": False, "objects": objects}
            return await _queue(connection, values, {cluster: ""})

    async def queue_return(self, kind: ApplyKind, cluster: ClusterName, fingerprint: str, *, by: str) -> int:
        """Queue leaving a cluster, or the release of its guards. Returns the id of the apply."""
        async with self._connections.transaction() as connection:
            values = {"kind": kind.value, "created_by": by, "force": False}
            return await _queue(connection, values, {cluster: fingerprint})

    async def saved(self, cluster: str) -> tuple[SavedObject, ...]:
        """Return the objects of a cluster as they were before Fairway first changed them."""
        query = (
            select(saved_object.c.kind, saved_object.c.name, saved_object.c.fields, saved_object.c.record)
            .where(saved_object.c.cluster == cluster)
            .order_by(saved_object.c.kind, saved_object.c.name)
        )
        return tuple(
            SavedObject(
                ObjectKey(row.kind, row.name),
                {name: restored(value) for name, value in row.fields.items()},
                row.record,
            )
            for row in await self._fetch(query)
        )

    async def one(self, number: int) -> Apply | None:
        """Return one apply with all its changes. Returns None if it is unknown."""
        of_apply = select(*_CLUSTER_FIELDS, apply_cluster.c.changes).where(apply_cluster.c.apply == number)
        async with self._connections.transaction() as connection:
            row = (await connection.execute(_APPLY.where(apply.c.id == number))).first()
            if row is None:
                return None
            clusters = (await connection.execute(of_apply.order_by(apply_cluster.c.cluster))).all()
        return _apply(row, [_cluster(c, c.changes) for c in clusters])

    async def page(
        self, *, cluster: str | None = None, before: int | None = None, limit: int = 100
    ) -> tuple[Apply, ...]:
        """Return at most `limit` (≤ 2000) applies without changes, newest first; `before`: last id seen."""
        page = _APPLY.order_by(apply.c.id.desc()).limit(page_limit(limit))
        if before is not None:
            page = page.where(apply.c.id < before)
        if cluster is not None:
            of_cluster = select(apply_cluster.c.apply).where(apply_cluster.c.cluster == cluster)
            page = page.where(apply.c.id.in_(of_cluster))
        async with self._connections.transaction() as connection:
            rows = (await connection.execute(page)).all()
            clusters = await connection.execute(
                select(apply_cluster.c.apply, *_CLUSTER_FIELDS)
                .where(apply_cluster.c.apply.in_([row.id for row in rows]))
                .order_by(apply_cluster.c.apply, apply_cluster.c.cluster)
            )
        by_apply: dict[int, list[ApplyCluster]] = {}
        for row in clusters:
            by_apply.setdefault(row.apply, []).append(_cluster(row, ()))
        return tuple(_apply(row, by_apply.get(row.id, [])) for row in rows)

    async def successful(self) -> list[tuple[datetime, int]]:
        """Return when each apply of a fleet first succeeded on a cluster, and its revision, in order."""
        return [(row.at, row.revision) for row in await self._fetch(_SUCCESSFUL)]

    async def next_work(self, cluster: str) -> ApplyWork | None:
        """Return the oldest open work of a cluster. Returns None if there is none."""
        row = await self._fetch_first(_WORK, {"cluster": cluster})
        if row is None:
            return None
        revision = Revision(row.revision, row.revision_at, row.revision_by, row.digest, row.text)
        return ApplyWork(
            apply=row.id,
            kind=ApplyKind(row.kind),
            cluster=ClusterName(cluster),
            created_by=row.created_by,
            revision=None if row.revision is None else revision,
            objects=_keys(row.objects),
            force=row.force,
            state=ApplyState(row.state),
            fingerprint=row.fingerprint,
            changes=_decoded(row.changes),
        )

    async def applied(self, cluster: str | None = None) -> tuple[AppliedCluster, ...]:
        """Return what was last applied to each cluster, or to one, by cluster name."""
        query = _APPLIED_CLUSTERS
        if cluster is not None:
            query = query.where(applied_cluster.c.cluster == cluster)
        return tuple(
            AppliedCluster(**{**row._mapping, "lifted": Lifted(row.lifted) if row.lifted else None})
            for row in await self._fetch(query)
        )

    async def stopped(self) -> tuple[StoppedApply, ...]:
        """Return the newest apply of each cluster that stopped before its end, by cluster."""
        return tuple(
            StoppedApply(
                apply=row.apply,
                cluster=ClusterName(row.cluster),
                revision=row.revision,
                total=row.total,
                done=row.done,
                code=row.code,
                message=row.message,
                hint=row.hint,
                finished_at=row.finished_at,
                changes=_decoded(row.changes),
            )
            for row in await self._fetch(_STOPPED)
        )

    async def applied_to(self, cluster: str) -> AppliedCluster | None:
        """Return what was last applied to a cluster: cheap, for polling. Returns None if nothing was."""
        return next(iter(await self.applied(cluster)), None)

    async def applied_fleet(self, cluster: str) -> Revision | None:
        """Return the fleet that was last applied to a cluster. Returns None if none was."""
        applied = await self.applied_to(cluster)
        return None if applied is None else await RevisionStore(self._connections).one(applied.revision)


class ApplyWriter(FencedWriter):
    """Writes the progress of an apply on the lease's cluster."""

    async def start(self, apply: int, changes: Sequence[StoredChange]) -> None:
        """Record, before the first write, that an apply begins or goes on, and its changes."""
        await self._write(_START, apply, _change_values(changes))

    async def progress(
        self, apply: int, done: int, current: str = "", trouble: FairwayError | None = None
    ) -> None:
        """Record how far an apply is, and what delays it."""
        values = {"done": done, "current": sanitize(current)} | _error_values(trouble)
        await self._write(_PROGRESS, apply, values)

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
        values = {"state": state.value} | _change_values(changes) | _error_values(error)
        await self._write(_FINISH, apply, values)
        made = [c.change for c in changes if c.made]
        created = [SavedObject(c.key, {}, None) for c in made if c.action is Action.CREATE]
        await self.save(created)
        await self._forget([c.key for c in made if c.action is Action.DELETE], restored=False)
        await self._forget([c.key for c in made if c.action is Action.RESTORE], restored=True)
        if applied:
            await self._connection.execute(_APPLIED, {"cluster": self._lease.cluster, "apply": apply})
            await self._connection.execute(_REMOVE_DRIFT, {"cluster": self._lease.cluster})

    async def save(self, objects: Sequence[SavedObject]) -> None:
        """Save objects as they are before their first change; those that were saved before stay as saved."""
        rows = [
            {
                "kind": sanitize(o.key.kind),
                "name": sanitize(o.key.name),
                "fields": {name: storable(value) for name, value in o.fields.items()},
                "record": _storable_record(o.record),
            }
            for o in objects
        ]
        if rows:
            values = {"cluster": self._lease.cluster, "rows": json_rows(rows)}
            await self._connection.execute(_SAVE, values)

    async def lift(self, lifted: Lifted, by: str, staying: Sequence[ObjectKey] = ()) -> None:
        """Record that the cluster's policy is no longer enforced.

        Of a cluster that was left only what was saved of objects that are `staying` is needed again.
        """
        values = {"cluster": self._lease.cluster, "lifted": lifted.value, "by": sanitize(by)}
        await self._connection.execute(_LIFTED, values)
        await self._connection.execute(_REMOVE_DRIFT, {"cluster": self._lease.cluster})
        if lifted is Lifted.RELEASED:  # shown like any other difference, until the next apply
            await self._connection.execute(_RELEASED_DRIFT, values)
        if lifted is Lifted.LEFT:
            rows = json_rows([{"kind": k.kind, "name": k.name} for k in staying])
            await self._connection.execute(_FORGET_OTHERS, {"cluster": self._lease.cluster, "rows": rows})

    async def _forget(self, keys: Sequence[ObjectKey], *, restored: bool) -> None:
        """Delete what was saved of objects that Fairway created or, if `restored`, of any."""
        if keys:
            rows = json_rows([{"kind": sanitize(k.kind), "name": sanitize(k.name)} for k in keys])
            values = {"cluster": self._lease.cluster, "rows": rows, "restored": restored}
            await self._connection.execute(_FORGET, values)

    async def _write(self, statement: TextClause, apply: int, values: dict[str, object]) -> None:
        key = {"apply": apply, "cluster": self._lease.cluster, "token": self._lease.token}
        if (await self._connection.execute(statement, key | values)).first() is None:
            # Ended by another server: by a later holder of the lease, or because the cluster left the fleet.
            raise leases.lost(self._lease)


async def _queue(
    connection: AsyncConnection, values: Mapping[str, object], fingerprints: Mapping[ClusterName, str]
) -> int:
    number = (await connection.execute(insert(apply).values(values).returning(apply.c.id))).scalar_one()
    await connection.execute(
        insert(apply_cluster),
        [
            {"apply": number, "cluster": name, "state": ApplyState.WAITING.value, "fingerprint": fingerprint}
            for name, fingerprint in fingerprints.items()
        ],
    )
    return int(number)


def _change_values(changes: Sequence[StoredChange]) -> dict[str, object]:
    return {"changes": encoded_changes(changes), "total": len(changes), "done": sum(c.made for c in changes)}


def _error_values(error: FairwayError | None) -> dict[str, object]:
    if error is None:
        return {"code": "", "message": "", "hint": ""}
    return {"code": error.code, "message": sanitize(error.message), "hint": sanitize(error.hint)}


def _apply(row: AnyRow, clusters: Sequence[ApplyCluster]) -> Apply:
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
        rollback_to=row.rollback_to,
        reprice_past=row.reprice_past,
    )


def _cluster(row: AnyRow, changes: Iterable[Any]) -> ApplyCluster:
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
    return json_rows(rows)


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
        return sanitize(value)
    return tuple(storable(v) for v in value) if isinstance(value, tuple) else value


def _storable_record(value: Any) -> Any:
    """Sanitize a record for PostgreSQL."""
    match value:
        case str():  # whole: a cut text would be restored
            return value.replace("\0", "").encode("utf-8", "replace").decode()
        case Mapping():
            return {str(key): _storable_record(below) for key, below in value.items()}
        case list() | tuple():
            return [_storable_record(item) for item in value]
        case _:
            return value


def restored(value: Any) -> Value:
    """Restore a field's value from JSON, where tuples are lists."""
    result: Value = tuple(restored(v) for v in value) if isinstance(value, list) else value
    return result
