"""Define the keys of teams, priorities, fairness and users in a fleet file."""

from __future__ import annotations

from typing import Final

from fairway.files.diagnostics import FaultCode, shown
from fairway.files.fleet.schema_notify import TEAM_NOTIFY
from fairway.files.fleet.schema_prices import Day
from fairway.files.schema.containers import Key, ListOf, MapOf, Record, Recursive, Section
from fairway.files.schema.labels import PROJECT_NAME
from fairway.files.schema.values import (
    ACCOUNT,
    NAME,
    PERSON,
    SLICE,
    Boolean,
    DurationValue,
    Integer,
    OneOf,
    OrUnlimited,
    Percent,
    Price,
    Problem,
    Text,
    as_name,
)
from fairway.model.budget import AtLimit, Every, Running
from fairway.model.names import NAME_PATTERN, NAME_RULE, is_reserved_team

MAX_DEVICES: Final = 10_000_000
MAX_MONEY: Final = 1_000_000_000_000
_DAY: Final = 86_400
_RESERVED_PRIORITIES: Final = frozenset({"fairway", "kin", "lent", "own"})


def _team_rule(text: str) -> Problem | None:
    if not is_reserved_team(text):
        return None
    return Problem(
        FaultCode.RESERVED_NAME,
        f"no team can be called {shown(text)}: the engines, or Fairway on them, use that name",
        f"choose another name, for example team-{shown(text)}"[:80],
    )


def _priority_rule(text: str) -> Problem | None:
    if text not in _RESERVED_PRIORITIES:
        return None
    return Problem(
        FaultCode.RESERVED_NAME,
        f"no priority can be called {text}: Fairway uses that name on the engines",
        "choose another name, for example urgent or nightly",
    )


TEAM_NAME: Final = Text(
    NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, normalize=as_name, rule=_team_rule
)
PRIORITY_NAME: Final = Text(
    NAME_RULE, NAME_PATTERN[1:-1], 40, FaultCode.BAD_NAME, normalize=as_name, rule=_priority_rule
)
SUPPLY: Final = Text(
    "a pool, or a pool and one of its slices",
    rf"{NAME_PATTERN[1:-1]}(/{SLICE.pattern})?",
    80,
    normalize=lambda text: text.strip().lower().replace("_", "-"),
    examples=("hpc-a100", "hpc-mig/1g.10gb"),
)

# --- teams -----------------------------------------------------------------------------------------------

