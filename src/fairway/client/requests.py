"""Build the requests that both clients send: one function for each method, without I/O."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime
from decimal import Decimal
from pathlib import PurePath
from typing import Final, TypedDict, Unpack
from urllib.parse import quote

import httpx2
from pydantic import BaseModel, ValidationError

from fairway.client.filters import Filters, job_params
from fairway.client.http import ApiRequest, Document, Response, get
from fairway.model.access import Role
from fairway.model.cost_unit import MAX_UNITS
from fairway.model.errors import PermanentError
from fairway.model.job import Tolerates
from fairway.model.notice_rules import NoticeKind
from fairway.model.observation import Health
from fairway.model.text import nearest, parse_duration
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
from fairway.wire.fleet import MAX_PER_PAGE, Page

# The server asks the engine for its log.
_LOG_TIMEOUT: Final = httpx2.Timeout(60.0, connect=5.0)
# A batch of ten thousand jobs is parsed, placed and written in one request.
_BATCH_TIMEOUT: Final = httpx2.Timeout(300.0, connect=5.0)
# A report on a year by job name reads every row of it.
_REPORT_TIMEOUT: Final = httpx2.Timeout(300.0, connect=5.0)
# The server reads every cluster, for up to a minute each, eight at a time.
_CLUSTER_READ_TIMEOUT: Final = httpx2.Timeout(600.0, connect=5.0)
_MAX_POINTS_PER_REQUEST: Final = 10_000


def document(path: str, params: Sequence[tuple[str, str]]) -> ApiRequest[Document]:
    """Request the JSON object at a path."""
    return get(path, Document, params)


# --- jobs -------------------------------------------------------------------------------------------------


class SpecFields(TypedDict, total=False):
    """The fields of a JobSpec beside its command, in the forms that are convenient to write."""

    name: str
    gpus: int | str | job_wire.GpuRequest
    """`2`, `"H100:8"`, `"A100-80GB"`, `"40GB..80GB"`, `"1g.10gb:2"`; on each node."""
    team: str | None
    project: str | None
    labels: dict[str, str]
    priority: str | None
    pool: str | None
    nodes: int
    cpus: int | None
    memory_gb: int | None
    time: str | int | None
    """`2h30m`, or seconds."""
    image: str | None
    setup: str | None
    env: dict[str, str]
    workdir: str | None
    after: Sequence[str | job_wire.After]
    """Jobs that must have succeeded first."""
    retries: int | job_wire.Retries
    tolerates: Sequence[Tolerates | str]
    together: bool
    array: Sequence[int]
    """One task for each index, which it reads from FAIRWAY_ARRAY_INDEX."""


def job_spec(command: Sequence[str] | str, **fields: Unpack[SpecFields]) -> job_wire.JobSpec:
    """Build a job to submit: `job_spec(["python", "eval.py"], gpus="A100:2", time="1h")`.

    A string is a shell script. Raises PermanentError for invalid fields.
    """
    if unknown := [name for name in fields if name not in SpecFields.__annotations__]:
        near = nearest(unknown[0], SpecFields.__annotations__)
        raise PermanentError(
            "UnknownField",
            f"a job has no field {unknown[0]}",
            f"did you mean {near[0]}?" if near else f"use one of {', '.join(SpecFields.__annotations__)}",
        )
    spec: dict[str, object] = dict(fields)
    if isinstance(command, str):
        spec["script"] = command if command.startswith("#!") else f"#!/bin/bash\n{command}\n"
    else:
        spec["command"] = list(command)
        spec.setdefault("name", PurePath(command[0]).name if command else "job")
    spec.setdefault("name", "job")
    if isinstance(gpus := spec.get("gpus"), int | str) and not isinstance(gpus, bool):
        spec["gpus"] = _parse_gpus(str(gpus))
    if "time" in spec:
        spec["time_seconds"] = _parse_time(spec.pop("time"))
    if isinstance(retries := spec.get("retries"), int):
        spec["retries"] = job_wire.Retries(count=retries)
    if "array" in fields:
        spec["array"] = list(fields["array"])
    after = spec.get("after")
    if isinstance(after, Sequence):
        spec["after"] = [job_wire.After(job=a) if isinstance(a, str) else a for a in after]
    return _validated(job_wire.JobSpec, **spec)


def submit(
    jobs: job_wire.JobSpec | Sequence[job_wire.JobSpec], *, key: str | None, as_user: str | None, hold: bool
) -> ApiRequest[job_wire.Submitted]:
    """Submit jobs. Without a key of the caller's, one is generated: a retry must not submit jobs twice."""
    body = _validated(
        job_wire.SubmitRequest,
        jobs=[jobs] if isinstance(jobs, job_wire.JobSpec) else list(jobs),
        key=key or secrets.token_hex(16),
        as_user=as_user,
        hold=hold,
    )
    return ApiRequest(
        "POST", "/v1/jobs", job_wire.Submitted, body=body, idempotent=True, timeout=_BATCH_TIMEOUT
    )


