"""Every job of a cluster, kept up with by one `squeue` a second and `sacct` for what it cannot tell.

squeue prints 50,000 jobs in half a second; a line is read only when it differs from the last one of that job.
It tells a job's present attempt to the second, also for a while after its end. What it forgets is asked of
the accounting: earlier attempts of a job that came back, and jobs that ended and went while nobody looked.
The accounting may be slow or away: then what squeue tells goes out at once, and again when it is complete.
"""

from __future__ import annotations

import asyncio
import json
import secrets
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.engines.port import Batch, Unreachable
from fairway.engines.slurm.jobs import accounting, reading, squeue
from fairway.engines.slurm.jobs.accounting import IDS_A_CALL, Record
from fairway.engines.slurm.jobs.reading import Words
from fairway.engines.slurm.jobs.squeue import Row
from fairway.engines.slurm.jobs.tools import Tools
from fairway.engines.slurm.translate import Claims
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, EngineName, JobState, SeenJob

LOOK_SECONDS: Final = 1.0
REST_SHARE: Final = 0.25
"""Of the time a look took, slurmctld rests before the next."""
SLACK_SECONDS: Final = 120
"""Looked back further than the mark: clocks of daemons differ a little, and jobs end in the same second."""
CLOCKS_DIFFER_SECONDS: Final = 600
"""The most by which this host's clock may be before the cluster's."""
FURTHEST_BACK_SECONDS: Final = 90 * 86_400
"""Whoever was away for longer than this begins anew."""
AGAIN_SECONDS: Final = 30.0
"""The longest wait before the accounting is asked again for what it did not have."""
LOST_SECONDS: Final = 600.0
"""So long the accounting may answer without a job that slurmctld no longer has."""
FIND_BACK_SECONDS: Final = 7 * 86_400
NAMES_A_CALL: Final = 200


@dataclass(slots=True)
class _Due:
    """A job that the accounting is to tell more of."""

    since: float
    """By the cluster's clock: a restart looks back to here."""
    first_asked: float | None = None
    next_ask: float = 0.0
    wait: float = 1.0
    last: bytes = b""
    """Its last line, if it is gone."""


