"""The Jobs page and the page of a job: over a real ledger, with a virtual cluster to read logs from."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from html import unescape
from pathlib import Path

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.explain.reasons import REASONS
from fairway.ledger import Ledger, NewJob
from fairway.ledger.records.jobs import JobFilter
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import Device
from fairway.model.job import (
    After,
    Attempt,
    Ending,
    EngineId,
    GpuRequest,
    JobId,
    JobSpec,
    JobState,
    Placement,
    SeenJob,
    format_job_id,
    parse_job_id,
)
from fairway.model.names import ClusterName, NodeName, PoolName, PriorityName, TeamName, UserName
from fairway.model.team import Supply
from fairway.server.engines import EngineFactory
from fairway.server.services import build_job_services
from fairway.services.fleets import Fleets
from fairway.settings import Settings
from fairway.web.app import add_pages
from fairway.web.pages.jobs import list_page
from fairway.wire import jobs as wire
from tests.kinds import manifests
from tests.measured import did, measure
from tests.unit.api import conftest as api
from tests.unit.api.governed import Memory
from tests.unit.web.conftest import FLEET, SignIn, token

A100 = Supply(PoolName("dream-a100"))
NASTY = "<script>alert(1)</script>"


@pytest.fixture
async def app(
    ledger: Ledger, memory: Memory, fleet: Fleet, settings: Settings, tmp_path: Path
) -> AsyncIterator[FastAPI]:
    """As usual, with a real reader of logs."""
    await ledger.revisions.add("the text does not matter here", "digest", "test")
    policy = api.build_policy_services(memory)
    async with build_job_services(ledger, EngineFactory(), Fleets(ledger, lambda _: fleet)) as parts:
        made = create_app(ledger, CollectorRegistry(), Fleets(ledger, lambda _: fleet), policy, parts)
        add_pages(made, ledger, made.state.fleets, policy, parts, settings)
        yield made


def job(
    name: str = "train", user: str = "ada", team: str = "research", *, cluster: str = "dream", **spec: object
) -> NewJob:
    pool = PoolName("dream-a100" if cluster == "dream" else "hpc-a100")
    asked = replace(JobSpec(name, GpuRequest(2), ("python", "train.py")), **spec)  # type: ignore[arg-type]
    place = Placement(ClusterName(cluster), Supply(pool), "it has most free GPUs")
    return NewJob(asked, UserName(user), TeamName(team), PriorityName("normal"), place)


async def submit(ledger: Ledger, *new: NewJob) -> list[str]:
    """The word of each job, of an array its first task's."""
    return [format_job_id(ids[0]) for ids in await ledger.jobs.submit(list(new), by="test")]


