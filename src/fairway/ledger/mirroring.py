"""Keeps what engines show of their jobs: a few statements for a batch, and only rows that changed.

The batch is first compared with what is kept, without locks: mostly little has changed. Only what has is
locked, in the order of ids as everybody does, and decided again if somebody wrote to it meanwhile: the loop
that sends writes the same rows at the same time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Row, text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import attempt_rows, job_afters, job_specs, metering, sending, sightings
from fairway.ledger.connection import Connections
from fairway.ledger.job_classes import JobClass, numbers
from fairway.ledger.job_details import attempt_of
from fairway.ledger.job_pages import LATE
from fairway.ledger.job_records import EventKind, Kept, Wish
from fairway.ledger.jobs import add_events, mark_of, new_ids
from fairway.ledger.observations import kept
from fairway.ledger.records import Lease
from fairway.ledger.sightings import Merged, Numbered, Standing
from fairway.ledger.tables import NONE
from fairway.model.job import OPEN_JOBS, EngineId, JobId, JobSpec, JobState, SeenJob, engine_name, job_number

_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_JOBS)

_MARK = text("SELECT mark FROM mirror_mark WHERE cluster = :cluster")

_KEEP_MARK = text("""
    INSERT INTO mirror_mark (cluster, mark, at) VALUES (:cluster, :mark, now())
    ON CONFLICT (cluster) DO UPDATE SET mark = excluded.mark, at = excluded.at
""")

_LINKS = text("""
    SELECT engine_id, job, submission, attempts_before, double FROM engine_job
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")

_COLUMNS: Final = """
    id bigint, class int, name text, state text, wish text, asked bool, code text, reason text,
    engine_id text, gpus int, nodes int, devices int, submission int, failures int, attempts int,
    started_at timestamptz, ended_at timestamptz, exit_code int, time_seconds int, not_before timestamptz,
    sending_until timestamptz, sent_at timestamptz
"""
_NAMES: Final = tuple(column.split()[0] for column in _COLUMNS.split(","))

# In the order of `Standing`.
_READ = text(f"""
    SELECT {", ".join(f"job.{name}" for name in _NAMES)}, job.cluster, job_class.user_name, job_class.native,
        CAST(job.xmin AS text) AS version, now() AS moment
    FROM job JOIN job_class ON job_class.id = job.class
    WHERE job.cluster = :cluster AND job.id = ANY(CAST(:ids AS bigint[]))
""")  # noqa: S608

_LOCK = text("""
    SELECT id, CAST(xmin AS text) AS version FROM job
    WHERE cluster = :cluster AND id = ANY(CAST(:ids AS bigint[])) ORDER BY id FOR UPDATE
""")

_ATTEMPTS = text("SELECT * FROM attempt WHERE job = ANY(CAST(:ids AS bigint[])) ORDER BY job, number")

_SPECS = text("""
    SELECT job.id, job_spec.spec FROM job JOIN job_spec ON job_spec.job = COALESCE(job.array_first, job.id)
    WHERE job.id = ANY(CAST(:ids AS bigint[]))
""")

_ARRAYS = text("""
    SELECT engine_id, job FROM engine_array
    WHERE cluster = :cluster AND engine_id = ANY(CAST(:ids AS text[]))
""")

_NEW_ARRAYS = text("""
    INSERT INTO engine_array (cluster, engine_id, job)
    SELECT :cluster, * FROM unnest(CAST(:ids AS text[]), CAST(:jobs AS bigint[]))
    ON CONFLICT DO NOTHING
""")

_UPDATE = text(f"""
    UPDATE job SET {", ".join(f"{name} = now.{name}" for name in _NAMES[1:])}
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS now ({_COLUMNS})
    WHERE job.id = now.id
""")  # noqa: S608

