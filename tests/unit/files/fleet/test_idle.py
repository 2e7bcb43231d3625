"""Idle rules in a fleet file: what they mean, how they are written back, and what is wrong with them."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

import pytest

from fairway.files import check_text
from fairway.files.diagnostics import FaultCode
from fairway.files.fleet.load import parse_fleet
from fairway.files.fleet.write import compose_fleet
from fairway.model.idle import DEFAULT_IDLE, IdleAction, IdleRule, IdleRules, IdleStep
from fairway.policy.fleet_diff import describe

FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  lab: { engine: virtual, telemetry: { prometheus: "https://prometheus:9090" } }
pools:
  lab-a100: { cluster: lab, gpu: A100-80GB, capacity: owned, price: 1.9, virtual: { nodes: 4 } }
teams:
  research: { guarantee: { lab-a100: 16 }, members: [alice] }
"""
RULE = """
idle:
  longest_keep: 8h
  rules:
    notebooks:
      below: 1%
      for: 2h
      do: { cancel: 30m, warn: 0s }
      pools: [lab-a100]
      teams: [research]
      priorities: [low, normal]
      except: { users: [dana], jobs: ["serve-*"], services: false }
      dry_run: false
    all:
      below: 0.5%
      for: 12h
      do: { warn: 0s }
"""


def test_rules_are_read_in_order_and_their_steps_the_mildest_first() -> None:
    fleet = parse_fleet(FLEET + RULE, "fleet.yaml")
    notebooks, everything = fleet.idle.rules
    assert notebooks == IdleRule(
        "notebooks",
        Decimal("0.01"),
        7200,
        (IdleStep(IdleAction.WARN, 0), IdleStep(IdleAction.CANCEL, 1800)),
        ("lab-a100",),  # type: ignore[arg-type]
        ("research",),  # type: ignore[arg-type]
        ("low", "normal"),  # type: ignore[arg-type]
        ("dana",),  # type: ignore[arg-type]
        ("serve-*",),
        except_services=False,
        dry_run=False,
    )
    assert (everything.dry_run, everything.except_services, everything.pools) == (True, True, ())
    assert fleet.idle.longest_keep_seconds == 8 * 3600
    assert parse_fleet(FLEET, "fleet.yaml").idle == DEFAULT_IDLE


def test_what_is_written_reads_back() -> None:
    fleet = parse_fleet(FLEET + RULE, "fleet.yaml")
    assert parse_fleet(compose_fleet(fleet), "fleet.yaml") == fleet


@pytest.mark.parametrize(
    ("before", "after", "code"),
    [
        ("do: { warn: 0s }", "do: {}", FaultCode.MISSING_KEY),
        ("do: { warn: 0s }", "do: { warn: 13h }", FaultCode.OUT_OF_RANGE),
        ("for: 12h", "for: 5m", FaultCode.OUT_OF_RANGE),
        ("pools: [lab-a100]", "pools: [lab-h100]", FaultCode.UNKNOWN_POOL),
        ("teams: [research]", "teams: [reserch]", FaultCode.UNKNOWN_TEAM),
        ("[low, normal]", "[lowest]", FaultCode.UNKNOWN_PRIORITY),
        (', telemetry: { prometheus: "https://prometheus:9090" }', "", "IdleUnmeasured"),
    ],
)
def test_faults(before: str, after: str, code: str) -> None:
    text = FLEET + RULE
    assert before in text
    report = check_text(text.replace(before, after), "fleet.yaml")
    assert [fault.code for fault in report.faults] == [code]
    assert (report.fleet is None) == (code != "IdleUnmeasured")


def test_a_plan_says_what_changes_in_words() -> None:
    before, after = parse_fleet(FLEET, "a"), parse_fleet(FLEET + RULE, "b")
    (fleet,) = describe(before, after)
    assert [(c.sign, c.what, c.before, c.after) for c in fleet.changes] == [
        (
            "+",
            "idle rule notebooks",
            None,
            "below 1 % for 2h: warn, cancel after 30m; pool lab-a100; team research; priority low, normal; "
            "not dana, serve-*; in force",
        ),
        (
            "+",
            "idle rule all",
            None,
            "below 0.5 % for 12h: warn; not services; dry run: only recorded",
        ),
        ("~", "longest keep", "1d", "8h"),
    ]
    assert describe(after, after) == ()
    (gone,) = describe(after, before)
    assert [c.sign for c in gone.changes] == ["-", "-", "~"]


def test_the_order_of_rules_is_a_change() -> None:
    fleet = parse_fleet(FLEET + RULE, "a")
    turned = IdleRules(fleet.idle.rules[::-1], fleet.idle.longest_keep_seconds)
    (diff,) = describe(fleet, replace(fleet, idle=turned))
    assert [(c.what, c.before, c.after) for c in diff.changes] == [
        ("order of idle rules", "notebooks, all", "all, notebooks")
    ]
