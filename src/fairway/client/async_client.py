"""The asynchronous client: every method of `Client`, to be awaited."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from types import TracebackType
from typing import Self, Unpack

import httpx2

from fairway.client import requests_cost, requests_fleet, requests_jobs
from fairway.client.contexts import Target, chosen_target
from fairway.client.http import (
    MOST_PAGES,
    TIMEOUT,
    Answer,
    Call,
    Exchange,
    ServerFailed,
    ServerUnreachable,
    next_page,
)
from fairway.client.log_follower import POLL, Follower, give_up, over
from fairway.client.requests_cost import PATIENT, CostFilters, focus_params
from fairway.client.requests_jobs import Filters, SpecFields, spec_of
from fairway.model.access import Role
from fairway.model.errors import TemporaryError
from fairway.model.observation import Health
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as cost_wire
from fairway.wire import fleet as fleet_wire
from fairway.wire import jobs as job_wire
from fairway.wire import policy as policy_wire


class AsyncClient:
    """One server, one token. Use as an async context manager.

    `Client` documents each method at length.
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

    async def whoami(self) -> fleet_wire.Whoami:
        """Who the server takes this client for."""
        return await self._send(requests_fleet.whoami())

    async def clusters(self) -> list[fleet_wire.Cluster]:
        """Every cluster of the fleet."""
        return [one async for one in self._every(requests_fleet.clusters())]

    async def pools(self, cluster: str | None = None) -> list[fleet_wire.Pool]:
        """Every pool of the fleet, or of one cluster."""
        return [one async for one in self._every(requests_fleet.pools(cluster))]

    def nodes(
        self, cluster: str | None = None, pool: str | None = None, health: Health | None = None
    ) -> AsyncIterator[fleet_wire.Node]:
        """Every node that fits, page by page."""
        return self._every(requests_fleet.nodes(cluster, pool, health))

    async def tokens(self) -> list[fleet_wire.Token]:
        """Every token ever made."""
        return [one async for one in self._every(requests_fleet.tokens())]

    async def create_token(
        self, name: str, role: Role, expires_in_seconds: int | None, user: str | None = None
    ) -> fleet_wire.MadeToken:
        """Make a token; the answer holds its secret."""
        return await self._send(requests_fleet.create_token(name, role, expires_in_seconds, user))

    async def revoke_token(self, name: str) -> fleet_wire.Token:
        """End a token's life."""
        return await self._send(requests_fleet.revoke_token(name))

    async def plan(self, fleet: str, source: str, cluster: str | None = None) -> policy_wire.Plan:
        """What a fleet file would change."""
        return await self._send(requests_fleet.plan(fleet, source, cluster))

    async def apply(
        self, fleet: str, source: str, fingerprints: Mapping[str, str], *, force: bool
    ) -> policy_wire.Apply:
        """Ask for a planned fleet to be made so; the answer says how to follow it."""
        return await self._send(requests_fleet.apply(fleet, source, fingerprints, force=force))

    async def adopt(self, cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> policy_wire.Apply:
        """Ask for Fairway's mark on these objects."""
        return await self._send(requests_fleet.adopt(cluster, objects))

    async def applies(self, cluster: str | None = None, most: int = 20) -> list[policy_wire.Apply]:
        """The newest applies, of one cluster if it is named."""
        return await self._first(requests_fleet.applies(cluster, most), most)

    async def apply_detail(self, number: int) -> policy_wire.ApplyDetail:
        """One apply with every change."""
        return await self._send(requests_fleet.apply_detail(number))

    async def apply_progress(self, number: int) -> policy_wire.Apply:
        """One apply without its changes: cheap enough to ask twice a second."""
        return await self._send(requests_fleet.apply_progress(number))

    async def drift(self, cluster: str | None = None) -> list[policy_wire.Drift]:
        """Every difference between the clusters and what was last applied to them."""
        return [one async for one in self._every(requests_fleet.drift(cluster))]

    async def budgets(self) -> budget_wire.Budgets:
        """How the budgets the caller may see stand."""
        return await self._send(requests_fleet.budgets())

    async def teams(self) -> list[policy_wire.Team]:
        """The teams as last applied."""
        return [one async for one in self._every(requests_fleet.teams())]

    async def nudges(self, cluster: str | None = None, most: int = 100) -> list[policy_wire.Nudge]:
        """The newest nudges, of one cluster if it is named."""
        return await self._first(requests_fleet.nudges(cluster, most), most)

    async def render(self, fleet: str, source: str, cluster: str) -> policy_wire.Rendered:
        """The files of an engine that Fairway does not write itself."""
        return await self._send(requests_fleet.render(fleet, source, cluster))

    async def import_policy(self, cluster: str) -> policy_wire.Imported:
        """An existing cluster as a fleet file."""
        return await self._send(requests_fleet.import_policy(cluster))

    async def run(self, command: Sequence[str] | str, **fields: Unpack[SpecFields]) -> AsyncJobHandle:
        """Submit one job and give a handle on it."""
        (kept,) = await self.submit(spec_of(command, fields))
        return AsyncJobHandle(self, kept)

    async def submit(
        self,
        jobs: job_wire.JobSpec | Sequence[job_wire.JobSpec],
        *,
        key: str | None = None,
        as_user: str | None = None,
        hold: bool = False,
    ) -> list[job_wire.SubmittedJob]:
        """Keep jobs, at most 10,000 at once."""
        return (await self._send(requests_jobs.submit(jobs, key=key, as_user=as_user, hold=hold))).jobs

    async def dry_run(self, job: job_wire.JobSpec, *, as_user: str | None = None) -> job_wire.DryRun:
        """What would become of a job."""
        return await self._send(requests_jobs.dry_run(job, as_user=as_user))

    async def jobs(
        self, *, most: int | None = None, **filters: Unpack[Filters]
    ) -> AsyncIterator[job_wire.Job]:
        """Jobs that fit, the newest first, page by page; at most so many."""
        shown = 0
        async for job in self._every(requests_jobs.jobs(most, **filters)):
            if most is not None and shown >= most:
                return
            shown += 1
            yield job

    async def job(self, id: str) -> job_wire.JobDetail:  # noqa: A002
        """One job with its attempts and events."""
        return await self._send(requests_jobs.job(id))

    async def why(self, id: str) -> job_wire.Why:  # noqa: A002
        """Why a job waits, with a remedy for each reason."""
        return await self._send(requests_jobs.why(id))

    async def task_counts(self, id: str) -> job_wire.TaskCounts:  # noqa: A002
        """The tasks of an array by state."""
        return await self._send(requests_jobs.task_counts(id))

    async def log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        offset: int = 0,
        limit: int | None = None,
    ) -> job_wire.LogPart:
        """A piece of what a job printed; without `attempt` the last one's."""
        return await self._send(requests_jobs.log(id, attempt=attempt, node=node, offset=offset, limit=limit))

    async def follow_log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        follow: bool = True,
    ) -> AsyncIterator[job_wire.LogPart]:
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

    async def cancel(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """End jobs: all of them, or none if one of them is not yours to end."""
        return await self._send(requests_jobs.change("cancel", ids))

    async def hold(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Keep jobs from starting; what runs goes on."""
        return await self._send(requests_jobs.change("hold", ids))

    async def release(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Let held jobs start."""
        return await self._send(requests_jobs.change("release", ids))

    async def job_counts(self, cluster: str | None = None) -> list[job_wire.JobCount]:
        """Open jobs by cluster, team, pool and state."""
        return (await self._send(requests_jobs.job_counts(cluster))).counts

    async def report_cost(self, **asked: Unpack[CostFilters]) -> cost_wire.CostReport:
        """What usage cost. Rows sum to the total."""
        return await self._send(requests_cost.cost(**asked))

    async def report_usage(self, **asked: Unpack[CostFilters]) -> cost_wire.UsageReport:
        """What was held."""
        return await self._send(requests_cost.usage(**asked))

    async def report_waste(self, **asked: Unpack[CostFilters]) -> cost_wire.WasteReport:
        """What nobody used, by why, and what it cost."""
        return await self._send(requests_cost.waste(**asked))

    async def report_capacity(self, **asked: Unpack[CostFilters]) -> cost_wire.CapacityReport:
        """What was there by day and pool, used or not, and what it cost."""
        return await self._send(requests_cost.capacity(**asked))

    async def statements(self, month: str, team: str | None = None) -> cost_wire.Statements:
        """A month's charges by team."""
        return await self._send(requests_cost.statements(month, team))

    async def prices(self) -> cost_wire.Prices:
        """What each pool costs today."""
        return await self._send(requests_cost.prices())

    async def close_month(self, month: str) -> cost_wire.Statements:
        """Keep a month as it is told now, for good."""
        return await self._send(requests_cost.close_month(month))

    async def keep_price_points(self, pool: str, points: Sequence[cost_wire.PricePoint]) -> int:
        """Add to a pool's price series; how many said something new."""
        return sum([(await self._send(call)).kept for call in requests_cost.price_points(pool, points)])

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

    async def _first(self, call: Call[fleet_wire.Page[fleet_wire.Item]], most: int) -> list[fleet_wire.Item]:
        """The first so many of a list that begins with the newest."""
        found: list[fleet_wire.Item] = []
        async for one in self._every(call):
            if len(found) >= most:
                break
            found.append(one)
        return found

    async def _every(self, call: Call[fleet_wire.Page[fleet_wire.Item]]) -> AsyncIterator[fleet_wire.Item]:
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

    def __init__(self, client: AsyncClient, kept: job_wire.SubmittedJob) -> None:
        self._client = client
        self.id = kept.id
        self.placement = kept.placement

    def __repr__(self) -> str:
        return f"<job {self.id} on {self.placement.pool}>"

    async def now(self) -> job_wire.JobDetail:
        """How it is."""
        return await self._client.job(self.id)

    async def why(self) -> job_wire.Why:
        """Why it waits."""
        return await self._client.why(self.id)

    async def wait(self, timeout_seconds: float | None = None) -> job_wire.JobDetail:
        """The job when it is over. Raises JobNotOver after `timeout_seconds`; None: as long as it takes."""
        began, delays = time.monotonic(), POLL.delays()
        while not over(seen := await self.now()):
            give_up(seen, time.monotonic() - began, timeout_seconds)
            await asyncio.sleep(next(delays))
        return seen

    async def log(self, *, follow: bool = False) -> AsyncIterator[str]:
        """What it printed, piece by piece; with `follow` until it is over."""
        async for part in self._client.follow_log(self.id, follow=follow):
            yield part.text

    async def cancel(self) -> job_wire.Changed:
        """End it."""
        return await self._client.cancel(self.id)
