"""Store submitted jobs and what users request of them: submit once, hold, release, cancel.

The parts that the mirror and the dispatch loop share are here too: job classes, timeline events, and the
dependencies between jobs. Whoever ends a job settles the dependencies on it in the same transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.connection import Connections
from fairway.ledger.errors import HeldByRole, KeyReused
from fairway.ledger.jobs import label_values
from fairway.ledger.records.jobs import HOLD_ROLE, DesiredState, EventKind, NewJob, parse_hold_role
from fairway.ledger.schema.jobs import OPEN_JOBS_SQL
from fairway.ledger.schema.tables import NONE
from fairway.ledger.sql_values import arrays, json_rows
from fairway.model.access import Role
from fairway.model.job import After, JobId, JobSpec, JobState, format_job_id
from fairway.model.labels import OTHER_VALUE, Labels
from fairway.model.text import first_few

_KEY = text("SELECT digest, ids FROM submission_key WHERE by_whom = :by AND key = :key")

# A second transaction with the same key waits here until the first one has ended.
_NEW_KEY = text("""
    INSERT INTO submission_key (by_whom, key, digest, ids) VALUES (:by, :key, :digest, :ids)
    ON CONFLICT DO NOTHING RETURNING 1
""")

_IDS = text("SELECT nextval(pg_get_serial_sequence('job', 'id')) FROM generate_series(1, :count)")

_CLOCK = text("""
    INSERT INTO job_clock (minute, job) VALUES (date_trunc('minute', clock_timestamp()), :job)
    ON CONFLICT DO NOTHING
""")

# What tasks of one array share is sent once.
_JOBS = text("""
    INSERT INTO job (
        id, class, cluster, name, state, wish, array_first, array_index, gpus, nodes, devices, submission,
        submitted_at, not_before, time_seconds, has_after
    )
    SELECT task.id, spec.class, spec.cluster, spec.name, spec.state, spec.wish,
        task.array_first, task.array_index, spec.gpus, spec.nodes, spec.devices, 1,
        now(), now(), spec.time_seconds, spec.has_after
    FROM unnest(
        CAST(:ids AS bigint[]), CAST(:places AS int[]), CAST(:firsts AS bigint[]), CAST(:indexes AS int[])
    ) AS task (id, place, array_first, array_index)
    JOIN jsonb_to_recordset(CAST(:specs AS jsonb)) AS spec (
        place int, class int, cluster text, name text, state text, wish text, gpus int, nodes int,
        devices int, time_seconds int, has_after bool
    ) USING (place)
    ORDER BY task.id
""")

_SPECS = text("""
    INSERT INTO job_spec (job, spec, why_there, submitted_by)
    SELECT *, :by FROM unnest(CAST(:jobs AS bigint[]), CAST(:specs AS text[]), CAST(:whys AS text[]))
""")

_LOCK_OPEN = text(f"""
    SELECT id, state, wish, asked, engine_id, sending_until FROM job
    WHERE id = ANY(CAST(:ids AS bigint[])) AND state IN ({OPEN_JOBS_SQL})
    ORDER BY id FOR UPDATE
""")  # noqa: S608

_REQUEST = text("UPDATE job SET wish = :wish, asked = true WHERE id = ANY(CAST(:ids AS bigint[]))")

_CHANGE_UNSENT = text("""
    UPDATE job SET wish = :wish, asked = false, state = :state,
        ended_at = CASE WHEN :over THEN now() END
    WHERE id = ANY(CAST(:ids AS bigint[]))
""")

_MARK = text("SELECT mark FROM ledger_mark")

_EVENTS = text("""
    INSERT INTO job_event (job, at, kind, by_whom, text)
    SELECT job, COALESCE(at, now()), kind, by_whom, text FROM jsonb_to_recordset(CAST(:rows AS jsonb))
        AS event (job bigint, at timestamptz, kind text, by_whom text, text text)
