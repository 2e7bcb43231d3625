"""The same client for code that awaits: one server, one token, every verb that `Client` has."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Sequence
from types import TracebackType
from typing import Self, Unpack

import httpx2

from fairway.api import cost_wire
from fairway.api import job_wire as wire
from fairway.api.wire import Item, Page
from fairway.client import cost_calls
from fairway.client import job_calls as calls
from fairway.client.async_fleet import AsyncFleetVerbs
from fairway.client.calls import (
    MOST_PAGES,
    TIMEOUT,
    Answer,
    Call,
    Exchange,
    ServerFailed,
    ServerUnreachable,
    next_page,
)
from fairway.client.contexts import Target, chosen_target
from fairway.client.cost_calls import PATIENT, Asked, focus_params
from fairway.client.following import Follower, Pauses, give_up, over
from fairway.client.job_calls import Filters, SpecFields, spec_of
from fairway.model.errors import TemporaryError


class AsyncClient(AsyncFleetVerbs):
    """One server, one token. Use as an async context manager.

    What each verb does stands in `FleetVerbs`, `JobVerbs` and `MoneyVerbs`.
    """

    def __init__(
        self,
        target: Target | None = None,
        timeout: httpx2.Timeout = TIMEOUT,
        *,
        context: str | None = None,
    ) -> None:
        """Without a target: the one the command line would use, by this context or the current one."""
        self._exchange = Exchange(target or chosen_target(context))
        self._timeout = timeout
        self._http = httpx2.AsyncClient(**self._exchange.connecting, timeout=timeout)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Let go of connections."""
        await self._http.aclose()

    async def run(self, command: Sequence[str] | str, **fields: Unpack[SpecFields]) -> AsyncJobHandle:
        """Submit one job and give a handle on it."""
        (kept,) = await self.submit(spec_of(command, fields))
        return AsyncJobHandle(self, kept)

    async def submit(
        self,
        jobs: wire.JobSpec | Sequence[wire.JobSpec],
        *,
        key: str | None = None,
        as_user: str | None = None,
        hold: bool = False,
    ) -> list[wire.SubmittedJob]:
        """Keep jobs, at most 10,000 at once."""
        return (await self._send(calls.submit(jobs, key=key, as_user=as_user, hold=hold))).jobs

    async def dry_run(self, job: wire.JobSpec, *, as_user: str | None = None) -> wire.DryRun:
        """What would become of a job."""
        return await self._send(calls.dry_run(job, as_user=as_user))

    async def jobs(self, *, most: int | None = None, **filters: Unpack[Filters]) -> AsyncIterator[wire.Job]:
        """Jobs that fit, the newest first, page by page; at most so many."""
        shown = 0
        async for job in self._every(calls.jobs(most, **filters)):
            if most is not None and shown >= most:
                return
            shown += 1
            yield job

    async def job(self, id: str) -> wire.JobDetail:  # noqa: A002
        """One job with its attempts and events."""
        return await self._send(calls.job(id))

    async def why(self, id: str) -> wire.Why:  # noqa: A002
        """Why a job waits, with a remedy for each reason."""
        return await self._send(calls.why(id))

    async def task_counts(self, id: str) -> wire.TaskCounts:  # noqa: A002
        """The tasks of an array by state."""
        return await self._send(calls.task_counts(id))

    async def log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        offset: int = 0,
        limit: int | None = None,
    ) -> wire.LogPart:
        """A piece of what a job printed; without `attempt` the last one's."""
        return await self._send(calls.log(id, attempt=attempt, node=node, offset=offset, limit=limit))

    async def follow_log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        follow: bool = True,
    ) -> AsyncIterator[wire.LogPart]:
        """What a job printed, piece by piece, and what it goes on to print until it is over."""
        follower = Follower(id, attempt, node, follow=follow)
        while (call := follower.next_call()) is not None:
            try:
                part = await self._send(call)
                if follower.take(part):
                    yield part
                elif follower.waits:
                    await asyncio.sleep(follower.job_is(await self.job(id)))
            except TemporaryError as error:
                await asyncio.sleep(follower.lost(error))

    async def cancel(self, ids: str | Sequence[str]) -> wire.Changed:
        """End jobs: all of them, or none if one of them is not yours to end."""
        return await self._send(calls.change("cancel", ids))

    async def hold(self, ids: str | Sequence[str]) -> wire.Changed:
        """Keep jobs from starting; what runs goes on."""
        return await self._send(calls.change("hold", ids))

    async def release(self, ids: str | Sequence[str]) -> wire.Changed:
        """Let held jobs start."""
        return await self._send(calls.change("release", ids))

    async def job_counts(self, cluster: str | None = None) -> list[wire.JobCount]:
        """Open jobs by cluster, team, pool and state."""
        return (await self._send(calls.job_counts(cluster))).counts

    async def report_cost(self, **asked: Unpack[Asked]) -> cost_wire.CostReport:
        """What usage cost. Rows sum to the total."""
        return await self._send(cost_calls.cost(**asked))

    async def report_usage(self, **asked: Unpack[Asked]) -> cost_wire.UsageReport:
        """What was held."""
        return await self._send(cost_calls.usage(**asked))

    async def report_waste(self, **asked: Unpack[Asked]) -> cost_wire.WasteReport:
        """What nobody used, by why, and what it cost."""
        return await self._send(cost_calls.waste(**asked))

    async def report_capacity(self, **asked: Unpack[Asked]) -> cost_wire.CapacityReport:
        """What was there by day and pool, used or not, and what it cost."""
        return await self._send(cost_calls.capacity(**asked))

    async def statements(self, month: str, team: str | None = None) -> cost_wire.Statements:
        """A month's charges by team."""
        return await self._send(cost_calls.statements(month, team))

    async def prices(self) -> cost_wire.Prices:
        """What each pool costs today."""
        return await self._send(cost_calls.prices())

    async def close_month(self, month: str) -> cost_wire.Statements:
        """Keep a month as it is told now, for good."""
        return await self._send(cost_calls.close_month(month))

    async def keep_price_points(self, pool: str, points: Sequence[cost_wire.PricePoint]) -> int:
        """Add to a pool's price series; how many said something new."""
        return sum([(await self._send(call)).kept for call in cost_calls.price_points(pool, points)])

    async def export_focus(self, window: str, team: str | None = None) -> AsyncIterator[bytes]:
        """A FOCUS file as CSV, in pieces as the server writes them. Raises if it breaks off."""
        params = tuple(focus_params(window, team))
        try:
            async with self._http.stream(
                "GET", "/v1/exports/focus", params=params, timeout=PATIENT
            ) as response:
                if not response.is_success:
                    await response.aread()
                    raise self._exchange.refused(response)
                async for piece in response.aiter_bytes():
                    yield piece
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._exchange.lost(error) from error

    async def _every(self, call: Call[Page[Item]]) -> AsyncIterator[Item]:
        for _ in range(MOST_PAGES):
            answer = await self._send(call)
            for item in answer.items:
                yield item
            if answer.next_cursor is None:
                return
            call = next_page(call, answer.next_cursor)
        raise self._exchange.endless(call.path)

    async def _send(self, call: Call[Answer]) -> Answer:
        for pause in call.pauses:
            try:
                return await self._send_once(call)
            except (ServerUnreachable, ServerFailed):
                await asyncio.sleep(pause)
        return await self._send_once(call)

    async def _send_once(self, call: Call[Answer]) -> Answer:
        try:
            response = await self._http.request(**self._exchange.sending(call, self._timeout))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._exchange.lost(error) from error
        return self._exchange.read(call, response)


class AsyncJobHandle:
    """A job that was submitted."""

    def __init__(self, client: AsyncClient, kept: wire.SubmittedJob) -> None:
        self._client = client
        self.id = kept.id
        self.placement = kept.placement

    def __repr__(self) -> str:
        return f"<job {self.id} on {self.placement.pool}>"

    async def now(self) -> wire.JobDetail:
        """How it is."""
        return await self._client.job(self.id)

    async def why(self) -> wire.Why:
        """Why it waits."""
        return await self._client.why(self.id)

    async def wait(self, timeout_seconds: float | None = None) -> wire.JobDetail:
        """The job when it is over. Raises JobNotOver after `timeout_seconds`; None: as long as it takes."""
        began, pauses = time.monotonic(), Pauses()
        while not over(seen := await self.now()):
            give_up(seen, time.monotonic() - began, timeout_seconds)
            await asyncio.sleep(pauses.next())
        return seen

    async def log(self, *, follow: bool = False) -> AsyncIterator[str]:
        """What it printed, piece by piece; with `follow` until it is over."""
        async for part in self._client.follow_log(self.id, follow=follow):
            yield part.text

    async def cancel(self) -> wire.Changed:
        """End it."""
        return await self._client.cancel(self.id)
