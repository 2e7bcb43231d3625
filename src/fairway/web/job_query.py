"""What the address of the Jobs page asks for: search, filters, place in the list. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlencode

from fairway.ledger.job_records import JobFilter
from fairway.model.job import ENDED_JOBS, OPEN_JOBS, JobId, JobState, job_number, job_word
from fairway.model.wording import clean

LONGEST: Final = 200
"""Of a field; longer names do not exist."""

STATES: Final[Mapping[str, tuple[JobState, ...]]] = {
    "open": OPEN_JOBS,
    "ended": ENDED_JOBS,
    "wrong": (JobState.FAILED, JobState.TIMED_OUT, JobState.REFUSED, JobState.LOST),
    **{state.value: (state,) for state in JobState},
}
"""Words for states, and for several at once."""

AGES: Final = {
    "1h": ("the last hour", timedelta(hours=1)),
    "24h": ("the last 24 hours", timedelta(hours=24)),
    "7d": ("the last 7 days", timedelta(days=7)),
    "30d": ("the last 30 days", timedelta(days=30)),
}

_NAMES: Final = ("q", "state", "team", "user", "pool", "cluster", "priority", "age", "array", "mine")


@dataclass(frozen=True, slots=True)
class Chip:
    """A filter that is on, and the address without it."""

    field: str
    text: str
    without: str


@dataclass(frozen=True, slots=True)
class JobQuery:
    """What is asked for; an empty field is not asked about."""

    q: str = ""
    state: str = ""
    team: str = ""
    user: str = ""
    pool: str = ""
    cluster: str = ""
    priority: str = ""
    age: str = ""
    array: str = ""
    mine: str = ""
    """`teams`: those of the caller."""
    before: JobId | None = None
    after: JobId | None = None

    @classmethod
    def of(cls, given: Mapping[str, str]) -> JobQuery:
        """From an address. What no list could be asked for is left out: an old link still shows jobs."""
        said = {name: clean(given.get(name, ""))[:LONGEST].strip() for name in _NAMES}
        known = {"state": STATES, "age": AGES, "mine": {"teams"}}
        said |= {name: "" for name, words in known.items() if said[name] not in words}
        if job_number(said["array"]) is None:
            said["array"] = ""
        after = job_number(given.get("after", ""))
        before = None if after is not None else job_number(given.get("before", ""))
        return cls(**said, before=before, after=after)

    def address(self, **other: str) -> str:
        """Of the same question with some fields other; from its beginning unless a place is given."""
        said = {name: getattr(self, name) for name in _NAMES} | other
        query = urlencode({name: value for name, value in said.items() if value})
        return f"/jobs?{query}" if query else "/jobs"

    def filter(self, now: datetime, teams: frozenset[str]) -> JobFilter:
        """For the ledger; `teams` are the caller's own."""
        return JobFilter(
            cluster=self.cluster or None,
            team=self.team or None,
            user=self.user or None,
            states=STATES.get(self.state, ()),
            pool=self.pool or None,
            array=job_number(self.array) if self.array else None,
            submitted_after=now - AGES[self.age][1] if self.age else None,
            teams=tuple(sorted(teams)) if self.mine else None,
            priority=self.priority or None,
            once_an_array=not self.array,
        )

    @property
    def chips(self) -> list[Chip]:
        """Every filter that is on."""
        texts = {
            "q": f"begins with “{self.q}”",
            "age": AGES[self.age][0] if self.age else "",
            "array": f"tasks of {self.array}",
            "mine": "my teams",
            "state": "went wrong" if self.state == "wrong" else self.state,
        }
        return [
            Chip(name, texts.get(name, f"{name} {value}"), self.address(**{name: ""}))
            for name in _NAMES
            if (value := getattr(self, name))
        ]

    def without(self, field: str) -> JobQuery:
        """The same from its beginning, with one filter dropped."""
        return JobQuery.of({name: "" if name == field else getattr(self, name) for name in _NAMES})

    def older_than(self, job: JobId) -> str:
        """The address of the page after the one that ends with this job."""
        return self.address(before=job_word(job))

    def newer_than(self, job: JobId) -> str:
        """The address of the page before the one that begins with this job."""
        return self.address(after=job_word(job))
