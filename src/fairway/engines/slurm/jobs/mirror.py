"""Mirror every job of a cluster with one `squeue` a second, and `sacct` for what it does not have.

squeue prints 50,000 jobs in half a second; a line is parsed only when it differs from the last one of that
job. It reports a job's current attempt to the second, also for a while after its end. What it drops is read
from the accounting: earlier attempts of a requeued job, and jobs that ended and were dropped between polls.
The accounting may be slow or down: then squeue's data is returned at once, and again when it is complete.
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
from fairway.engines.slurm.jobs import fields as reading
from fairway.engines.slurm.jobs import sacct, squeue
from fairway.engines.slurm.jobs.commands import SlurmCommands
from fairway.engines.slurm.jobs.fields import FleetLookup
from fairway.engines.slurm.jobs.sacct import IDS_A_CALL, SacctRow
from fairway.engines.slurm.jobs.squeue import SqueueRow
from fairway.engines.slurm.nodes.devices import Claims
from fairway.model.backoff import Backoff
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, EngineName, JobState, SeenJob

LOOK_SECONDS: Final = 1.0
REST_SHARE: Final = 0.25
"""Fraction of a poll's duration that slurmctld rests before the next."""
SLACK_SECONDS: Final = 120
"""Margin before the mark: clocks of daemons differ a little, and jobs end in the same second."""
CLOCKS_DIFFER_SECONDS: Final = 600
"""The most by which this host's clock may be ahead of the cluster's."""
FURTHEST_BACK_SECONDS: Final = 90 * 86_400
"""A mirror that was down for longer than this starts over."""
ACCOUNTING_BACKOFF: Final = Backoff(first_seconds=1, longest_seconds=30)
"""Delays before the accounting is asked again for what it did not have."""
LOST_SECONDS: Final = 600.0
"""How long the accounting may answer without a job that slurmctld no longer has."""
FIND_BACK_SECONDS: Final = 7 * 86_400
NAMES_A_CALL: Final = 200


@dataclass(slots=True)
class _Due:
    """A job that needs more data from the accounting."""

    since: float
    """By the cluster's clock: a restart resumes here."""
    first_asked: float | None = None
    next_ask: float = 0.0
    asks: int = 0
    """How often the accounting did not have it."""
    last: bytes = b""
    """Its last line, if slurmctld dropped it."""