def dry_run(job: job_wire.JobSpec, *, as_user: str | None) -> ApiRequest[job_wire.DryRun]:
    """Request the placement of a job without submitting it."""
    body = _validated(job_wire.DryRunRequest, job=job, as_user=as_user)
    return ApiRequest("POST", "/v1/jobs/dry-run", job_wire.DryRun, body=body, idempotent=True)


def jobs(max_jobs: int | None, **filters: Unpack[Filters]) -> ApiRequest[Page[job_wire.Job]]:
    """Request the first page of a list of jobs, newest first."""
    params = job_params(filters, min(max_jobs or MAX_PER_PAGE, MAX_PER_PAGE))
    return get("/v1/jobs", Page[job_wire.Job], params)


def job(job_id: str) -> ApiRequest[job_wire.JobDetail]:
    """Request one job."""
    return get(f"/v1/jobs/{_quoted(job_id)}", job_wire.JobDetail)


def job_use(job_id: str, gpus: int | None) -> ApiRequest[gpu_wire.JobUse]:
    """Request what a job's GPUs did."""
    return get(f"/v1/jobs/{_quoted(job_id)}/use", gpu_wire.JobUse, [("gpus", gpus)])


def use_now() -> ApiRequest[gpu_wire.UseNow]:
    """Request what held GPUs did in the last window that was read."""
    return get("/v1/use/now", gpu_wire.UseNow)


def use_history(days: int, pool: str | None, team: str | None) -> ApiRequest[gpu_wire.UseHistory]:
    """Request what became of held GPU time."""
    return get("/v1/use/history", gpu_wire.UseHistory, [("days", days), ("pool", pool), ("team", team)])


def why(job_id: str) -> ApiRequest[job_wire.Why]:
    """Request why a job waits."""
    return get(f"/v1/jobs/{_quoted(job_id)}/why", job_wire.Why)


def waits(pool: str | None, team: str | None) -> ApiRequest[job_wire.WaitSums]:
    """Request what keeps jobs of a pool or team from starting."""
    return get("/v1/waits", job_wire.WaitSums, [("pool", pool), ("team", team)])


def task_counts(job_id: str) -> ApiRequest[job_wire.TaskCounts]:
    """Request the number of tasks of an array by state."""
    return get(f"/v1/jobs/{_quoted(job_id)}/tasks", job_wire.TaskCounts)


def log(
    job_id: str, *, attempt: int | None = None, node: int = 0, offset: int = 0, limit: int | None = None
) -> ApiRequest[job_wire.LogPart]:
    """Request a part of a job's log."""
    params = [("attempt", attempt), ("node", node or None), ("offset", offset), ("limit", limit)]
    return get(f"/v1/jobs/{_quoted(job_id)}/log", job_wire.LogPart, params, _LOG_TIMEOUT)


def job_states(job_ids: Sequence[str]) -> ApiRequest[job_wire.JobStates]:
    """Request the states of some jobs: cheap enough to poll."""
    return get("/v1/jobs/states", job_wire.JobStates, [("id", job_id) for job_id in job_ids])


def change(action: str, job_ids: str | Sequence[str]) -> ApiRequest[job_wire.Changed]:
    """`cancel`, `hold` or `release` jobs."""
    ids = [job_ids] if isinstance(job_ids, str) else list(job_ids)
    body = _validated(job_wire.ChangeRequest, jobs=ids)
    path = f"/v1/jobs/{action}"
    return ApiRequest("POST", path, job_wire.Changed, body=body, idempotent=True, timeout=_BATCH_TIMEOUT)


def change_waiting(job_id: str, **values: object) -> ApiRequest[job_wire.JobChanged]:
    """Change a job that has not started."""
    body = _validated(job_wire.JobChangeRequest, **values)
    path = f"/v1/jobs/{_quoted(job_id)}/change"
    return ApiRequest("POST", path, job_wire.JobChanged, body=body, idempotent=True, timeout=_BATCH_TIMEOUT)


