"""Usage in a ledger against what is true of its attempts: summed anew, by the pure function, past Fairway."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

import psycopg

from fairway.cost.calendar import Calendar
from fairway.model.job import OPEN_JOBS
from fairway.model.usage import AttemptUsage
from tests.unit.cost.metering_reference import difference

CLUSTER = "hpc"
Key = tuple[int, int]
"""A job and which of its attempts."""


@dataclass(frozen=True)
class Books:
    """Everything that should sum to the same."""

    truth: dict[Key, AttemptUsage]
    metered: dict[Key, AttemptUsage]
    rows: Counter[tuple[int, int]]
    """Device-seconds of the usage rows by hour and class."""
    hours: Counter[tuple[int, int]]
    days: Counter[tuple[Any, int]]
    team_days: Counter[tuple[Any, ...]]
    owners: dict[int, tuple[Any, ...]]
    """Cluster, team, pool and slice of each class."""
    queued: int

    def faults(self, calendar: Calendar) -> list[str]:
        """Every way in which they do not."""
        right: Counter[tuple[int, int]] = Counter()
        for holding in self.truth.values():
            for piece in difference(None, holding, calendar):
                right[piece.hour, piece.holder] += piece.device_seconds
        days: Counter[tuple[Any, int]] = Counter()
        for (hour, class_), seconds in right.items():
            days[calendar.day_of(hour), class_] += seconds
        team_days: Counter[tuple[Any, ...]] = Counter()
        for (day, class_), total in days.items():
            team_days[day, *self.owners[class_]] += total
        found = [f"{self.queued} are still to be metered"] if self.queued else []
        for what, ours, theirs in (
            ("usage", self.rows, right),
            ("usage_hour", self.hours, right),
            ("usage_day", self.days, days),
            ("usage_team_day", self.team_days, team_days),
        ):
            found += [
                f"{what} {key}: {ours.get(key, 0)}, not {theirs.get(key, 0)}"
                for key in sorted({*ours, *theirs}, key=str)
                if ours.get(key, 0) != theirs.get(key, 0)
            ]
        found += [
            f"metered {key}: {self.metered.get(key)}, not {self.truth.get(key)}"
            for key in sorted({*self.truth, *self.metered})
            if self.truth.get(key) != self.metered.get(key)
        ]
        return found


_METERED = """
    SELECT job, attempt, class, devices, started_at,
        COALESCE(metered.metered_to, greatest(started_at, mark.metered_to))
    FROM metered JOIN job_class ON job_class.id = class LEFT JOIN meter_mark AS mark USING (cluster)
"""
"""What runs: up to the mark."""


def read(db: psycopg.Connection[Any], upto: int, *, own: bool = True) -> Books:
    """All of a ledger, at one moment (`own`: in a transaction of its own); what runs counts up to `upto`."""
    with db.transaction():
        if own:
            db.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
        metered = {
            (job, attempt): AttemptUsage(class_, devices, seconds(start), seconds(end))
            for job, attempt, class_, devices, start, end in db.execute(_METERED)
            if end > start
        }
        truth = dict(_truth(db, upto, metered))
        rows = _sums(db, "SELECT hour, class, sum(devices::bigint * seconds) FROM usage GROUP BY 1, 2")
        hours = _sums(db, "SELECT hour, class, device_seconds FROM usage_hour")
        days: Counter[tuple[Any, int]] = Counter()
        for day, class_, total in db.execute("SELECT day, class, device_seconds FROM usage_day"):
            days[day, class_] += total
        team_days: Counter[tuple[Any, ...]] = Counter()
        for day, *owner, total in db.execute(
            "SELECT day, cluster, team, pool, slice, device_seconds FROM usage_team_day"
        ):
            team_days[day, *owner] += total
        owners = {
            class_: tuple(owner)
            for class_, *owner in db.execute("SELECT id, cluster, team, pool, slice FROM job_class")
        }
        (queued,) = db.execute("SELECT count(*) FROM to_meter").fetchone() or (0,)
    return Books(truth, metered, rows, hours, days, team_days, owners, queued)


def _sums(db: psycopg.Connection[Any], query: Any) -> Counter[tuple[int, int]]:
    return Counter({(seconds(hour), class_): int(total) for hour, class_, total in db.execute(query)})


def _truth(
    db: psycopg.Connection[Any], upto: int, metered: dict[Key, AttemptUsage]
) -> Iterator[tuple[Key, AttemptUsage]]:
    """As the issue has it: whole seconds by the engine's clock, of a pool, from start to end."""
    wanted = """
        SELECT a.job, a.number, j.class, a.devices, a.started_at, a.ended_at, a.ending, j.state
        FROM attempt a JOIN job j ON j.id = a.job JOIN job_class c ON c.id = j.class WHERE c.pool <> ''
    """
    for job, number, class_, devices, began, ended, ending, state in db.execute(wanted):
        start = seconds(began)
        if ended is not None:
            end = seconds(ended)
        elif ending is None and state in OPEN_JOBS:
            end = upto
        else:  # nobody knows: no further than was metered
            end = metered[job, number].end if (job, number) in metered else start
        if end > start and devices > 0:
            yield (job, number), AttemptUsage(class_, devices, start, end)


