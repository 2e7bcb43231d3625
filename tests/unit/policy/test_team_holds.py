"""Holds written and nothing else: drift of others stays theirs, and saying it twice changes nothing."""

from __future__ import annotations

from collections.abc import Mapping

from fairway.policy.objects import (
    Action,
    FoundObject,
    FoundPolicy,
    ObjectKey,
    Translation,
    Value,
    WantedObject,
)
from fairway.policy.team_holds import hold_changes

ACCOUNT = ObjectKey("account", "nlp")
OTHER = ObjectKey("account", "vision")


def wanted(**held: Value) -> Translation:
    fields = {"Fairshare": 2, **held}
    return Translation((WantedObject(ACCOUNT, fields), WantedObject(OTHER, {"Fairshare": 1})))


FREE, STOPPED, LOW = wanted(), wanted(GrpJobs=0), wanted(MaxJobs=0)


def found(*, ours: bool = True, **fields: Value) -> FoundPolicy:
    return FoundPolicy("1", (FoundObject(ACCOUNT, fields, ours),), {})


def made(shall: Translation, has: FoundPolicy) -> Mapping[str, Value] | None:
    changes = hold_changes(shall, [FREE, STOPPED, LOW], has)
    assert len(changes) <= 1
    if not changes:
        return None
    (change,) = changes
    assert (change.action, change.key) == (Action.UPDATE, ACCOUNT)
    return change.wanted


def test_a_hold_is_put_on_and_changed_and_taken_off() -> None:
    assert made(STOPPED, found(Fairshare=2)) == {"Fairshare": 2, "GrpJobs": 0}
    assert made(LOW, found(Fairshare=2, GrpJobs=0)) == {"Fairshare": 2, "MaxJobs": 0}
    assert made(FREE, found(Fairshare=2, GrpJobs=0)) == {"Fairshare": 2}


def test_what_is_so_is_not_written() -> None:
    assert made(STOPPED, found(Fairshare=2, GrpJobs=0)) is None
    assert made(FREE, found(Fairshare=2)) is None


def test_what_somebody_changed_otherwise_stays_as_they_made_it() -> None:
    assert made(STOPPED, found(Fairshare=77, MaxWall=60)) == {"Fairshare": 77, "MaxWall": 60, "GrpJobs": 0}
    assert made(FREE, found(Fairshare=77)) is None


def test_what_is_not_ours_or_not_there_is_left_alone() -> None:
    assert made(STOPPED, found(ours=False, Fairshare=2)) is None
    assert made(STOPPED, FoundPolicy("1", (), {})) is None


def test_a_draining_team_is_not_opened_by_the_end_of_a_hold() -> None:
    drained = wanted(GrpJobs=0, GrpSubmit=0)
    assert hold_changes(drained, [drained, drained], found(Fairshare=2, GrpJobs=0, GrpSubmit=0)) == ()