def idle_steps(max_steps: int) -> ApiRequest[Page[job_wire.IdleStep]]:
    """Request what idle rules did, the newest first."""
    return _list("/v1/idle-steps", Page[job_wire.IdleStep], max_steps)


def keep(job_ids: str | Sequence[str], seconds: int, reason: str) -> ApiRequest[job_wire.Kept]:
    """Have idle rules leave jobs alone for a while."""
    ids = [job_ids] if isinstance(job_ids, str) else list(job_ids)
    body = _validated(job_wire.KeepRequest, jobs=ids, seconds=seconds, reason=reason)
    return ApiRequest("POST", "/v1/jobs/keep", job_wire.Kept, body=body, idempotent=True)


def count(job_id: str, totals: Mapping[str, int]) -> ApiRequest[job_wire.Counts]:
    """Report how much a job has done since it began."""
    try:
        body = job_wire.CountsRequest(dict(totals))
    except ValidationError as error:
        raise PermanentError(
            "InvalidRequest",
            f"{dict(totals)}: {error.errors()[0]['msg']}",
            f"name at most {MAX_UNITS} units in lower case, with totals since the job began: steps=120000",
        ) from error
    path = f"/v1/jobs/{_quoted(job_id)}/counts"
    return ApiRequest("POST", path, job_wire.Counts, body=body, idempotent=True)


def job_counts(cluster: str | None) -> ApiRequest[job_wire.JobCounts]:
    """Request the number of open jobs."""
    return get("/v1/jobs/counts", job_wire.JobCounts, [("cluster", cluster)])


# --- fleet and tokens -------------------------------------------------------------------------------------


def whoami() -> ApiRequest[fleet_wire.Whoami]:
    """Request the identity and rights of the client's token."""
    return get("/v1/whoami", fleet_wire.Whoami)


def clusters() -> ApiRequest[Page[fleet_wire.Cluster]]:
    """Request the clusters of the fleet."""
    return _list("/v1/clusters", Page[fleet_wire.Cluster])


def pools(cluster: str | None) -> ApiRequest[Page[fleet_wire.Pool]]:
    """Request the pools of the fleet, or of one cluster."""
    return _list("/v1/pools", Page[fleet_wire.Pool], cluster=cluster)


def nodes(cluster: str | None, pool: str | None, health: Health | None) -> ApiRequest[Page[fleet_wire.Node]]:
    """Request the nodes that match the filters."""
    return _list("/v1/nodes", Page[fleet_wire.Node], cluster=cluster, pool=pool, health=health)


def gpu_events(
    cluster: str | None, node: str | None, gpu: str | None, job: str | None, days: int, most: int
) -> ApiRequest[Page[health_wire.GpuEvent]]:
    """Request the newest events of GPUs that match the filters."""
    return _list(
        "/v1/gpu-events",
        Page[health_wire.GpuEvent],
        most,
        cluster=cluster,
        node=node,
        gpu=gpu,
        job=job,
        days=str(days),
    )


def failing_gpus(cluster: str | None, days: int, most: int) -> ApiRequest[Page[health_wire.FailingGpu]]:
    """Request the GPUs whose hardware failed."""
    return _list("/v1/failing-gpus", Page[health_wire.FailingGpu], most, cluster=cluster, days=str(days))


def loops() -> ApiRequest[Page[fleet_wire.Loop]]:
    """Request the loops of Fairway's servers."""
    return get("/v1/loops", Page[fleet_wire.Loop])


def cordons(cluster: str | None) -> ApiRequest[Page[health_wire.Cordon]]:
    """Request the nodes that Fairway closed."""
    return get("/v1/cordons", Page[health_wire.Cordon], [("cluster", cluster)])


def uncordon(cluster: str, node: str) -> ApiRequest[health_wire.Cordon]:
    """Ask that a node be opened again."""
    body = health_wire.UncordonRequest(cluster=cluster, node=node)
    return ApiRequest("POST", "/v1/uncordon", health_wire.Cordon, body=body, idempotent=True)


def tokens() -> ApiRequest[Page[fleet_wire.Token]]:
    """Request all tokens, also expired and revoked ones."""
    return _list("/v1/tokens", Page[fleet_wire.Token])