JOB_GPUS: Final = Key("gpus", OrUnlimited(Integer(1, MAX_DEVICES)), "Maximum GPUs or slices of a job.")
JOB_TIME: Final = Key(
    "time", OrUnlimited(DurationValue(1, 3650 * _DAY)), "Longest run time of a job, e.g. 72h."
)
USER_GPUS: Final = Key(
    "gpus",
    OrUnlimited(Integer(1, MAX_DEVICES)),
    "Maximum GPUs or slices of all running jobs of a user.",
)
JOB_LIMITS: Final = Key("job", Record("Limits of one job", (JOB_GPUS, JOB_TIME)), "Limits per job.")
USER_LIMITS: Final = Key("user", Record("Limits of one user", (USER_GPUS,)), "Limits per user of the team.")
SHARE: Final = Key(
    "share", Integer(1, 1_000_000), "Weight among its siblings when demand exceeds supply.", default=1
)
GUARANTEE: Final = Key(
    "guarantee",
    MapOf(SUPPLY, Integer(0, MAX_DEVICES), "guarantees by pool"),
    "GPUs or slices that the team gets whenever it asks; part of its parent's guarantee.",
)
BORROW: Final = Key(
    "borrow",
    MapOf(SUPPLY, OrUnlimited(Integer(0, MAX_DEVICES)), "borrow limits by pool"),
    "Maximum beyond the guarantee, while no entitled team needs it; default: any idle GPU.",
)
LIMITS: Final = Key(
    "limits",
    Record("Limits", (JOB_LIMITS, USER_LIMITS)),
    "Limits per job and per user; default: those of the parent.",
)
TEAM_PRIORITIES: Final = Key(
    "priorities",
    ListOf(NAME, "priorities"),
    "Priorities that its jobs may use; default: those of its parent, or all.",
)
MEMBERS: Final = Key("members", ListOf(PERSON, "users"), "Members, by their login on the engines.")
PROJECTS: Final = Key(
    "projects",
    ListOf(PROJECT_NAME, "projects"),
    "Projects that its jobs may name; default: those of its parent, or any.",
    example="[llm, vision]",
)
DRAINING: Final = Key(
    "draining",
    Boolean(),
    "Start no new jobs of the team and let running ones finish; required before removing a team.",
    default=False,
)
AMOUNT: Final = Key(
    "amount",
    Price(MAX_MONEY, 3),
    "Amount that the team and all teams inside it may spend per period, in the fleet's currency.",
    example="120000",
    required=True,
)
EVERY: Final = Key(
    "every", OneOf(Every), "Length of a period: a calendar month or quarter.", default=Every.MONTH
)
WARN_AT: Final = Key(
    "warn_at", Percent(1, 100), "Percentage of the amount at which a warning is sent.", default="80%"
)
AT_LIMIT: Final = Key(
    "at_limit",
    OneOf(AtLimit),
    "At the limit: warn only warns, low-only starts only preemptible jobs, stop starts none.",
    default=AtLimit.WARN,
)
RUNNING: Final = Key(
    "running",
    OneOf(Running),
    "Running jobs at the limit: leave them, or end those that at_limit would not start.",
    default=Running.LEAVE,
)
BUDGET: Final = Key(
    "budget",
    Record("A budget", (AMOUNT, EVERY, WARN_AT, AT_LIMIT, RUNNING)),
    "Budget of the team and all teams inside it.",
)
ACCOUNT_NAME: Final = Key(
    "account", ACCOUNT, "Slurm account of the team, if its name differs from the team's."
)
COST_CENTRE: Final = Key(
    "cost_centre",
    Text("a cost centre", r"[^\x00-\x1f\x7f]+", 60, examples=("4711-AI",)),
    "What finance calls the payer, on statements; default: that of the parent.",
)
RENAMED_FROM: Final = Key(
    "renamed_from",
    NAME,
    "Name that the team had before: its charges and budgets continue under the new name.",
    example="nlp",
)
MOVED_FROM: Final = Key("from", NAME, "Parent until then; without it, the team had none.", example="research")
MOVED_SINCE: Final = Key(
    "since", Day(), "First day that counts for the new parent.", example="2026-11-01", required=True
)
MOVED: Final = Key(
    "moved",
    Record("A move to another parent", (MOVED_FROM, MOVED_SINCE)),
    "Day on which the team moved to its parent; default: when the file is applied.",
)
TEAM: Final[Recursive[Section]] = Recursive("team", lambda: _TEAM)
INNER_TEAMS: Final = Key("teams", MapOf(TEAM_NAME, TEAM, "teams"), "Nested teams, by name.")
_TEAM: Final[Record] = Record(
    "A team; teams can be nested",
    (
        ACCOUNT_NAME,
        SHARE,
        GUARANTEE,
        BORROW,
        LIMITS,
        TEAM_PRIORITIES,
        MEMBERS,
        PROJECTS,
        BUDGET,
        COST_CENTRE,
        TEAM_NOTIFY,
        RENAMED_FROM,
        MOVED,
        DRAINING,
        INNER_TEAMS,
    ),
)
DEFINITIONS: Final = {TEAM.name: _TEAM}
"""Recursive shapes, for `$defs` of the schema."""

TEAMS: Final = Key("teams", MapOf(TEAM_NAME, TEAM, "teams"), "Teams, by name.")

# --- priorities, fairness, users --------------------------------------------------------------------------

RANK: Final = Key(
    "rank",
    Integer(1, 1_000_000),
    "Jobs with a higher rank start first within a team.",
    example="50",
    required=True,
)
IS_DEFAULT: Final = Key(
    "default",
    Boolean(),
    "Used by jobs that set no priority; exactly one priority is the default.",
    default=False,
)
PREEMPTIBLE: Final = Key(
    "preemptible",
    OneOf(("always",)),
    "always: jobs run only on GPUs that nothing else wants, even within the team's guarantee.",
)
PRIORITIES: Final = Key(
    "priorities",
    MapOf(PRIORITY_NAME, Record("A priority", (RANK, IS_DEFAULT, PREEMPTIBLE)), "priorities", min_entries=1),
    "Priorities of jobs; default: urgent 100, normal 50 (default), low 10 (preemptible).",
)
HALF_LIFE: Final = Key(
    "half_life", DurationValue(1, 3650 * _DAY), "Time after which past usage counts half.", default="7d"
)
FAIRNESS: Final = Key(
    "fairness", Record("Fairness", (HALF_LIFE,)), "How past usage affects the order of teams."
)
DEFAULT_TEAM: Final = Key(
    "default_team", NAME, "Team of this user's jobs that name no team.", example="research", required=True
)
USERS: Final = Key(
    "users",
    MapOf(PERSON, Record("A user", (DEFAULT_TEAM,)), "users"),
    "Settings of single users: the default team of users with several teams.",
)
