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
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from fairway.engines.port import MirrorBatch, Unreachable
from fairway.engines.slurm.jobs import sacct, squeue
from fairway.engines.slurm.jobs.commands import SlurmCommands
from fairway.engines.slurm.jobs.gpu_indices import GpuIndexReader
from fairway.engines.slurm.jobs.sacct import IDS_A_CALL, SacctRow
from fairway.engines.slurm.jobs.squeue import FleetLookup, SharesLookup, SqueueRow
from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.engines.slurm.rest.wire import WireNode
from fairway.model.backoff import Backoff
from fairway.model.fleet import Fleet
from fairway.model.job import OPEN_JOBS, Attempt, EngineId, EngineName, JobState, SeenJob

POLL_SECONDS: Final = 1.0
REST_SHARE: Final = 0.25
"""Fraction of a poll's duration that slurmctld rests before the next."""
SLACK_SECONDS: Final = 120
"""Margin before the mark: clocks of daemons differ a little, and jobs end in the same second."""
CLOCKS_DIFFER_SECONDS: Final = 600
"""The most by which this host's clock may be ahead of the cluster's."""
MAX_CATCH_UP_SECONDS: Final = 90 * 86_400
"""A mirror that was down for longer than this starts over."""
ACCOUNTING_BACKOFF: Final = Backoff(first_seconds=1, longest_seconds=30)
"""Delays before the accounting is queried again for what it did not have."""
SHARES_SECONDS: Final = 300.0
"""How long it is remembered how the GPUs of nodes are shared."""
LOST_SECONDS: Final = 600.0
"""How long the accounting may answer without a job that slurmctld no longer has."""
MAX_FIND_SECONDS: Final = 7 * 86_400
NAMES_A_CALL: Final = 200

Histories = Mapping[str, tuple[SacctRow, ...]]
"""The accounting's records by job, oldest first."""


@dataclass(slots=True)
class _PendingQuery:
    """A job that needs more data from the accounting."""

    since: float
    """By the cluster's clock: a restart resumes here."""
    first_answer: float | None = None
    """When the accounting first answered without it."""
    next_query: float = 0.0
    failures: int = 0
    """How often the accounting did not have it."""
    last_line: bytes = b""
    """Its last line, if slurmctld dropped it."""