def create_token(
    name: str, role: Role, expires_in_seconds: int | None, user: str | None
) -> ApiRequest[fleet_wire.MadeToken]:
    """Create a token; the response contains its secret."""
    body = _validated(
        fleet_wire.NewToken,
        "fairway token create --help",
        name=name,
        role=role,
        user=user,
        expires_in_seconds=expires_in_seconds,
    )
    return ApiRequest("POST", "/v1/tokens", fleet_wire.MadeToken, body=body)


def begin_login(challenge: str, host: str, port: int | None) -> ApiRequest[login_wire.Login]:
    """Begin a sign-in that a person confirms in a browser."""
    body = _validated(login_wire.NewLogin, "fairway login --help", challenge=challenge, host=host, port=port)
    return ApiRequest("POST", "/v1/logins", login_wire.Login, body=body)


def redeem_login(verifier: str, code: str | None) -> ApiRequest[login_wire.LoginResult]:
    """Request the token of a sign-in that was confirmed."""
    body = _validated(login_wire.LoginRedemption, "fairway login --help", verifier=verifier, code=code)
    return ApiRequest("POST", "/v1/logins/redeem", login_wire.LoginResult, body=body)


def log_out() -> ApiRequest[fleet_wire.Token]:
    """Revoke the token of this client."""
    return ApiRequest("POST", "/v1/logout", fleet_wire.Token)


def sessions(user: str | None) -> ApiRequest[Page[fleet_wire.Session]]:
    """Request the sessions of the pages, of everybody or of one user."""
    return _list("/v1/sessions", Page[fleet_wire.Session], user=user)


def revoke_sessions(user: str) -> ApiRequest[fleet_wire.EndedSessions]:
    """End every session of a user."""
    return ApiRequest("DELETE", "/v1/sessions", fleet_wire.EndedSessions, params=(("user", user),))


def revoke_token(name: str) -> ApiRequest[fleet_wire.Token]:
    """Revoke a token."""
    return ApiRequest("DELETE", f"/v1/tokens/{_quoted(name)}", fleet_wire.Token)


# --- policy -----------------------------------------------------------------------------------------------


def plan(fleet: str, source: str, cluster: str | None) -> ApiRequest[policy_wire.Plan]:
    """Request the plan of a fleet file."""
    body = policy_wire.PlanRequest(fleet=fleet, source=source, cluster=cluster)
    return _cluster_request("/v1/plans", body, policy_wire.Plan)


def apply(
    fleet: str,
    source: str,
    fingerprints: Mapping[str, str],
    *,
    force: bool,
    confirmed: Sequence[str] = (),
    reprice_past: bool = False,
) -> ApiRequest[policy_wire.Apply]:
    """Start to apply a planned fleet file."""
    body = policy_wire.ApplyRequest(
        fleet=fleet,
        source=source,
        fingerprints=dict(fingerprints),
        force=force,
        confirmed=list(confirmed),
        reprice_past=reprice_past,
    )
    return _cluster_request("/v1/applies", body, policy_wire.Apply)


def adopt(cluster: str, objects: Sequence[policy_wire.ObjectRef]) -> ApiRequest[policy_wire.Apply]:
    """Start to put Fairway's mark on objects of a cluster."""
    body = policy_wire.AdoptionRequest(cluster=cluster, objects=list(objects))
    return _cluster_request("/v1/adoptions", body, policy_wire.Apply)


def plan_leaving(cluster: str) -> ApiRequest[policy_wire.Plan]:
    """Plan the return of a cluster to its state before Fairway."""
    return _cluster_request("/v1/leaves/plan", policy_wire.LeaveRequest(cluster=cluster), policy_wire.Plan)


def leave(cluster: str, fingerprint: str) -> ApiRequest[policy_wire.Apply]:
    """Start the return of a cluster to its state before Fairway."""
    body = policy_wire.LeaveRequest(cluster=cluster, fingerprint=fingerprint)
    return _cluster_request("/v1/leaves", body, policy_wire.Apply)


def release_all(cluster: str) -> ApiRequest[policy_wire.Apply]:
    """Start to lift every guard of a cluster."""
    return _cluster_request("/v1/releases", policy_wire.ReleaseRequest(cluster=cluster), policy_wire.Apply)


def applies(cluster: str | None, max_applies: int) -> ApiRequest[Page[policy_wire.Apply]]:
    """Request the newest applies, of all clusters or one."""
    return _list("/v1/applies", Page[policy_wire.Apply], max_applies, cluster=cluster)