_INSERT = text(f"""
    INSERT INTO job (cluster, submitted_at, late, array_first, array_index, {", ".join(_NAMES)})
    SELECT :cluster, submitted_at, submitted_at < now() - CAST(:late AS interval), array_first, array_index,
        {", ".join(_NAMES)}
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS now (
        submitted_at timestamptz, array_first bigint, array_index int, {_COLUMNS}
    )
    ORDER BY id
""")  # noqa: S608

_LOCK_LOST = text(f"""
    SELECT job.id FROM job JOIN engine_job ON engine_job.job = job.id
    WHERE job.cluster = :cluster AND engine_job.cluster = :cluster
        AND engine_job.engine_id = ANY(CAST(:ids AS text[])) AND job.engine_id = engine_job.engine_id
        AND job.state IN ({_OPEN})
    ORDER BY job.id FOR UPDATE OF job
""")  # noqa: S608

_LOST = text("""
    WITH ended AS (
        UPDATE attempt SET ending = 'lost' WHERE job = ANY(CAST(:ids AS bigint[])) AND ending IS NULL
    )
    UPDATE job SET state = 'lost', code = 'Lost', asked = false,
        reason = 'the engine knows nothing of it any more'
    WHERE id = ANY(CAST(:ids AS bigint[]))
""")


@dataclass(frozen=True, slots=True)
class _Link:
    """Which job an engine job is of."""

    job: int
    submission: int
    attempts_before: int
    double: bool
    kept: bool = True
    """False: known by its name alone; nobody wrote it down yet."""


@dataclass(slots=True)
class _Known:
    """What is kept of the jobs of a batch."""

    links: dict[str, _Link]
    rows: dict[int, Row[*tuple[Any, ...]]]
    attempts: dict[int, list[Row[*tuple[Any, ...]]]]
    classes: Mapping[JobClass, int]

    def attempts_of(self, job: int, engine_id: str) -> list[Numbered]:
        return [
            Numbered(row.number, attempt_of(row))
            for row in self.attempts.get(job, ())
            if row.engine_id == engine_id
        ]


@dataclass(slots=True)
class _Changes:
    """What a batch changes."""

    jobs: dict[int, Standing] = field(default_factory=dict)
    attempts: list[tuple[int, str, Merged]] = field(default_factory=list)
    links: list[tuple[EngineId, int, int, int, bool]] = field(default_factory=list)
    failed: list[tuple[int, SeenJob]] = field(default_factory=list)
    """Ours that ended and were open: they may come back."""
    ended: list[int] = field(default_factory=list)
    new: list[SeenJob] = field(default_factory=list)
    doubles: list[EngineId] = field(default_factory=list)
    events: list[dict[str, object]] = field(default_factory=list)

    @property
    def touched(self) -> set[int]:
        return {*self.jobs, *(job for job, _, _ in self.attempts), *(link[1] for link in self.links)}

    def to_meter(self, known: _Known) -> set[int]:
        """Whose usage may be another now: by their attempts, by whose they are, or because they are over."""
        moved = {
            job
            for job, now in self.jobs.items()
            if (before := _standing(known.rows[job])).class_ != now.class_ or before.open != now.open
        }
        return moved | {job for job, _, _ in self.attempts}


async def mark(connections: Connections, cluster: str) -> str | None:
    async with connections.single() as connection:
        found = (await connection.execute(_MARK, {"cluster": cluster})).scalar()
    return None if found is None else str(found)


async def keep_seen(
    connection: AsyncConnection, lease: Lease, seen: Sequence[SeenJob], mark: str | None
) -> Kept:
    by_id = {job.engine_id: job for job in seen}  # of one that is there twice, the last
    changes = _Changes()
    if by_id:
        prefix = await mark_of(connection)
        jobs = list(by_id.values())
        known = await _load(connection, lease, jobs, prefix)
        changes = _decide(jobs, known)
        if not await _unchanged(connection, lease, known, changes.touched):
            known = await _load(connection, lease, jobs, prefix)
            changes = _decide(jobs, known)
        await _bring_back(connection, known, changes)
        await _write(connection, lease, known, changes)
    if mark is not None:
        await connection.execute(_KEEP_MARK, {"cluster": lease.cluster, "mark": mark})
    ours = [job for job in changes.ended if job in known.rows and not known.rows[job].native] if by_id else []
    return Kept(tuple(JobId(job) for job in ours), tuple(changes.doubles))