class SlurmMirror:
    """The jobs of one cluster as last polled. One caller of `changes` at a time."""

    def __init__(
        self,
        commands: SlurmCommands,
        pools: PoolMatcher,
        indices: GpuIndexReader,
        nodes: Callable[[], Awaitable[Iterable[WireNode]]],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._commands = commands
        self._indices = indices
        self._pools = pools
        self._read_nodes = nodes
        self._shares: SharesLookup | None = None
        self._shares_at = 0.0
        self._clock = clock
        # after a character that is no digit: squeue takes digits there for the width of a field
        self._delimiter = f"\x1e{secrets.token_hex(8)}"
        self._fleet: Fleet | None = None
        self._lookup: FleetLookup | None = None
        self._lines: dict[bytes, bytes] = {}
        self._polled = False
        self._next_poll = 0.0
        self._pending: dict[str, _PendingQuery] = {}
        self._past: dict[str, tuple[Attempt, ...]] = {}
        """Earlier attempts of jobs that squeue still has."""
        self._submitted: dict[str, str] = {}
        """When requeued jobs were first submitted: Slurm resets their submit time."""
        self._latest = 0
        """The newest time that the cluster reported, by its own clock."""
        self._catch_up_from: float | None = None
        """From when on ended jobs are still to be read from the accounting; None: nothing to catch up on."""

    async def changes(self, mark: str | None, fleet: Fleet) -> MirrorBatch:
        """Poll once, not before its time."""
        lookup = self._lookup_for(fleet)
        snapshot = not self._polled
        if snapshot and mark is not None and self._latest == 0:
            self._catch_up_from = max(_mark_time(mark), time.time() - MAX_CATCH_UP_SECONDS)
        await asyncio.sleep(max(0.0, self._next_poll - self._clock()))
        started = self._clock()
        ids = [] if snapshot else self._due_ids()
        lines, histories = await asyncio.gather(self._poll(), self._histories_if_up(ids))
        now = self._clock()
        self._next_poll = max(started + POLL_SECONDS, now + REST_SHARE * (now - started))
        # tens of thousands of lines the first time: the server goes on answering meanwhile
        jobs = await asyncio.to_thread(self._compare, lines, lookup)
        if snapshot:  # jobs that were requeued before the first poll
            ids = self._due_ids(limit=None)
            histories = await self._histories_if_up(ids)
        jobs |= self._completed(ids, histories, lookup)
        for job_id in await self._indices.step():
            if line := self._lines.get(job_id.encode()):
                jobs[job_id] = self._job(squeue.parse(line), lookup)
        jobs = {**await self._catch_up(lookup), **jobs}
        self._polled = True
        return MirrorBatch(tuple(jobs.values()), self._mark(), snapshot)

    async def look_up(self, ids: Sequence[EngineId], fleet: Fleet) -> Mapping[EngineId, SeenJob]:
        lookup = self._lookup_for(fleet)
        histories = await self._histories(ids)
        return {job_id: sacct.to_job(histories[job_id], lookup) for job_id in ids if job_id in histories}

    async def find(self, names: Iterable[EngineName]) -> Mapping[EngineName, EngineId]:
        """Find jobs by name in slurmctld, and in the accounting for those it no longer has."""
        wanted = set(names)
        found: dict[EngineName, EngineId] = {}
        for line in await self._squeue(("jobarrayid", "name")):
            job_id, _, name = line.decode(errors="replace").partition("\x1f")
            if name in wanted:
                found.setdefault(EngineName(name), EngineId(job_id))
        missing = sorted(wanted - found.keys())
        since = time.time() - MAX_FIND_SECONDS
        for at in range(0, len(missing), NAMES_A_CALL):
            histories = await self._sacct(sacct.by_name(missing[at : at + NAMES_A_CALL], since))
            for job_id, history in histories.items():
                if history[-1].jobname in wanted:
                    found.setdefault(EngineName(history[-1].jobname), EngineId(job_id))
        return found

    def _lookup_for(self, fleet: Fleet) -> FleetLookup:
        if self._lookup is None or (fleet is not self._fleet and fleet != self._fleet):
            # pools and teams mean something else now: every job is reported again
            self._lines, self._polled = {}, False
            self._lookup = FleetLookup(fleet, self._pools, self._shares)
        self._fleet = fleet
        return self._lookup

    async def _poll(self) -> dict[bytes, bytes]:
        return {squeue.job_key(line): line for line in await self._squeue()}

    def _compare(self, lines: dict[bytes, bytes], lookup: FleetLookup) -> dict[str, SeenJob]:
        """Return what changed since the previous lines, as far as squeue reports it."""
        previous, jobs = self._lines, dict[str, SeenJob]()
        for key, line in lines.items():
            old_line = previous.get(key)
            if old_line == line:
                continue
            row = squeue.parse(line)
            if old_line is not None:
                old = squeue.parse(old_line)
                unchanged = squeue.without_estimates(old) == squeue.without_estimates(row)
                if unchanged or squeue.starts_completing(old, row):
                    continue
                if row.restarts > old.restarts:
                    self._submitted.setdefault(row.jobarrayid, old.submittime)
                if row.restarts > old.restarts or row.job_state not in OPEN_JOBS:
                    self._indices.forget(old)
            self._update_latest(row)
            self._indices.want(row)
            jobs[row.jobarrayid] = self._job(row, lookup)
        for key in previous.keys() - lines.keys():
            self._handle_dropped(previous[key])
        self._lines = lines
        return jobs

    def _job(self, row: SqueueRow, lookup: FleetLookup) -> SeenJob:
        """Return a job with all its attempts, or, until the accounting has them, with their number."""
        job = squeue.to_job(row, lookup, self._indices.of(row))
        if not row.restarts:
            self._pending.pop(row.jobarrayid, None)
            return job
        submitted = squeue.parse_time(self._submitted.get(row.jobarrayid, "")) or job.submitted_at
        past = self._past.get(row.jobarrayid, ())
        if len(past) >= row.restarts:
            self._pending.pop(row.jobarrayid, None)
            return replace(job, submitted_at=submitted, attempts=(*past, *job.attempts), earlier_attempts=0)
        self._pending.setdefault(row.jobarrayid, _PendingQuery(self._latest))
        return replace(job, submitted_at=submitted)

    def _handle_dropped(self, line: bytes) -> None:
        """Handle a job that slurmctld dropped: if its end was reported, nothing is left to query."""
        row = squeue.parse(line)
        self._indices.forget(row)
        complete = len(self._past.get(row.jobarrayid, ())) >= row.restarts
        if row.job_state in OPEN_JOBS or not complete:
            self._pending.setdefault(row.jobarrayid, _PendingQuery(self._latest)).last_line = line
        else:
            self._forget(row.jobarrayid)

    def _forget(self, job_id: str) -> None:
        self._pending.pop(job_id, None)
        self._past.pop(job_id, None)
        self._submitted.pop(job_id, None)

    def _due_ids(self, limit: int | None = IDS_A_CALL) -> list[str]:
        now = self._clock()
        return [job_id for job_id, query in self._pending.items() if query.next_query <= now][:limit]

    def _completed(
        self, ids: Sequence[str], histories: Histories | None, lookup: FleetLookup
    ) -> dict[str, SeenJob]:
        """Return jobs that the accounting's answer completes; the rest is queried again later."""
        jobs: dict[str, SeenJob] = {}
        now = self._clock()
        for job_id in ids:
            query = self._pending.get(job_id)
            if query is None:
                continue
            history = () if histories is None else histories.get(job_id, ())
            job = self._complete(job_id, history, lookup)
            if job is None and histories is not None:
                query.first_answer = now if query.first_answer is None else query.first_answer
                if query.last_line and now - query.first_answer > LOST_SECONDS:
                    ended = bool(history) and sacct.is_over(history)
                    job = sacct.to_job(history, lookup) if ended else _lost(query.last_line, lookup)
            if job is not None:
                jobs[job_id] = job
                self._pending.pop(job_id, None)
                if job_id.encode() not in self._lines:
                    self._forget(job_id)
            else:
                query.failures += 1
                query.next_query = now + ACCOUNTING_BACKOFF.seconds(query.failures)
        return jobs

    def _complete(self, job_id: str, history: tuple[SacctRow, ...], lookup: FleetLookup) -> SeenJob | None:
        if not history:
            return None
        line = self._lines.get(job_id.encode())
        if line is None:
            return sacct.to_job(history, lookup) if sacct.is_complete(history, lookup) else None
        row = squeue.parse(line)
        past = sacct.past_attempts(history, row.restarts, lookup)
        if past is None:
            return None
        self._past[job_id] = past
        self._submitted[job_id] = history[0].submit
        job = squeue.to_job(row, lookup, self._indices.of(row))
        return replace(
            job,
            submitted_at=squeue.parse_time(history[0].submit) or job.submitted_at,
            attempts=(*past, *job.attempts),
            earlier_attempts=0,
        )

    async def _catch_up(self, lookup: FleetLookup) -> dict[str, SeenJob]:
        """Return jobs that ended after the mark and before the first poll, and that squeue no longer has."""
        jobs: dict[str, SeenJob] = {}
        if self._catch_up_from is None:
            return jobs
        try:
            requeued: list[str] = []
            until = max(float(self._latest), time.time()) + SLACK_SECONDS
            for since, end in sacct.windows(self._catch_up_from - SLACK_SECONDS, until):
                histories = await self._sacct(sacct.ended_between(since, end))
                for job_id, history in histories.items():
                    if job_id.encode() in self._lines:
                        continue
                    if sacct.is_over(history) and history[-1].restarts == "0":
                        jobs[job_id] = sacct.to_job(history, lookup)
                    else:
                        requeued.append(job_id)
            for job_id, history in (await self._histories(requeued)).items():
                if sacct.is_over(history):
                    jobs[job_id] = sacct.to_job(history, lookup)
        except Unreachable:
            return {}  # the next poll tries again
        self._catch_up_from = None
        return jobs

    async def _histories_if_up(self, ids: Sequence[str]) -> Histories | None:
        """Read histories from the accounting. Returns None if it is down."""
        try:
            return await self._histories(ids)
        except Unreachable:
            return None

    async def _histories(self, ids: Sequence[str]) -> Histories:
        found: dict[str, tuple[SacctRow, ...]] = {}
        for at in range(0, len(ids), IDS_A_CALL):
            found |= await self._sacct(sacct.by_id(ids[at : at + IDS_A_CALL]))
        return found

    async def _squeue(self, fields: tuple[str, ...] = squeue.FIELDS) -> Iterable[bytes]:
        env = squeue.environment(self._delimiter, fields)
        output = await self._commands.run("squeue", squeue.ARGUMENTS, env)
        await self._read_shares(output)
        return squeue.split_lines(output, self._delimiter)

    async def _sacct(self, filters: Sequence[str]) -> Histories:
        delimiter = f"\x1f{secrets.token_hex(8)}"
        output = await self._commands.run("sacct", [*sacct.arguments(delimiter), *filters])
        await self._read_shares(output)
        return sacct.by_job(sacct.records(output, delimiter))

    async def _read_shares(self, output: bytes) -> None:
        """Read how many shares the GPUs of each node have, if jobs hold some: their TRES do not tell."""
        if b"gres/shard" not in output and b"gres/mps" not in output:
            return
        now = self._clock()
        if self._shares is None or now - self._shares_at > SHARES_SECONDS:
            self._shares = SharesLookup(await self._read_nodes())
            self._shares_at = now
            if self._lookup is not None:
                self._lookup.learn(self._shares)

    def _update_latest(self, row: SqueueRow) -> None:
        """Update the newest reported time. A waiting job's start and a running one's end are estimates."""
        times = [row.submittime]
        if row.job_state not in squeue.WAITING_STATES:
            times.append(row.starttime)
        if row.job_state not in OPEN_JOBS:
            times.append(row.endtime)
        self._latest = max(self._latest, *map(squeue.parse_int, times))

    def _mark(self) -> str:
        # on a quiet cluster no job has a recent time: this host's clock is used, with a margin
        latest = max(float(self._latest), time.time() - CLOCKS_DIFFER_SECONDS)
        times = [latest, *(query.since for query in self._pending.values() if query.since)]
        if self._catch_up_from is not None:
            times.append(self._catch_up_from)
        return json.dumps({"at": int(min(times))})


def _mark_time(mark: str) -> float:
    try:
        return float(json.loads(mark)["at"])
    except (ValueError, KeyError, TypeError):
        return time.time() - 86_400  # not of this engine: a day is better than nothing


def _lost(line: bytes, lookup: FleetLookup) -> SeenJob:
    """Return a job as lost: neither slurmctld nor the accounting has it any more."""
    return replace(
        squeue.to_job(squeue.parse(line), lookup),
        state=JobState.LOST,
        reason="slurmctld forgot it, and the accounting does not tell how it ended",
        reason_code="",
    )