async def see(ledger: Ledger, *seen: SeenJob, cluster: str = "hpc") -> None:
    lease = await ledger.leases.take("mirror", cluster, "test", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.mirror.write_jobs(list(seen), "mark")
    await ledger.leases.release(lease)


def native(number: int, state: JobState, *attempts: Attempt, **more: object) -> SeenJob:
    made = SeenJob(
        EngineId(str(number)),
        f"native-{number}",
        UserName("bob"),
        TeamName("product"),
        state,
        datetime.now(UTC).replace(microsecond=0) - timedelta(hours=3),
        Supply(PoolName("hpc-a100")),
        4,
        attempts=attempts,
    )
    return replace(made, **more)  # type: ignore[arg-type]


def ran(start: float, end: float | None, ending: Ending | None, reason: str = "") -> Attempt:
    """In hours ago."""
    now = datetime.now(UTC).replace(microsecond=0)
    ended = None if end is None else now - timedelta(hours=end)
    return Attempt(now - timedelta(hours=start), (NodeName("n1"),), 4, ended, ending, None, None, reason)


def ids(page: str) -> list[str]:
    return re.findall(r'<tr id="job-([0-9a-z]+)"', page)


async def get(client: httpx2.AsyncClient, path: str, **headers: str) -> str:
    answer = await client.get(path, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer.text


async def test_the_list_is_newest_first_and_each_filter_narrows_it(
    ledger: Ledger, member: httpx2.AsyncClient
) -> None:
    assert "No jobs yet" in await get(member, "/jobs")
    first, second, third = await submit(
        ledger, job(), job("eval", "bob", "product"), job("train-2", cluster="hpc")
    )
    assert ids(await get(member, "/jobs")) == [third, second, first]
    for query, wanted in {
        "team=product": [second],
        "user=ada": [third, first],
        "pool=hpc-a100": [third],
        "cluster=dream": [second, first],
        "state=queued": [third, second, first],
        "state=ended": [],
        "priority=normal": [third, second, first],
        "priority=low": [],
        "age=1h": [third, second, first],
        "mine=teams": [third, first],
        "q=train": [third, first],
        "q=TRAIN-": [third],
        "q=bo": [second],
        "q=rain": [third, first],
        "q=ob": [second],
        "state=pending": [third, second, first],
        f"q={second}": [second],
        "q=train&pool=hpc-a100&user=ada&state=open": [third],
        "state=nonsense&age=ever&before=%00&array=x": [third, second, first],
    }.items():
        assert ids(await get(member, f"/jobs?{query}")) == wanted, query


async def test_an_empty_result_says_which_filter_to_drop(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    await submit(ledger, job())
    page = await get(member, "/jobs?user=ada&state=running")
    assert "No job matches these filters" in page
    assert 'Some jobs match without this filter: <a href="/jobs?user=ada">running</a>' in page
    assert 'without this filter: <a href="/jobs?state=running">' not in page  # that would not help
    assert 'aria-label="Remove the filter user ada"' in page


async def test_pages_lead_on_and_back(
    ledger: Ledger, member: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_page, "PER_PAGE", 3)
    words = await submit(ledger, *(job(f"j-{n}") for n in range(8)))
    words.reverse()
    page = await get(member, "/jobs?user=ada")
    seen = [ids(page)]
    assert 'rel="prev"' not in page
    while older := re.search(r'rel="next" href="([^"]+)"', page):
        page = await get(member, older[1].replace("&amp;", "&"))
        seen.append(ids(page))
    assert seen == [words[0:3], words[3:6], words[6:8]]
    back = []
    while newer := re.search(r'rel="prev" href="([^"]+)"', page):
        page = await get(member, newer[1].replace("&amp;", "&"))
        back.append(ids(page))
    assert back == [words[3:6], words[0:3]]


async def test_the_list_is_sorted_by_its_columns(
    ledger: Ledger, member: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = await submit(
        ledger,
        job("b", gpus=GpuRequest(8)),
        job("a", gpus=GpuRequest(2)),
        job("c", "bob", "product", gpus=GpuRequest(4)),
    )
    one, two, three = words
    for sort, wanted in {
        "name": [two, one, three],
        "-name": [three, one, two],
        "-gpus": [one, three, two],
        "gpus": [two, three, one],
        "submitted": words,
        "user": [two, one, three],
        "nonsense": words[::-1],
    }.items():
        assert ids(await get(member, f"/jobs?sort={sort}")) == wanted, sort
    page = await get(member, "/jobs?sort=-gpus&team=research")
    assert 'aria-sort="descending"' in page
    assert 'href="/jobs?team=research&amp;sort=gpus"' in page  # again: the other way
    assert '<input type="hidden" name="sort" value="-gpus">' in page
    monkeypatch.setattr(list_page, "PER_PAGE", 2)
    page = await get(member, "/jobs?sort=-gpus")
    assert ids(page) == [one, three]
    assert "Sorted among the 5,000 newest jobs" in page
    assert 'rel="next" href="/jobs?sort=-gpus&amp;offset=2"' in page
    page = await get(member, "/jobs?sort=-gpus&offset=2")
    assert ids(page) == [two]
    assert 'rel="prev" href="/jobs?sort=-gpus"' in page


async def test_tabs_count_open_jobs_with_every_other_filter(
    ledger: Ledger, member: httpx2.AsyncClient
) -> None:
    await submit(ledger, job(), job("eval", "bob", "product"), job("sweep", array=tuple(range(12))))
    await see(ledger, native(1, JobState.RUNNING, ran(1, None, None)), native(2, JobState.HELD))

    def counts(page: str) -> dict[str, str]:
        return dict(re.findall(r">([A-Z][a-z ]+) <span class=\"count\"[^>]*>([0-9,]+)<", page))

    every = {"Not ended": "16", "Running": "1", "Waiting": "14", "On hold": "1"}
    assert counts(await get(member, "/jobs")) == every
    assert counts(await get(member, "/jobs?state=running")) == every  # what another tab would show
    assert counts(await get(member, "/jobs?q=bo")) == every | {
        "Not ended": "3",
        "Running": "1",
        "Waiting": "1",
        "On hold": "1",
    }
    assert "each task of an array counts" in await get(member, "/jobs")


async def test_a_name_leads_to_its_job_and_shows_when_it_was_submitted(
    ledger: Ledger, member: httpx2.AsyncClient
) -> None:
    (word,) = await submit(ledger, job("train-llm"))
    page = await get(member, "/jobs")
    assert re.search(rf'<td role="cell" class="name"><a href="/jobs/{word}"[^>]*>train-llm</a>', page)
    assert re.search(r'class="submitted"><time datetime="[^"]+" title="[^"]+">\d+ s ago</time>', page)
    assert '<td role="cell" class="priority">normal</td>' in page


async def test_several_jobs_are_changed_after_a_confirmation_with_a_result_for_each(
    ledger: Ledger, sign_in: SignIn
) -> None:
    member = await sign_in(Role.MEMBER)
    first, second, array, other = await submit(
        ledger, job("one"), job("two"), job("sweep", array=(0, 1, 2)), job("theirs", "bob", "product")
    )
    page = await get(member, "/jobs")
    assert re.findall(r'name="job\.([0-9a-z]+)"', page) == [array, second, first]  # not bob's
    csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
    chosen = {
        "csrf": csrf,
        "action": "hold",
        f"job.{first}": "on",
        f"job.{array}": "on",
        f"job.{other}": "on",
    }
    asked = await member.post("/jobs/change", data=chosen | {"back": "/jobs?user=ada"})
    assert "Hold 3 jobs?" in asked.text
    assert "array, all 3 tasks" in asked.text
    assert "you may not change it" in asked.text
    assert 'href="/jobs?user=ada"' in asked.text
    assert {row.state for row in await ledger.jobs.page(JobFilter())} == {JobState.QUEUED}  # nothing yet
    done = await member.post("/jobs/change", data=chosen | {"confirmed": "yes", "back": "//elsewhere"})
    assert "2 jobs on hold, 1 unchanged" in done.text
    assert "on hold: 3 tasks" in done.text
    assert "may not change" in done.text
    assert "elsewhere" not in done.text
    rows = {row.name: row.state for row in await ledger.jobs.page(JobFilter())}
    assert rows == {
        "one": JobState.HELD,
        "two": JobState.QUEUED,
        "sweep": JobState.HELD,
        "theirs": JobState.QUEUED,
    }
    again = await member.post(
        "/jobs/change", data={"csrf": csrf, "action": "hold", f"job.{first}": "on", "confirmed": "yes"}
    )
    assert "unchanged: it has ended, or is in this state already" in again.text
    for wrong in ({}, {"action": "hold"}, {"action": "burn", f"job.{first}": "on"}):
        refused = await member.post("/jobs/change", data={"csrf": csrf} | wrong)
        assert refused.status_code == 422
        assert "select jobs" in refused.text
    assert (await member.post("/jobs/change", data=chosen | {"csrf": "no"})).status_code == 403
    viewer = await sign_in(Role.VIEWER)
    assert 'name="job.' not in await get(viewer, "/jobs")


async def test_the_jobs_that_match_are_exported(
    ledger: Ledger, sign_in: SignIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_page, "_EXPORT_PAGE", 2)
    member = await sign_in(Role.MEMBER)
    await submit(ledger, job("=cmd()"), job("eval", "bob", "product"), job("sweep", array=(0, 1, 2)))
    await see(ledger, native(1, JobState.RUNNING, ran(1, None, None)))
    answer = await member.get("/jobs/export.csv?team=research")
    assert answer.headers["content-type"].startswith("text/csv")
    assert re.fullmatch(r'attachment; filename="jobs-[0-9-]+\.csv"', answer.headers["content-disposition"])
    rows = list(csv.DictReader(io.StringIO(answer.text)))
    assert [row["name"] for row in rows] == ["sweep[2]", "sweep[1]", "sweep[0]", "'=cmd()"]
    assert rows[0]["state"] == "queued"
    assert rows[0]["submitted"].endswith("Z")
    costs = [row["cost"] for row in csv.DictReader(io.StringIO((await member.get("/jobs/export.csv")).text))]
    assert set(costs) == {""}  # what another team spends is not hers to see
    viewer = await sign_in(Role.VIEWER)
    text = (await viewer.get("/jobs/export.csv?state=running")).text
    (cost,) = [row["cost"] for row in csv.DictReader(io.StringIO(text))]
    assert Decimal("7.60") <= Decimal(cost) < Decimal("7.80"), "4 GPUs for an hour at 1.90"
    assert (await viewer.get("/jobs/export.csv?state=refused")).text == ""
    monkeypatch.setattr(list_page, "MAX_EXPORTED", 4)
    assert (await viewer.get("/jobs/export.csv")).text.count("\n") == 5


async def test_a_job_is_cloned_checked_and_submitted(ledger: Ledger, sign_in: SignIn) -> None:
    member, other = await sign_in(Role.MEMBER), await sign_in(Role.MEMBER, user="bob")
    (word,) = await submit(ledger, job("train-llm"))
    assert f'href="/jobs/new?from={word}"' in await get(member, f"/jobs/{word}")
    assert "/jobs/new" not in await get(other, f"/jobs/{word}")
    assert (await other.get(f"/jobs/new?from={word}")).status_code == 403
    form = await get(member, f"/jobs/new?from={word}")
    assert f"Submit train-llm ({word}) again" in form
    text = unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", form, re.DOTALL)[0])
    assert "command: [python, train.py]" in text and "gpus: 2" in text
    csrf, key = re.findall(r'name="(?:csrf|key)" value="([0-9a-f]+)"', form)[-2:]
    fields = {"csrf": csrf, "key": key, "job": text}
    checked = await member.post("/jobs/new", data=fields | {"action": "check"})
    assert checked.status_code == 200 and "Would run on" in checked.text
    assert len(await ledger.jobs.page(JobFilter())) == 1, "a check submits nothing"
    for _ in range(2):  # sent twice: submitted once
        done = await member.post("/jobs/new", data=fields | {"action": "submit"})
        assert done.status_code == 303
    rows = await ledger.jobs.page(JobFilter(name="train-llm"))
    assert len(rows) == 2 and done.headers["location"] == f"/jobs/{format_job_id(rows[0].id)}"
    wrong = await member.post("/jobs/new", data=fields | {"job": text.replace("gpus:", "gpu:"), "key": "k2"})
    assert wrong.status_code == 422 and "in the file" in wrong.text and "data-fault=" in wrong.text
    await see(ledger, native(1, JobState.RUNNING, ran(1, None, None), user=UserName("ada")))
    (seen,) = await ledger.jobs.page(JobFilter(cluster="hpc", native=True))
    assert "NotFairways" in (await member.get(f"/jobs/new?from={format_job_id(seen.id)}")).text
    viewer = await sign_in(Role.VIEWER)
    assert 'href="/jobs/new"' not in await get(viewer, "/jobs")


async def test_a_manifest_is_cloned_and_needs_a_kubernetes_pool(ledger: Ledger, sign_in: SignIn) -> None:
    member = await sign_in(Role.MEMBER)
    (body,) = manifests.deployment("chat", 2, 3)
    spec = wire.JobSpec(name="chat", manifest=body).to_model()
    (word,) = await submit(ledger, replace(job("chat"), spec=spec))
    (row,) = await ledger.jobs.page(JobFilter(name="chat"))
    assert (row.gpus, row.nodes, row.devices) == (2, 3, 6)
    assert "apps/v1 Deployment" in await get(member, f"/jobs/{word}")
    form = await get(member, f"/jobs/new?from={word}")
    text = unescape(re.findall(r"<textarea[^>]*>(.*?)</textarea>", form, re.DOTALL)[0])
    csrf, key = re.findall(r'name="(?:csrf|key)" value="([0-9a-f]+)"', form)[-2:]
    for sent in (text, json.dumps(body)):
        fields = {"csrf": csrf, "key": key, "job": sent, "action": "check"}
        checked = await member.post("/jobs/new", data=fields)
        assert checked.status_code == 200
        assert "a manifest runs on Kubernetes only" in unescape(checked.text)


async def test_an_array_is_one_line_that_counts_its_tasks(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (single, array) = await submit(ledger, job(), job("sweep", array=tuple(range(12))))
    page = await get(member, "/jobs")
    assert ids(page) == [array, single]
    assert "× 12 tasks" in page
    assert "12 queued" in page
    tasks = await get(member, f"/jobs?array={array}")
    assert len(ids(tasks)) == 12
    assert "sweep[11]" in tasks
    last = format_job_id((parse_job_id(array) or 0) + 11)
    searched = await get(member, f"/jobs?q={last}")
    assert ids(searched) == [last] and f'href="/jobs/{last}"' in searched and "sweep[11]" in searched
    assert f'href="/jobs?array={array}"' in await get(member, f"/jobs?q={array}")
    one = await get(member, f"/jobs/{last}")
    assert "Array of 12 tasks" in one
    assert f'href="/jobs?array={array}"' in one


async def test_only_the_live_part_is_sent_to_a_page_that_is_open(
    ledger: Ledger, member: httpx2.AsyncClient
) -> None:
    (word,) = await submit(ledger, job())
    for path, part in (("/jobs?user=ada", "jobs-part"), (f"/jobs/{word}", "job-part")):
        text = await get(member, path, **{"HX-Request": "true", "HX-Target": part})
        assert word in text
        assert "<html" not in text
        assert "data-filters" not in text


async def test_hostile_names_and_reasons_do_nothing(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (word,) = await submit(ledger, job(f"x{NASTY}\u202e\x9b31m"))
    bad = native(
        9,
        JobState.FAILED,
        ran(2, 1, Ending.FAILED, f"{NASTY}\x1b]0;owned\x07"),
        name=f"{NASTY}&\x07",
        reason=f'"{NASTY}\n',
        ended_at=datetime.now(UTC),
    )
    await see(ledger, bad)
    (row,) = await ledger.jobs.page(JobFilter(cluster="hpc"))
    for path in (
        "/jobs",
        f"/jobs/{word}",
        f"/jobs/{format_job_id(row.id)}",
        f"/jobs?q={NASTY}",
        f"/jobs?user={NASTY}",
    ):
        page = await get(member, path)
        assert NASTY not in page, path
        assert not re.search(r"[\x00-\x08\x0b-\x1f\u202e]", page), path
    assert "&lt;script&gt;" in await get(member, f"/jobs/{format_job_id(row.id)}")


async def test_a_job_shows_its_attempts_its_events_and_what_it_cost(
    ledger: Ledger, viewer: httpx2.AsyncClient
) -> None:
    await see(
        ledger,
        native(
            1,
            JobState.RUNNING,
            ran(2.5, 1.5, Ending.PREEMPTED, "taken for another"),
            ran(1, None, None),
        ),
    )
    (row,) = await ledger.jobs.page(JobFilter())
    page = await get(viewer, f"/jobs/{format_job_id(row.id)}")
    assert "native-1" in page
    assert "has been running for" in page
    assert "taken for another" in page
    assert page.count('class="taken"') >= 1  # the drawing, and its key
    assert page.count('class="held"') == 2
    # 4 GPUs for two hours at 1.90
    assert "15.20 USD" in page
    assert "<dt>Cost so far</dt>" in page
    assert "submitted" in page
    assert "Logs are shown to the job's owner, leads of its team and operators" in page


async def test_who_may_not_see_money_does_not(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    await see(ledger, native(1, JobState.RUNNING, ran(1, None, None)))
    (row,) = await ledger.jobs.page(JobFilter())
    for path in ("/jobs", f"/jobs/{format_job_id(row.id)}"):
        page = await get(member, path)
        assert "native-1" in page
        assert "USD" not in page


async def test_the_cost_of_a_job_in_the_api_is_for_those_who_see_it_in_reports(
    ledger: Ledger, stranger: httpx2.AsyncClient
) -> None:
    """A member sees the cost of their own team's jobs, a viewer all of them; lists and details agree."""
    await see(
        ledger,
        native(1, JobState.RUNNING, ran(2.5, 1.5, Ending.PREEMPTED), ran(1, None, None)),
        native(2, JobState.DONE, ran(2, 1, Ending.DONE), team=TeamName("vision")),
        native(3, JobState.WAITING),
    )
    rows = {row.name: format_job_id(row.id) for row in await ledger.jobs.page(JobFilter())}
    seen: dict[str, dict[str, object]] = {}
    for role, user in ((Role.VIEWER, "finance"), (Role.MEMBER, "ada"), (Role.MEMBER, "bob")):
        headers = {"Authorization": f"Bearer {await token(ledger, role, f'api-{user}', user)}"}
        listed = {
            j["name"]: j["cost"] for j in (await stranger.get("/v1/jobs", headers=headers)).json()["items"]
        }
        for name, cost in listed.items():
            one = (await stranger.get(f"/v1/jobs/{rows[name]}", headers=headers)).json()["cost"]
            assert (one is None) == (cost is None), (user, name)
            if cost is not None:
                assert one["per_hour"] == cost["per_hour"]
                assert float(one["amount"]) == pytest.approx(float(cost["amount"]), abs=0.2), "it runs on"
        seen[user] = {
            name: cost and (round(float(cost["amount"]), 1), cost["per_hour"])
            for name, cost in listed.items()
        }
    running, done = (15.2, "7.60"), (7.6, None)  # 4 GPUs at 1.90, for two hours and for one
    assert seen["finance"] == {"native-1": running, "native-2": done, "native-3": None}
    assert seen["bob"] == {"native-1": running, "native-2": None, "native-3": None}
    assert seen["ada"] == {"native-1": None, "native-2": done, "native-3": None}, "vision is inside research"


async def test_what_was_asked_is_for_those_who_may_read_it(ledger: Ledger, sign_in: SignIn) -> None:
    (word,) = await submit(ledger, job(script=f"#!/bin/sh\necho secret {NASTY}\n", command=()))
    owner, other, lead = (
        await sign_in(Role.MEMBER),
        await sign_in(Role.MEMBER, user="bob"),
        await sign_in(Role.LEAD),
    )
    assert "echo secret" in await get(owner, f"/jobs/{word}")
    assert "echo secret" in await get(lead, f"/jobs/{word}")
    hidden = await get(other, f"/jobs/{word}")
    assert "secret" not in hidden
    assert "not shown" in hidden
    refused = await other.get(f"/jobs/{word}/log")
    assert refused.status_code == 403
    assert "may not read" in refused.text
    assert (await other.get(f"/jobs/{word}/log/download")).status_code == 403


async def test_a_job_that_waits_says_for_what(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (first,) = await submit(ledger, job("first"))
    number = parse_job_id(first)
    assert number is not None
    (second,) = await submit(ledger, job("second", after=(After(number),)))
    page = await get(member, f"/jobs/{second}")
    assert f"has been queued for 0 s: Depends on {first}" in page
    assert f'href="/jobs/{first}">{first}</a> first, queued' in page
    await see(ledger, native(4, JobState.WAITING, reason="QOSGrpGRES", reason_code="GuaranteeInUse"))
    (row,) = await ledger.jobs.page(JobFilter(cluster="hpc"))
    page = unescape(await get(member, f"/jobs/{format_job_id(row.id)}"))
    assert "QOSGrpGRES" in page
    known = REASONS["GuaranteeInUse"]
    assert known.means in page
    assert f"What would help:</strong> {known.remedy_for(format_job_id(row.id), row.engine_id)}" in page
    assert "QOSGrpGRES" in await get(member, "/jobs?state=waiting")


async def test_cancel_hold_and_release(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (word,) = await submit(ledger, job())
    page = await get(member, f"/jobs/{word}")
    assert f'action="/jobs/{word}/cancel"' in page
    assert f'action="/jobs/{word}/release"' not in page
    csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
    assert "Hold train?" in await get(member, f"/jobs/{word}/hold")  # the second step without a script
    for deed, state in (("hold", "held"), ("release", "queued"), ("cancel", "cancelled")):
        answer = await member.post(f"/jobs/{word}/{deed}", data={"csrf": csrf})
        assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{word}")
        (row,) = await ledger.jobs.rows([JobId(parse_job_id(word) or 0)])
        assert row.state == state
    over = await get(member, f"/jobs/{word}")
    assert '<dialog id="ask' not in over
    assert "was cancelled" in over


async def test_release_is_offered_only_to_who_may(ledger: Ledger, sign_in: SignIn) -> None:
    owner, lead = await sign_in(Role.MEMBER), await sign_in(Role.LEAD)
    operator, viewer = await sign_in(Role.OPERATOR, name="oper"), await sign_in(Role.VIEWER)
    (word,) = await submit(ledger, job(array=(0, 1)))
    release = f"/jobs/{word}/release"

    async def change(client: httpx2.AsyncClient, deed: str) -> int:
        csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', await get(client, f"/jobs/{word}"))[0]
        return (await client.post(f"/jobs/{word}/{deed}", data={"csrf": csrf})).status_code

    assert await change(owner, "hold") == 303
    assert release in await get(owner, f"/jobs/{word}")
    assert await change(operator, "hold") == 303
    for client, role in ((owner, "member"), (lead, "lead")):
        page = await get(client, f"/jobs/{word}")
        assert release not in page
        assert "disabled" in page
        assert f"oper held it as operator, and your role is {role}: ask them to release it." in page
        assert "fairway release" not in page
        assert await change(client, "release") == 403
    assert "ask them to release it" not in await get(viewer, f"/jobs/{word}")
    assert release in await get(operator, f"/jobs/{word}")
    assert (await change(operator, "release"), await change(owner, "hold")) == (303, 303)
    assert release in await get(owner, f"/jobs/{word}")  # the operator's hold is over


async def test_an_array_is_cancelled_by_its_first_task(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (word,) = await submit(ledger, job(array=(0, 1, 2)))
    page = await get(member, f"/jobs/{word}")
    assert "every task that has not ended is changed" in page
    csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
    await member.post(f"/jobs/{word}/cancel", data={"csrf": csrf})
    assert {row.state for row in await ledger.jobs.page(JobFilter())} == {JobState.CANCELLED}


async def test_changes_are_refused_to_others_to_viewers_and_to_other_sites(
    ledger: Ledger, sign_in: SignIn
) -> None:
    (word,) = await submit(ledger, job())
    other, viewer, owner = (
        await sign_in(Role.MEMBER, user="bob"),
        await sign_in(Role.VIEWER),
        await sign_in(Role.MEMBER),
    )
    for client in (other, viewer):
        page = await get(client, f"/jobs/{word}")
        assert f"/jobs/{word}/cancel" not in page
        csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
        refused = await client.post(f"/jobs/{word}/cancel", data={"csrf": csrf})
        assert refused.status_code == 403
        assert 'class="hint"' in refused.text
        assert (await client.get(f"/jobs/{word}/cancel")).status_code == 403
    assert (await owner.post(f"/jobs/{word}/cancel", data={"csrf": "no"})).status_code == 403
    assert (await owner.post(f"/jobs/{word}/cancel")).status_code == 403
    (row,) = await ledger.jobs.rows([JobId(parse_job_id(word) or 0)])
    assert row.state is JobState.QUEUED


async def test_what_does_not_exist_is_a_page_with_a_hint(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (word,) = await submit(ledger, job())
    for path in ("/jobs/zzzz", "/jobs/no", "/jobs/zzzz/log", "/jobs/zzzz/cancel", f"/jobs/{word}/burn"):
        answer = await member.get(path)
        assert answer.status_code == 404, path
        assert 'class="hint"' in answer.text, path


async def test_a_log_that_cannot_be_read_says_so_in_its_place(ledger: Ledger, sign_in: SignIn) -> None:
    operator = await sign_in(Role.OPERATOR)
    await see(ledger, native(1, JobState.RUNNING, ran(1, None, None)))
    (row,) = await ledger.jobs.page(JobFilter())
    word = format_job_id(row.id)
    part = await get(operator, f"/jobs/{word}/log", **{"HX-Request": "true", "HX-Target": "log-part"})
    assert "was submitted outside Fairway" in part
    assert "<html" not in part
    assert (await operator.get(f"/jobs/{word}/log")).status_code == 404
    (waiting,) = await submit(ledger, job())
    assert "has not started" in await get(operator, f"/jobs/{waiting}/log")


def test_the_fleet_of_these_tests_has_the_pool_that_jobs_go_to() -> None:
    assert A100.pool in {pool.name for pool in FLEET.pools}


async def test_the_gpus_of_a_job_stand_side_by_side_and_a_straggler_is_marked(
    sign_in: SignIn, ledger: Ledger
) -> None:
    await see(ledger, native(7, JobState.RUNNING, ran(2, None, None)), native(8, JobState.RUNNING))
    (seven, eight) = sorted(await ledger.jobs.page(JobFilter()), key=lambda row: row.name)
    start = int(datetime.now(UTC).timestamp()) // 300 * 300 - 3600
    busy = did(0.93, sm=0.71, tensor=0.4, dram=0.3, memory=40 * 1024, power=410)
    lagging = did(0.0, sm=0.0, memory=512, power=60)
    gpus = {Device("n1", str(n)): lagging if n == 3 else busy for n in range(4)}
    await measure(ledger, start, 11, {seven.id: gpus})
    client = await sign_in(Role.VIEWER)
    page = await get(client, f"/jobs/{format_job_id(seven.id)}")
    assert "GPU utilization" in page
    rows = re.findall(r'<tr( class="marked")?><th scope="row">(n1 / \d)</th>(.*?)</tr>', page)
    assert [(bool(marked), name) for marked, name, _ in rows] == [
        (True, "n1 / 3"),
        (False, "n1 / 0"),
        (False, "n1 / 1"),
        (False, "n1 / 2"),
    ]
    assert "lags: engine 0 % busy, the others 93 %" in rows[0][2]
    assert "93 <span" in rows[1][2]
    assert "410" in rows[1][2]
    # An hour before anything was measured is held and unmeasured, and never called idle.
    assert re.search(r"not measured (4[5-9]|5[0-9]) %", page)
    assert page.count('class="u-not_measured"') > 10, "the first hour, window by window, and the key"
    assert "% not measured" in page
    assert "GPU utilization" not in await get(client, f"/jobs/{format_job_id(eight.id)}")
    listed = await get(client, "/jobs")
    assert format_job_id(seven.id) in listed


async def test_a_job_of_which_nothing_was_measured_is_not_called_idle(
    sign_in: SignIn, ledger: Ledger
) -> None:
    await see(ledger, native(7, JobState.RUNNING, ran(2, None, None)))
    await measure(ledger, int(datetime.now(UTC).timestamp()) // 300 * 300 - 600, 1, {})
    (row,) = await ledger.jobs.page(JobFilter())
    page = await get(await sign_in(Role.VIEWER), f"/jobs/{format_job_id(row.id)}")
    assert "Not measured: no metrics of its GPUs are available" in page
    assert "idle" not in page.split("GPU utilization")[1].split("</section>")[0]


async def test_what_limits_a_job_is_on_its_page(sign_in: SignIn, ledger: Ledger) -> None:
    await see(ledger, native(7, JobState.RUNNING, ran(2, None, None)))
    (row,) = await ledger.jobs.page(JobFilter())
    start = int(datetime.now(UTC).timestamp()) // 300 * 300 - 7200
    gpus = {Device("n1", str(n)): did(0.0, sm=0.0, memory=4) for n in range(row.devices)}
    await measure(ledger, start, 23, {row.id: gpus})
    page = await get(await sign_in(Role.VIEWER), f"/jobs/{format_job_id(row.id)}")
    card = page.split("GPU bottleneck")[1].split("</section>")[0]
    assert "The program has not opened a GPU" in card
    assert "GpuNeverOpened</span>, high confidence" in card
    assert "GPU memory at most 4 MiB on every GPU" in card
    assert "torch.cuda.is_available()" in card


async def test_a_kept_job_says_so_on_its_page(ledger: Ledger, member: httpx2.AsyncClient) -> None:
    (word,) = await submit(ledger, job())
    page = await get(member, f"/jobs/{word}")
    assert f'action="/jobs/{word}/keep"' not in page  # nothing threatens it
    csrf = re.findall(r'name="csrf" value="([0-9a-f]+)"', page)[0]
    assert "Idle rules do not apply to the job" in await get(member, f"/jobs/{word}/keep")
    answer = await member.post(f"/jobs/{word}/keep", data={"csrf": csrf})
    assert (answer.status_code, answer.headers["location"]) == (303, f"/jobs/{word}")
    number = JobId(parse_job_id(word) or 0)
    keep = (await ledger.idle.keeps([number]))[number]
    assert 3.9 * 3600 < (keep.until - datetime.now(UTC)).total_seconds() <= 4 * 3600
    assert f"kept until {keep.until:%Y-%m-%d %H:%M} UTC" in await get(member, f"/jobs/{word}")


async def test_a_service_is_shown_with_its_kind_and_replicas(
    ledger: Ledger, member: httpx2.AsyncClient
) -> None:
    pods = [
        replace(ran(2, 1, Ending.PREEMPTED, NASTY), replica="llm-1"),
        replace(ran(2, None, None), replica="llm-2"),
    ]
    shape = {"kind": "Deployment", "service": True, "nodes": 2, "reason": "insufficient quota"}
    service = native(7, JobState.RUNNING, *pods, engine_id=EngineId("ml/deployment/llm/1a2b3c4d"), **shape)
    await see(ledger, replace(service, name="llm"), native(8, JobState.RUNNING, ran(1, None, None)))
    for path in ("/jobs?kind=services", "/jobs?kind=Deployment"):
        page = unescape(await get(member, path))
        assert len(ids(page)) == 1
        assert "running, 1/2 replicas" in page
        assert "Deployment</a>" in page
    assert len(ids(await get(member, "/jobs?kind=RayCluster"))) == 0
    (word,) = ids(await get(member, "/jobs?kind=services"))
    page = unescape(await get(member, f"/jobs/{word}"))
    for text in (
        "1 of 2",
        "llm-1",
        "llm-2",
        "insufficient quota",
        "Replicas: those that run",
        "4 held by 1 replica",
    ):
        assert text in page, text
    assert NASTY not in await get(member, f"/jobs/{word}")
    exported = list(csv.DictReader(io.StringIO(await get(member, "/jobs/export.csv?kind=services"))))
    assert [(row["kind"], row["replicas"]) for row in exported] == [("Deployment", "1")]
    assert "Deployment, running" in unescape(await get(member, "/search?q=llm"))
    assert word in await get(member, "/search?q=ml/llm")