def fleet_file(revision: int | None) -> ApiRequest[policy_wire.FleetFile]:
    """Request a revision of the fleet file, or the one that was applied last."""
    path = "/v1/fleet" if revision is None else f"/v1/revisions/{revision}"
    return get(path, policy_wire.FleetFile)


def revisions(max_revisions: int) -> ApiRequest[Page[policy_wire.FleetRevision]]:
    """Request the newest revisions of the fleet file."""
    return _list("/v1/revisions", Page[policy_wire.FleetRevision], max_revisions)


def stopped_applies() -> ApiRequest[Page[policy_wire.StoppedApply]]:
    """Request the applies that stopped before their end."""
    return _list("/v1/stopped-applies", Page[policy_wire.StoppedApply])


def apply_detail(number: int) -> ApiRequest[policy_wire.ApplyDetail]:
    """Request one apply with all its changes."""
    return get(f"/v1/applies/{number}", policy_wire.ApplyDetail)


def apply_progress(number: int) -> ApiRequest[policy_wire.Apply]:
    """Request one apply without its changes: cheap enough to poll twice a second."""
    return get(f"/v1/applies/{number}/progress", policy_wire.Apply)


def drift(cluster: str | None) -> ApiRequest[Page[policy_wire.Drift]]:
    """Request the differences between the clusters and what was last applied to them."""
    return _list("/v1/drift", Page[policy_wire.Drift], cluster=cluster)


def notices(kind: NoticeKind | None, limit: int) -> ApiRequest[notice_wire.Notices]:
    """Request the newest notices that the caller may see."""
    return get("/v1/notices", notice_wire.Notices, [("kind", kind), ("limit", limit)])


def notice_rules() -> ApiRequest[notice_wire.OwnNoticeRules]:
    """Request which notices the caller gets."""
    return get("/v1/notices/rules", notice_wire.OwnNoticeRules)


def put_notice_rules(rules: notice_wire.NoticeRules) -> ApiRequest[notice_wire.OwnNoticeRules]:
    """Replace the caller's rules."""
    return ApiRequest("PUT", "/v1/notices/rules", notice_wire.OwnNoticeRules, body=rules, idempotent=True)


def test_notice(team: str | None) -> ApiRequest[notice_wire.Notice]:
    """Send a test notice to the caller, or to the channels of a team."""
    params = () if team is None else (("team", team),)
    return ApiRequest("POST", "/v1/notices/test", notice_wire.Notice, params=params)


def budgets() -> ApiRequest[budget_wire.Budgets]:
    """Request the state of the budgets that the caller may see."""
    return get("/v1/budgets", budget_wire.Budgets)


def slos() -> ApiRequest[slo_wire.Slos]:
    """Request the service level objectives that the caller may see."""
    return get("/v1/slos", slo_wire.Slos)


def slo_history(name: str, days: int) -> ApiRequest[slo_wire.SloHistory]:
    """Request the error budget of an objective over the last days."""
    return get(f"/v1/slos/{_quoted(name)}/history", slo_wire.SloHistory, [("days", str(days))])


def budget_raises(team: str | None, *, all_states: bool) -> ApiRequest[raise_wire.BudgetRaises]:
    """Request the raises that wait for a decision, or all of them."""
    params = [("team", team), ("all", "true" if all_states else None)]
    return get("/v1/budget-raises", raise_wire.BudgetRaises, params)


def request_budget_raise(team: str, amount: Decimal, reason: str) -> ApiRequest[raise_wire.BudgetRaise]:
    """Request a raise. The same request, sent again, is the same one."""
    body = raise_wire.RaiseRequest(team=team, amount=amount, reason=reason)
    return ApiRequest("POST", "/v1/budget-raises", raise_wire.BudgetRaise, body=body, idempotent=True)


def decide_budget_raise(number: int, verb: str, comment: str) -> ApiRequest[raise_wire.BudgetRaise]:
    """Approve or deny a raise."""
    body = raise_wire.RaiseDecision(comment=comment)
    return ApiRequest("POST", f"/v1/budget-raises/{number}/{verb}", raise_wire.BudgetRaise, body=body)


def teams() -> ApiRequest[Page[policy_wire.Team]]:
    """Request the teams as last applied."""
    return _list("/v1/teams", Page[policy_wire.Team])


