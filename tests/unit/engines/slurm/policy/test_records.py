"""Records of the API and fields of objects, in both directions."""

from __future__ import annotations

from typing import Any

import pytest

from fairway.engines.slurm.policy import names, records
from fairway.model.names import TeamName
from fairway.policy.objects import FieldChange, ObjectKey, Value

NONE = {"set": False, "infinite": True, "number": 0}


def number(value: int) -> dict[str, Any]:
    return {"set": True, "infinite": False, "number": value}


FIELDS: dict[str, Value] = {
    "Priority": 100,
    "Flags": ("NoReserve", "OverPartQOS"),
    "Preempt": ("a", "b"),
    "GraceTime": 30,
    "MaxJobsPerAccount": 7,
    "MaxWall": 60,
    "UsageFactor": "2",
    "GrpTRES.cpu": 4,
    "GrpTRES.gres/gpu": 16,
    "MaxTRESPerUser.gres/gpu:a100": 2,
}


def test_what_is_written_is_read_again() -> None:
    assert records.read_fields(records.QOS, records.to_record(records.QOS, FIELDS, clear_tres=True)) == FIELDS
    fields: dict[str, Value] = {
        "Parent": "root",
        "Fairshare": 3,
        "QOS": ("a", "b"),
        "GrpJobs": 0,
        "GrpSubmit": 0,
        "MaxJobs": 5,
        "MaxSubmit": 6,
        "MaxWall": 7,
        "GrpTRES.gres/gpu:a100": 0,
        "GrpTRESMins.cpu": 9,
        "MaxTRESPerJob.gres/gpu:a100": 8,
    }
    assert (
        records.read_fields(records.ACCOUNT, records.to_record(records.ACCOUNT, fields, clear_tres=False))
        == fields
    )


def test_nothing_set_is_no_field() -> None:
    record = {
        "name": "normal",
        "description": "Normal QOS default",
        "flags": [],
        "priority": number(0),
        "preempt": {"list": [], "mode": ["DISABLED"], "exempt_time": NONE},
        "limits": {"grace_time": 0, "max": {"tres": {"total": []}, "wall_clock": {"per": {"job": NONE}}}},
        "usage_factor": number(1),
    }
    found = records.found_qos(record)
    assert (found.fields, found.ours) == ({}, False)


def test_what_must_go_is_said() -> None:
    gone = [
        FieldChange("GrpTRES.cpu", 4, None),
        FieldChange("MaxWall", 5, None),
        FieldChange("PreemptMode", ("CANCEL",), None),
        FieldChange("Flags", ("NoReserve",), None),
        FieldChange("UsageFactor", "2", None),
    ]
    record = records.to_record(records.QOS, {"GrpTRES.gres/gpu": 3}, gone, clear_tres=True)
    assert record["limits"]["max"]["tres"]["total"] == [
        {"type": "gres", "name": "gpu", "count": 3},
        {"type": "cpu", "name": "", "count": -1},
    ]
    assert record["limits"]["max"]["wall_clock"]["per"]["job"] == NONE
    assert record["preempt"]["mode"] == ["DISABLED"]
    assert record["flags"] == []
    assert record["usage_factor"]["number"] == 1.0
    association = records.to_record(records.ASSOCIATION, {}, gone, clear_tres=False)
    assert association["max"]["tres"]["total"] == []  # replaced whole


@pytest.mark.parametrize(
    ("text", "ours", "team"),
    [
        (names.mark(TeamName("nlp")), True, "nlp"),
        (names.mark(None), True, None),
        (f"{names.MARK}: Normal QOS default", True, None),
        ("managed by fairways", False, None),
        ("Fairway", False, None),
        ("", False, None),
    ],
)
def test_the_mark(text: str, ours: bool, team: str | None) -> None:
    assert (names.is_marked(text), names.marked_team(text)) == (ours, team)


def test_an_accounts_mark_covers_its_people() -> None:
    account = {"account": "nlp", "user": "", "parent_account": "research", "qos": ["a"], "shares_raw": 2}
    person = {"account": "nlp", "user": "alice", "parent_account": "", "qos": [], "shares_raw": 1}
    found = records.found_association(account, {"nlp"})
    assert (found.key, found.ours, found.team) == (ObjectKey("account", "nlp"), True, "nlp")
    assert found.after == (ObjectKey("account", "research"), ObjectKey("qos", "a"))
    assert records.found_association(person, {"nlp"}).ours
    assert not records.found_association(person, set()).ours
    by_partition = records.found_association({**person, "partition": "debug"}, {"nlp"})
    assert by_partition.key.name == "nlp/alice/debug"
