"""Why a job waits: what the ledger knows, as reasons with codes and remedies."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from fairway.explain.findings import Finding
from fairway.explain.reasons import REASONS
from fairway.ledger import Ledger
from fairway.model.access import Role
from fairway.model.job import EngineId, JobState
from fairway.model.names import PoolName
from fairway.model.team import Supply
from fairway.views.jobs import ending_text, reason_text, timeline
from fairway.views.queue import HelpLine, WaitLine, help_lines, queue_lines, wait_lines
from fairway.views.why import WaitAnswer, build_why, pool_option, smaller_option, with_remaining
from fairway.wire import jobs as wire
from tests.unit.api.conftest import bearer
from tests.unit.api.test_jobs import HELLO, alice, http, submit
from tests.unit.ledger.job_samples import Desk, run, seen
from tests.wire_jobs import wire_job

__all__ = ["alice", "http"]
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)


def job(state: str = "waiting", **other: Any) -> wire.JobDetail:
    ran = state not in ("queued", "waiting", "held")
    plain: dict[str, Any] = {
        **dict.fromkeys(wire.JobDetail.model_fields),
        **wire_job(state),
        "hint": "",
        "attempt_count": int(ran),
        "submitted_at": NOW - timedelta(minutes=12),
        "started_at": NOW - timedelta(minutes=5) if ran else None,
        "ended_at": NOW - timedelta(minutes=3) if ran and state != "running" else None,
        "spec_note": "",
        "placement_reason": "",
        "submission": 1,
        "events": [],
        "attempts": [],
        "labels": {},
        "counts": {},
    }
    if ran:
        plain["attempts"] = [
            {
                **dict.fromkeys(wire.Attempt.model_fields),
                "number": 1,
                "engine_id": "17",
                "started_at": plain["started_at"],
                "ended_at": plain["ended_at"],
                "nodes": ["gpu001", "gpu002"],
                "devices": 8,
                "reason": "",
                "replica": "",
            }
        ]
    return wire.JobDetail.model_validate(plain | other)


def test_a_job_for_a_cluster_that_was_left_says_so() -> None:
    why = build_why(job("queued"), [], "", NOW, left_by="eve")
    assert [r.code for r in why.reasons] == ["ClusterNotGoverned"]
    assert why.reasons[0].text.startswith("Fairway no longer manages cluster hpc")


def told(
    one: wire.JobDetail, before: list[wire.Job] | None = None, away: str = "", *, plain: bool = False
) -> wire.Why:
    return build_why(one, before or [], away, NOW, plain=plain)


def said(code: str, engine: str, state: str = "waiting", **other: Any) -> wire.JobDetail:
    """One that waits for what its engine says."""
    return job(state, code=code, reason=engine, engine_reason=engine, **other)


def codes(found: wire.Why) -> list[str]:
    return [reason.code for reason in found.reasons]


def test_an_engines_word_is_translated_and_kept_as_evidence() -> None:
    found = told(said("TeamAtCeiling", "AssocGrpGRES"))
    (reason,) = found.reasons
    assert found.summary == "train (8f3k) has been waiting for 12 min; it requests 8 GPUs in hpc-a100"
    assert (reason.code, reason.engine) == ("TeamAtCeiling", "AssocGrpGRES")
    assert reason.text.startswith("The team uses all GPUs of this pool") and "raise  borrow" in reason.hint


def test_our_own_engines_sentence_is_told_as_it_is() -> None:
    words = "nlp holds 8 of the 8 it may hold of hpc-a100"
    (reason,) = told(said("TeamAtCeiling", words), plain=True).reasons
    assert (reason.code, reason.engine) == ("TeamAtCeiling", "")
    assert reason.text == "nlp holds 8 of the 8 it may hold of hpc-a100"


def test_words_nobody_knows_and_none_at_all() -> None:
    (strange,) = told(said("", "LicensesOfTheMoon\x1b[31m")).reasons
    assert (strange.code, strange.text) == ("EngineSays", "LicensesOfTheMoon[31m")
    (silent,) = told(job()).reasons
    assert silent.code == "EngineSilent" and "fairway why 8f3k" in silent.hint


def test_a_spent_budget_comes_first_and_alone_with_its_own_remedy() -> None:
    spent = "Team nlp has spent 104 of its 100 USD budget for November; no jobs start until 1 December"
    waits = job(
        code="BudgetSpent",
        reason=spent,
        engine_reason="AssocGrpJobsLimit",
        hint="raise  budget.amount  of nlp",
    )
    (reason,) = told(waits).reasons
    assert (reason.code, reason.text, reason.engine) == ("BudgetSpent", spent, "AssocGrpJobsLimit")
    assert reason.hint == "raise  budget.amount  of nlp"
    queued = job("queued", code="BudgetSpent", reason=spent, hint="raise  budget.amount  of nlp")
    assert codes(told(queued)) == ["BudgetSpent"]
    assert codes(told(queued, away="no route")) == ["BudgetSpent", "ClusterAway"]


def test_who_holds_it_and_how_to_let_it_go() -> None:
    events = [{"at": NOW, "kind": "held", "by": "bob", "text": ""}]
    (reason,) = told(said("Held", "JobHeldUser", "held", events=events)).reasons
    assert (reason.code, reason.hint) == ("Held", "fairway release 8f3k")
    assert reason.text.startswith("On hold by bob. ") and reason.engine == "JobHeldUser"
    (by_admin,) = told(said("HeldByAdmin", "JobHeldAdmin", "held")).reasons
    assert by_admin.code == "HeldByAdmin" and "scontrol release 17" in by_admin.hint
    assert codes(told(job("queued", desired_state="hold"))) == ["Held"]
    assert codes(told(said("NotItsTurn", "Priority", desired_state="hold"))) == ["Held"]
    (ours,) = told(said("Held", "somebody holds it back", "held"), plain=True).reasons
    assert (ours.code, ours.engine) == ("Held", "")


@given(code=st.sampled_from(sorted(REASONS)), words=st.text(min_size=1))
@example(code="NotItsTurn", words="AssocGrpGRES")
def test_no_wording_of_an_engine_changes_the_code(code: str, words: str) -> None:
    (reason,) = told(said(code, words)).reasons
    assert reason.code == code


def test_what_it_comes_after_only_while_that_is_open() -> None:
    open_, over = job("running", id="0001", name="first"), job("done", id="0002", name="second")
    (reason,) = told(job("queued"), before=[open_, over]).reasons
    assert reason.code == "AfterAnother"
    assert reason.text == "The job starts after first (0001, running)."
    assert codes(told(job("queued"), before=[over])) == ["NotSent"]


def test_queued_says_what_fairway_waits_for() -> None:
    assert codes(told(job("queued"))) == ["NotSent"]
    away = told(job("queued"), away="connection refused")
    assert (
        codes(away) == ["ClusterAway"]
        and "Cluster hpc is unreachable: connection refused" in away.reasons[0].text
    )
    (again,) = told(job("queued", code="Retry", reason="failed; comes back after 30 s")).reasons
    assert (again.code, again.text) == ("Retry", "failed; comes back after 30 s")


def test_a_gang_of_which_a_part_waits_says_why() -> None:
    found = told(said("NotEnoughFree", "Unschedulable: 0/4 nodes", "running"))
    (reason,) = found.reasons
    assert reason.code == "NotEnoughFree" and reason.text.startswith(
        "The job has started, but not all of it is running now."
    )
    assert reason.engine == "Unschedulable: 0/4 nodes"


def test_one_that_runs_or_is_over_says_where_and_when() -> None:
    runs = told(job("running"))
    assert runs.summary == "train (8f3k) has been running for 5 min on gpu001, gpu002"
    assert runs.reasons == [] and runs.nodes == ["gpu001", "gpu002"]
    done = told(job("done"))
    assert (
        done.summary == "train (8f3k) finished 3 min ago after running for 2 min on gpu001, gpu002"
        and done.reasons == []
    )
    failed = told(job("failed", exit_code=3, reason="NonZeroExitCode"))
    assert "failed 3 min ago with exit code 3 after running for 2 min" in failed.summary
    assert [(r.text, r.hint) for r in failed.reasons] == [
        ("NonZeroExitCode", "show its output:  fairway logs 8f3k")
    ]
    never = job("cancelled", started_at=None, attempts=[], code="DependencyFailed", reason="0001 failed")
    assert (
        told(never).summary.endswith("without having run")
        and "--after ID:ended" in told(never).reasons[0].hint
    )


def test_a_plain_ending_says_what_to_do() -> None:
    (late,) = told(job("timed-out", time_seconds=7200)).reasons
    assert late.text == "The job reached its time limit of 2h and was ended."
    assert late.hint == "submit it again with a longer limit:  fairway submit --again 8f3k --time 4h"
    (unlimited,) = told(job("timed-out", time_seconds=None)).reasons
    assert unlimited.hint.endswith("--time TIME")
    (killed,) = told(job("failed", exit_code=137)).reasons
    assert "more memory" in killed.text and "fairway submit --again 8f3k --memory SIZE" in killed.hint
    assert told(job("failed", exit_code=1)).reasons == []
    assert told(job("failed", exit_code=137, native=True)).reasons == []


@pytest.mark.parametrize("state", list(JobState))
def test_every_state_has_an_answer(state: str) -> None:
    found = told(job(state))
    assert found.summary.startswith("train (8f3k) ")
    assert bool(found.reasons) == (state in ("queued", "waiting", "held", "timed-out"))


async def test_over_http_by_the_rights_of_describe(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    (first,) = await submit(http, alice, HELLO)
    (second,) = await submit(http, alice, HELLO | {"after": [{"job": first["id"]}]}, hold=True)
    seen = (await http.get(f"/v1/jobs/{first['id'].upper()}/why", headers=alice)).json()
    assert (seen["id"], seen["state"], seen["nodes"]) == (first["id"], "queued", [])
    assert [r["code"] for r in seen["reasons"]] == ["NotSent"]
    held = (await http.get(f"/v1/jobs/{second['id']}/why", headers=alice)).json()
    assert [(r["code"], r["hint"]) for r in held["reasons"]] == [("Held", f"fairway release {second['id']}")]
    await http.post("/v1/jobs/release", headers=alice, json={"jobs": [second["id"]]})
    after = (await http.get(f"/v1/jobs/{second['id']}/why", headers=alice)).json()
    assert [r["code"] for r in after["reasons"]] == ["AfterAnother"] and first["id"] in str(after["reasons"])

    carol = await bearer(ledger, Role.MEMBER, "carol")
    theirs = await http.get(f"/v1/jobs/{second['id']}/why", headers=carol)
    assert theirs.status_code == 200 and first["id"] not in str(theirs.json()["reasons"])
    assert (await http.get(f"/v1/jobs/{second['id']}/why")).status_code == 401
    gone = await http.get("/v1/jobs/zzzz/why", headers=alice)
    assert (gone.status_code, gone.json()["code"]) == (404, "NoSuchJob")


@pytest.mark.parametrize(
    ("cluster", "text", "evidence"),
    [
        ("lab", "nlp holds 8 of 8", ""),  # the virtual engine's sentences are ours
        ("gone", REASONS["TeamAtCeiling"].means, "nlp holds 8 of 8"),
    ],
)
async def test_the_code_and_the_engines_words_come_from_the_mirror(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str], cluster: str, text: str, evidence: str
) -> None:
    desk = await Desk.of(ledger, cluster)
    waits = seen("1", "a", JobState.WAITING, reason="nlp holds 8 of 8", reason_code="TeamAtCeiling")
    await desk.see(waits)
    (row,) = (await http.get("/v1/jobs", headers=alice)).json()["items"]
    found = (row["code"], row["reason"], row["engine_reason"])
    assert found == ("TeamAtCeiling", "nlp holds 8 of 8", "nlp holds 8 of 8")
    why = (await http.get(f"/v1/jobs/{row['id']}/why", headers=alice)).json()
    (reason,) = why["reasons"]
    assert (reason["code"], reason["text"], reason["engine"]) == ("TeamAtCeiling", text, evidence)


async def test_what_fairway_says_is_not_the_engines_word(
    http: httpx2.AsyncClient, ledger: Ledger, alice: dict[str, str]
) -> None:
    desk = await Desk.of(ledger, "lab")
    await desk.see(seen("1", "a", JobState.RUNNING, run(1)))
    async with ledger.writing(desk.mirror) as tx:
        await tx.mirror.mark_lost([EngineId("1")])
    (row,) = (await http.get("/v1/jobs", headers=alice)).json()["items"]
    assert (row["code"], row["engine_reason"]) == ("Lost", "") and row["reason"]


def test_the_place_in_the_queue_and_what_could_start_now() -> None:
    def other(name: str, devices: int, ends_at: datetime | None = None) -> wire.QueuedJob:
        return wire.QueuedJob(id="8f3a", name=name, user="bob", team="nlp", devices=devices, ends_at=ends_at)

    waiting = job("waiting")
    queue = wire.JobQueue(
        position=4,
        waiting=9,
        devices_ahead=24,
        team_ahead=1,
        team_devices_ahead=8,
        ahead=[other("big", 8)],
        ending=[other("old", 1, NOW)],
    )
    options = [
        smaller_option(waiting, 4, 1),
        pool_option(waiting, Supply(PoolName("cloud-a100")), Decimal("1.77"), "USD"),
        smaller_option(waiting, 4, 1, in_place=False),
    ]
    found = told(waiting).model_copy(update={"queue": queue, "alternatives": options})
    assert queue_lines(found) == [
        WaitLine(
            "ahead",
            "3 jobs of 9 that wait for hpc-a100, 24 GPUs, 1 job of the same team",
            evidence=("big (8f3a; bob, 8 GPUs) and 2 more",),
        ),
        WaitLine("ends first", f"old (8f3a; bob, 1 GPU) by {NOW:%H:%M} UTC, by their time limits"),
    ]
    assert help_lines(found) == [
        HelpLine("starts now", "fairway resize 8f3k --gpus 4", "4 GPUs instead of 8"),
        HelpLine("starts now", "fairway move 8f3k --pool cloud-a100", "+1.77 USD per GPU-hour"),
        HelpLine(
            "starts now",
            "fairway cancel 8f3k, then submit it again with  --gpus 4",
            "4 GPUs instead of 8",
        ),
    ]


def test_reasons_are_listed_in_the_order_in_which_they_bind() -> None:
    limit = Finding("TeamAtCeiling", "Team nlp already uses 8 of the 8 GPUs", ("bob holds 8 GPUs",))
    parent = Finding("TeamAtCeiling", "Team research already uses 16 of the 16 GPUs")
    room = Finding("NotEnoughFree", "No GPU of hpc-a100 is free, and the job needs 8 on one")
    waiting = job("waiting")
    answer = WaitAnswer("TeamAtCeiling", limit.text, "AssocGrpGRES", evidence=limit.evidence)
    first = build_why(waiting, [], "", NOW, answer=answer)
    found = with_remaining(first, waiting, [room, limit, parent])
    assert codes(found) == ["TeamAtCeiling", "TeamAtCeiling", "NotEnoughFree"]
    assert found.reasons[0].evidence == ["bob holds 8 GPUs"] and found.reasons[0].engine == "AssocGrpGRES"
    assert [(line.label, line.text) for line in wait_lines(found)] == [
        (
            "blocked by",
            "Team nlp already uses 8 of the 8 GPUs. (TeamAtCeiling; the engine reports: AssocGrpGRES)",
        ),
        ("then", "Team research already uses 16 of the 16 GPUs. (TeamAtCeiling)"),
        ("then", "No GPU of hpc-a100 is free, and the job needs 8 on one. (NotEnoughFree)"),
    ]
    held = with_remaining(told(said("Held", "", "held")), job("held"), [room, limit])
    assert codes(held) == ["Held", "TeamAtCeiling", "NotEnoughFree"]
    over = told(job("failed", reason="NonZeroExitCode"))
    assert with_remaining(over, job("failed"), [room]) == over


def test_an_old_reason_is_shown_with_its_age() -> None:
    waiting = job("waiting", reason="No node has 8 free GPUs")
    assert reason_text(waiting.model_copy(update={"reason_at": NOW}), NOW) == "No node has 8 free GPUs"
    old = waiting.model_copy(update={"reason_at": NOW - timedelta(minutes=12)})
    assert reason_text(old, NOW) == "No node has 8 free GPUs (as of 12 min ago)"


def test_what_was_sent_comes_before_what_started() -> None:
    """Fairway may learn later than the engine started it that a job was accepted."""
    at = NOW - timedelta(minutes=10)
    attempt = {**job("running").attempts[0].model_dump(), "engine_id": "17", "started_at": at}
    ended = {**attempt, "ended_at": at + timedelta(seconds=30), "ending": "preempted"}
    late = wire.Event(at=at + timedelta(seconds=40), kind="sent", by="", text="17")
    seen = job("waiting", attempts=[ended], events=[late], submitted_at=at - timedelta(seconds=5))
    assert [entry.what for entry in timeline(seen)] == ["submitted", "sent", "started", "preempted"]


@pytest.mark.parametrize(
    ("ending", "other", "said"),
    [
        ("done", {"exit_code": 0}, "finished"),
        ("failed", {"exit_code": 2}, "failed, exit code 2"),
        ("timed-out", {"signal": 15}, "timed out, signal 15"),
        ("preempted", {"reason": "Preempted by a job: x"}, "preempted by a job: x"),
        ("preempted", {"reason": "Preempted by a job", "signal": 15}, "preempted, signal 15: by a job"),
        ("requeued", {"reason": "node drained"}, "requeued: node drained"),
        (None, {}, ""),
    ],
)
def test_how_an_attempt_ended(ending: str | None, other: dict[str, Any], said: str) -> None:
    plain = job("running").attempts[0].model_dump() | {"ending": ending, "exit_code": None, "signal": None}
    assert ending_text(wire.Attempt.model_validate(plain | other)) == said
