"""What a batch of sightings changes of the jobs that are kept. Pure: from rows and sightings to changes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlalchemy import Row

from fairway.ledger import sending, sightings
from fairway.ledger.job_classes import JobClass
from fairway.ledger.job_details import attempt_of
from fairway.ledger.job_records import Wish
from fairway.ledger.observations import kept
from fairway.ledger.sightings import Merged, Numbered, Standing
from fairway.ledger.tables import NONE
from fairway.model.job import OPEN_JOBS, EngineId, JobId, JobState, SeenJob, engine_name, job_number

COLUMNS: Final = """
    id bigint, class int, name text, state text, wish text, asked bool, code text, reason text,
    engine_id text, gpus int, nodes int, devices int, submission int, failures int, attempts int,
    started_at timestamptz, ended_at timestamptz, exit_code int, time_seconds int, not_before timestamptz,
    sending_until timestamptz, sent_at timestamptz
"""
"""Of a job's row, what sightings may change, in the order of `Standing`."""
NAMES: Final = tuple(column.split()[0] for column in COLUMNS.split(","))


@dataclass(frozen=True, slots=True)
class Link:
    """Which job an engine job is of."""

    job: int
    submission: int
    attempts_before: int
    double: bool
    kept: bool = True
    """False: known by its name alone; nobody wrote it down yet."""


@dataclass(slots=True)
class Known:
    """What is kept of the jobs of a batch."""

    links: dict[str, Link]
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
class Changes:
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

    def to_meter(self, known: Known) -> set[int]:
        """Whose usage may be another now: by their attempts, by whose they are, or because they are over."""
        moved = {
            job
            for job, now in self.jobs.items()
            if (before := standing_of(known.rows[job])).class_ != now.class_ or before.open != now.open
        }
        return moved | {job for job, _, _ in self.attempts}


def link_of(
    job: SeenJob,
    link: Link | None,
    order: tuple[int, int] | None,
    rows: Mapping[int, Row[*tuple[Any, ...]]],
    prefix: str,
) -> Link | None:
    """Which job it is of, by what is kept or by its name; None: a native one nobody saw before."""
    row = None if link is None else rows.get(link.job)
    if row is not None and (row.native or _is_of(job, row, prefix)):
        return link
    # Unknown, or the engine gave the number of one of ours to another job.
    row = None if order is None else rows.get(order[0])
    if order is None or row is None or order[1] > row.submission or not _is_of(job, row, prefix):
        return None
    return Link(*order, row.attempts, False, kept=False)


def decide(seen: Sequence[SeenJob], known: Known) -> Changes:
    """What is to be written, so that the ledger tells what the engine shows."""
    changes = Changes()
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


def _follow(job: SeenJob, link: Link, row: Row[*tuple[Any, ...]], known: Known, changes: Changes) -> None:
    standing = standing_of(row)
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
    class_ = known.classes[class_of(job, row.cluster)] if row.native else None
    now = sightings.followed(standing, job, merged, class_)
    if now != standing:
        changes.jobs[row.id] = now
        if standing.open and not now.open:
            changes.ended.append(row.id)
            if not row.native:
                changes.failed.append((row.id, job))
    if merged.put or merged.gone:
        changes.attempts.append((row.id, job.engine_id, merged))


def _double(job: SeenJob, link: Link, row: Row[*tuple[Any, ...]], known: Known, changes: Changes) -> None:
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


def order_in(name: str, prefix: str) -> tuple[int, int] | None:
    """The job and submission an engine job's name tells of; None: not one of this ledger's."""
    found = re.search(f"-fw{prefix}-([0-9a-z]{{4,12}})-([0-9]{{1,9}})$", name)
    number = None if found is None else job_number(found[1])
    return None if found is None or number is None else (number, int(found[2]))


def _is_of(job: SeenJob, row: Row[*tuple[Any, ...]], prefix: str) -> bool:
    """Whether an engine job is of a job of ours: the whole name fits, and nobody else made it."""
    order = order_in(job.name, prefix)
    return (
        order is not None
        and not row.native
        and job.name == engine_name(prefix, JobId(row.id), order[1], row.name)
        and job.user in {"", row.user_name}
    )


def class_of(job: SeenJob, cluster: str) -> JobClass:
    """A native one's."""
    pool, slice_ = (job.supply.pool, job.supply.slice) if job.supply is not None else (NONE, None)
    return JobClass(cluster, job.user, job.team or NONE, pool, slice_ or NONE, job.priority or NONE, True)


def newborn(job: SeenJob, class_: int) -> Standing:
    """A native job before anything is known of it."""
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


def standing_of(row: Row[*tuple[Any, ...]]) -> Standing:
    """What a row tells."""
    _, class_, name, state, wish, *rest = row[: len(NAMES)]
    return Standing(class_, name, JobState(state), Wish(wish), *rest)


def columns_of(id_: int, standing: Standing) -> dict[str, object]:
    """A row that tells it."""
    values: dict[str, object] = {name: getattr(standing, name) for name in NAMES[2:]}
    return {"id": id_, "class": standing.class_} | values
