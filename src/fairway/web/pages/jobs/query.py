"""Parse the query of the Jobs page from its URL: search, filters, order, cursor. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from fairway.ledger.records.jobs import JobFilter, JobSort, JobSortKey
from fairway.model.job import ENDED_JOBS, OPEN_JOBS, JobId, JobState, format_job_id, parse_job_id
from fairway.model.text import clean
from fairway.views import jobs as views

MAX_VALUE_LENGTH: Final = 200
"""The longest value of a field; longer names do not exist."""

STATES: Final[Mapping[str, tuple[JobState, ...]]] = {
    "open": OPEN_JOBS,
    "ended": ENDED_JOBS,
    "wrong": (JobState.FAILED, JobState.TIMED_OUT, JobState.REFUSED, JobState.LOST),
    "pending": (JobState.QUEUED, JobState.WAITING),
    **{state.value: (state,) for state in JobState},
}
"""States by name, and groups of states."""

STATE_WORDS: Final[Mapping[str, str]] = {
    "open": "not ended",
    "ended": "any end",
    "wrong": "any failure",
    "pending": "queued or waiting",
    **{state.value: word for state, word in views.STATE_WORDS.items()},
}
"""What each choice of a state is called."""

AGES: Final = {
    "1h": ("the last hour", timedelta(hours=1)),
    "24h": ("the last 24 hours", timedelta(hours=24)),
    "7d": ("the last 7 days", timedelta(days=7)),
    "30d": ("the last 30 days", timedelta(days=30)),
}

MAX_OFFSET: Final = 5000
"""The farthest row of a sorted list: no more are sorted."""

NEWEST_FIRST: Final = JobSort()

_DESCENDING: Final = frozenset({JobSortKey.SUBMITTED, JobSortKey.GPUS, JobSortKey.TIME, JobSortKey.ENDED})
"""Columns whose largest values come first when somebody first sorts by them."""

SERVICES: Final = "services"
"""The choice of every kind that is a service."""

_NAMES: Final = (
    *("q", "state", "team", "user", "pool", "cluster", "priority", "kind", "age", "array", "mine"),
    "sort",
)
_FILTERS: Final = _NAMES[:-1]


@dataclass(frozen=True, slots=True)
class Chip:
    """An active filter, and the URL without it."""

    field: str
    text: str
    without: str


@dataclass(frozen=True, slots=True)
class JobQuery:
    """The query of the Jobs page; empty fields do not filter."""

    q: str = ""
    state: str = ""
    team: str = ""
    user: str = ""
    pool: str = ""
    cluster: str = ""
    priority: str = ""
    kind: str = ""
    """A kind of workload on Kubernetes, or SERVICES."""
    age: str = ""
    array: str = ""
    mine: str = ""
    """`teams`: only those of the caller."""
    sort: str = ""
    """A column, with a minus before it if descending; empty: newest first."""
    offset: int = 0
    """The first row of a sorted list; a list by id has a cursor instead."""
    before: JobId | None = None
    after: JobId | None = None

    @classmethod
    def of(cls, params: Mapping[str, str]) -> JobQuery:
        """Parse query parameters. Invalid values are ignored, so that old links still show jobs."""
        values = {name: clean(params.get(name, ""))[:MAX_VALUE_LENGTH].strip() for name in _NAMES}
        choices = {"state": STATES, "age": AGES, "mine": {"teams"}}
        values |= {name: "" for name, valid in choices.items() if values[name] not in valid}
        if parse_job_id(values["array"]) is None:
            values["array"] = ""
        if values["sort"].removeprefix("-") not in set(JobSortKey) or values["sort"] == "-submitted":
            values["sort"] = ""
        after = parse_job_id(params.get("after", ""))
        before = None if after is not None else parse_job_id(params.get("before", ""))
        offset = params.get("offset", "")
        valid = offset.isascii() and offset.isdecimal() and len(offset) < 5
        number = min(int(offset), MAX_OFFSET) if valid and values["sort"] else 0
        return cls(**values, offset=number, before=before, after=after)

    @property
    def order(self) -> JobSort:
        """Return the order of the list."""
        if not self.sort:
            return NEWEST_FIRST
        return JobSort(JobSortKey(self.sort.removeprefix("-")), self.sort.startswith("-"))

    def sorted_by(self, key: JobSortKey) -> str:
        """Return the URL of the list sorted by a column; by the same column again, in the other direction."""
        order = self.order
        descending = not order.descending if order.key is key else key in _DESCENDING
        return self.address(sort=f"{'-' if descending else ''}{key.value}")

    def address(self, **other: str) -> str:
        """Return the URL of this query with some fields changed; the first page unless a cursor is given."""
        values = {name: getattr(self, name) for name in _NAMES} | other
        query = urlencode({name: value for name, value in values.items() if value})
        return f"/jobs?{query}" if query else "/jobs"

    def filter(self, now: datetime, teams: frozenset[str]) -> JobFilter:
        """Convert to the ledger's filter; `teams` are the caller's own."""
        return JobFilter(
            cluster=self.cluster or None,
            team=self.team or None,
            user=self.user or None,
            states=STATES.get(self.state, ()),
            pool=self.pool or None,
            array=parse_job_id(self.array) if self.array else None,
            submitted_after=now - AGES[self.age][1] if self.age else None,
            teams=tuple(sorted(teams)) if self.mine else None,
            priority=self.priority or None,
            kind=self.kind if self.kind and self.kind != SERVICES else None,
            service=True if self.kind == SERVICES else None,
            once_an_array=not self.array,
        )

    def export_filter(self, now: datetime, teams: frozenset[str]) -> JobFilter:
        """Convert to the filter of a file, which has every task of an array."""
        return replace(self.filter(now, teams), once_an_array=False)

    @property
    def chips(self) -> list[Chip]:
        """Return every active filter."""
        texts = {
            "q": f"search “{self.q}”",
            "age": AGES[self.age][0] if self.age else "",
            "array": f"tasks of {self.array}",
            "mine": "my teams",
            "kind": "services" if self.kind == SERVICES else f"kind {self.kind}",
            "state": STATE_WORDS.get(self.state, self.state),
        }
        return [
            Chip(name, texts.get(name, f"{name} {value}"), self.address(**{name: ""}))
            for name in _FILTERS
            if (value := getattr(self, name))
        ]

    def without(self, field: str) -> JobQuery:
        """Return the query without one filter, at the first page."""
        return JobQuery.of({name: "" if name == field else getattr(self, name) for name in _NAMES})

    def older_than(self, job: JobId) -> str:
        """Return the URL of the page after the one that ends with this job."""
        return self.address(before=format_job_id(job))

    def newer_than(self, job: JobId) -> str:
        """Return the URL of the page before the one that begins with this job."""
        return self.address(after=format_job_id(job))

    def export_address(self) -> str:
        """Return the URL of all rows of this query as CSV."""
        return self.address(sort="").replace("/jobs", "/jobs/export.csv", 1)