async def keep_lost(connection: AsyncConnection, lease: Lease, ids: Sequence[EngineId]) -> None:
    values = {"cluster": lease.cluster, "ids": list(ids)}
    lost = list((await connection.execute(_LOCK_LOST, values)).scalars())
    if lost:
        await connection.execute(_LOST, {"ids": lost})
        await metering.queue(connection, lease.cluster, lost)
        await job_afters.settle(connection, lost)


async def _unchanged(
    connection: AsyncConnection, lease: Lease, known: _Known, touched: Collection[int]
) -> bool:
    """Lock what changes; whether nobody wrote to it since it was read."""
    if not touched:
        return True
    locked = await connection.execute(_LOCK, {"cluster": lease.cluster, "ids": sorted(touched)})
    return all(known.rows[row.id].version == row.version for row in locked)


async def _load(connection: AsyncConnection, lease: Lease, seen: Sequence[SeenJob], prefix: str) -> _Known:
    values: dict[str, object] = {"cluster": lease.cluster, "ids": [job.engine_id for job in seen]}
    links = {
        row.engine_id: _Link(row.job, row.submission, row.attempts_before, row.double)
        for row in await connection.execute(_LINKS, values)
    }
    named = {job.engine_id: order for job in seen if (order := _order_in(job.name, prefix)) is not None}
    values["ids"] = sorted({link.job for link in links.values()} | {job for job, _ in named.values()})
    rows = {row.id: row for row in await connection.execute(_READ, values)}
    native: list[SeenJob] = []
    for job in seen:
        link = _link(job, links.get(job.engine_id), named.get(job.engine_id), rows, prefix)
        if link is None:
            links.pop(job.engine_id, None)
        else:
            links[job.engine_id] = link
        if link is None or rows[link.job].native:
            native.append(job)
    attempts: dict[int, list[Row[*tuple[Any, ...]]]] = {}
    tried = [row.id for row in rows.values() if row.attempts]
    for row in await connection.execute(_ATTEMPTS, {"ids": tried}) if tried else ():
        attempts.setdefault(row.job, []).append(row)
    classes = await numbers(connection, (_class(job, lease.cluster) for job in native))
    return _Known(links, rows, attempts, classes)


def _link(
    job: SeenJob,
    link: _Link | None,
    order: tuple[int, int] | None,
    rows: Mapping[int, Row[*tuple[Any, ...]]],
    prefix: str,
) -> _Link | None:
    """Which job it is of, by what is kept or by its name; None: a native one nobody saw before."""
    row = None if link is None else rows.get(link.job)
    if row is not None and (row.native or _is_of(job, row, prefix)):
        return link
    # Unknown, or the engine gave the number of one of ours to another job.
    row = None if order is None else rows.get(order[0])
    if order is None or row is None or order[1] > row.submission or not _is_of(job, row, prefix):
        return None
    return _Link(*order, row.attempts, False, kept=False)


def _decide(seen: Sequence[SeenJob], known: _Known) -> _Changes:
    changes = _Changes()
    found: set[int] = set()
    for job in seen:
        link = known.links.get(job.engine_id)
        row = None if link is None else known.rows.get(link.job)
        if link is None or row is None:
            changes.new.append(job)
            continue
        another = row.engine_id not in {None, job.engine_id} or row.id in found
        if not row.native and (another or link.double or link.submission < row.submission):
            _double(job, link, row, known, changes)
            continue
        _follow(job, link, row, known, changes)
        if not link.kept:
            found.add(row.id)
            changes.links.append((job.engine_id, row.id, link.submission, link.attempts_before, False))
    return changes