""")

_CLASS_KEY = "cluster, user_name, team, pool, slice, priority, native, kind, service, project, labels"

_CLASS_ARRAYS = f"""
    unnest(
        CAST(:clusters AS text[]), CAST(:users AS text[]), CAST(:teams AS text[]), CAST(:pools AS text[]),
        CAST(:slices AS text[]), CAST(:priorities AS text[]), CAST(:natives AS bool[]),
        CAST(:kinds AS text[]), CAST(:services AS bool[]), CAST(:projects AS text[]),
        CAST(CAST(:labels AS text[]) AS jsonb[])
    ) WITH ORDINALITY AS wanted ({_CLASS_KEY}, place)
"""

_FIND_CLASSES = text(f"""
    SELECT wanted.place, job_class.id FROM {_CLASS_ARRAYS}
    JOIN job_class USING ({_CLASS_KEY})
""")  # noqa: S608

# Always in the same order, so that two transactions that insert the same classes cannot deadlock.
_ADD_CLASSES = text(f"""
    INSERT INTO job_class ({_CLASS_KEY})
    SELECT {_CLASS_KEY} FROM {_CLASS_ARRAYS} ORDER BY {_CLASS_KEY}
    ON CONFLICT DO NOTHING
""")  # noqa: S608

_LOCK_TARGETS = text("""
    SELECT id, array_first FROM job
    WHERE id = ANY(CAST(:targets AS bigint[])) OR array_first = ANY(CAST(:targets AS bigint[]))
    ORDER BY id FOR SHARE
""")

_ADD_DEPENDENCIES = text("""
    INSERT INTO job_after (job, after, cluster, ending, whole_array)
    SELECT job.id, job_after.after, job.cluster, job_after.ending, job_after.whole_array
    FROM unnest(
        CAST(:jobs AS bigint[]), CAST(:afters AS bigint[]), CAST(:endings AS text[]), CAST(:wholes AS bool[])
    ) AS job_after (job, after, ending, whole_array)
    JOIN job ON job.id = job_after.job
    ON CONFLICT DO NOTHING
""")

_LOCK_DEPENDENCIES = text("""
    WITH targets AS (
        SELECT unnest(CAST(:ended AS bigint[])) AS id
        UNION SELECT array_first FROM job WHERE id = ANY(CAST(:ended AS bigint[])) AND array_first IS NOT NULL
    ), waits AS (
        SELECT job_after.after FROM job_after JOIN targets ON targets.id = job_after.after
        WHERE job_after.met IS NULL
        ORDER BY job_after.job, job_after.after
        FOR UPDATE OF job_after
    )
    SELECT DISTINCT after FROM waits
""")

_DONE: Final = f"'{JobState.DONE.value}'"
_CANCELLED: Final = f"'{JobState.CANCELLED.value}'"

# A cancelled job did not fail: jobs that clean up after failures do not apply to it.
_SETTLE = text(f"""
    WITH fate AS (
        SELECT waits.after, waits.whole_array, count(job.id) AS jobs,
            count(*) FILTER (WHERE job.state IN ({OPEN_JOBS_SQL})) AS open,
            count(*) FILTER (WHERE job.state = {_DONE}) AS done,
            count(*) FILTER (WHERE job.state NOT IN ({OPEN_JOBS_SQL}, {_DONE}, {_CANCELLED})) AS failed
        FROM (
            SELECT DISTINCT after, whole_array FROM job_after
            WHERE after = ANY(CAST(:targets AS bigint[])) AND met IS NULL
        ) AS waits LEFT JOIN LATERAL (
            SELECT id, state FROM job WHERE NOT waits.whole_array AND id = waits.after
            UNION ALL SELECT id, state FROM job WHERE waits.whole_array AND array_first = waits.after
        ) AS job ON true
        GROUP BY waits.after, waits.whole_array
    ), settled AS (
        SELECT after, whole_array, ending, CASE
            WHEN jobs = 0 THEN false
            WHEN ending = 'ok' AND done + open < jobs THEN false
            WHEN open > 0 THEN NULL
            WHEN ending = 'failed' THEN failed > 0
            ELSE true
        END AS met
        FROM fate CROSS JOIN (VALUES ('ok'), ('failed'), ('ended')) AS endings (ending)
    )
    UPDATE job_after SET met = settled.met FROM settled
    WHERE job_after.after = settled.after AND job_after.whole_array = settled.whole_array
        AND job_after.ending = settled.ending AND job_after.met IS NULL AND settled.met IS NOT NULL