class SlurmMirror:
    """The known jobs of one cluster. One caller of `changes` at a time."""

    def __init__(
        self, tools: SlurmCommands, claims: Claims, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._tools = tools
        self._claims = claims
        self._clock = clock
        # after a sign that is no digit: squeue takes digits there for the width of a field
        self._secret = f"\x1e{secrets.token_hex(8)}"
        self._fleet: Fleet | None = None
        self._words: FleetLookup | None = None
        self._lines: dict[bytes, bytes] = {}
        self._looked = False
        self._next_look = 0.0
        self._due: dict[str, _Due] = {}
        self._past: dict[str, tuple[Attempt, ...]] = {}
        """Earlier attempts of jobs that squeue still has."""
        self._submitted: dict[str, str] = {}
        """When requeued jobs were first submitted: Slurm resets their submit time."""
        self._latest = 0
        """The newest time that the cluster reported, by its own clock."""
        self._behind: float | None = None
        """From when on ended jobs are still to be read from the accounting; None: nothing to catch up on."""

    async def changes(self, mark: str | None, fleet: Fleet) -> Batch:
        """Poll once, not before its time."""
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
            found = await self._sacct(sacct.by_id(ids[at : at + IDS_A_CALL]))
            for name, history in found.items():
                jobs[EngineId(name)] = sacct.seen(history, words)
        return {name: jobs[name] for name in ids if name in jobs}

    async def find(self, names: Iterable[EngineName]) -> Mapping[EngineName, EngineId]:
        """Find jobs by name in slurmctld, and in the accounting for those it no longer has."""
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
            for number, history in (await self._sacct(sacct.by_name(some, since))).items():
                if history[-1].name in wanted:
                    found.setdefault(EngineName(history[-1].name), EngineId(number))
        return found

    def _speak(self, fleet: Fleet) -> FleetLookup:
        if self._words is None or (fleet is not self._fleet and fleet != self._fleet):
            # pools and teams mean something else now: every job is told again
            self._lines, self._looked = {}, False
            self._words = FleetLookup(fleet, self._claims)
        self._fleet = fleet
        return self._words

    async def _look(self) -> dict[bytes, bytes]:
        output = await self._tools.run("squeue", squeue.ARGUMENTS, squeue.environment(self._secret))
        return {squeue.key(line): line for line in squeue.lines(output, self._secret)}

    def _compare(self, lines: dict[bytes, bytes], words: FleetLookup) -> dict[str, SeenJob]:
        """Return what changed since the previous lines, as far as squeue reports it."""
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

    def _seen(self, row: SqueueRow, words: FleetLookup) -> SeenJob:
        """Return a job with all its attempts, or, until the accounting has them, with their number."""
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

    def _gone(self, line: bytes, words: FleetLookup) -> None:
        """Handle a job that slurmctld dropped: if its end was reported, nothing is left to query."""
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
        self, asked: Sequence[str], found: Mapping[str, tuple[SacctRow, ...]] | None, words: FleetLookup
    ) -> dict[str, SeenJob]:
        """Return jobs that the accounting's answer completes; the rest is queried again later."""
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
                    known = bool(history) and sacct.is_over(history)
                    seen = sacct.seen(history, words) if known else _lost(squeue.parse(due.last), words)
            if seen is not None:
                jobs[name] = seen
                self._due.pop(name, None)
                if name.encode() not in self._lines:
                    self._forget(name)
            else:
                due.asks += 1
                due.next_ask = now + ACCOUNTING_BACKOFF.seconds(due.asks)
        return jobs

    def _complete(self, name: str, history: tuple[SacctRow, ...], words: FleetLookup) -> SeenJob | None:
        if not history:
            return None
        line = self._lines.get(name.encode())
        if line is None:
            return sacct.seen(history, words) if sacct.is_complete(history, words) else None
        row = squeue.parse(line)
        past = sacct.past(history, squeue.restarts(row), words)
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

    async def _catch_up(self, words: FleetLookup) -> dict[str, SeenJob]:
        """Return jobs that ended after the mark and before the first poll, and that squeue no longer has."""
        jobs: dict[str, SeenJob] = {}
        if self._behind is None:
            return jobs
        try:
            came_back: list[str] = []
            until = max(float(self._latest), time.time()) + SLACK_SECONDS
            for since, end in sacct.windows(self._behind - SLACK_SECONDS, until):
                found = await self._sacct(sacct.ended_between(since, end))
                for name, history in found.items():
                    if name.encode() in self._lines:
                        continue
                    if sacct.is_over(history) and history[-1].restarts == "0":
                        jobs[name] = sacct.seen(history, words)
                    else:
                        came_back.append(name)
            for name, history in (await self._all(came_back)).items():
                if sacct.is_over(history):
                    jobs[name] = sacct.seen(history, words)
        except Unreachable:
            return {}  # the next look tries again
        self._behind = None
        return jobs

    async def _histories(self, ids: Sequence[str]) -> Mapping[str, tuple[SacctRow, ...]] | None:
        """Read histories from the accounting. Returns None if it is down."""
        try:
            return await self._all(ids)
        except Unreachable:
            return None

    async def _all(self, ids: Sequence[str]) -> Mapping[str, tuple[SacctRow, ...]]:
        found: dict[str, tuple[SacctRow, ...]] = {}
        for at in range(0, len(ids), IDS_A_CALL):
            found |= await self._sacct(sacct.by_id(ids[at : at + IDS_A_CALL]))
        return found

    async def _sacct(self, which: Sequence[str]) -> Mapping[str, tuple[SacctRow, ...]]:
        secret = f"\x1f{secrets.token_hex(8)}"
        output = await self._tools.run("sacct", [*sacct.arguments(secret), *which])
        return sacct.grouped(sacct.records(output, secret))

    def _note_time(self, row: SqueueRow) -> None:
        """Update the newest reported time. A waiting job's start and a running one's end are estimates."""
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


def _lost(row: SqueueRow, words: FleetLookup) -> SeenJob:
    """Return a job as lost: neither slurmctld nor the accounting knows it any more."""
    return replace(
        squeue.seen(row, words),
        state=JobState.LOST,
        reason="slurmctld forgot it, and the accounting does not tell how it ended",
        reason_code="",
    )
