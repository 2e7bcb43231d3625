"""Budgets end to end on every engine: spent, nothing more starts, why says so; raised, it goes on.

A GPU costs 10 USD a second here, so that a budget is spent in the time a test has.
"""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairway.client.client import Client
from fairway.client.contexts import Target
from fairway.client.http import ServerRefused
from fairway.model.access import Role
from fairway.model.job import JobState
from fairway.wire.budgets import Budget
from lab.kubernetes.api import Api
from tests.contract.job_line import IMAGE, JobLine, job_line
from tests.integration.policy.policy_lab import governed
from tests.waiting import Deadline

pytestmark = pytest.mark.timeout(540)

PRICE = 36_000
A_SECOND = PRICE // 3600
LIFTED_WITHIN_SECONDS = 30
"""The promise."""
HELD_WITHIN_SECONDS = 25
"""Of the moment it is spent: one round of counting, one of holding, and a busy machine."""
ENGINES = [
    pytest.param("virtual"),
    *(pytest.param(name, marks=(pytest.mark.slurm, pytest.mark.lab)) for name in ("slurm-24", "slurm-26")),
    pytest.param("kubernetes", marks=(pytest.mark.kubernetes, pytest.mark.lab)),
]
LEFT = 300
"""Of the budget when a test begins: what a GPU costs in half a minute."""


@dataclass
class Money:
    """A line of jobs whose teams have budgets."""

    line: JobLine
    database_url: str
    amount: int = 0
    _numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    def apply(self, budgets: dict[str, Any]) -> None:
        whole = yaml.safe_load(self.line.fleet)
        pool = whole["pools"]["work"]
        pool["price"] = {"2020-01-01": PRICE}  # dated: a new price without a day holds from the next hour on
        if "kubernetes" in pool:
            pool["kubernetes"] = {"node_labels": {"type": "kwok"}}
        for team, budget in budgets.items():
            whole["teams"][team]["budget"] = budget
        file = self.file
        file.write_text(yaml.safe_dump(whole, sort_keys=False))
        self.line.run("apply", "-f", str(file), "--force", "--yes", by="admin")

    def begin(self, at_limit: str) -> None:
        """A budget with `LEFT` left of it: what the cluster ran for others this month counts too."""
        self.apply({"research": {"amount": 10**9, "at_limit": at_limit}})
        counted: list[object] = [None]

        def settled() -> bool:
            time.sleep(12)
            counted.append(self.budget().spent)
            return counted[-1] is not None and counted[-1] == counted[-2]

        self.until(settled, 120, "what was spent before is counted")
        self.amount = int(str(counted[-1]).partition(".")[0]) + LEFT
        self.apply({"research": {"amount": self.amount, "at_limit": at_limit}})

    @property
    def file(self) -> Path:
        return self.line.home.folder / "budgets.yaml"

    def submit(self, by: str = "alice", priority: str = "normal") -> str:
        return self.line.submit(by, command=["sleep", "600"], env={"LAB_RUN_FOR": "600s"}, priority=priority)

    def native(self) -> str:
        """A job of research that Fairway's tools know nothing of; gives the engine's id."""
        line = self.line
        if line.engine != "kubernetes":
            return line.native.submit("alice", 600)
        facts = governed("kubernetes").instance.facts()
        name = f"native-{next(self._numbers)}"
        container = {
            "name": "main",
            "image": IMAGE,
            "command": ["sleep", "600"],
            "env": [{"name": "LAB_RUN_FOR", "value": "600s"}],
            "resources": {"limits": {"nvidia.com/gpu": "1"}},
        }
        job = {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": name},
            "spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [container]}}},
        }
        Api.from_kubeconfig(Path(facts["alice_kubeconfig"])).call(
            "POST", "/apis/batch/v1/namespaces/research/jobs", job
        )
        return f"research/{name}"

    def lead(self, user: str) -> Client:
        """A client of somebody as a lead."""
        made = self.line.client("admin").create_token(f"{user}-lead", Role.LEAD, 3600, user)
        return Client(Target(self.line.server.url, made.secret))

    def mirrored(self, engine_id: str) -> str:
        """Fairway's word for a native job."""

        def found() -> str | None:
            jobs = self.line.client("admin").jobs(team="research", native=True)
            name = engine_id.rpartition("/")[2]
            return next((j.id for j in jobs if name in (j.engine_id, j.name)), None)

        return str(self.until(found, 90, f"native job {engine_id} is known"))

    def budget(self, team: str = "research", by: str = "admin") -> Budget:
        return next(b for b in self.line.client(by).budgets().budgets if b.team == team)

    def until(self, found: Callable[[], Any], within: float, what: str) -> Any:
        deadline = Deadline(within)
        while not (value := found()):
            assert not deadline.passed, f"{what}: not within {within:g} s\n{self.line._tail()}"
            time.sleep(0.3)
        return value

    def stays_waiting(self, seconds: float, *words: str) -> None:
        """And is waiting, with the engine, at the end of it."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            for word in words:
                assert self.line.job(word).state in (JobState.QUEUED, JobState.WAITING), self.line.job(word)
            time.sleep(0.5)
        assert all(self.line.job(word).state is JobState.WAITING for word in words)

    def end_all(self) -> None:
        """Jobs that go on would hold their queues, and the next test's with them, for ten minutes."""
        client = self.line.client("admin")

        def ended() -> bool:
            left = [job.id for job in client.jobs(states=["open"])]
            if left:
                client.cancel(left)
            return not left

        self.until(ended, 90, "the end of all jobs")

    def spend_all(self, running: str) -> tuple[float, Budget]:
        """Wait until the budget is spent and held; seconds from when it was, by what the job cost."""
        started = self.line.job(running).started_at
        assert started is not None
        budget: Budget = self.until(lambda: (b := self.budget()).hold and b, 90, "the budget is spent")
        spent_at = started.timestamp() + LEFT / A_SECOND
        return time.time() - spent_at, budget

    def until_written(self) -> None:
        """Wait until the cluster holds whom the budgets hold: then a plan finds nothing to change."""
        plan = ("plan", "-f", str(self.file), "--detailed-exitcode")
        self.until(
            lambda: self.line.run(*plan, by="admin", code=None).returncode == 0, 60, "the hold is written"
        )