def interventions(cluster: str | None, max_interventions: int) -> ApiRequest[Page[policy_wire.Intervention]]:
    """Request the newest interventions, of all clusters or one."""
    return _list("/v1/interventions", Page[policy_wire.Intervention], max_interventions, cluster=cluster)


def render(fleet: str, source: str, cluster: str) -> ApiRequest[policy_wire.Rendered]:
    """Request the engine files that Fairway does not write itself."""
    body = policy_wire.RenderRequest(fleet=fleet, source=source, cluster=cluster)
    return _cluster_request("/v1/renders", body, policy_wire.Rendered)


def import_policy(cluster: str) -> ApiRequest[policy_wire.Imported]:
    """Request the policy of an existing cluster as a fleet file."""
    body = policy_wire.ImportRequest(cluster=cluster)
    return _cluster_request("/v1/imports", body, policy_wire.Imported)


# --- costs ------------------------------------------------------------------------------------------------


class CostFilters(TypedDict, total=False):
    """The filters of a report. A filter that is left out does not apply."""

    window: str
    """`30d`, `2026-10`, `2026-10-15`, `2026-10-01..2026-10-15`."""
    by: Sequence[str]
    """team, user, project, label:KEY, pool, priority, name, service, kind, cluster, slice, day."""
    team: str | None
    """Includes all teams inside it."""
    user: str | None
    pool: str | None
    project: str | None
    labels: Sequence[str]
    """Labels that the fleet keeps for cost, as `experiment=e12`."""
    most: int | None
    """The maximum number of rows; the remaining ones are summed up in one."""
    per: str | None
    """Only of cost: also what a unit cost, `1000:steps`, or a value of a label, `label:experiment`."""


def cost(**filters: Unpack[CostFilters]) -> ApiRequest[cost_wire.CostReport]:
    """Request the cost of usage."""
    return _report("cost", cost_wire.CostReport, filters)


def usage(**filters: Unpack[CostFilters]) -> ApiRequest[cost_wire.UsageReport]:
    """Request the usage."""
    return _report("usage", cost_wire.UsageReport, filters)


def waste(**filters: Unpack[CostFilters]) -> ApiRequest[cost_wire.WasteReport]:
    """Request the unused capacity."""
    return _report("waste", cost_wire.WasteReport, filters)


def efficiency(**filters: Unpack[CostFilters]) -> ApiRequest[cost_wire.EfficiencyReport]:
    """Request what became of the held GPU time."""
    return _report("efficiency", cost_wire.EfficiencyReport, filters)


def capacity(**filters: Unpack[CostFilters]) -> ApiRequest[cost_wire.CapacityReport]:
    """Request the capacity and its cost by day and pool."""
    return _report("capacity", cost_wire.CapacityReport, filters)


def commitments(**filters: Unpack[CostFilters]) -> ApiRequest[cost_wire.CommitmentReport]:
    """Request what became of commitments."""
    return _report("commitments", cost_wire.CommitmentReport, filters)


def forecasts(by: str) -> ApiRequest[budget_wire.Forecasts]:
    """Request what payers will have spent when the month ends."""
    return get("/v1/reports/forecast", budget_wire.Forecasts, (("by", by),))


def statements(month: str, team: str | None) -> ApiRequest[cost_wire.Statements]:
    """Request the statements of a month by team."""
    return get(f"/v1/statements/{_quoted(month)}", cost_wire.Statements, [("team", team)], _REPORT_TIMEOUT)


def statement_document(month: str, team: str | None) -> ApiRequest[cost_wire.StatementDocument]:
    """Request the statements of a month as an HTML file."""
    path = f"/v1/statements/{_quoted(month)}/document"
    return get(path, cost_wire.StatementDocument, [("team", team or None)], _REPORT_TIMEOUT)


def close_month(month: str) -> ApiRequest[cost_wire.Statements]:
    """Close a month. Not retried, because the server refuses to close it twice."""
    path = f"/v1/statements/{_quoted(month)}/close"
    return ApiRequest("POST", path, cost_wire.Statements, timeout=_REPORT_TIMEOUT)


def prices() -> ApiRequest[cost_wire.Prices]:
    """Request the current price of each pool."""
    return get("/v1/prices", cost_wire.Prices)


