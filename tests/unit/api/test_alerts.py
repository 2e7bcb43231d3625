"""Alerts from Alertmanager become notices to the right people, each once, and events of GPUs."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.job import JobId, JobState, NodeGpus, format_job_id
from fairway.model.names import NodeName, TeamName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.team import Team
from fairway.services.alerts import combined
from fairway.services.fleets import Fleets
from fairway.wire.alerts import MAX_ALERTS
from tests.unit.api.conftest import FLEET, bearer
from tests.unit.ledger.job_samples import Desk, at, new_job, run, seen

GONE = {
    "alertname": "FairwayGpuGone",
    "severity": "page",
    "cluster": "hpc",
    "node": "n1.example.org",
    "gpu": "3",
    "UUID": "GPU-3",
    "xid": "79",
}
FAULT = GONE | {"alertname": "FairwayGpuJobFault", "severity": "team", "xid": "31", "hpc_job": "e1-1"}


def alert(labels: dict[str, str], *, begins: float = 20, resolved: bool = False, mark: str = "a1") -> Any:
    return {
        "status": "resolved" if resolved else "firing",
        "labels": labels,
        "annotations": {"summary": f"{labels['alertname']} of {labels.get('gpu')}", "description": "Look."},
        "startsAt": at(begins).isoformat(),
        "endsAt": "0001-01-01T00:00:00Z",
        "generatorURL": "http://prometheus.example.org/graph",
        "fingerprint": mark,
    }


@pytest.fixture
async def headers(app: FastAPI, ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    teams = (Team(TeamName("research")), Team(TeamName("nlp")))
    fleet = replace(FLEET, teams=teams)

    async def in_force(_: Fleets) -> Any:
        return fleet

    monkeypatch.setattr(Fleets, "in_force", in_force)
    return await bearer(ledger, Role.ALERTS)


@pytest.fixture
async def job(ledger: Ledger) -> JobId:
    """A job of research on GPU 3 of n1."""
    desk = await Desk.of(ledger)
    (id_,) = await desk.submit(new_job())
    (name,) = await desk.send(id_)
    placed = replace(run(5), gpus=(NodeGpus(NodeName("n1"), (f"e{id_}-1",), (2, 3)),))
    await desk.see(seen(f"e{id_}-1", name, JobState.RUNNING, placed))
    return id_


async def send(http: httpx2.AsyncClient, headers: dict[str, str], *alerts: Any) -> int:
    body = {
        "version": "4",
        "groupKey": "{}",
        "truncatedAlerts": 0,
        "status": "firing",
        "receiver": "fairway",
        "alerts": alerts,
    }
    answer = await http.post("/v1/alerts", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    new: int = answer.json()["new"]
    return new


async def stored(ledger: Ledger) -> list[Notice]:
    return [due.notice for due in await ledger.notices.unrouted(100)]


async def test_hardware_is_told_to_operators_and_to_the_team_on_it(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger, job: JobId
) -> None:
    assert await send(http, headers, alert(GONE | {"node": "n1"})) == 2
    operators, team = await stored(ledger)
    row = (await ledger.jobs.rows([job]))[0]
    assert (team.team, team.user, team.job, team.operators) == (row.team, row.user, job, False)
    assert (operators.team, operators.operators) == (None, True)
    assert operators.subject == "FairwayGpuGone of 3"
    named = f"Job: {format_job_id(job)} ({row.name}) of {row.user}, team {row.team}."
    assert operators.text == f"Look.\nWhere: cluster hpc, node n1, gpu 3.\n{named}"
    (event,) = await ledger.gpu_events.listed(at(0))
    assert (event.code, event.node, event.gpu, event.uuid, event.job) == ("xid-79", "n1", "3", "GPU-3", None)


async def test_what_is_sent_again_is_told_once_and_its_end_too(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger
) -> None:
    assert await send(http, headers, alert(GONE, resolved=True, mark="b2")) == 0  # nobody was told of it
    assert await send(http, headers, alert(GONE)) == 1
    assert await send(http, headers, alert(GONE)) == 0
    results = await asyncio.gather(*(send(http, headers, alert(GONE, begins=50)) for _ in range(5)))
    assert sum(results) == 1  # a new time at which it fires, reported by five at once
    assert await send(http, headers, alert(GONE, resolved=True)) == 1
    assert await send(http, headers, alert(GONE, resolved=True)) == 0
    subjects = [notice.subject for notice in await stored(ledger)]
    assert subjects == ["FairwayGpuGone of 3", "FairwayGpuGone of 3", "resolved: FairwayGpuGone of 3"]


async def test_a_programs_fault_is_for_its_owners_alone(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger, job: JobId
) -> None:
    fault = FAULT | {"hpc_job": f"e{job}-1", "node": "n1", "gpu": "7"}
    assert await send(http, headers, alert(fault), alert(fault | {"hpc_job": "unknown"}, mark="c3")) == 1
    (notice,) = await stored(ledger)
    assert (notice.job, notice.operators) == (job, False)
    assert await send(http, headers, alert(fault, resolved=True)) == 0


async def test_alerts_of_one_name_are_told_together(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger
) -> None:
    many = [alert(GONE | {"gpu": str(gpu)}, mark=f"d{gpu}") for gpu in range(30)]
    hot = {**GONE, "alertname": "FairwayGpuHot", "severity": "ticket", "xid": ""}
    assert await send(http, headers, *many, alert(hot, mark="e5")) == 31
    first, other = await stored(ledger)
    assert first.subject == "FairwayGpuGone of 0 (and 29 more)"
    assert first.text.splitlines()[-1] == "- and 9 more"
    assert other.subject == "FairwayGpuHot of 3"
    assert await send(http, headers, *many) == 0
    more = alert(GONE | {"gpu": "30"}, mark="d30")
    assert await send(http, headers, *many, more) == 1
    assert (await stored(ledger))[-1].subject == "FairwayGpuGone of 30"
    assert len(await ledger.gpu_events.listed(at(0))) == 32


async def test_alerts_of_others_go_to_operators_or_the_team_they_name(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger
) -> None:
    budget = {"alertname": "FairwayBudgetSpent", "severity": "ticket", "team": "nlp"}
    assert (
        await send(http, headers, alert(budget), alert({"alertname": "X", "cluster": "other"}, mark="b2"))
        == 3
    )
    told = {(notice.subject, notice.team, notice.operators) for notice in await stored(ledger)}
    assert told == {
        ("FairwayBudgetSpent of None", "nlp", False),
        ("FairwayBudgetSpent of None", None, True),
        ("X of None", None, True),
    }
    assert await ledger.gpu_events.listed(at(0)) == ()


async def test_what_the_health_loop_reads_by_itself_it_tells_by_itself(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger
) -> None:
    lease = await ledger.leases.take("health", "hpc", "test", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.gpu_events.record([], read_at=time.time(), settled_to=at(0).timestamp())
    silent = {"alertname": "FairwayExporterSilent", "severity": "ticket", "cluster": "hpc", "node": "n1"}
    assert await send(http, headers, alert(GONE), alert(silent, mark="b2")) == 1
    assert [notice.subject for notice in await stored(ledger)] == ["FairwayExporterSilent of None"]
    assert await ledger.gpu_events.listed(at(0)) == ()


@pytest.mark.parametrize(
    "change",
    [
        {"status": "broken"},
        {"startsAt": "yesterday"},
        {"startsAt": "0001-01-01T00:00:00Z"},
        {"fingerprint": "../../x"},
        {"labels": {"x" * 201: ""}},
        {"labels": {"x": "y" * 4001}},
        {"labels": {str(n): "" for n in range(101)}},
    ],
)
async def test_what_is_out_of_bounds_is_refused(
    http: httpx2.AsyncClient, headers: dict[str, str], ledger: Ledger, change: dict[str, Any]
) -> None:
    answer = await http.post("/v1/alerts", json={"alerts": [alert(GONE) | change]}, headers=headers)
    assert answer.status_code == 422, answer.text
    assert await stored(ledger) == []


async def test_too_many_are_refused(http: httpx2.AsyncClient, headers: dict[str, str]) -> None:
    many = [alert({"alertname": "X"}, mark=f"{n:x}") for n in range(MAX_ALERTS + 1)]
    answer = await http.post("/v1/alerts", json={"alerts": many}, headers=headers)
    assert answer.status_code == 422
    assert await send(http, headers, *many[:MAX_ALERTS]) == MAX_ALERTS
    assert await send(http, headers) == 0


def test_one_is_told_as_it_is() -> None:
    one = Notice(NoticeKind.ALERT, "k", "s", "t")
    assert combined([one]) == one