""")  # noqa: S608

# The job first, then its dependencies, in the lock order of a cancel; a job that is being changed can wait.
_RELEASE_READY = text("""
    WITH ready AS (
        SELECT DISTINCT waits.job FROM job_after AS waits
        WHERE waits.cluster = :cluster AND waits.met IS NOT NULL AND NOT EXISTS (
            SELECT FROM job_after AS other WHERE other.job = waits.job AND other.met IS NOT TRUE
        )
    ), locked AS (
        SELECT job.id FROM job JOIN ready ON ready.job = job.id ORDER BY job.id
        FOR UPDATE OF job SKIP LOCKED
    ), removed AS (
        DELETE FROM job_after USING locked WHERE job_after.job = locked.id
    )
    UPDATE job SET has_after = false FROM locked WHERE job.id = locked.id
""")

_REMOVE_DEPENDENCIES = text("DELETE FROM job_after WHERE job = ANY(CAST(:jobs AS bigint[]))")

_HOLDS = text("""
    SELECT DISTINCT ON (job) job, text FROM job_event
    WHERE job = ANY(CAST(:ids AS bigint[])) AND kind = 'held' ORDER BY job, id DESC
""")

_REQUESTS: Final = {
    DesiredState.RUN: (EventKind.RELEASED, JobState.QUEUED),
    DesiredState.HOLD: (EventKind.HELD, JobState.HELD),
    DesiredState.CANCEL: (EventKind.CANCELLED, JobState.CANCELLED),
}
"""The event of each request, and the state it gives to a job that was never sent."""


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError


# Sorted, so that the same jobs always have the same digest.
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain, order="sorted")
_DECODER: Final = msgspec.json.Decoder(JobSpec)


@dataclass(frozen=True, slots=True)
class JobClass:
    """The owner and placement of a job; an empty string means none."""

    cluster: str
    user: str
    team: str
    pool: str
    slice: str
    priority: str
    native: bool
    kind: str = NONE
    """The kind of workload on Kubernetes."""
    service: bool = False
    project: str = NONE
    labels: Labels = ()
    """Of the keys that the fleet keeps for cost."""


async def submit(
    connections: Connections, new: Sequence[NewJob], *, by: str, key: str | None
) -> tuple[tuple[JobId, ...], ...]:
    """Store jobs; see `JobStore.submit`."""
    if not new:
        return ()
    digest = b"" if key is None else _digest(new)
    sizes = [max(1, len(job.spec.array)) for job in new]
    async with connections.transaction() as connection:
        if key is not None and (stored := await _stored_ids(connection, by, key, digest)) is not None:
            return _split(stored, sizes)
        ids = list((await connection.execute(_IDS, {"count": sum(sizes)})).scalars())
        if key is not None:
            values = {"by": by, "key": key, "digest": digest, "ids": _format_ranges(ids)}
            if (await connection.execute(_NEW_KEY, values)).first() is None:
                stored = await _stored_ids(connection, by, key, digest)
                if stored is None:
                    raise RuntimeError("a submission's key was there and is not")
                return _split(stored, sizes)
        tasks = _split(ids, sizes)
        await _insert(connection, new, tasks, by)
    return tasks


async def set_desired_state(
    connections: Connections, numbers: Sequence[JobId], desired: DesiredState, *, by: str, role: Role | None
) -> tuple[JobId, ...]:
    """Request a hold, release or cancel; see `JobStore.set_desired_state`."""
    kind, state = _REQUESTS[desired]
    async with connections.transaction() as connection:
        rows = (await connection.execute(_LOCK_OPEN, {"ids": list(numbers)})).all()
        held = [row.id for row in rows if row.wish == DesiredState.HOLD]
        holders = await _hold_roles(connection, held) if role is not None else {}
        if role is not None and desired is DesiredState.RUN:
            _require_may_release(role, holders)
        changed = [
            row
            for row in rows
            if row.wish not in {DesiredState.CANCEL, desired}  # a cancel is final
            or (row.wish == desired == DesiredState.HOLD and _outranks(role, holders.get(row.id)))
        ]
        unsent = [row.id for row in changed if row.engine_id is None and row.sending_until is None]
        sent = sorted({row.id for row in changed}.difference(unsent))
        if unsent:
            over = desired is DesiredState.CANCEL
            values = {"ids": unsent, "wish": desired.value, "state": state.value, "over": over}
            await connection.execute(_CHANGE_UNSENT, values)
            if over:
                await remove_dependencies(connection, unsent)
                await settle_dependencies(connection, unsent)
        if sent:
            await connection.execute(_REQUEST, {"ids": sent, "wish": desired.value})
        as_role = _held_as(role) if desired is DesiredState.HOLD else ""
        await add_events(
            connection, [{"job": row.id, "kind": kind, "by_whom": by, "text": as_role} for row in changed]
        )
    return tuple(JobId(row.id) for row in changed)


def _held_as(role: Role | None) -> str:
    """Return the text of a hold that a member may not release; an operator may release an admin's."""
    if role is None or not role.may(Role.LEAD):
        return ""
    return f"{HOLD_ROLE}{Role.OPERATOR if role.may(Role.OPERATOR) else role}"


