"""A job's log on its page, of a cluster whose logs are in memory: its end, what comes, all of it, faults."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime

import httpx2
import pytest
from fastapi import FastAPI
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.engines.port import LogPart, Unreachable
from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobDetail, JobFilter
from fairway.model.fleet import Fleet
from fairway.model.job import Attempt, EngineId, JobState, SeenJob, format_job_id
from fairway.model.names import NodeName, PoolName, TeamName, UserName
from fairway.model.team import Supply
from fairway.services.fleets import Fleets
from fairway.services.jobs import JobServices
from fairway.settings import Settings
from fairway.web.app import add_pages
from tests.unit.api import conftest as api
from tests.unit.api.governed import Memory

NASTY = "<script>alert(1)</script>"
PART = {"HX-Request": "true", "HX-Target": "log-part"}


@dataclass
class Printed:
    """What the attempts of every job printed."""

    data: bytes = b""
    ended: bool = False
    gone: bool = False

    async def read(
        self, detail: JobDetail, attempt: int | None, offset: int, limit: int, node: int = 0
    ) -> LogPart:
        if self.gone:
            raise Unreachable("ClusterUnreachable", "hpc does not answer", "wait, or look at the cluster")
        data = (self.data if node == 0 else f"node {node} of attempt {attempt}\n".encode())[offset:]
        piece = data[:limit]
        return LogPart(piece, offset + len(piece), ended=self.ended and len(piece) == len(data))


@pytest.fixture
def printed() -> Printed:
    return Printed()


@pytest.fixture
async def app(ledger: Ledger, memory: Memory, fleet: Fleet, settings: Settings, printed: Printed) -> FastAPI:
    await ledger.revisions.add("the text does not matter here", "digest", "test")
    policy = api.build_policy_services(memory)
    parts: JobServices = replace(NO_JOB_SERVICES, log_reader=printed)
    made = create_app(ledger, CollectorRegistry(), Fleets(ledger, lambda _: fleet), policy, parts)
    add_pages(made, ledger, made.state.fleets, policy, parts, settings)
    return made


@pytest.fixture
async def word(ledger: Ledger) -> str:
    """A job of ada's that runs on two nodes, the second time."""
    now = datetime.now(UTC).replace(microsecond=0)
    nodes = (NodeName("n1"), NodeName("n2"))
    attempts = (Attempt(now, nodes, 4, now), Attempt(now, nodes, 4))
    seen = SeenJob(
        EngineId("1"),
        "train",
        UserName("ada"),
        TeamName("research"),
        JobState.RUNNING,
        now,
        Supply(PoolName("hpc-a100")),
        2,
        2,
        attempts=attempts,
    )
    lease = await ledger.leases.take("mirror", "hpc", "test", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.mirror.write_jobs([seen], "mark")
    (row,) = await ledger.jobs.page(JobFilter())
    return format_job_id(row.id)


async def test_a_log_is_escaped_and_followed(word: str, printed: Printed, member: httpx2.AsyncClient) -> None:
    printed.data = f"{NASTY}\x1b[31mred\x1b[0m\n1 %\r2 %\n".encode()
    page = (await member.get(f"/jobs/{word}/log", headers=PART)).text
    assert "<html" not in page
    assert NASTY not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;red\n2 %\n" in page
    assert "data-follow" in page
    more = re.search(r'id="log-more" hx-get="([^"]+)"', page)
    assert more is not None
    printed.data += b"next <b>\n"
    came = (await member.get(more[1].replace("&amp;", "&"), headers=PART | {"HX-Target": "log-more"})).text
    assert came.startswith("next &lt;b&gt;\n<span id=")
    assert "red" not in came
    printed.ended = True
    again = re.search(r'hx-get="([^"]+)"', came)
    assert again is not None
    last = (await member.get(again[1].replace("&amp;", "&"), headers=PART | {"HX-Target": "log-more"})).text
    assert last == ""  # nothing more to follow


async def test_attempt_and_node_are_chosen(word: str, printed: Printed, member: httpx2.AsyncClient) -> None:
    page = (await member.get(f"/jobs/{word}/log?attempt=1&node=1", headers=PART)).text
    assert "node 1 of attempt 1" in page
    assert re.search(r"<option selected>1</option>", page)
    assert re.search(r'<option value="1" selected>n2</option>', page)
    missing = await member.get(f"/jobs/{word}/log?attempt=9")
    assert missing.status_code == 404
    assert "has no attempt 9" in missing.text


async def test_all_of_it_is_a_file_as_it_was_printed(
    word: str, printed: Printed, member: httpx2.AsyncClient
) -> None:
    printed.data, printed.ended = f"{NASTY}\x1b[31m\n".encode() * 100_000, True
    answer = await member.get(f"/jobs/{word}/log/download?attempt=2")
    assert answer.content == printed.data
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{word}-attempt-2-node-0.log"'
    assert answer.headers["x-content-type-options"] == "nosniff"


async def test_a_cluster_that_does_not_answer_says_so_in_place(
    word: str, printed: Printed, member: httpx2.AsyncClient
) -> None:
    printed.gone = True
    part = await member.get(f"/jobs/{word}/log", headers=PART)
    assert part.status_code == 200  # htmx would not show it otherwise
    assert "hpc does not answer" in part.text
    assert "Try again" in part.text
    assert (await member.get(f"/jobs/{word}/log")).status_code == 502
    assert (await member.get(f"/jobs/{word}/log/download")).status_code == 502
    page = await member.get(f"/jobs/{word}")
    assert page.status_code == 200  # the rest of the page does not wait for the cluster
