"""Why a job waits where its engine gives no reason, or one that means several things."""

from __future__ import annotations

import pytest

from fairway.explain.findings import NO_FACTS, Finding, WaitFacts, decide
from fairway.explain.limits import WaitingRequest, exceeded_limits
from fairway.model.names import PoolName, TeamName, UserName
from fairway.model.team import Grant, Limits, Supply, Team, TeamTree

A100 = Supply(PoolName("a100"))
NEVER = Finding("NoNodeFits", "it asks for 16")
ROOM = Finding("NotEnoughFree", "2 are free")
CEILING = Finding("TeamAtCeiling", "vision holds 16 of 16")
USER = Finding("UserLimit", "bob holds 6 of 6")


def facts(*findings: Finding, ahead: int = 0) -> WaitFacts:
    return WaitFacts(findings=findings, ahead_count=ahead)


@pytest.mark.parametrize("code", ["", "NotItsTurn", "NotEnoughFree"])
@pytest.mark.parametrize(
    ("known", "limits", "decided"),
    [
        (facts(NEVER, ROOM, ahead=3), (CEILING,), NEVER),
        (facts(ROOM), (CEILING,), CEILING),
        (facts(ROOM), (USER, CEILING), USER),
        (facts(ROOM), (), ROOM),
    ],
)
def test_facts_decide_where_the_engine_gives_no_reason_of_its_own(
    code: str, known: WaitFacts, limits: tuple[Finding, ...], decided: Finding
) -> None:
    assert decide(code, known, limits) == decided


def test_jobs_ahead_come_before_room_unless_the_engine_says_room() -> None:
    assert decide("", facts(ROOM, ahead=1), ()).code == "NotItsTurn"
    assert decide("NotItsTurn", facts(ROOM, ahead=1), ()).code == "NotItsTurn"
    assert decide("NotEnoughFree", facts(ROOM, ahead=1), ()) == ROOM


def test_a_limit_that_the_engine_names_is_the_one_that_is_reached() -> None:
    assert decide("TeamAtCeiling", NO_FACTS, (USER,)) == USER
    assert decide("TeamAtCeiling", NO_FACTS, (USER, CEILING)) == CEILING
    assert decide("TeamAtCeiling", NO_FACTS, ()) == Finding("TeamAtCeiling", "")


def test_a_rack_binds_after_the_jobs_ahead_and_before_plain_room() -> None:
    """Slurm says Priority or Resources of a job whose nodes are not below one switch."""
    rack = Finding("NoRackFits", "gpu001 and gpu003")
    assert decide("NotEnoughFree", facts(rack), ()) == rack
    assert decide("NotItsTurn", facts(rack), ()) == rack
    assert decide("NotItsTurn", facts(rack, ahead=1), ()).code == "NotItsTurn"
    assert decide("NotItsTurn", facts(rack, ahead=1), (CEILING,)) == CEILING


def test_kueues_quota_is_a_limit_of_the_policy_if_one_is_reached() -> None:
    assert decide("QuotaInUse", NO_FACTS, (CEILING,)) == CEILING
    assert decide("QuotaInUse", NO_FACTS, (USER, CEILING)) == USER
    assert decide("QuotaInUse", NO_FACTS, ()) == Finding("QuotaInUse", "")


def test_what_the_engine_is_sure_of_stays_with_more_words() -> None:
    begins = Finding("NotYetTime", "not before noon")
    assert decide("NotYetTime", facts(NEVER, begins), (CEILING,)) == begins
    assert decide("Held", facts(NEVER), (CEILING,)) == Finding("Held", "")


def request(team: Team, devices: int = 4, seconds: int = 60, by_user: int = 0, **held: int) -> WaitingRequest:
    counts = {TeamName(name): count for name, count in held.items()}
    return WaitingRequest(team, UserName("bob"), A100, devices, seconds, counts, by_user)


def test_the_limits_of_a_policy_are_found_with_who_holds_how_much() -> None:
    parent = Team(TeamName("research"), grants=(Grant(A100, 16, 4),))
    limits = Limits(job_gpus=8, job_seconds=3600, user_gpus=6)
    team = Team(TeamName("nlp"), parent.name, grants=(Grant(A100, 8, 4),), limits=limits)
    tree = TeamTree((parent, team))

    def codes(waiting: WaitingRequest) -> list[str]:
        return [finding.code for finding in exceeded_limits(waiting, tree)]

    assert codes(request(team, nlp=8, research=16, by_user=2)) == []
    assert codes(request(team, nlp=9)) == ["TeamAtCeiling"]
    assert codes(request(team, nlp=2, research=17)) == ["TeamAtCeiling"]
    assert codes(request(team, by_user=3)) == ["UserLimit"]
    assert codes(request(team, 9)) == ["JobAboveLimit", "JobAboveLimit"], "of a job, and of a user"
    assert codes(request(team, 13)) == ["JobAboveLimit", "JobAboveLimit", "AboveQuota"]
    assert codes(request(team, seconds=3601)) == ["JobTimeLimit"]
    *_, above = exceeded_limits(request(team, 13, nlp=10), tree)
    assert above.text == (
        "The job requests 13 GPUs, and team nlp may use 12 in a100 at most (8 guaranteed, up to 4 borrowed)"
    )
    (at_ceiling,) = exceeded_limits(request(team, nlp=10), tree)
    assert at_ceiling.text == (
        "Team nlp already uses 10 of the 12 GPUs it may use in a100 (8 guaranteed, up to 4 borrowed), "
        "and the job needs 4"
    )