def _follow(job: SeenJob, link: _Link, row: Row[*tuple[Any, ...]], known: _Known, changes: _Changes) -> None:
    standing = _standing(row)
    attempts = known.attempts_of(row.id, job.engine_id)
    if row.native and sightings.is_another(standing, job):
        changes.new.append(job)
        return
    job = sightings.recalled(attempts, job)
    # One that was cancelled or refused before anybody knew of an engine job has one after all.
    unknown = not row.native and row.engine_id is None
    if sightings.is_stale(attempts, job) or (not unknown and sightings.is_over_for_good(standing, job)):
        return
    merged = sightings.merged(attempts, link.attempts_before, job)
    class_ = known.classes[_class(job, row.cluster)] if row.native else None
    now = sightings.followed(standing, job, merged, class_)
    if now != standing:
        changes.jobs[row.id] = now
        if standing.open and not now.open:
            changes.ended.append(row.id)
            if not row.native:
                changes.failed.append((row.id, job))
    if merged.put or merged.gone:
        changes.attempts.append((row.id, job.engine_id, merged))


def _double(job: SeenJob, link: _Link, row: Row[*tuple[Any, ...]], known: _Known, changes: _Changes) -> None:
    """A second engine job of an order, or one of an order that was followed by another.

    The latter is over; only if it was started again does it run beside its successor.
    """
    is_open = job.state in OPEN_JOBS
    if is_open and link.kept and not link.double:
        last = known.attempts_of(row.id, job.engine_id)[-1:]
        shown = job.attempts[-1:]
        is_open = any(
            new.ended_at is not None or new.started_at > old.attempt.started_at + sightings.SAME_START
            for new in shown
            for old in last
        )
    if is_open:
        changes.doubles.append(job.engine_id)
    if not link.kept:
        changes.links.append((job.engine_id, row.id, link.submission, 0, True))
        changes.events.append(sending.double_event(row.id, job.engine_id))


async def _bring_back(connection: AsyncConnection, known: _Known, changes: _Changes) -> None:
    """Of ours that ended now, those that are to be sent once more."""
    bad = [
        (id_, job)
        for id_, job in changes.failed
        if job.state is not JobState.DONE and changes.jobs[id_].wish is not Wish.CANCEL
    ]
    if not bad:
        return
    rows = await connection.execute(_SPECS, {"ids": [id_ for id_, _ in bad]})
    specs: dict[int, JobSpec] = {row.id: job_specs.decoded(row.spec) for row in rows}
    for id_, job in bad:
        before = known.rows[id_]
        back = sightings.brought_back(changes.jobs[id_], job, specs[id_], before.moment)
        if back is None:
            continue
        sent_at = changes.jobs[id_].sent_at
        changes.jobs[id_], why = back
        changes.ended.remove(id_)
        changes.events += [
            {"job": id_, "at": sent_at, "kind": EventKind.SENT, "text": job.engine_id},
            {"job": id_, "kind": EventKind.RETRY, "text": why},
        ]


async def _write(connection: AsyncConnection, lease: Lease, known: _Known, changes: _Changes) -> None:
    await _insert_new(connection, lease, known, changes)
    if changes.jobs:
        rows = [_columns(id_, standing) for id_, standing in changes.jobs.items()]
        await connection.execute(_UPDATE, {"rows": job_specs.compact(rows)})
    await attempt_rows.write(connection, changes.attempts)
    await metering.queue(connection, lease.cluster, changes.to_meter(known))
    await sending.link(connection, lease, changes.links)
    await add_events(connection, changes.events)
    await job_afters.settle(connection, sorted(changes.ended))


