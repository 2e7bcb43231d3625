"""Define the keys of idle rules in a fleet file."""

from __future__ import annotations

from typing import Final

from fairway.files.schema.containers import Key, ListOf, MapOf, Record
from fairway.files.schema.values import NAME, PERSON, Boolean, DurationValue, Percent, Text
from fairway.model.idle import LONGEST_SECONDS, IdleAction

_JOB_PATTERN: Final = Text(
    "a job's name, in which * stands for any text", max_length=100, examples=("serve-*",)
)

BELOW: Final = Key(
    "below",
    Percent(0, 100),
    "The job is idle while each of its GPUs is busy for less than this part of the time.",
    example="1%",
    required=True,
)
FOR: Final = Key(
    "for",
    DurationValue(600, LONGEST_SECONDS),
    "How long without a break, all of it measured.",
    example="2h",
    required=True,
)
_GRACE: Final = DurationValue(0, LONGEST_SECONDS)
WARN: Final = Key(IdleAction.WARN, _GRACE, "Notify the owner and the team.")
LOWER: Final = Key(IdleAction.LOWER, _GRACE, "Give it the lowest priority: it gives way before others.")
REQUEUE: Final = Key(
    IdleAction.REQUEUE, _GRACE, "Send it back to the queue, if it says that it can resume; else it goes on."
)
CANCEL: Final = Key(IdleAction.CANCEL, _GRACE, "End it.")
STEPS: Final = (WARN, LOWER, REQUEUE, CANCEL)
DO: Final = Key(
    "do",
    Record("Steps, each with its grace after the step before", STEPS),
    "Actions on an idle job, in the order warn, lower, requeue, cancel.",
    example="{ warn: 0s, cancel: 30m }",
    required=True,
)
POOLS: Final = Key("pools", ListOf(NAME, "pools"), "Only jobs in these pools; left out: in any.")
TEAMS: Final = Key(
    "teams", ListOf(NAME, "teams"), "Only jobs of these teams and the teams inside them; left out: of any."
)
PRIORITIES: Final = Key(
    "priorities", ListOf(NAME, "priorities"), "Only jobs of these priorities; left out: of any."
)
EXCEPT_USERS: Final = Key("users", ListOf(PERSON, "users"), "Whose jobs are left alone.")
EXCEPT_JOBS: Final = Key(
    "jobs", ListOf(_JOB_PATTERN, "names of jobs"), "Jobs of these names are left alone; * is any text."
)
EXCEPT_SERVICES: Final = Key(
    "services",
    Boolean(),
    "Pods that no Job created (Deployments, notebooks) are left alone: they may wait for requests.",
    default=True,
)
EXCEPT: Final = Key(
    "except", Record("Exemptions", (EXCEPT_USERS, EXCEPT_JOBS, EXCEPT_SERVICES)), "What is left alone."
)
DRY_RUN: Final = Key(
    "dry_run", Boolean(), "Only record what would be done; write false to have it done.", default=True
)
RULE: Final = Record("An idle rule", (BELOW, FOR, DO, POOLS, TEAMS, PRIORITIES, EXCEPT, DRY_RUN))
RULES: Final = Key(
    "rules",
    MapOf(NAME, RULE, "idle rules"),
    "The rules, by name; the first that selects a job decides.",
)
LONGEST_KEEP: Final = Key(
    "longest_keep",
    DurationValue(60, 30 * 86_400),
    "How long fairway keep may postpone the rules for a job at most, from now.",
    default="1d",
)
IDLE: Final = Key(
    "idle",
    Record("Idle rules", (RULES, LONGEST_KEEP)),
    "What happens to running jobs whose GPUs do nothing; needs telemetry of their cluster.",
)