@pytest.fixture
async def opened(request: pytest.FixtureRequest, database_url: str) -> AsyncIterator[Money]:
    async with job_line(request.param, database_url) as line:
        money = Money(line, database_url)
        yield money
        await asyncio.to_thread(money.end_all)


async def _call(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    return await asyncio.to_thread(function, *arguments, **named)


def report(line: JobLine, **figures: object) -> None:
    said = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in figures.items())
    if folder := os.environ.get("BUDGET_FIGURES"):
        with (Path(folder) / "budgets.txt").open("a") as file:
            file.write(f"{datetime.now(UTC):%H:%M:%S} {line.engine}: {said}\n")


@pytest.mark.parametrize("opened", ENGINES, indirect=True)
async def test_low_only_lets_only_low_jobs_start_until_the_budget_is_raised(opened: Money) -> None:
    await _call(_low_only, opened)


def _low_only(money: Money) -> None:
    line, real = money.line, money.line.engine != "virtual"
    money.begin("low-only")
    # What runs was sent by the engine's own tool, where it has one: it counts like any other.
    first = money.mirrored(money.native()) if real else money.submit()
    line.until(first, JobState.RUNNING, within=90)
    late, budget = money.spend_all(first)
    assert late < HELD_WITHIN_SECONDS
    assert budget.hold == "low-only" and budget.level == "spent"

    money.until_written()
    second = money.submit()
    natives = [money.mirrored(money.native())] if real else []
    money.stays_waiting(8, second, *natives)
    assert line.job(first).state is JobState.RUNNING  # left alone
    low = money.submit(priority="low")
    line.until(low, JobState.RUNNING, within=60)

    for word in (second, *natives):
        job = line.job(word)
        assert job.code == "BudgetSpent"
        assert (
            "Team research has spent" in job.reason
            and f"of its {money.amount:,} USD budget for" in job.reason
        )
        assert "only low jobs start until 1 " in job.reason
        said = line.run("describe", "job", word).stdout
        assert "hint: raise  budget.amount  of research" in said and "--priority low" in said
        why_said = line.run("why", word).stdout
        assert "Team research has spent" in why_said and "(BudgetSpent" in why_said
        assert "hint: raise  budget.amount  of research" in why_said and "--priority low" in why_said
    assert line.job(low).code == ""
    why = line.job(natives[0] if natives else second).reason
    assert (
        line.run("plan", "-f", str(money.file), "--detailed-exitcode", by="admin", code=None).returncode == 0
    )
    assert line.shown("get", "drift", by="admin") == []
    after, bound = _beyond(budget, money.budget())

    raised = time.monotonic()
    money.apply({"research": {"amount": 10**9, "at_limit": "low-only"}})
    applied = time.monotonic() - raised
    for word in (second, *natives):
        line.until(word, JobState.RUNNING, within=LIFTED_WITHIN_SECONDS)
    lifted = time.monotonic() - raised
    assert lifted < LIFTED_WITHIN_SECONDS
    assert line.job(second).code == ""
    assert 0 < after <= bound  # by what ran, and by nothing else
    report(
        line,
        held_after_s=f"{late:.1f}",
        spent_when_held=f"{budget.spent} of {budget.amount} USD",
        raised_to_running_s=f"{lifted:.1f}",
        of_which_apply_s=f"{applied:.1f}",
        then_spent=f"{after:.0f} of at most {bound:.0f} USD by what ran",
        reason=f"'{why}'",
    )