def _outranks(role: Role | None, holder: Role | None) -> bool:
    """Return whether a second hold is one that fewer may release than the first."""
    new = parse_hold_role(_held_as(role))
    return new is not None and (holder is None or not holder.may(new))


async def _hold_roles(connection: AsyncConnection, jobs: Sequence[int]) -> dict[int, Role]:
    """Return the role of whoever held each of these held jobs last, if it was a lead's or an operator's."""
    if not jobs:
        return {}
    rows = await connection.execute(_HOLDS, {"ids": list(jobs)})
    return {row.job: role for row in rows if (role := parse_hold_role(row.text)) is not None}


def _require_may_release(role: Role, holders: Mapping[int, Role]) -> None:
    above = {job: holder for job, holder in sorted(holders.items()) if not role.may(holder)}
    if above:
        words = [format_job_id(JobId(job)) for job in above]
        highest = max(above.values(), key=list(Role).index)
        raise HeldByRole(
            "HeldByRole",
            f"{first_few(words, 10)} was put on hold by a {highest}, and your role is {role}; nothing was "
            "released",
            f"ask them to release it:  fairway describe job {words[0]}",
        )


async def ledger_mark(connection: AsyncConnection) -> str:
    """Return the mark that distinguishes this ledger's engine jobs from another's."""
    return str((await connection.execute(_MARK)).scalar_one())


async def add_events(connection: AsyncConnection, rows: Sequence[dict[str, object]]) -> None:
    """Add timeline events: job, kind, and optionally `at`, `by_whom`, `text`."""
    if rows:
        defaults = {"at": None, "by_whom": "", "text": ""}
        await connection.execute(_EVENTS, {"rows": json_rows([defaults | row for row in rows])})


async def new_ids(connection: AsyncConnection, count: int) -> list[int]:
    """Assign rising new job ids, and record when they were assigned."""
    ids = list((await connection.execute(_IDS, {"count": count})).scalars())
    await connection.execute(_CLOCK, {"job": ids[0]})
    return ids