class Mirror:
    """What is known of one cluster's jobs. One caller of `changes` at a time."""

    def __init__(self, tools: Tools, claims: Claims, clock: Callable[[], float] = time.monotonic) -> None:
        self._tools = tools
        self._claims = claims
        self._clock = clock
        # after a sign that is no digit: squeue takes digits there for the width of a field
        self._secret = f"\x1e{secrets.token_hex(8)}"
        self._fleet: Fleet | None = None
        self._words: Words | None = None
        self._lines: dict[bytes, bytes] = {}
        self._looked = False
        self._next_look = 0.0
        self._due: dict[str, _Due] = {}
        self._past: dict[str, tuple[Attempt, ...]] = {}
        """Earlier attempts of jobs that squeue still has."""
        self._submitted: dict[str, str] = {}
        """When jobs that came back were first submitted: Slurm submits them anew."""
        self._latest = 0
        """The newest moment that the cluster told of, by its own clock."""
        self._behind: float | None = None
        """From when on what ended is still to be asked of the accounting."""

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        """One look, not before its time."""
        words = self._speak(fleet)
        whole = not self._looked
        if whole and mark is not None and self._latest == 0:
            self._behind = max(_moment(mark), time.time() - FURTHEST_BACK_SECONDS)
        await asyncio.sleep(max(0.0, self._next_look - self._clock()))
        started = self._clock()
        ids = [] if whole else self._to_ask()
        lines, found = await asyncio.gather(self._look(), self._histories(ids))
        now = self._clock()
        self._next_look = max(started + LOOK_SECONDS, now + REST_SHARE * (now - started))
        # tens of thousands of lines the first time: the server goes on answering meanwhile
        jobs = await asyncio.to_thread(self._compare, lines, words)
        if whole:  # what came back before anybody looked
            ids = self._to_ask(limit=None)
            found = await self._histories(ids)
        jobs |= self._completed(ids, found, words)
        jobs = {**await self._catch_up(words), **jobs}
        self._looked = True
        return Batch(tuple(jobs.values()), self._mark(), whole)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        words = self._speak(fleet)
        jobs: dict[EngineId, SeenJob] = {}
        for at in range(0, len(ids), IDS_A_CALL):
            found = await self._sacct(accounting.by_id(ids[at : at + IDS_A_CALL]))
            for name, history in found.items():
                jobs[EngineId(name)] = accounting.seen(history, words)
        return {name: jobs[name] for name in ids if name in jobs}

    async def find(self, names: Iterable[EngineName]) -> Mapping[EngineName, EngineId]:
        """By slurmctld's jobs, and by the accounting's for what it no longer has."""
        wanted = set(names)
        fields = ("jobarrayid", "name")
        output = await self._tools.run("squeue", squeue.ARGUMENTS, squeue.environment(self._secret, fields))
        found: dict[EngineName, EngineId] = {}
        for line in squeue.lines(output, self._secret):
            number, _, name = line.decode(errors="replace").partition("\x1f")
            if name in wanted:
                found.setdefault(EngineName(name), EngineId(number))
        left = sorted(wanted - found.keys())
        since = time.time() - FIND_BACK_SECONDS
        for at in range(0, len(left), NAMES_A_CALL):
            some = left[at : at + NAMES_A_CALL]
            for number, history in (await self._sacct(accounting.by_name(some, since))).items():
                if history[-1].name in wanted:
                    found.setdefault(EngineName(history[-1].name), EngineId(number))
        return found

    def _speak(self, fleet: Fleet) -> Words:
        if self._words is None or (fleet is not self._fleet and fleet != self._fleet):
            # pools and teams mean something else now: every job is told again
            self._lines, self._looked = {}, False
            self._words = Words(fleet, self._claims)
        self._fleet = fleet
        return self._words

    async def _look(self) -> dict[bytes, bytes]:
        output = await self._tools.run("squeue", squeue.ARGUMENTS, squeue.environment(self._secret))
        return {squeue.key(line): line for line in squeue.lines(output, self._secret)}

    def _compare(self, lines: dict[bytes, bytes], words: Words) -> dict[str, SeenJob]:
        """What changed since the lines before, as far as squeue tells."""
        before, jobs = self._lines, dict[str, SeenJob]()
        for key, line in lines.items():
            old = before.get(key)
            if old == line:
                continue
            row = squeue.parse(line)
            if old is not None:
                was = squeue.parse(old)
                if squeue.settled(was) == squeue.settled(row) or squeue.only_completes(was, row):
                    continue
                if squeue.restarts(row) > squeue.restarts(was):
                    self._submitted.setdefault(row.id, was.submit)
            self._note_time(row)
            jobs[row.id] = self._seen(row, words)
        for key in before.keys() - lines.keys():
            self._gone(before[key], words)
        self._lines = lines
        return jobs

    def _seen(self, row: Row, words: Words) -> SeenJob:
        """A job with all its attempts, or, until the accounting tells them, with how many there were."""
        seen = squeue.seen(row, words)
        restarts = squeue.restarts(row)
        if not restarts:
            self._due.pop(row.id, None)
            return seen
        first = reading.time_of(self._submitted.get(row.id, "")) or seen.submitted_at
        past = self._past.get(row.id, ())
        if len(past) >= restarts:
            self._due.pop(row.id, None)
            return replace(seen, submitted_at=first, attempts=(*past, *seen.attempts), earlier_attempts=0)
        self._due.setdefault(row.id, _Due(self._latest))
        return replace(seen, submitted_at=first)

    def _gone(self, line: bytes, words: Words) -> None:
        """slurmctld forgot a job: if it was told how it ended, nothing is left to ask."""
        row = squeue.parse(line)
        state = reading.job_state(row.state, row.reason)
        complete = len(self._past.get(row.id, ())) >= squeue.restarts(row)
        if state in OPEN_JOBS or not complete:
            self._due.setdefault(row.id, _Due(self._latest)).last = line
        else:
            self._forget(row.id)

    def _forget(self, name: str) -> None:
        self._due.pop(name, None)
        self._past.pop(name, None)
        self._submitted.pop(name, None)

    def _to_ask(self, limit: int | None = IDS_A_CALL) -> list[str]:
        now = self._clock()
        ready = [name for name, due in self._due.items() if due.next_ask <= now]
        return ready[:limit]

    def _completed(
        self, asked: Sequence[str], found: Mapping[str, tuple[Record, ...]] | None, words: Words
    ) -> dict[str, SeenJob]:
        """What the accounting's answer makes complete; the rest is asked again later."""
        jobs: dict[str, SeenJob] = {}
        now = self._clock()
        for name in asked:
            due = self._due.get(name)
            if due is None:
                continue
            history = () if found is None else found.get(name, ())
            seen = self._complete(name, history, words)
            if seen is None and found is not None:
                due.first_asked = now if due.first_asked is None else due.first_asked
                if due.last and now - due.first_asked > LOST_SECONDS:
                    known = bool(history) and accounting.is_over(history)
                    seen = accounting.seen(history, words) if known else _lost(squeue.parse(due.last), words)
            if seen is not None:
                jobs[name] = seen
                self._due.pop(name, None)
                if name.encode() not in self._lines:
                    self._forget(name)
            else:
                due.next_ask = now + due.wait
                due.wait = min(AGAIN_SECONDS, due.wait * 2)
        return jobs

    def _complete(self, name: str, history: tuple[Record, ...], words: Words) -> SeenJob | None:
        if not history:
            return None
        line = self._lines.get(name.encode())
        if line is None:
            return accounting.seen(history, words) if accounting.is_complete(history, words) else None
        row = squeue.parse(line)
        past = accounting.past(history, squeue.restarts(row), words)
        if past is None:
            return None
        self._past[name] = past
        self._submitted[name] = history[0].submit
        seen = squeue.seen(row, words)
        return replace(
            seen,
            submitted_at=reading.time_of(history[0].submit) or seen.submitted_at,
            attempts=(*past, *seen.attempts),
            earlier_attempts=0,
        )

    async def _catch_up(self, words: Words) -> dict[str, SeenJob]:
        """What ended after the mark and before the first look, and squeue no longer has."""
        jobs: dict[str, SeenJob] = {}
        if self._behind is None:
            return jobs
        try:
            came_back: list[str] = []
            until = max(float(self._latest), time.time()) + SLACK_SECONDS
            for since, end in accounting.windows(self._behind - SLACK_SECONDS, until):
                found = await self._sacct(accounting.ended_between(since, end))
                for name, history in found.items():
                    if name.encode() in self._lines:
                        continue
                    if accounting.is_over(history) and history[-1].restarts == "0":
                        jobs[name] = accounting.seen(history, words)
                    else:
                        came_back.append(name)
            for name, history in (await self._all(came_back)).items():
                if accounting.is_over(history):
                    jobs[name] = accounting.seen(history, words)
        except Unreachable:
            return {}  # the next look tries again
        self._behind = None
        return jobs

    async def _histories(self, ids: Sequence[str]) -> Mapping[str, tuple[Record, ...]] | None:
        """None: the accounting is away."""
        try:
            return await self._all(ids)
        except Unreachable:
            return None

    async def _all(self, ids: Sequence[str]) -> Mapping[str, tuple[Record, ...]]:
        found: dict[str, tuple[Record, ...]] = {}
        for at in range(0, len(ids), IDS_A_CALL):
            found |= await self._sacct(accounting.by_id(ids[at : at + IDS_A_CALL]))
        return found

    async def _sacct(self, which: Sequence[str]) -> Mapping[str, tuple[Record, ...]]:
        secret = f"\x1f{secrets.token_hex(8)}"
        output = await self._tools.run("sacct", [*accounting.arguments(secret), *which])
        return accounting.grouped(accounting.records(output, secret))

    def _note_time(self, row: Row) -> None:
        """What waits has a start only by guess, and what runs an end."""
        state = reading.job_state(row.state, row.reason)
        told = [row.submit]
        if state not in (JobState.WAITING, JobState.HELD):
            told.append(row.start)
        if state not in OPEN_JOBS:
            told.append(row.end)
        self._latest = max(self._latest, *(int(text) for text in told if text.isdecimal()), 0)

    def _mark(self) -> str:
        # on a quiet cluster nothing tells the time: this host's clock does, with a margin
        latest = max(float(self._latest), time.time() - CLOCKS_DIFFER_SECONDS)
        moments = [latest, *(due.since for due in self._due.values() if due.since)]
        if self._behind is not None:
            moments.append(self._behind)
        return json.dumps({"at": int(min(moments))})


def _moment(mark: str) -> float:
    try:
        return float(json.loads(mark)["at"])
    except (ValueError, KeyError, TypeError):
        return time.time() - 86_400  # not of this engine: a day is better than nothing


def _lost(row: Row, words: Words) -> SeenJob:
    """A job that neither slurmctld nor the accounting knows any more."""
    return replace(
        squeue.seen(row, words),
        state=JobState.LOST,
        reason="slurmctld forgot it, and the accounting does not tell how it ended",
    )