def price_points(
    pool: str, points: Sequence[cost_wire.PricePoint], *, allow_jumps: bool = False
) -> list[ApiRequest[cost_wire.StoredPricePoints]]:
    """Add to a pool's price series, in several requests if there are many points."""
    batches = [
        cost_wire.PricePointsRequest(
            points=list(points[i : i + _MAX_POINTS_PER_REQUEST]), allow_jumps=allow_jumps
        )
        for i in range(0, len(points), _MAX_POINTS_PER_REQUEST)
    ]
    path, response_type = f"/v1/pools/{_quoted(pool)}/price-points", cost_wire.StoredPricePoints
    return [
        ApiRequest("PUT", path, response_type, body=batch, timeout=_REPORT_TIMEOUT, idempotent=True)
        for batch in batches
    ]


def list_price_points(
    pool: str, *, until: datetime | None, history: bool, limit: int
) -> ApiRequest[cost_wire.PricePoints]:
    """Request a pool's price series, newest first."""
    params = [
        ("until", None if until is None else until.isoformat()),
        ("history", "true" if history else None),
        ("limit", limit),
    ]
    return get(f"/v1/pools/{_quoted(pool)}/price-points", cost_wire.PricePoints, params)


def withdraw_price_points(
    pool: str, start: datetime, until: datetime | None
) -> ApiRequest[cost_wire.WithdrawnPricePoints]:
    """Withdraw a pool's prices from `start` until before `until`. Not retried: the second finds none."""
    params = [("start", start.isoformat()), *([] if until is None else [("until", until.isoformat())])]
    path = f"/v1/pools/{_quoted(pool)}/price-points"
    return ApiRequest("DELETE", path, cost_wire.WithdrawnPricePoints, params=tuple(params))


def focus(window: str, team: str | None) -> ApiRequest[BaseModel]:
    """Request a FOCUS file. The response is a stream of CSV, not a model."""
    return get("/v1/exports/focus", BaseModel, [("window", window), ("team", team or None)], _REPORT_TIMEOUT)


def export_jobs(days: int) -> ApiRequest[BaseModel]:
    """Request the jobs of the last days as a trace, CSV."""
    return get("/v1/exports/jobs", BaseModel, [("days", str(days))], _REPORT_TIMEOUT)


# --- shared -----------------------------------------------------------------------------------------------


def _list(
    path: str, page_type: type[Response], max_items: int = MAX_PER_PAGE, **filters: str | None
) -> ApiRequest[Response]:
    """Request the first page of a list, no larger than needed."""
    return get(path, page_type, [*filters.items(), ("limit", min(max_items, MAX_PER_PAGE))])


def _cluster_request(path: str, body: BaseModel, response_type: type[Response]) -> ApiRequest[Response]:
    return ApiRequest("POST", path, response_type, body=body, timeout=_CLUSTER_READ_TIMEOUT)


def _report(kind: str, response_type: type[Response], filters: CostFilters) -> ApiRequest[Response]:
    params: list[tuple[str, object]] = [
        *((key, filters.get(key)) for key in ("window", "team", "user", "pool", "project", "most", "per")),
        *(("label", label) for label in filters.get("labels", ())),
        *(("by", label) for label in filters.get("by", ())),
    ]
    return get(f"/v1/reports/{kind}", response_type, params, _REPORT_TIMEOUT)


def _parse_gpus(text: str) -> job_wire.GpuRequest:
    """Parse GPUs such as `H100:8`."""
    from fairway.files.job.gpus import EXPECTED, parse_gpus  # noqa: PLC0415

    found, problem = parse_gpus(text)
    if found is None:
        message, hint = (problem.message, problem.hint) if problem else (f"{text!r} are no GPUs", EXPECTED)
        raise PermanentError("InvalidGpus", message, hint)
    return job_wire.GpuRequest.from_model(found)


def _parse_time(time: object) -> object:
    if not isinstance(time, str):
        return time
    seconds = parse_duration(time)
    if seconds is None:
        raise PermanentError("InvalidTime", f"{time!r} is not a length of time", "write it like 2h30m or 90s")
    return seconds


def _quoted(segment: str) -> str:
    return quote(segment, safe="")


def _validated(
    kind: type[Response], hint: str = "compare it with the reference of job files", /, **values: object
) -> Response:
    """Build a request body. Raises PermanentError for the first invalid value, without asking the server."""
    try:
        return kind(**values)
    except ValidationError as error:
        fault = error.errors()[0]
        where = ".".join(str(part) for part in fault["loc"])
        what = fault["msg"].removeprefix("Value error, ")
        raise PermanentError("InvalidRequest", f"{where}: {what}" if where else what, hint) from error
