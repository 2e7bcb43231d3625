"""Define the keys of teams, priorities, fairness and users in a fleet file."""

from __future__ import annotations

from typing import Final

from fairway.files.diagnostics import FaultCode, shown
from fairway.files.schema.containers import ExactlyOne, Key, ListOf, MapOf, Record, Recursive, Section
from fairway.files.schema.values import (
    ACCOUNT,
    MAIL_ADDRESS,
    NAME,
    PERSON,
    SHARED_PATH,
    SLICE,
    WEBHOOK_URL,
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
HOOK_URL: Final = Key("url", WEBHOOK_URL, "URL that receives each notice as JSON in a POST request.")
HOOK_URL_FILE: Final = Key(
    "url_file", SHARED_PATH, "File with the URL, if it contains a secret; read for each notice."
)
HOOK_TOKEN_FILE: Final = Key("token_file", SHARED_PATH, "File with a bearer token for the URL.")
SLACK_URL_FILE: Final = Key(
    "url_file",
    SHARED_PATH,
    "File with the URL of an incoming webhook, which is a secret; read for each notice.",
    example="/etc/fairway/slack.url",
    required=True,
)
MAIL_TO: Final = Key(
    "to",
    ListOf(MAIL_ADDRESS, "mail addresses"),
    "Recipients; requires smtp_url in the server's settings.",
    example="[gpu-ops@example.org]",
    required=True,
)
WEBHOOK: Final = Key(
    "webhook",
    Record(
        "A webhook",
        (HOOK_URL, HOOK_URL_FILE, HOOK_TOKEN_FILE),
        ExactlyOne(
            (HOOK_URL, HOOK_URL_FILE), "name one:  webhook: { url: https://hooks.example.org/fairway }"
        ),
    ),
    "Any address that takes JSON.",
)
SLACK: Final = Key(
    "slack", Record("A Slack channel", (SLACK_URL_FILE,)), "Slack, or a service that accepts the same JSON."
)
MAIL: Final = Key("mail", Record("Mail", (MAIL_TO,)), "Mail.")
_CHANNELS: Final = Record("Channels", (WEBHOOK, SLACK, MAIL))
TEAM_NOTIFY: Final = Key(
    "notify",
    _CHANNELS,
    "Channels for notices to the team; default: those of its parent.",
    example="{ slack: { url_file: /etc/fairway/slack.url } }",
)
NOTIFY: Final = Key(
    "notify",
    _CHANNELS,
    "Channels for notices to the operators of the fleet.",
    example="{ mail: { to: [gpu-ops@example.org] } }",
)
ACCOUNT_NAME: Final = Key(
    "account", ACCOUNT, "Slurm account of the team, if its name differs from the team's."
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
        BUDGET,
        TEAM_NOTIFY,
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