@pytest.mark.parametrize("opened", ENGINES, indirect=True)
async def test_a_lead_requests_a_raise_and_the_job_starts_once_it_is_approved(opened: Money) -> None:
    await _call(_raise, opened)


def _raise(money: Money) -> None:
    line = money.line
    money.begin("stop")
    first = money.submit()
    line.until(first, JobState.RUNNING, within=90)
    money.spend_all(first)
    money.until_written()
    second = money.submit()
    money.stays_waiting(8, second)
    assert "fairway budget raise research AMOUNT --reason TEXT" in line.job(second).hint

    lead = money.lead("alice")
    asked = lead.request_budget_raise("research", 10**9, "deadline of the paper")
    assert (asked.state, asked.may_approve) == ("requested", False)
    with pytest.raises(ServerRefused) as refused:
        lead.approve_budget_raise(asked.id)
    assert refused.value.code == "CannotDecideRaise"
    with pytest.raises(ServerRefused) as refused:
        line.client("alice").request_budget_raise("research", 1, "a member may not")
    assert refused.value.code == "RoleTooLow"
    money.stays_waiting(4, second)  # a request alone changes nothing

    approved = time.monotonic()
    shown = line.run("budget", "approve", str(asked.id), "--comment", "once", by="admin").stdout
    assert "research may spend 1,000,000,000 USD more until 1 " in shown
    line.until(second, JobState.RUNNING, within=LIFTED_WITHIN_SECONDS)
    lifted = time.monotonic() - approved
    assert lifted < LIFTED_WITHIN_SECONDS
    budget: Budget = money.until(lambda: not (b := money.budget()).hold and b, 30, "the budget is not held")
    assert budget.raised == 10**9
    assert budget.amount == money.amount + 10**9
    assert line.run("plan", "-f", str(money.file), "--detailed-exitcode", by="admin").returncode == 0
    with pytest.raises(ServerRefused) as refused:
        line.client("admin").deny_budget_raise(asked.id)
    assert refused.value.code == "RaiseDecided"
    report(line, approved_to_running_s=f"{lifted:.1f}")


def _beyond(held: Budget, now: Budget) -> tuple[float, float]:
    """What was spent since it was held, and the most that the two GPUs which may run can have cost."""
    assert held.spent is not None and now.spent is not None and held.checked_at and now.checked_at
    seconds = (now.checked_at - held.checked_at).total_seconds() + 1  # whole seconds are charged
    return float(now.spent - held.spent), seconds * A_SECOND * 2


@pytest.mark.parametrize("opened", ENGINES, indirect=True)
async def test_stop_lets_nothing_start_a_kill_changes_nothing_and_what_runs_can_be_ended(
    opened: Money,
) -> None:
    await _call(_stop, opened)


def _stop(money: Money) -> None:
    line = money.line
    money.begin("stop")
    first = money.submit()
    line.until(first, JobState.RUNNING, within=90)
    money.spend_all(first)
    if line.engine != "virtual":  # whose cluster lives in the server
        line.server.send(
            signal.SIGKILL
        )  # between what is kept and what is written, or after it: all the same
        line.server.wait()
        listen = line.server.url.removeprefix("http://")
        line.server = line.home.start("--listen", listen, FAIRWAY_DATABASE_URL=money.database_url)
    money.until_written()
    low, normal = money.submit(priority="low"), money.submit()
    money.stays_waiting(8, low, normal)
    assert line.job(first).state is JobState.RUNNING
    for word in (low, normal):
        assert "no jobs start until 1 " in line.job(word).reason
        assert "--priority" not in line.job(word).hint
        reason, *others = line.client("alice").why(word).reasons
        assert reason.code == "BudgetSpent" and "no jobs start until 1 " in reason.text
        assert reason.hint.startswith("raise  budget.amount  of research") and "--priority" not in reason.hint
        assert {one.code for one in others} <= {"NotItsTurn", "NotEnoughFree"}, "what would remain"
    other = money.submit(by="carol")
    line.until(other, JobState.RUNNING, within=60)  # another team's money

    mine = line.client("carol").budgets()
    assert [b.team for b in mine.budgets] == [] and mine.of_teams == ["product"]
    assert [b.team for b in line.client("alice").budgets().budgets] == ["research"]
    shown = line.run("get", "budgets")
    assert "stop" in shown.stdout and "hint: raise" in shown.stderr
    assert all(len(row) <= 100 for row in shown.stdout.splitlines())

    money.apply({"research": {"amount": money.amount, "at_limit": "stop", "running": "end"}})
    ended = line.until(first, JobState.CANCELLED, within=90)
    assert ("cancelled", "budget") in [(e.kind, e.by) for e in ended.events]
    assert all(e.by != "budget" for e in line.job(other).events)
