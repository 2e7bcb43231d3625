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
    "The job is idle while each of its GPUs is busy for less than this percentage of the time.",
    example="1%",
    required=True,
)
FOR: Final = Key(
    "for",
    DurationValue(600, LONGEST_SECONDS),
    "How long the job must be idle without a break, with every window measured.",
    example="2h",
    required=True,
)
_GRACE: Final = DurationValue(0, LONGEST_SECONDS)
WARN: Final = Key(IdleAction.WARN, _GRACE, "Notify the owner and the team.")
LOWER: Final = Key(
    IdleAction.LOWER, _GRACE, "Lower the job to the lowest priority, so that it is preempted first."
)
REQUEUE: Final = Key(
    IdleAction.REQUEUE,
    _GRACE,
    "Requeue the job, if it declares that it can resume; otherwise the step is skipped.",
)
CANCEL: Final = Key(IdleAction.CANCEL, _GRACE, "End it.")
STEPS: Final = (WARN, LOWER, REQUEUE, CANCEL)
DO: Final = Key(
    "do",
    Record("Steps, each with its delay after the previous step", STEPS),
    "Actions on an idle job, in the order warn, lower, requeue, cancel.",
    example="{ warn: 0s, cancel: 30m }",
    required=True,
)
POOLS: Final = Key("pools", ListOf(NAME, "pools"), "Only jobs in these pools; default: all.")
TEAMS: Final = Key(
    "teams", ListOf(NAME, "teams"), "Only jobs of these teams and the teams inside them; default: all."
)
PRIORITIES: Final = Key(
    "priorities", ListOf(NAME, "priorities"), "Only jobs with these priorities; default: all."
)
EXCEPT_USERS: Final = Key("users", ListOf(PERSON, "users"), "Users whose jobs are exempt.")
EXCEPT_JOBS: Final = Key(
    "jobs", ListOf(_JOB_PATTERN, "names of jobs"), "Names of exempt jobs; * matches any text."
)
EXCEPT_SERVICES: Final = Key(
    "services",
    Boolean(),
    "Exempt pods without a Job (Deployments, notebooks), which may wait for requests.",
    default=True,
)
EXCEPT: Final = Key(
    "except", Record("Exemptions", (EXCEPT_USERS, EXCEPT_JOBS, EXCEPT_SERVICES)), "Exemptions."
)
DRY_RUN: Final = Key(
    "dry_run", Boolean(), "Only record what the rule would do; set false to enable it.", default=True
)
RULE: Final = Record("An idle rule", (BELOW, FOR, DO, POOLS, TEAMS, PRIORITIES, EXCEPT, DRY_RUN))
RULES: Final = Key(
    "rules",
    MapOf(NAME, RULE, "idle rules"),
    "Rules by name; the first rule that matches a job applies.",
)
LONGEST_KEEP: Final = Key(
    "longest_keep",
    DurationValue(60, 30 * 86_400),
    "Longest time for which fairway keep may postpone the rules for a job, counted from now.",
    default="1d",
)
IDLE: Final = Key(
    "idle",
    Record("Idle rules", (RULES, LONGEST_KEEP)),
    "Actions on running jobs with idle GPUs; requires telemetry of the cluster.",
)
