"""The synchronous client. Every call is bounded in time; every failure is a FairwayError with a hint."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
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
    ServerRefused,
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

__all__ = ["Client", "ServerFailed", "ServerRefused", "ServerUnreachable"]


class Client:
    """One server, one token. Use as a context manager."""

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
        self._http = httpx2.Client(**self._exchange.connecting, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of connections."""
        self._http.close()

    def whoami(self) -> fleet_wire.Whoami:
        """Who the server takes this client for."""
        return self._send(requests_fleet.whoami())

    def clusters(self) -> list[fleet_wire.Cluster]:
        """Every cluster of the fleet."""
        return list(self._every(requests_fleet.clusters()))

    def pools(self, cluster: str | None = None) -> list[fleet_wire.Pool]:
        """Every pool of the fleet, or of one cluster."""
        return list(self._every(requests_fleet.pools(cluster)))

    def nodes(
        self, cluster: str | None = None, pool: str | None = None, health: Health | None = None
    ) -> Iterator[fleet_wire.Node]:
        """Every node that fits, page by page."""
        return self._every(requests_fleet.nodes(cluster, pool, health))

    def tokens(self) -> list[fleet_wire.Token]:
        """Every token ever made."""
        return list(self._every(requests_fleet.tokens()))

    def create_token(
        self, name: str, role: Role, expires_in_seconds: int | None, user: str | None = None
    ) -> fleet_wire.MadeToken:
        """Make a token; the answer holds its secret."""
        return self._send(requests_fleet.create_token(name, role, expires_in_seconds, user))

    def revoke_token(self, name: str) -> fleet_wire.Token:
        """End a token's life."""
        return self._send(requests_fleet.revoke_token(name))

    def plan(self, fleet: str, source: str, cluster: str | None = None) -> policy_wire.Plan:
        """What a fleet file would change."""
        return self._send(requests_fleet.plan(fleet, source, cluster))

    def apply(
        self, fleet: str, source: str, fingerprints: Mapping[str, str], *, force: bool
    ) -> policy_wire.Apply:
        """Ask for a planned fleet to be made so; the answer says how to follow it."""
        return self._send(requests_fleet.apply(fleet, source, fingerprints, force=force))

    def adopt(self, cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> policy_wire.Apply:
        """Ask for Fairway's mark on these objects."""
        return self._send(requests_fleet.adopt(cluster, objects))

    def applies(self, cluster: str | None = None, most: int = 20) -> list[policy_wire.Apply]:
        """The newest applies, of one cluster if it is named."""
        return list(itertools.islice(self._every(requests_fleet.applies(cluster, most)), most))

    def apply_detail(self, number: int) -> policy_wire.ApplyDetail:
        """One apply with every change."""
        return self._send(requests_fleet.apply_detail(number))

    def apply_progress(self, number: int) -> policy_wire.Apply:
        """One apply without its changes: cheap enough to ask twice a second."""
        return self._send(requests_fleet.apply_progress(number))

    def drift(self, cluster: str | None = None) -> list[policy_wire.Drift]:
        """Every difference between the clusters and what was last applied to them."""
        return list(self._every(requests_fleet.drift(cluster)))

    def budgets(self) -> budget_wire.Budgets:
        """How the budgets the caller may see stand."""
        return self._send(requests_fleet.budgets())

    def teams(self) -> list[policy_wire.Team]:
        """The teams as last applied."""
        return list(self._every(requests_fleet.teams()))

    def nudges(self, cluster: str | None = None, most: int = 100) -> list[policy_wire.Nudge]:
        """The newest nudges, of one cluster if it is named."""
        return list(itertools.islice(self._every(requests_fleet.nudges(cluster, most)), most))

    def render(self, fleet: str, source: str, cluster: str) -> policy_wire.Rendered:
        """The files of an engine that Fairway does not write itself."""
        return self._send(requests_fleet.render(fleet, source, cluster))

    def import_policy(self, cluster: str) -> policy_wire.Imported:
        """An existing cluster as a fleet file."""
        return self._send(requests_fleet.import_policy(cluster))

    def run(self, command: Sequence[str] | str, **fields: Unpack[SpecFields]) -> JobHandle:
        """Submit one job and give a handle on it: `run(["python", "train.py"], gpus="H100:8")`.

        A single text is a shell script. The fields are those of `JobSpec`; `gpus` may be text, `time` too.
        """
        (kept,) = self.submit(spec_of(command, fields))
        return JobHandle(self, kept)

    def submit(
        self,
        jobs: job_wire.JobSpec | Sequence[job_wire.JobSpec],
        *,
        key: str | None = None,
        as_user: str | None = None,
        hold: bool = False,
    ) -> list[job_wire.SubmittedJob]:
        """Keep jobs, at most 10,000 at once; they run when they can. The same `key` makes none twice."""
        return self._send(requests_jobs.submit(jobs, key=key, as_user=as_user, hold=hold)).jobs

    def dry_run(self, job: job_wire.JobSpec, *, as_user: str | None = None) -> job_wire.DryRun:
        """What would become of a job: where it would go, and whether it could ever run. Nothing is kept."""
        return self._send(requests_jobs.dry_run(job, as_user=as_user))

    def jobs(self, *, most: int | None = None, **filters: Unpack[Filters]) -> Iterator[job_wire.Job]:
        """Jobs that fit, the newest first, page by page; at most so many."""
        return itertools.islice(self._every(requests_jobs.jobs(most, **filters)), most)

    def job(self, id: str) -> job_wire.JobDetail:  # noqa: A002
        """One job with its attempts and events."""
        return self._send(requests_jobs.job(id))

    def why(self, id: str) -> job_wire.Why:  # noqa: A002
        """Why a job waits, with a remedy for each reason; of one that runs or is over, how it stands."""
        return self._send(requests_jobs.why(id))

    def task_counts(self, id: str) -> job_wire.TaskCounts:  # noqa: A002
        """The tasks of an array by state."""
        return self._send(requests_jobs.task_counts(id))

    def log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        offset: int = 0,
        limit: int | None = None,
    ) -> job_wire.LogPart:
        """A piece of what a job printed; without `attempt` the last one's."""
        return self._send(requests_jobs.log(id, attempt=attempt, node=node, offset=offset, limit=limit))

    def follow_log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        follow: bool = True,
    ) -> Iterator[job_wire.LogPart]:
        """What a job printed, piece by piece, and what it goes on to print until it is over.

        Without `follow` only what is there. A later attempt's output follows the one before it.
        """
        follower = Follower(id, attempt, node, follow=follow)
        while (call := follower.next_call()) is not None:
            try:
                part = self._send(call)
                if follower.take(part):
                    yield part
                elif follower.waits:
                    time.sleep(follower.job_is(self.job(id)))
            except TemporaryError as error:
                time.sleep(follower.lost(error))

    def cancel(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """End jobs: all of them, or none if one of them is not yours to end."""
        return self._send(requests_jobs.change("cancel", ids))

    def hold(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Keep jobs from starting; what runs goes on."""
        return self._send(requests_jobs.change("hold", ids))

    def release(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Let held jobs start."""
        return self._send(requests_jobs.change("release", ids))

    def job_counts(self, cluster: str | None = None) -> list[job_wire.JobCount]:
        """Open jobs by cluster, team, pool and state."""
        return self._send(requests_jobs.job_counts(cluster)).counts

    def report_cost(self, **asked: Unpack[CostFilters]) -> cost_wire.CostReport:
        """What usage cost: `report_cost(window="2026-10", by=["team", "pool"])`. Rows sum to the total."""
        return self._send(requests_cost.cost(**asked))

    def report_usage(self, **asked: Unpack[CostFilters]) -> cost_wire.UsageReport:
        """What was held: GPU-hours, slices by their part, and slices as they are."""
        return self._send(requests_cost.usage(**asked))

    def report_waste(self, **asked: Unpack[CostFilters]) -> cost_wire.WasteReport:
        """What nobody used, by why, and what it cost; `by` pool, cluster, slice or day."""
        return self._send(requests_cost.waste(**asked))

    def report_capacity(self, **asked: Unpack[CostFilters]) -> cost_wire.CapacityReport:
        """What was there by day and pool, used or not, and what it cost."""
        return self._send(requests_cost.capacity(**asked))

    def statements(self, month: str, team: str | None = None) -> cost_wire.Statements:
        """A month's charges by team."""
        return self._send(requests_cost.statements(month, team))

    def close_month(self, month: str) -> cost_wire.Statements:
        """Keep a month as it is told now, for good."""
        return self._send(requests_cost.close_month(month))

    def prices(self) -> cost_wire.Prices:
        """What each pool costs today."""
        return self._send(requests_cost.prices())

    def keep_price_points(self, pool: str, points: Sequence[cost_wire.PricePoint]) -> int:
        """Add to a pool's price series; how many said something new."""
        return sum(self._send(call).kept for call in requests_cost.price_points(pool, points))

    def export_focus(self, window: str, team: str | None = None) -> Iterator[bytes]:
        """A FOCUS file as CSV, in pieces as the server writes them. Raises if it breaks off."""
        params = tuple(focus_params(window, team))
        try:
            with self._http.stream("GET", "/v1/exports/focus", params=params, timeout=PATIENT) as response:
                if not response.is_success:
                    response.read()
                    raise self._exchange.refused(response)
                yield from response.iter_bytes()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._exchange.lost(error) from error

    def _every(self, call: Call[fleet_wire.Page[fleet_wire.Item]]) -> Iterator[fleet_wire.Item]:
        for _ in range(MOST_PAGES):
            answer = self._send(call)
            yield from answer.items
            if answer.next_cursor is None:
                return
            call = next_page(call, answer.next_cursor)
        raise self._exchange.endless(call.path)

    def _send(self, call: Call[Answer]) -> Answer:
        for pause in call.pauses:
            try:
                return self._send_once(call)
            except (ServerUnreachable, ServerFailed):
                time.sleep(pause)
        return self._send_once(call)

    def _send_once(self, call: Call[Answer]) -> Answer:
        try:
            response = self._http.request(**self._exchange.sending(call, self._timeout))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._exchange.lost(error) from error
        return self._exchange.read(call, response)


class JobHandle:
    """A job that was submitted."""

    def __init__(self, client: Client, kept: job_wire.SubmittedJob) -> None:
        self._client = client
        self.id = kept.id
        self.placement = kept.placement

    def __repr__(self) -> str:
        return f"<job {self.id} on {self.placement.pool}>"

    def now(self) -> job_wire.JobDetail:
        """How it is."""
        return self._client.job(self.id)

    def why(self) -> job_wire.Why:
        """Why it waits."""
        return self._client.why(self.id)

    def wait(self, timeout_seconds: float | None = None) -> job_wire.JobDetail:
        """The job when it is over. Raises JobNotOver after `timeout_seconds`; None: as long as it takes."""
        began, delays = time.monotonic(), POLL.delays()
        while not over(seen := self.now()):
            give_up(seen, time.monotonic() - began, timeout_seconds)
            time.sleep(next(delays))
        return seen

    def log(self, *, follow: bool = False) -> Iterator[str]:
        """What it printed, piece by piece; with `follow` until it is over."""
        return (part.text for part in self._client.follow_log(self.id, follow=follow))

    def cancel(self) -> job_wire.Changed:
        """End it."""
        return self._client.cancel(self.id)
