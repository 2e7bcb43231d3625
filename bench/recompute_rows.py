"""The raw rows that `bench.recompute` prices: attempts, capacity, applied fleet files, spot prices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final, NamedTuple
from zoneinfo import ZoneInfo

import psycopg
import yaml

_ATTEMPTS: Final = """
    SELECT extract(epoch FROM date_trunc('second', a.started_at))::bigint, CASE WHEN a.ended_at IS NULL
            AND a.ending IS NULL AND job.state IN ('queued', 'waiting', 'held', 'running') THEN NULL ELSE
            extract(epoch FROM date_trunc('second', coalesce(a.ended_at, m.metered_to)))::bigint END,
        a.devices, c.cluster, c.pool, c.slice, c.team, c.user_name, c.priority, job.name
    FROM attempt a JOIN job ON job.id = a.job LEFT JOIN metered m ON (m.job, m.attempt) = (a.job, a.number)
    JOIN job_class c ON c.id = CASE WHEN a.replica <> '' THEN coalesce(m.class, job.class) ELSE job.class END
    WHERE c.pool <> '' AND a.devices > 0 AND (a.ended_at IS NOT NULL OR a.ending IS NULL OR m IS NOT NULL)
"""
_CAPACITY: Final = """
    SELECT extract(epoch FROM started_at)::bigint, extract(epoch FROM ended_at)::bigint,
        cluster, pool, slice, total, drained, down, fragmented, gpus FROM capacity
    UNION ALL SELECT extract(epoch FROM metered_to)::bigint, NULL,
        cluster, pool, slice, total, drained, down, fragmented, gpus FROM capacity_now
"""
_APPLIED: Final = """
    SELECT extract(epoch FROM coalesce(min(finished_at), apply.created_at))::bigint AS at, revision FROM apply
    JOIN apply_cluster ON apply = apply.id WHERE kind = 'apply' AND state = 'done' GROUP BY apply.id
"""
_FILES: Final = f"""
    WITH done AS ({_APPLIED}), hour AS (SELECT min(at) / 3600 * 3600 AS first FROM done),
        applied AS (SELECT CASE at WHEN (SELECT min(at) FROM done) THEN first ELSE at END AS at, revision
            FROM done, hour),
        stored AS (SELECT extract(epoch FROM created_at)::bigint AS at, id, text FROM fleet_revision)
    SELECT at, text FROM stored, hour WHERE first IS NULL OR at < first
    UNION ALL SELECT applied.at, text FROM applied JOIN stored ON stored.id = revision ORDER BY at
"""
_POINTS: Final = """
    SELECT * FROM (SELECT DISTINCT ON (pool, at) pool, extract(epoch FROM at)::bigint, per_gpu_hour::float8
        FROM price_point ORDER BY pool, at, kept_at DESC) AS newest WHERE per_gpu_hour IS NOT NULL
"""
Key = tuple[str, ...]


class Line(NamedTuple):
    """What an amount is for. Its labels are day, cluster, pool, slice, team, user, priority and name."""

    labels: Key
    kind: str
    paid: bool
    place: Key
    teams: Key
    """The team that pays and those it was in then, the nearest first, as they are called now."""


Lines = dict[Line, list[float]]
"""Amount and GPU-hours."""


@dataclass(frozen=True)
class Team:
    """A team of a fleet file."""

    path: Key
    """Its name and those of the teams around it, the nearest first."""
    renamed_from: str | None
    guarantee: Mapping[str, str]


class RawLedger:
    """The raw rows at one moment, and what they come to."""

    def __init__(self, url: str) -> None:
        with psycopg.connect(url) as db:
            db.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
            self.attempts = db.execute(_ATTEMPTS).fetchall()
            self.capacity = db.execute(_CAPACITY).fetchall()
            self.points = db.execute(_POINTS).fetchall()
            files = [(at, yaml.load(text, yaml.CBaseLoader)) for at, text in db.execute(_FILES)]
        files = [one for n, one in enumerate(files) if not n or _money(one[1]) != _money(files[n - 1][1])]
        self.files: list[dict[str, Any]] = [file for _, file in files]
        self.zone = ZoneInfo(self.files[-1].get("cost", {}).get("timezone", "UTC"))
        hours = [[h for h, _ in self.hours(at - 7200, at + 7200)] for at, _ in files]
        since = [next(h for h in each if h >= at) for (at, _), each in zip(files, hours, strict=True)]
        self.since = [max(h for h in hours[0] if h <= files[0][0]), *since[1:]]  # the first: its own hour too
        self.teams = [dict(_teams(file["teams"], ())) for file in self.files]

    def midnight(self, day: date) -> int:
        return int(datetime(day.year, day.month, day.day, tzinfo=self.zone).timestamp())

    def hours(self, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Each hour of the wall clock that begins in a window; the last one ends with it."""
        quarters = range(-(-start // 900) * 900, end, 900)
        begin = [t for t in quarters if datetime.fromtimestamp(t, self.zone).minute == 0]
        yield from zip(begin, [*begin[1:], end], strict=True)

    def path(self, team: str, file: int) -> Key:
        """A team and those it was in then, or when a file last had it; as all of them are called now."""
        known = (self.teams[n][team].path for n in range(file, -1, -1) if team in self.teams[n])
        return tuple(self._now_called(name, file) for name in next(known, (team,)))

    def _now_called(self, team: str, then: int) -> str:
        for teams in self.teams[then + 1 :]:
            team = next((n for n, t in teams.items() if t.renamed_from == team and team not in teams), team)
        return team


def _teams(teams: Mapping[str, Any], above: Key) -> Iterator[tuple[str, Team]]:
    for name, team in teams.items():
        its = team or {}
        yield name, Team((name, *above), its.get("renamed_from"), its.get("guarantee") or {})
        yield from _teams(its.get("teams", {}), (name, *above))


def _money(file: Mapping[str, Any]) -> object:
    """What charges depend on: files that differ in nothing else are one."""
    words = ("cluster", "gpu", "capacity", "price", "discount", "commitments", "slice_prices", "slices")
    pools = {name: [pool.get(word) for word in words] for name, pool in file["pools"].items()}
    overhead = {name: cluster.get("overhead") for name, cluster in file["clusters"].items()}
    shared = "by-guarantee" in str(file.get("cost"))
    teams = [(n, t.path, t.renamed_from, shared and t.guarantee) for n, t in _teams(file["teams"], ())]
    return (file["currency"], file.get("cost"), pools, overhead, sorted(teams, key=str))
