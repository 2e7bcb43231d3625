"""What a job's page says of idle rules: what they did, what comes next, and how to postpone it."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.gpu_use import WINDOW_SECONDS
from fairway.model.idle import IdleAction, IdleRule, IdleRules, IdleStep
from fairway.model.job import JobId, format_job_id
from fairway.services.fleets import Fleets
from fairway.services.jobs import describe_job
from fairway.services.rights import Person
from fairway.views import jobs as views
from fairway.wire import jobs as wire
from tests.unit.control.job_toy import ADA, FLEET, applied, submit

HOUR = 3600
RULE = IdleRule(
    "notebooks",
    Decimal("0.01"),
    HOUR,
    (IdleStep(IdleAction.WARN, 0), IdleStep(IdleAction.CANCEL, 1800)),
    dry_run=False,
)
READ_TO = 0
"""When the last window ends; set for each test, because all of them together may take long."""


@pytest.fixture(autouse=True)
def read_to_now(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(globals(), "READ_TO", int(time.time()) // WINDOW_SECONDS * WINDOW_SECONDS)


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


async def idle_job(ledger: Ledger, db: psycopg.Connection[Any]) -> JobId:
    await applied(ledger)
    (job,) = await submit(ledger)
    began = datetime.fromtimestamp(READ_TO - 2 * HOUR, UTC)
    db.execute("UPDATE job SET state = 'running', engine_id = '7', started_at = %s", (began,))
    for start in range(READ_TO - HOUR, READ_TO, WINDOW_SECONDS):
        db.execute("INSERT INTO job_window VALUES (%s, to_timestamp(%s), 'hpc', 300, 0, 1, 1)", (job, start))
    db.execute("INSERT INTO telemetry_mark VALUES ('hpc', to_timestamp(%s), 15)", (READ_TO,))
    return job


async def describe(ledger: Ledger, job: JobId, rule: IdleRule) -> wire.JobDetail:
    fleet: Fleet = replace(FLEET, idle=IdleRules((rule,), longest_keep_seconds=2 * HOUR))
    found = await ledger.jobs.one(job)
    assert found is not None
    person = Person(ADA, Role.MEMBER, frozenset())
    return await describe_job(ledger, Fleets(ledger, lambda _: fleet), found, person)


def record(db: psycopg.Connection[Any], job: JobId, action: str, outcome: str, detail: str = "") -> None:
    db.execute(
        "INSERT INTO idle_action (job, cluster, rule, action, at, idle_since, dry_run, evidence, outcome,"
        " detail)"
        " VALUES (%s, 'hpc', 'notebooks', %s, to_timestamp(%s), to_timestamp(%s), %s, 'it slept', %s, %s)",
        (job, action, READ_TO, READ_TO - HOUR, outcome == "dry-run", outcome, detail),
    )


async def test_the_next_step_and_how_to_postpone_it(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    job = await idle_job(ledger, db)
    record(db, job, "warn", "done")
    seen = await describe(ledger, job, RULE)
    assert seen.idle is not None
    due = datetime.fromtimestamp(READ_TO + 1800, UTC)
    assert (seen.idle.action, seen.idle.due_at, seen.idle.rule) == ("cancel", due, "notebooks")
    word = format_job_id(job)
    assert views.next_step(seen) == [
        f"It will be cancelled at {due:%H:%M} UTC unless it uses its GPUs again or you run:  "
        f"fairway keep {word} --for 2h"
    ]
    assert dict(views.facts(seen, None))["idle"].startswith("its GPU was busy for less than 1 % of the last")
    (entry,) = (e for e in views.timeline(seen) if e.what == "idle")
    assert (entry.text, entry.tone) == ("by rule notebooks: warned about; it slept", "warn")


async def test_a_dry_run_says_what_would_have_been_done(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    job = await idle_job(ledger, db)
    record(db, job, "warn", "dry-run")
    record(db, job, "requeue", "skipped", "it cannot resume")
    seen = await describe(ledger, job, replace(RULE, dry_run=True))
    assert [e.text for e in seen.events if e.kind == "idle"] == [
        "dry run: it would have been warned about; it slept",
        "not requeued, skipped: it cannot resume; it slept",
    ]
    assert "would be cancelled, but the rule is in dry run" in dict(views.facts(seen, None))["idle"]
    assert "keep" not in "".join(views.next_step(seen))


async def test_a_kept_job_says_until_when_and_by_whom(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    job = await idle_job(ledger, db)
    until = datetime.fromtimestamp(READ_TO + 2 * HOUR, UTC)
    await ledger.idle.keep([job], until, "ada", "lunch")
    seen = await describe(ledger, job, RULE)
    assert seen.idle is not None
    assert (seen.idle.kept_until, seen.idle.action, seen.idle.due_at) == (until, "warn", until)
    assert f"kept until {until:%Y-%m-%d %H:%M} UTC by ada (lunch)" in dict(views.facts(seen, None))["idle"]


async def test_an_exempt_job_has_nothing_to_say(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    job = await idle_job(ledger, db)
    assert (await describe(ledger, job, replace(RULE, except_users=(ADA,)))).idle is None