async def _insert_new(connection: AsyncConnection, lease: Lease, known: _Known, changes: _Changes) -> None:
    """Native jobs, in the order they were submitted, so that ids tell it as well as they can."""
    new = sorted(changes.new, key=lambda job: (job.submitted_at, job.array_index or 0))
    if not new:
        return
    ids = await new_ids(connection, len(new))
    arrays = await _arrays(connection, lease, list(zip(ids, new, strict=True)))
    rows: list[dict[str, object]] = []
    for id_, job in zip(ids, new, strict=True):
        attempts = sightings.merged((), 0, job)
        class_ = known.classes[_class(job, lease.cluster)]
        standing = sightings.followed(_newborn(job, class_), job, attempts, class_)
        place = {
            "submitted_at": job.submitted_at,
            "array_first": None if job.array_id is None else arrays[job.array_id],
            "array_index": job.array_index,
        }
        rows.append(_columns(id_, standing) | place)
        changes.links.append((job.engine_id, id_, 0, 0, False))
        if attempts.put:
            changes.attempts.append((id_, job.engine_id, attempts))
    values = {"cluster": lease.cluster, "rows": job_specs.compact(rows), "late": LATE}
    await connection.execute(_INSERT, values)


async def _arrays(
    connection: AsyncConnection, lease: Lease, new: Collection[tuple[int, SeenJob]]
) -> dict[EngineId, int]:
    """The first job of each native array."""
    firsts: dict[EngineId, int] = {}
    for id_, job in new:
        if job.array_id is not None:
            firsts.setdefault(job.array_id, id_)
    if firsts:
        values = {"cluster": lease.cluster, "ids": list(firsts), "jobs": list(firsts.values())}
        await connection.execute(_NEW_ARRAYS, values)
        firsts |= {EngineId(row.engine_id): row.job for row in await connection.execute(_ARRAYS, values)}
    return firsts


def _order_in(name: str, prefix: str) -> tuple[int, int] | None:
    """The job and submission an engine job's name tells of; None: not one of this ledger's."""
    found = re.search(f"-fw{prefix}-([0-9a-z]{{4,12}})-([0-9]{{1,9}})$", name)
    number = None if found is None else job_number(found[1])
    return None if found is None or number is None else (number, int(found[2]))


def _is_of(job: SeenJob, row: Row[*tuple[Any, ...]], prefix: str) -> bool:
    """Whether an engine job is of a job of ours: the whole name fits, and nobody else made it."""
    order = _order_in(job.name, prefix)
    return (
        order is not None
        and not row.native
        and job.name == engine_name(prefix, JobId(row.id), order[1], row.name)
        and job.user in {"", row.user_name}
    )


def _class(job: SeenJob, cluster: str) -> JobClass:
    """A native one's."""
    pool, slice_ = (job.supply.pool, job.supply.slice) if job.supply is not None else (NONE, None)
    return JobClass(cluster, job.user, job.team or NONE, pool, slice_ or NONE, job.priority or NONE, True)


def _newborn(job: SeenJob, class_: int) -> Standing:
    return Standing(
        class_=class_,
        name=kept(job.name),
        state=JobState.WAITING,
        wish=Wish.RUN,
        asked=False,
        code="",
        reason="",
        engine_id=job.engine_id,
        gpus=job.gpus,
        nodes=job.nodes,
        devices=job.gpus * job.nodes,
        submission=0,
        failures=0,
        attempts=0,
        started_at=None,
        ended_at=None,
        exit_code=None,
        time_seconds=None,
        not_before=job.submitted_at,
        sending_until=None,
        sent_at=None,
    )


def _standing(row: Row[*tuple[Any, ...]]) -> Standing:
    _, class_, name, state, wish, *rest = row[: len(_NAMES)]
    return Standing(class_, name, JobState(state), Wish(wish), *rest)


def _columns(id_: int, standing: Standing) -> dict[str, object]:
    values: dict[str, object] = {name: getattr(standing, name) for name in _NAMES[2:]}
    return {"id": id_, "class": standing.class_} | values