async def class_ids(connection: AsyncConnection, classes: Iterable[JobClass]) -> dict[JobClass, int]:
    """Return the id of each class, inserting those that are missing."""
    wanted = sorted(set(classes), key=astuple)
    if not wanted:
        return {}
    found = await _find_classes(connection, wanted)
    missing = [class_ for class_ in wanted if class_ not in found]
    if missing:
        bounded = await _bounded(connection, missing)
        allowed = sorted(set(bounded.values()), key=astuple)
        await connection.execute(_ADD_CLASSES, _class_arrays(allowed))
        ids = await _find_classes(connection, allowed)
        found |= {class_: ids[bounded[class_]] for class_ in missing}
    return found


async def _bounded(connection: AsyncConnection, classes: Iterable[JobClass]) -> dict[JobClass, JobClass]:
    """Replace projects and values of labels of which there are too many by `(other)`."""
    values = {class_: ((NONE, class_.project), *class_.labels) for class_ in classes}
    wanted = sorted({pair for pairs in values.values() for pair in pairs if pair[1]})
    if not wanted:
        return {class_: class_ for class_ in values}
    known = await label_values.known(connection, wanted) | {(NONE, NONE)}
    bounded = {}
    for class_, pairs in values.items():
        (_, project), *labels = (
            (key, value if (key, value) in known else OTHER_VALUE) for key, value in pairs
        )
        bounded[class_] = replace(class_, project=project, labels=tuple(labels))
    return bounded


async def settle_dependencies(connection: AsyncConnection, ended: Sequence[int]) -> None:
    """Settle the dependencies on these jobs, or on their arrays, as met or unmet."""
    if not ended:
        return
    targets = (await connection.execute(_LOCK_DEPENDENCIES, {"ended": list(ended)})).scalars().all()
    if targets:
        await connection.execute(_SETTLE, {"targets": list(targets)})


async def release_ready(connection: AsyncConnection, cluster: str) -> None:
    """Release the jobs of a cluster whose dependencies are all met."""
    await connection.execute(_RELEASE_READY, {"cluster": cluster})


async def remove_dependencies(connection: AsyncConnection, jobs: Sequence[int]) -> None:
    """Remove the dependencies of jobs that ended."""
    if jobs:
        await connection.execute(_REMOVE_DEPENDENCIES, {"jobs": list(jobs)})


def encode_spec(spec: JobSpec) -> str:
    """Encode a spec as JSON. Fields that a later version adds have their defaults when an old row is read."""
    return _ENCODER.encode(spec).decode()


def decode_spec(encoded: str) -> JobSpec:
    """Decode a spec encoded by `encode_spec`."""
    return _DECODER.decode(encoded)


def _digest(jobs: Sequence[NewJob]) -> bytes:
    """Hash what was requested, not what was decided: a repeated request may be decided differently."""
    total = blake2b(digest_size=16)
    for job in jobs:
        total.update(_ENCODER.encode((job.spec, job.user, job.hold)))
    return total.digest()


async def has_key(connection: AsyncConnection, by: str, key: str) -> bool:
    """Return whether jobs were submitted under this key."""
    return (await connection.execute(_KEY, {"by": by, "key": key})).first() is not None


async def _stored_ids(connection: AsyncConnection, by: str, key: str, digest: bytes) -> list[int] | None:
    row = (await connection.execute(_KEY, {"by": by, "key": key})).first()
    if row is None:
        return None
    if bytes(row.digest) != digest:
        raise KeyReused(
            "KeyReused",
            f"other jobs were already submitted with the key {key} before",
            "use a new key for new jobs; to repeat a submission safely, send exactly the same jobs",
        )
    return _parse_ranges(row.ids)


def _format_ranges(ids: Sequence[int]) -> str:
    """Format ids as compact ranges: `17-2016,2040-2041`."""
    runs: list[list[int]] = []
    for id_ in ids:
        if runs and id_ == runs[-1][1] + 1:
            runs[-1][1] = id_
        else:
            runs.append([id_, id_])
    return ",".join(f"{first}-{last}" for first, last in runs)


