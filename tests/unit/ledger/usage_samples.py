"""Usage, jobs and attempts to ask of, written as the meter and the mirror leave them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
from psycopg.types.json import Jsonb

from fairway.cost.calendar import Calendar
from fairway.ledger import Ledger, UsageFilter
from fairway.model.charge import Dimension, JobLabel, Label, Span, UsageSum
from fairway.model.names import PoolName

EXPERIMENT = JobLabel("label:experiment")
UTC_CALENDAR = Calendar(UTC)


def calendar(zone: str) -> Calendar:
    return Calendar(ZoneInfo(zone))


def moment(second: int) -> datetime:
    return datetime.fromtimestamp(second, UTC)


@dataclass(frozen=True, slots=True)
class Class:
    """A job's class."""

    cluster: str = "hpc"
    user: str = "ann"
    team: str = "research"
    pool: str = "a100"
    slice: str = ""
    priority: str = "normal"
    kind: str = ""
    service: bool = False
    project: str = ""
    experiment: str = ""
    """Its label of that key; empty: without."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of usage."""

    of: Class
    hour: int
    seconds: int
    devices: int
    job: int = 1
    name: str = "train"


class Book:
    """Writes to a ledger's tables directly."""

    def __init__(self, url: str, local: Calendar = UTC_CALENDAR) -> None:
        self.db = psycopg.connect(url, autocommit=True)
        self.local = local
        self.classes: dict[Class, int] = {}

    def close(self) -> None:
        self.db.close()

    def number(self, of: Class) -> int:
        if of not in self.classes:
            found = self.db.execute(
                "INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native, kind,"
                " service, project, labels)"
                " VALUES (%s, %s, %s, %s, %s, %s, true, %s, %s, %s, %s) RETURNING id",
                (
                    *(of.cluster, of.user, of.team, of.pool, of.slice, of.priority, of.kind, of.service),
                    of.project,
                    Jsonb({"experiment": of.experiment, "x": "y"} if of.experiment else {}),
                ),
            ).fetchone()
            assert found is not None
            self.classes[of] = found[0]
        return self.classes[of]

    async def add(self, ledger: Ledger, rows: Sequence[Row]) -> None:
        """Rows with their sums, as the meter adds them."""
        await ledger.partitions.ensure([row.hour for row in rows])
        for row in rows:
            self.job(row.job, row.of, row.name)
        with self.db.transaction(), self.db.cursor() as cursor:
            cursor.executemany(
                "INSERT INTO usage (hour, started_at, job, attempt, class, seconds, devices)"
                " VALUES (%s, %s, %s, 1, %s, %s, %s)",
                [
                    (moment(r.hour), moment(r.hour), r.job, self.number(r.of), r.seconds, r.devices)
                    for r in rows
                ],
            )
            for table, time in (("usage_hour", "hour"), ("usage_day", "day")):
                cursor.executemany(
                    f"INSERT INTO {table} VALUES (%s, %s, %s) ON CONFLICT ({time}, class)"
                    f" DO UPDATE SET device_seconds = {table}.device_seconds + excluded.device_seconds",
                    [
                        (
                            moment(r.hour) if time == "hour" else self.local.day_of(r.hour),
                            self.number(r.of),
                            r.seconds * r.devices,
                        )
                        for r in rows
                    ],
                )
            for table, time in (("service_hour", "hour"), ("service_day", "day")):
                cursor.executemany(
                    f"INSERT INTO {table} VALUES (%s, %s, %s, %s) ON CONFLICT ({time}, class, job)"
                    f" DO UPDATE SET device_seconds = {table}.device_seconds + excluded.device_seconds",
                    [
                        (
                            moment(r.hour) if time == "hour" else self.local.day_of(r.hour),
                            self.number(r.of),
                            r.job,
                            r.seconds * r.devices,
                        )
                        for r in rows
                        if r.of.service
                    ],
                )

    def job(self, id_: int, of: Class, name: str = "train", state: str = "done") -> None:
        self.db.execute(
            "INSERT INTO job (id, class, cluster, name, state, gpus, nodes, devices, submission,"
            " submitted_at)"
            " VALUES (%s, %s, %s, %s, %s, 1, 1, 1, 0, now()) ON CONFLICT DO NOTHING",
            (id_, self.number(of), of.cluster, name, state),
        )

    def attempt(
        self, job: int, start: float, end: float | None = None, *, devices: int = 1, ending: str | None = None
    ) -> None:
        if end is not None and ending is None:
            ending = "done"
        self.db.execute(
            "INSERT INTO attempt (job, number, engine_id, started_at, ended_at, ending, devices, nodes)"
            " VALUES (%s, 1, 'e', to_timestamp(%s), to_timestamp(%s), %s, %s, '{}')",
            (job, start, end, ending, devices),
        )

    def metered(self, job: int, of: Class, start: int, end: int, devices: int = 1) -> None:
        self.db.execute(
            "INSERT INTO metered VALUES (%s, 1, %s, %s, %s, %s)",
            (job, self.number(of), devices, moment(start), moment(end)),
        )

    def to_meter(self, job: int, cluster: str = "hpc") -> None:
        self.db.execute("INSERT INTO to_meter (cluster, job) VALUES (%s, %s)", (cluster, job))

    def one(self, wanted: str) -> Any:
        found = self.db.execute(wanted).fetchone()
        assert found is not None
        return found[0]


