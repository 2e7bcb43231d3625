"""The synchronous client. Every request has a timeout; every failure is a FairwayError with a hint."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from typing import Self, Unpack

import httpx2
from pydantic import BaseModel

from fairway.client import requests
from fairway.client.contexts import Target, chosen_target
from fairway.client.filters import Filters
from fairway.client.http import MAX_PAGES, TIMEOUT, ApiCodec, ApiRequest, Response, Retries, next_page
from fairway.client.lists import ItemList, ItemQuery
from fairway.client.log_follower import LogFollower
from fairway.client.progress import progress_of
from fairway.client.requests import CostFilters, SpecFields, job_spec
from fairway.client.waiting import HasTasks, JobNotFinished, JobsWait, task_ids
from fairway.model.access import Role
from fairway.model.errors import FairwayError, TemporaryError
from fairway.model.job import JobState
from fairway.model.notice_rules import NoticeKind
from fairway.model.observation import Health
from fairway.wire import budget_raises as raise_wire
from fairway.wire import budgets as budget_wire
from fairway.wire import costs as cost_wire
from fairway.wire import fleet as fleet_wire
from fairway.wire import gpu_health as health_wire
from fairway.wire import gpu_use as gpu_wire
from fairway.wire import jobs as job_wire
from fairway.wire import logins as login_wire
from fairway.wire import notices as notice_wire
from fairway.wire import policy as policy_wire
from fairway.wire import slos as slo_wire
from fairway.wire.fleet import Item, Page


class Client:
    """A client of one server with one token. Use it as a context manager."""

    def __init__(
        self,
        target: Target | None = None,
        timeout: httpx2.Timeout = TIMEOUT,
        *,
        context: str | None = None,
    ) -> None:
        """Connect to `target`, by default to the server of `context`, or the one that the CLI would use."""
        self._codec = ApiCodec(target or chosen_target(context))
        self._http = httpx2.Client(**self._codec.client_options, timeout=timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._codec.url}>"

    def whoami(self) -> fleet_wire.Whoami:
        """Return the identity and rights of the client's token."""
        return self._send(requests.whoami())

    def clusters(self) -> ItemList[fleet_wire.Cluster]:
        """Return the clusters of the fleet."""
        return ItemList(self._items(requests.clusters()))

    def pools(self, cluster: str | None = None) -> ItemList[fleet_wire.Pool]:
        """Return the pools of the fleet, or of one cluster."""
        return ItemList(self._items(requests.pools(cluster)))

    def nodes(
        self, cluster: str | None = None, pool: str | None = None, health: Health | None = None
    ) -> ItemQuery[fleet_wire.Node]:
        """Return the nodes that match the filters; they are read page by page when you iterate."""
        return ItemQuery(lambda: self._items(requests.nodes(cluster, pool, health)))

    def gpu_events(
        self,
        cluster: str | None = None,
        node: str | None = None,
        gpu: str | None = None,
        job: str | None = None,
        days: int = 30,
        most: int = 100,
    ) -> ItemList[health_wire.GpuEvent]:
        """Return the newest events of GPUs; `gpu` is a UUID or serial number."""
        return ItemList(self._items(requests.gpu_events(cluster, node, gpu, job, days, most)))

    def failing_gpus(
        self, cluster: str | None = None, days: int = 90, most: int = 100
    ) -> ItemList[health_wire.FailingGpu]:
        """Return the GPUs whose hardware failed, those that fail in most weeks first."""
        return ItemList(self._items(requests.failing_gpus(cluster, days, most)))

    def loops(self) -> ItemList[fleet_wire.Loop]:
        """Return the loops of Fairway's servers, with the server that runs each."""
        return ItemList(self._items(requests.loops()))

    def cordons(self, cluster: str | None = None) -> ItemList[health_wire.Cordon]:
        """Return the nodes that Fairway closed because of broken GPUs."""
        return ItemList(self._items(requests.cordons(cluster)))

    def uncordon(self, cluster: str, node: str) -> health_wire.Cordon:
        """Ask that a node be opened again that Fairway closed."""
        return self._send(requests.uncordon(cluster, node))

    def tokens(self) -> ItemList[fleet_wire.Token]:
        """Return all tokens, also expired and revoked ones."""
        return ItemList(self._items(requests.tokens()))

    def create_token(
        self, name: str, role: Role, expires_in_seconds: int | None, user: str | None = None
    ) -> fleet_wire.MadeToken:
        """Create a token; the response contains its secret."""
        return self._send(requests.create_token(name, role, expires_in_seconds, user))

    def revoke_token(self, name: str) -> fleet_wire.Token:
        """Revoke a token."""
        return self._send(requests.revoke_token(name))

    def begin_login(self, challenge: str, host: str, port: int | None) -> login_wire.Login:
        """Begin a sign-in that a person confirms in a browser; `port` is where this machine listens."""
        return self._send(requests.begin_login(challenge, host, port))

    def redeem_login(self, verifier: str, code: str | None = None) -> login_wire.LoginResult:
        """Return the token of a sign-in that was confirmed; until then a result without one."""
        return self._send(requests.redeem_login(verifier, code))

    def log_out(self) -> fleet_wire.Token:
        """Revoke the token of this client, if `fairway login` created it."""
        return self._send(requests.log_out())

    def sessions(self, user: str | None = None) -> ItemList[fleet_wire.Session]:
        """Return who is signed in to the pages."""
        return ItemList(self._items(requests.sessions(user)))

    def revoke_sessions(self, user: str) -> fleet_wire.EndedSessions:
        """End every session of a user."""
        return self._send(requests.revoke_sessions(user))

    def plan(self, fleet: str, source: str, cluster: str | None = None) -> policy_wire.Plan:
        """Return what a fleet file would change."""
        return self._send(requests.plan(fleet, source, cluster))

    def apply(
        self,
        fleet: str,
        source: str,
        fingerprints: Mapping[str, str],
        *,
        force: bool,
        confirmed: Sequence[str] = (),
        reprice_past: bool = False,
    ) -> policy_wire.Apply:
        """Start to apply a planned fleet file; follow it with `apply_progress`.

        `confirmed` names what may be removed; `force` confirms all of it. `reprice_past` lets charges of
        closed months change.
        """
        request = requests.apply(
            fleet, source, fingerprints, force=force, confirmed=confirmed, reprice_past=reprice_past
        )
        return self._send(request)

    def adopt(self, cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> policy_wire.Apply:
        """Start to put Fairway's mark on these objects."""
        return self._send(requests.adopt(cluster, objects))

    def plan_leaving(self, cluster: str) -> policy_wire.Plan:
        """Return what the return of a cluster to its state before Fairway changes."""
        return self._send(requests.plan_leaving(cluster))

    def leave(self, cluster: str, fingerprint: str) -> policy_wire.Apply:
        """Start the return of a cluster to its state before Fairway; follow it with `apply_progress`."""
        return self._send(requests.leave(cluster, fingerprint))

    def release_all(self, cluster: str) -> policy_wire.Apply:
        """Start to lift every guard of a cluster until the next apply."""
        return self._send(requests.release_all(cluster))

    def applies(self, cluster: str | None = None, most: int = 20) -> ItemList[policy_wire.Apply]:
        """Return the newest applies, of all clusters or one."""
        return ItemList(itertools.islice(self._items(requests.applies(cluster, most)), most))

    def fleet_file(self, revision: int | None = None) -> policy_wire.FleetFile:
        """Return a revision of the fleet file, or the one that was applied last."""
        return self._send(requests.fleet_file(revision))

    def revisions(self, most: int = 20) -> ItemList[policy_wire.FleetRevision]:
        """Return the newest revisions of the fleet file, without their text."""
        return ItemList(itertools.islice(self._items(requests.revisions(most)), most))

    def stopped_applies(self) -> ItemList[policy_wire.StoppedApply]:
        """Return the applies that stopped before their end and that no later one has finished."""
        return ItemList(self._items(requests.stopped_applies()))

    def apply_detail(self, number: int) -> policy_wire.ApplyDetail:
        """Return one apply with all its changes."""
        return self._send(requests.apply_detail(number))

    def apply_progress(self, number: int) -> policy_wire.Apply:
        """Return one apply without its changes: cheap enough to poll twice a second."""
        return self._send(requests.apply_progress(number))

    def drift(self, cluster: str | None = None) -> ItemList[policy_wire.Drift]:
        """Return the differences between the clusters and what was last applied to them."""
        return ItemList(self._items(requests.drift(cluster)))

    def notices(self, kind: NoticeKind | None = None, limit: int = 50) -> notice_wire.Notices:
        """Return the newest notices that the caller may see, with what came of sending them."""
        return self._send(requests.notices(kind, limit))

    def notice_rules(self) -> notice_wire.OwnNoticeRules:
        """Return which notices the caller gets by mail."""
        return self._send(requests.notice_rules())

    def put_notice_rules(self, rules: notice_wire.NoticeRules) -> notice_wire.OwnNoticeRules:
        """Replace the caller's rules."""
        return self._send(requests.put_notice_rules(rules))

    def test_notice(self, team: str | None = None) -> notice_wire.Notice:
        """Send a test notice to the caller, or to the channels of a team."""
        return self._send(requests.test_notice(team))

    def budgets(self) -> budget_wire.Budgets:
        """Return the state of the budgets that the caller may see."""
        return self._send(requests.budgets())

    def slos(self) -> slo_wire.Slos:
        """Return the service level objectives that the caller may see, with their state."""
        return self._send(requests.slos())

    def slo_history(self, name: str, days: int = 30) -> slo_wire.SloHistory:
        """Return the error budget of an objective over the last days."""
        return self._send(requests.slo_history(name, days))

    def budget_raises(self, team: str | None = None, *, all_states: bool = False) -> raise_wire.BudgetRaises:
        """Return the raises of budgets that wait for a decision, or all of them, newest first."""
        return self._send(requests.budget_raises(team, all_states=all_states))

    def request_budget_raise(
        self, team: str, amount: Decimal | int | str, reason: str
    ) -> raise_wire.BudgetRaise:
        """Request to raise the budget of a team until its current period ends."""
        return self._send(requests.request_budget_raise(team, Decimal(amount), reason))

    def approve_budget_raise(self, number: int, comment: str = "") -> raise_wire.BudgetRaise:
        """Approve a raise: it counts at once."""
        return self._send(requests.decide_budget_raise(number, "approve", comment))

    def deny_budget_raise(self, number: int, comment: str = "") -> raise_wire.BudgetRaise:
        """Deny a raise, or withdraw a request of one's own."""
        return self._send(requests.decide_budget_raise(number, "deny", comment))

    def teams(self) -> ItemList[policy_wire.Team]:
        """Return the teams as last applied."""
        return ItemList(self._items(requests.teams()))

    def interventions(
        self, cluster: str | None = None, most: int = 100
    ) -> ItemList[policy_wire.Intervention]:
        """Return the newest interventions, of all clusters or one."""
        return ItemList(itertools.islice(self._items(requests.interventions(cluster, most)), most))

    def render(self, fleet: str, source: str, cluster: str) -> policy_wire.Rendered:
        """Return the engine files that Fairway does not write itself."""
        return self._send(requests.render(fleet, source, cluster))

    def import_policy(self, cluster: str) -> policy_wire.Imported:
        """Return the policy of an existing cluster as a fleet file."""
        return self._send(requests.import_policy(cluster))

    def run(self, command: Sequence[str] | str, **fields: Unpack[SpecFields]) -> JobHandle:
        """Submit one job and return a handle on it: `run(["python", "train.py"], gpus="H100:8")`.

        A string is a shell script. The fields are those of `JobSpec`; `gpus` and `time` may be strings.
        """
        (submitted,) = self.submit(job_spec(command, **fields))
        return JobHandle(self, submitted)

    def submit(
        self,
        jobs: job_wire.JobSpec | Sequence[job_wire.JobSpec],
        *,
        key: str | None = None,
        as_user: str | None = None,
        hold: bool = False,
    ) -> ItemList[job_wire.SubmittedJob]:
        """Submit jobs, at most 10,000 at once. The same `key` does not submit them twice."""
        return ItemList(self._send(requests.submit(jobs, key=key, as_user=as_user, hold=hold)).jobs)

    def dry_run(self, job: job_wire.JobSpec, *, as_user: str | None = None) -> job_wire.DryRun:
        """Return where a job would be placed and whether it could ever run, without submitting it."""
        return self._send(requests.dry_run(job, as_user=as_user))

    def jobs(self, *, most: int | None = None, **filters: Unpack[Filters]) -> ItemQuery[job_wire.Job]:
        """Return the jobs that match the filters, newest first, at most `most`.

        They are read when you iterate: `for job in client.jobs(user="alice")`.
        """
        request = requests.jobs(most, **filters)
        return ItemQuery(lambda: itertools.islice(self._items(request), most))

    def job(self, id: str) -> job_wire.JobDetail:  # noqa: A002
        """Return one job with its attempts and events."""
        return self._send(requests.job(id))

    def job_use(self, id: str, *, gpus: int | None = None) -> gpu_wire.JobUse:  # noqa: A002
        """Return what a job's GPUs did: in all, GPU by GPU (at most `gpus` of them), and over time."""
        return self._send(requests.job_use(id, gpus))

    def use_now(self) -> ItemList[gpu_wire.SupplyUse]:
        """Return what held GPUs did in the last window that was read, by pool."""
        return ItemList(self._send(requests.use_now()).supplies)

    def use_history(
        self, days: int = 1, *, pool: str | None = None, team: str | None = None
    ) -> gpu_wire.UseHistory:
        """Return what became of the GPU time that was held, by hour, of more than seven days by day."""
        return self._send(requests.use_history(days, pool, team))

    def why(self, id: str) -> job_wire.Why:  # noqa: A002
        """Return why a job waits, with a remedy for each reason, or how it runs or ended."""
        return self._send(requests.why(id))

    def waits(self, *, pool: str | None = None, team: str | None = None) -> ItemList[job_wire.WaitSum]:
        """Return what keeps jobs from starting, of a pool or team: the reason of the most GPU-hours first."""
        return ItemList((self._send(requests.waits(pool, team))).reasons)

    def task_counts(self, id: str) -> job_wire.TaskCounts:  # noqa: A002
        """Return the number of tasks of an array by state."""
        return self._send(requests.task_counts(id))

    def log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        offset: int = 0,
        limit: int | None = None,
    ) -> job_wire.LogPart:
        """Return a part of a job's log; without `attempt`, of its last attempt."""
        return self._send(requests.log(id, attempt=attempt, node=node, offset=offset, limit=limit))

    def follow_log(
        self,
        id: str,  # noqa: A002
        *,
        attempt: int | None = None,
        node: int = 0,
        follow: bool = True,
    ) -> Iterator[job_wire.LogPart]:
        """Yield the parts of a job's log, new ones too until the job ends.

        Without `follow`, only what has been printed so far. The attempts' logs follow each other.
        """
        follower = LogFollower(id, attempt, node, follow=follow)
        while (request := follower.next_request()) is not None:
            try:
                part = self._send(request)
                if follower.advance(part):
                    yield part
                elif follower.needs_job:
                    time.sleep(follower.delay_for(self.job(id)))
            except TemporaryError as error:
                time.sleep(follower.retry_delay(error))

    def cancel(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Cancel jobs: all of them, or none if the caller may not cancel one of them."""
        return self._send(requests.change("cancel", ids))

    def hold(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Hold jobs so that they do not start; running jobs continue."""
        return self._send(requests.change("hold", ids))

    def release(self, ids: str | Sequence[str]) -> job_wire.Changed:
        """Release held jobs."""
        return self._send(requests.change("release", ids))

    def change(
        self,
        id: str,  # noqa: A002
        *,
        pool: str | None = None,
        gpus: int | None = None,
        nodes: int | None = None,
        time_seconds: int | None = None,
        priority: str | None = None,
        dry_run: bool = False,
    ) -> job_wire.JobChanged:
        """Change a job that has not started: `change("8f3k", gpus=4)`; `gpus` are on each node.

        With `dry_run`, everything is checked and nothing is changed.
        """
        request = requests.change_waiting(
            id,
            pool=pool,
            gpus=gpus,
            nodes=nodes,
            time_seconds=time_seconds,
            priority=priority,
            dry_run=dry_run,
        )
        return self._send(request)

    def wait_all(
        self,
        jobs: Iterable[HasTasks | str],
        *,
        progress: bool = True,
        timeout_seconds: float | None = None,
    ) -> ItemList[job_wire.JobDetail]:
        """Wait until jobs have finished, and return them in order: handles, submitted jobs or ids.

        An array counts with all its tasks. Shows progress on stderr or in the notebook. Raises
        JobNotFinished after `timeout_seconds`, and the jobs continue; None waits without limit.
        """
        ids = task_ids(jobs)
        wait, began = JobsWait(ids, timeout_seconds), time.monotonic()
        with progress_of(len(set(ids)), wanted=progress) as shown:
            while True:
                try:
                    for request in wait.requests():
                        wait.advance(self._send(request).states)
                    shown.show(wait.counts())
                    if not wait.open:
                        break
                    time.sleep(wait.delay(time.monotonic() - began))
                except JobNotFinished:
                    raise
                except TemporaryError as error:
                    time.sleep(wait.retry_delay(error))
        return ItemList([self.job(job_id) for job_id in ids])

    def idle_steps(self, most: int = 100) -> ItemList[job_wire.IdleStep]:
        """Return what idle rules did, or would have done, the newest first."""
        return ItemList(itertools.islice(self._items(requests.idle_steps(most)), most))

    def keep(self, ids: str | Sequence[str], seconds: int, reason: str = "") -> job_wire.Kept:
        """Have idle rules leave jobs alone for so long, from now."""
        return self._send(requests.keep(ids, seconds, reason))

    def count(self, id: str, /, **totals: int) -> job_wire.Counts:  # noqa: A002
        """Report how much a job has done since it began: `count("8f3k", steps=120_000)`.

        The highest total of each unit counts. Reports with `per="steps"` divide costs by it.
        """
        return self._send(requests.count(id, totals))

    def job_counts(self, cluster: str | None = None) -> ItemList[job_wire.JobCount]:
        """Return the number of open jobs by cluster, team, pool and state."""
        return ItemList(self._send(requests.job_counts(cluster)).counts)

    def report_cost(self, **filters: Unpack[CostFilters]) -> cost_wire.CostReport:
        """Report the cost of usage: `report_cost(window="2026-10", by=["team", "pool"])`."""
        return self._send(requests.cost(**filters))

    def report_usage(self, **filters: Unpack[CostFilters]) -> cost_wire.UsageReport:
        """Report usage: GPU-hours with slices as fractions of a GPU, and slice-hours."""
        return self._send(requests.usage(**filters))

    def report_waste(self, **filters: Unpack[CostFilters]) -> cost_wire.WasteReport:
        """Report unused capacity by reason, and its cost; `by` pool, cluster, slice or day."""
        return self._send(requests.waste(**filters))

    def report_efficiency(self, **filters: Unpack[CostFilters]) -> cost_wire.EfficiencyReport:
        """Report what became of held GPU time: busy, poorly used, idle, not measured; and its energy."""
        return self._send(requests.efficiency(**filters))

    def report_capacity(self, **filters: Unpack[CostFilters]) -> cost_wire.CapacityReport:
        """Report the capacity by day and pool, used or not, and its cost."""
        return self._send(requests.capacity(**filters))

    def report_commitments(self, **filters: Unpack[CostFilters]) -> cost_wire.CommitmentReport:
        """Report coverage, utilisation, break-even and savings of each commitment; of all or one `pool`."""
        return self._send(requests.commitments(**filters))

    def forecasts(self, by: str = "team") -> budget_wire.Forecasts:
        """Return what each team, with those inside it, or project will have spent when the month ends."""
        return self._send(requests.forecasts(by))

    def statements(self, month: str, team: str | None = None) -> cost_wire.Statements:
        """Return the charges of a month by team."""
        return self._send(requests.statements(month, team))

    def statement_document(self, month: str, team: str | None = None) -> cost_wire.StatementDocument:
        """Return the statements of a month as one HTML file that explains each amount."""
        return self._send(requests.statement_document(month, team))

    def close_month(self, month: str) -> cost_wire.Statements:
        """Close a month: its statements never change again."""
        return self._send(requests.close_month(month))

    def prices(self) -> cost_wire.Prices:
        """Return the current price of each pool."""
        return self._send(requests.prices())

    def keep_price_points(
        self, pool: str, points: Sequence[cost_wire.PricePoint], *, allow_jumps: bool = False
    ) -> int:
        """Add to a pool's price series. Returns the number of new or changed points."""
        batches = requests.price_points(pool, points, allow_jumps=allow_jumps)
        return sum(self._send(request).kept for request in batches)

    def price_points(
        self, pool: str, *, until: datetime | None = None, history: bool = False, limit: int = 100
    ) -> cost_wire.PricePoints:
        """Return a pool's price series before `until`, newest first; `history` adds replaced ones."""
        return self._send(requests.list_price_points(pool, until=until, history=history, limit=limit))

    def withdraw_price_points(self, pool: str, start: datetime, until: datetime | None = None) -> int:
        """Withdraw a pool's prices from `start` until before `until`. Returns their number."""
        return self._send(requests.withdraw_price_points(pool, start, until)).withdrawn

    def export_focus(self, window: str, team: str | None = None) -> Iterator[bytes]:
        """Yield a FOCUS file as CSV, in pieces as the server writes them. Raises if the stream is cut off."""
        return self._stream(requests.focus(window, team))

    def export_jobs(self, days: int) -> Iterator[bytes]:
        """Yield the jobs of the last days as a trace, CSV, in pieces. Raises if the stream is cut off."""
        return self._stream(requests.export_jobs(days))

    def _stream(self, request: ApiRequest[BaseModel]) -> Iterator[bytes]:
        try:
            with self._http.stream(**self._codec.encode(request)) as response:
                if not response.is_success:
                    response.read()
                    raise self._codec.refused(response)
                yield from response.iter_bytes()
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._codec.unreachable(error) from error

    def _read(self, path: str, params: Sequence[tuple[str, str]]) -> Mapping[str, object]:
        """Return the JSON object at a path of the API."""
        return self._send(requests.document(path, params)).root

    def _items(self, request: ApiRequest[Page[Item]]) -> Iterator[Item]:
        for _ in range(MAX_PAGES):
            page = self._send(request)
            yield from page.items
            if page.next_cursor is None:
                return
            request = next_page(request, page.next_cursor)
        raise self._codec.endless(request.path)

    def _send(self, request: ApiRequest[Response]) -> Response:
        retries = Retries(idempotent=request.idempotent)
        while True:
            try:
                return self._send_once(request)
            except TemporaryError as error:
                time.sleep(retries.delay(error))

    def _send_once(self, request: ApiRequest[Response]) -> Response:
        try:
            response = self._http.request(**self._codec.encode(request))
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._codec.unreachable(error) from error
        return self._codec.decode(request, response)


class JobHandle:
    """A handle on a submitted job."""

    def __init__(self, client: Client, submitted: job_wire.SubmittedJob) -> None:
        self.client = client
        self.id = submitted.id
        self.ids = submitted.ids
        """The ids of all tasks; of a job without an array, its own."""
        self.name = submitted.name
        self.placement = submitted.placement

    def __repr__(self) -> str:
        return f"<job {self.id} {self.name} on {self.placement.pool}>"

    def _repr_html_(self) -> str:
        try:
            return self.now()._repr_html_()
        except FairwayError:  # a notebook shows the text instead
            return ""

    @property
    def state(self) -> JobState:
        """The job's state, read now."""
        return self.now().state

    def now(self) -> job_wire.JobDetail:
        """Return the job as it is now."""
        return self.client.job(self.id)

    def cost(self) -> job_wire.JobCost | None:
        """Return the cost so far. Returns None if it never ran, or if you may not see its team's cost."""
        return self.now().cost

    def why(self) -> job_wire.Why:
        """Return why the job waits."""
        return self.client.why(self.id)

    def wait(self, timeout_seconds: float | None = None) -> job_wire.JobDetail:
        """Wait until the job has finished. Raises JobNotFinished after `timeout_seconds`; None: no limit."""
        return self.client.wait_all([self.id], progress=False, timeout_seconds=timeout_seconds)[0]

    def log(self, *, follow: bool = False) -> Iterator[str]:
        """Yield the job's log, part by part; with `follow` until the job has finished."""
        return (part.text for part in self.client.follow_log(self.id, follow=follow))

    def cancel(self) -> job_wire.Changed:
        """Cancel the job."""
        return self.client.cancel(self.id)

    def count(self, /, **totals: int) -> job_wire.Counts:
        """Report how much the job has done since it began: `count(steps=120_000)`."""
        return self.client.count(self.id, **totals)

    def hold(self) -> job_wire.Changed:
        """Hold the job so that it does not start; a running job continues."""
        return self.client.hold(self.id)

    def release(self) -> job_wire.Changed:
        """Release the held job."""
        return self.client.release(self.id)