def seconds(at: datetime) -> int:
    """Floored."""
    return (at - datetime.fromtimestamp(0, UTC)) // timedelta(seconds=1)


class Hand:
    """Writes jobs and attempts as a mirror would, each with its row of the queue in one transaction."""

    def __init__(self, db: psycopg.Connection[Any]) -> None:
        self.db = db
        self._ids = count(1)
        self._classes: dict[tuple[str, str, str], int] = {}

    def class_(self, team: str = "ml", pool: str = "gpu", slice_: str = "") -> int:
        if (team, pool, slice_) not in self._classes:
            row = self.db.execute(
                "INSERT INTO job_class (cluster, user_name, team, pool, slice, priority, native)"
                " VALUES (%s, 'ann', %s, %s, %s, 'normal', true)"
                " ON CONFLICT ON CONSTRAINT job_class_alike_key"
                " DO UPDATE SET native = true RETURNING id",
                (CLUSTER, team, pool, slice_),
            ).fetchone()
            assert row is not None
            self._classes[team, pool, slice_] = row[0]
        return self._classes[team, pool, slice_]

    def job(self, class_: int, state: str = "running") -> int:
        row = self.db.execute(
            "INSERT INTO job (class, cluster, name, state, gpus, nodes, devices, submission, attempts,"
            " submitted_at) VALUES (%s, %s, 'j', %s, 1, 1, 1, 0, 1, now()) RETURNING id",
            (class_, CLUSTER, state),
        ).fetchone()
        assert row is not None
        return int(row[0])

    def attempt(
        self,
        job: int,
        number: int,
        start: float,
        end: float | None = None,
        devices: int = 1,
        ending: str | None = None,
    ) -> None:
        began = datetime.fromtimestamp(start, UTC)
        ended = None if end is None else datetime.fromtimestamp(end, UTC)
        self.db.execute(
            "INSERT INTO attempt (job, number, engine_id, started_at, ended_at, ending, devices, nodes)"
            " VALUES (%s, %s, 'e', %s, %s, %s, %s, '{}') ON CONFLICT (job, number) DO UPDATE SET"
            " started_at = excluded.started_at, ended_at = excluded.ended_at, ending = excluded.ending,"
            " devices = excluded.devices",
            (job, number, began, ended, ending or (None if end is None else "done"), devices),
        )
        self.queue(job)

    def drop(self, job: int, number: int) -> None:
        self.db.execute("DELETE FROM attempt WHERE job = %s AND number = %s", (job, number))
        self.queue(job)

    def move(self, job: int, class_: int, state: str) -> None:
        self.db.execute("UPDATE job SET class = %s, state = %s WHERE id = %s", (class_, state, job))
        self.queue(job)

    def queue(self, job: int) -> None:
        self.db.execute("INSERT INTO to_meter (cluster, job) VALUES (%s, %s)", (CLUSTER, job))