_OF = {
    Label.TEAM: "team",
    Label.USER: "user",
    Label.POOL: "pool",
    Label.PRIORITY: "priority",
    Label.CLUSTER: "cluster",
    Label.SLICE: "slice",
    Label.KIND: "kind",
    Label.PROJECT: "project",
    EXPERIMENT: "experiment",
}


def passes(row: Row, which: UsageFilter) -> bool:
    of = row.of
    asked = (
        (which.teams, of.team),
        (which.users, of.user),
        (which.pools, of.pool),
        (which.clusters, of.cluster),
        (which.priorities, of.priority),
        (which.slices, of.slice),
        (which.names, row.name),
        (which.projects, of.project),
        *((frozenset({value}), of.experiment) for _, value in which.labels),
    )
    return all(names is None or name in names for names, name in asked)


def by_hand(
    rows: Iterable[Row],
    spans: dict[PoolName, list[Span]],
    by: Sequence[Dimension],
    which: UsageFilter,
    local: Calendar,
) -> dict[tuple[int, str, str, tuple[str, ...]], int]:
    """What the ledger should answer, in the plainest way."""
    found: dict[tuple[int, str, str, tuple[str, ...]], int] = {}
    for row in rows:
        labels = []
        for label in by:
            if label is Label.DAY:
                labels.append(local.day_of(row.hour).isoformat())
            elif label is Label.OUTCOME:  # of no attempt at all
                labels.append("running")
            else:
                named = label is Label.NAME or (label is Label.SERVICE and row.of.service)
                unnamed = label is Label.SERVICE and not row.of.service
                labels.append(row.name if named else "" if unnamed else getattr(row.of, _OF[label]))
        for number, span in enumerate(spans.get(PoolName(row.of.pool), [])):
            if span.start <= row.hour < span.end and passes(row, which):
                key = (number, row.of.pool, row.of.slice, tuple(labels))
                found[key] = found.get(key, 0) + row.seconds * row.devices
    return {key: seconds for key, seconds in found.items() if seconds}


def told(sums: Iterable[UsageSum]) -> dict[tuple[int, str, str, tuple[str, ...]], int]:
    return {(s.span, s.supply.pool, s.supply.slice or "", s.labels): s.device_seconds for s in sums}


class Dice:
    """Questions and rows at random."""

    def __init__(self, seed: int, local: Calendar, first: date, days: int) -> None:
        self._random = random.Random(seed)
        self.local = local
        self._jobs: dict[tuple[int, Class], int] = {}
        window = Span(local.day_start(first), local.day_start(date.fromordinal(first.toordinal() + days)))
        self.hours = [hour.start for hour in local.hours(window)] + [window.end]
        self.classes = [
            Class(
                self._random.choice(("hpc", "cloud")),
                self._random.choice(("ann", "bob", "eve", "")),
                self._random.choice(("research", "product", "")),
                self._random.choice(("a100", "h100", "mig")),
                self._random.choice(("", "1g.10gb")),
                self._random.choice(("normal", "low", "")),
                *self._random.choice((("", False), ("JobSet", False), ("Deployment", True))),
                self._random.choice(("llm", "vision", "")),
                self._random.choice(("e1", "e2", "")),
            )
            for _ in range(12)
        ]
        self.classes = sorted(set(self.classes), key=repr)

    def rows(self, count: int) -> list[Row]:
        rows = []
        for number in range(count):
            of = self._random.choice(self.classes)
            hour = self._random.choice(self.hours[:-1])
            devices = self._random.choice((1, 2, 8))
            job = self._random.randrange(1, 20)
            row = Row(of, hour, self._random.randrange(1, 3601), devices, job, f'name {job % 5}, "q"\n\'é')
            rows.append(row)
            if number % 5 == 0:  # taken back
                rows.append(replace(row, devices=-devices))
        # A job has one class: rows of another are another job's.
        jobs = self._jobs
        return [replace(row, job=jobs.setdefault((row.job, row.of), 100 + len(jobs))) for row in rows]

    def spans(self) -> dict[PoolName, list[Span]]:
        found = {}
        for pool in ("a100", "h100", "mig", "none"):
            days = [self.local.day_start(self.local.day_of(hour)) for hour in self.hours]
            among = self._random.choice((self.hours, sorted({*days}), sorted({*days})))
            edges = sorted(self._random.sample(among, min(len(among), self._random.randrange(2, 6))))
            found[PoolName(pool)] = [Span(a, b) for a, b in itertools.pairwise(edges)]
        return found

    def by(self) -> list[Dimension]:
        return self._random.sample([*Label, EXPERIMENT], self._random.randrange(0, 4))

    def which(self) -> UsageFilter:
        def some(*names: str) -> frozenset[str] | None:
            if self._random.random() < 0.6:
                return None
            return frozenset(self._random.sample(names, self._random.randrange(0, len(names) + 1)))

        return UsageFilter(
            some("research", "product", ""),
            some("ann", "bob", ""),
            some("a100", "h100", "mig"),
            some("hpc", "cloud"),
            some("normal", "low", ""),
            some("", "1g.10gb"),
            frozenset({'name 1, "q"\n\'é'}) if self._random.random() < 0.2 else None,
            some("llm", "vision", ""),
            (("experiment", "e1"),) if self._random.random() < 0.2 else (),
        )