def _parse_ranges(ranges: str) -> list[int]:
    pairs = (run.split("-") for run in ranges.split(",") if run)
    return [id_ for first, last in pairs for id_ in range(int(first), int(last) + 1)]


def _split(ids: Sequence[int], sizes: Sequence[int]) -> tuple[tuple[JobId, ...], ...]:
    """Split ids into the tasks of each job."""
    remaining = iter(ids)
    return tuple(tuple(JobId(next(remaining)) for _ in range(size)) for size in sizes)


async def _insert(
    connection: AsyncConnection, new: Sequence[NewJob], tasks: Sequence[Sequence[JobId]], by: str
) -> None:
    await connection.execute(_CLOCK, {"job": tasks[0][0]})
    classes = [class_of(job) for job in new]
    ids_of_classes = await class_ids(connection, classes)
    specs = [
        {
            "place": place,
            "class": ids_of_classes[class_],
            "cluster": class_.cluster,
            "name": job.spec.name,
            "state": (JobState.HELD if job.hold else JobState.QUEUED).value,
            "wish": (DesiredState.HOLD if job.hold else DesiredState.RUN).value,
            "gpus": job.spec.gpus.count,
            "nodes": job.spec.nodes,
            "devices": job.spec.devices,
            "time_seconds": job.spec.time_seconds,
            "has_after": bool(job.spec.after),
        }
        for place, (job, class_) in enumerate(zip(new, classes, strict=True))
    ]
    pairs = list(zip(new, tasks, strict=True))
    rows = [
        (id_, place, ids[0] if job.spec.array else None, index)
        for place, (job, ids) in enumerate(pairs)
        for id_, index in zip(ids, job.spec.array or (None,), strict=True)
    ]
    values = arrays(rows, "ids", "places", "firsts", "indexes")
    await connection.execute(_JOBS, values | {"specs": json_rows(specs)})
    encoded = [(ids[0], encode_spec(job.spec), job.placement.why) for job, ids in pairs]
    await connection.execute(_SPECS, arrays(encoded, "jobs", "specs", "whys") | {"by": by})
    await _add_dependencies(connection, {id_: job.spec.after for job, ids in pairs for id_ in ids})


def class_of(job: NewJob) -> JobClass:
    """Return the class of a job to be stored."""
    supply = job.placement.supply
    return JobClass(
        job.placement.cluster,
        job.user,
        job.team,
        supply.pool,
        supply.slice or NONE,
        job.priority,
        native=False,
        kind=job.kind,
        service=job.service,
        project=job.project,
        labels=job.labels,
    )


async def _find_classes(connection: AsyncConnection, wanted: list[JobClass]) -> dict[JobClass, int]:
    rows = await connection.execute(_FIND_CLASSES, _class_arrays(wanted))
    return {wanted[place - 1]: id_ for place, id_ in rows}


def _class_arrays(classes: Iterable[JobClass]) -> dict[str, object]:
    names = ("clusters", "users", "teams", "pools", "slices", "priorities", "natives", "kinds", "services")
    rows = [(*astuple(class_)[:-1], json_rows(dict(class_.labels))) for class_ in classes]
    return arrays(rows, *names, "projects", "labels")


async def _add_dependencies(
    connection: AsyncConnection, dependencies: Mapping[JobId, Iterable[After]]
) -> None:
    """Add dependencies of jobs stored in this transaction. One on an unknown job can never be met."""
    pairs = [(job, after) for job, afters in dependencies.items() for after in afters]
    if not pairs:
        return
    targets = sorted({after.job for _, after in pairs})
    firsts = {row.array_first for row in await connection.execute(_LOCK_TARGETS, {"targets": targets})}
    rows = [(job, after.job, after.when.value, after.job in firsts) for job, after in pairs]
    await connection.execute(_ADD_DEPENDENCIES, arrays(rows, "jobs", "afters", "endings", "wholes"))
    await connection.execute(_SETTLE, {"targets": targets})
