"""SLOs in a fleet file: what they read as, that they read back, and what is said against them."""

from __future__ import annotations

from decimal import Decimal
from pathlib import Path

import jsonschema
import pytest

from fairway.files import Severity, check_text, fleet_schema
from fairway.files.fleet.write import compose_fleet
from fairway.model.slo import DeliveredWithin, Slo, StartsWithin
from fairway.policy.fleet_diff import describe
from tests.unit.files.fleets import SHARED, checked, only_fault
from tests.unit.files.yaml_values import plain

SLOS = """
slos:
  research-small:
    team: research
    pools: [hpc-a100]
    gpus: 8
    priority: normal
    starts_within: 1h
    target: 95%
    window: 7d
  nlp-throughput: { team: nlp, gpu_hours: 100.5, within: 24h, target: 99.5% }
  all: { starts_within: 30m, target: 90% }
"""
TEXT = SHARED + SLOS


def changed(old: str, new: str) -> str:
    assert TEXT.count(old) == 1, old
    return TEXT.replace(old, new)


def slos(text: str) -> tuple[Slo, ...]:
    fleet = checked(text).fleet
    assert fleet is not None
    return fleet.slos


def test_every_key_is_read_and_written_back() -> None:
    small, throughput, every = slos(TEXT)
    assert small == Slo(
        "research-small",
        StartsWithin(3600),
        Decimal("0.95"),
        7 * 86_400,
        small.team,
        small.pools,
        8,
        small.priority,
    )
    assert (small.team, small.pools, small.priority) == ("research", ("hpc-a100",), "normal")
    assert throughput.promise == DeliveredWithin(Decimal("100.5"), 86_400)
    assert throughput.promise.gpu_seconds == 361_800
    assert (every.team, every.pools, every.gpus, every.window_seconds) == (None, (), None, 30 * 86_400)
    fleet = checked(TEXT).fleet
    assert fleet is not None
    again = check_text(compose_fleet(fleet), "again.yaml", Path.cwd()).fleet
    assert again is not None and again.slos == fleet.slos


def test_its_text_is_the_users_sentence() -> None:
    assert [slo.text for slo in slos(TEXT)] == [
        "95% of jobs of up to 8 GPUs of research on hpc-a100 with priority normal start within 1h, over 7d",
        "99.5% of 100.5 GPU-hours within 1d for jobs of nlp, over 30d",
        "90% of jobs of the fleet start within 30m, over 30d",
    ]


def test_the_schema_takes_it_and_refuses_two_promises() -> None:
    validator = jsonschema.Draft202012Validator(fleet_schema())
    validator.validate(plain(TEXT))
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(plain(changed("starts_within: 30m", "starts_within: 30m, gpu_hours: 3")))


@pytest.mark.parametrize(
    ("old", "new", "code", "path"),
    [
        (
            "    team: research\n    pools",
            "    team: reserch\n    pools",
            "UnknownTeam",
            "research-small.team",
        ),
        ("[hpc-a100]\n    gpus", "[hpc]\n    gpus", "UnknownPool", "research-small.pools[0]"),
        ("priority: normal", "priority: mid", "UnknownPriority", "research-small.priority"),
        ("target: 95%", "target: 100%", "OutOfRange", "research-small.target"),
        ("target: 95%", "target: 0.95", "WrongType", "research-small.target"),
        ("    target: 95%\n", "", "MissingKey", "research-small.target"),
        ("window: 7d", "window: 91d", "OutOfRange", "research-small.window"),
        ("window: 7d", "window: 7", "WrongType", "research-small.window"),
        ("starts_within: 1h\n", "starts_within: 8d\n", "OutOfRange", "research-small.starts_within"),
        ("starts_within: 30m, ", "", "NotExactlyOne", "all"),
        ("starts_within: 30m", "starts_within: 30m, gpu_hours: 3", "NotExactlyOne", "all.starts_within"),
        ("starts_within: 30m", "starts_within: 30m, within: 1h", "NoEffect", "all.within"),
        ("within: 24h, ", "", "MissingKey", "nlp-throughput.gpu_hours"),
        ("gpu_hours: 100.5", "gpu_hours: 0", "OutOfRange", "nlp-throughput.gpu_hours"),
        ("gpus: 8\n", "gpus: 0\n", "OutOfRange", "research-small.gpus"),
        ("gpus: 8\n", "gpu: 8\n", "UnknownKey", "research-small.gpu"),
    ],
)
def test_what_is_said_against_one(old: str, new: str, code: str, path: str) -> None:
    faults = checked(changed(old, new)).faults
    assert [fault.code.value for fault in faults][:1] == [code]
    assert {f"slos.{path}"} >= {str(fault.locations[0].path) for fault in faults[:1]}
    assert faults[0].line > len(SHARED.splitlines()) and faults[0].hint


@pytest.mark.parametrize(
    ("old", "new", "path", "said"),
    [
        ("gpu_hours: 100.5", "gpu_hours: 1000000", "nlp-throughput.gpu_hours", "deliver"),
        (
            "    pools: [hpc-a100]",
            "    pools: [cloud-h100]",
            "research-small.pools",
            "may not use cloud-h100",
        ),
    ],
)
def test_one_that_nothing_can_meet_is_worth_a_word(old: str, new: str, path: str, said: str) -> None:
    fault = only_fault(changed(old, new))
    assert (fault.severity, fault.code) == (Severity.WARNING, "SloNeverMet")
    assert fault.path == f"slos.{path}" and said in fault.message


def test_there_are_not_too_many() -> None:
    many = "".join(f"  s{i}: {{ starts_within: 30m, target: 90% }}\n" for i in range(101))
    assert only_fault(f"{SHARED}slos:\n{many}").code == "OutOfRange"


def test_a_plan_shows_them_in_the_users_words() -> None:
    before, after = checked(TEXT).fleet, checked(changed("target: 90%", "target: 80%")).fleet
    bare = checked(SHARED).fleet
    assert before and after and bare
    (group,) = describe(before, after)
    (diff,) = group.changes
    assert (group.team, diff.sign, diff.what) == (None, "~", "SLO all")
    assert diff.after == "80% of jobs of the fleet start within 30m, over 30d"
    signs = [(d.sign, d.what) for group in describe(before, bare) for d in group.changes]
    assert signs == [("-", "SLO research-small"), ("-", "SLO nlp-throughput"), ("-", "SLO all")]


def test_the_digest_tells_what_is_counted_apart_not_its_name_or_target() -> None:
    small, throughput, every = slos(TEXT)
    assert len({small.digest, throughput.digest, every.digest}) == 3
    (_, _, lower) = slos(changed("target: 90%", "target: 80%"))
    (_, _, longer) = slos(changed("starts_within: 30m", "starts_within: 31m"))
    assert lower.digest == every.digest != longer.digest
