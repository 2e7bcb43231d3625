"""Define the keys of a job file; scripts, manifests and flags are translated to the same keys."""

from __future__ import annotations

import re
from dataclasses import replace
from enum import StrEnum
from typing import Any, Final

from fairway.files.diagnostics import FaultCode, Severity, shown
from fairway.files.fleet.schema import ApiVersion
from fairway.files.job import values as jv
from fairway.files.schema import values as strings
from fairway.files.schema.containers import ExactlyOne, Key, ListOf, MapOf, Record
from fairway.files.schema.values import Integer, OneOf, Problem, Schema, Text
from fairway.model.job import LONGEST_NAME, Tolerates

LONGEST_SCRIPT: Final = 1024 * 1024


class JobFileKind(StrEnum):
    """The allowed values of `kind` in a job file."""

    JOB = "Job"


class Near(StrEnum):
    """How close together the nodes of a job must be."""

    RACK = "rack"


def as_job_name(text: str) -> str:
    """Convert a text to the nearest valid job name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:LONGEST_NAME].rstrip("-._")


_SECRETS: Final = re.compile(
    r".*(PASSWORD|PASSWD|SECRET|SECRET_KEY|API_KEY|ACCESS_KEY|(ACCESS|API|AUTH|GITHUB|HF|HUB)_TOKEN)"
)


def _variable_rule(text: str) -> Problem | None:
    if _SECRETS.fullmatch(text):
        return Problem(
            FaultCode.SECRET_IN_FILE,
            f"{shown(text)} looks like a secret; variables are kept with the job, for its team to read",
            "keep it in a file that only you can read, and let the job read that",
            Severity.WARNING,
        )
    if not text.upper().startswith("FAIRWAY_"):
        return None
    return Problem(
        FaultCode.RESERVED_NAME,
        f"{shown(text)} is for Fairway to set",
        "choose a name that does not begin with FAIRWAY_",
    )


def _whole_path_rule(text: str) -> Problem | None:
    if text.startswith("/"):
        return None
    return Problem(
        FaultCode.BAD_PATH,
        f"{shown(text)} is another folder for everyone who reads it",
        "write the whole path, beginning with /, as the nodes see it",
    )


NAME: Final = Text(
    f"a name of letters, digits, '.', '_' and '-', at most {LONGEST_NAME} characters",
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
    LONGEST_NAME,
    FaultCode.BAD_NAME,
    mend=as_job_name,
    examples=("train-llm",),
)
VARIABLE: Final = Text(
    "the name of a variable",
    r"[A-Za-z_][A-Za-z0-9_]*",
    255,
    FaultCode.BAD_NAME,
    mend=lambda text: re.sub(r"[^A-Za-z0-9_]+", "_", text),
    rule=_variable_rule,
    examples=("WANDB_MODE",),
)
WORKDIR: Final = Text("a whole path", longest=4096, rule=_whole_path_rule, examples=("/home/alice/llm",))
IMAGE: Final = Text(
    "a container image", r"[a-z0-9][A-Za-z0-9._:/@-]*", 1000, examples=("ghcr.io/acme/train:1.4",)
)

API_VERSION: Final = Key(
    "apiVersion", OneOf(ApiVersion), "Version of the file's form.", example="fairway/v1alpha1"
)
KIND: Final = Key("kind", OneOf(JobFileKind), "What the file is.", example="Job")
JOB_NAME: Final = Key("name", NAME, "What people call it.", example="train-llm")
TEAM: Final = Key("team", strings.NAME, "Whose job it is; left out: your default team's.", required=False)
PRIORITY: Final = Key(
    "priority", strings.NAME, "One of the fleet's priorities; left out: its default.", required=False
)
POOL: Final = Key(
    "pool", strings.NAME, "Where it runs; left out: Fairway picks and says why.", required=False
)
GPUS: Final = Key(
    "gpus",
    jv.Gpus(),
    "GPUs or slices on each node: model, memory range or MIG profile.",
    example="A100-80GB:8",
)
NODES: Final = Key(
    "nodes",
    Integer(1, 10_000),
    "How many nodes; they start together or not at all.",
    required=False,
    default=1,
)
CPUS: Final = Key("cpus", Integer(1, 10_000), "Cores on each node; left out: the engine's.", required=False)
MEMORY: Final = Key("memory", strings.MEMORY, "Memory on each node; left out: the engine's.", required=False)
TIME: Final = Key(
    "time", jv.TimeLimit(), "The longest it may run; left out: the team's limit.", required=False
)
IMAGE_KEY: Final = Key("image", IMAGE, "What pods run on Kubernetes; Slurm has none.", required=False)
SETUP: Final = Key(
    "setup",
    jv.MultilineText("shell lines", jv.LONGEST_TEXT, "write shell lines:  setup: module load cuda"),
    "Shell lines before the command: module load cuda.",
    required=False,
)
COMMAND: Final = Key(
    "command",
    jv.Command(),
    "What to run: a list of arguments as it is, or a line for bash -c.",
    required=False,
    example="[python, train.py]",
)
SCRIPT: Final = Key(
    "script",
    jv.MultilineText(
        "a whole script that begins with #!",
        LONGEST_SCRIPT,
        "begin it with  #!/bin/bash; a script in a file is submitted by  fairway submit FILE",
        shebang=True,
    ),
    "A whole script with its #! line, instead of a command.",
    required=False,
)
ENV: Final = Key(
    "env",
    MapOf(VARIABLE, jv.AsWritten(jv.LONGEST_TEXT, 'write the value; an empty one as  ""'), "variables"),
    "Variables of the job's environment. Secrets do not belong here.",
    required=False,
)
WORKDIR_KEY: Final = Key(
    "workdir",
    WORKDIR,
    "The folder it starts in, as the nodes see it; left out: the engine's.",
    required=False,
)
ARRAY: Final = Key("array", jv.Indices(), "One task for each index: 0-99, 1,3,5-7 or a list.", required=False)
AFTER: Final = Key(
    "after",
    jv.OneOrMore(ListOf(jv.DependencyValue(), "jobs"), 1000),
    "Jobs that must have ended first, well unless `when` says otherwise.",
    required=False,
)
RETRIES: Final = Key(
    "retries", jv.RetryValue(), "How often it comes back after a failure, and after how long.", required=False
)
TOLERATES: Final = Key(
    "tolerates",
    jv.OneOrMore(ListOf(OneOf(Tolerates), "words"), 10),
    "What it puts up with: preemption, spot.",
    required=False,
)
TOGETHER: Final = Key("together", OneOf(Near), "All its nodes in one rack, or it waits.", required=False)

ASKED: Final[tuple[Key[Any], ...]] = (
    JOB_NAME,
    TEAM,
    PRIORITY,
    POOL,
    GPUS,
    NODES,
    CPUS,
    MEMORY,
    TIME,
    IMAGE_KEY,
    SETUP,
    COMMAND,
    SCRIPT,
    ENV,
    WORKDIR_KEY,
    ARRAY,
    AFTER,
    RETRIES,
    TOLERATES,
    TOGETHER,
)
"""The keys that users set, in the order of the guide."""
_RUN: Final = ExactlyOne((COMMAND, SCRIPT), "say what to run:  command: [python, train.py]")
JOB: Final = Record("Fairway job", (API_VERSION, KIND, *ASKED), _RUN)
TRANSLATED: Final = Record("A job", tuple(replace(key, required=False) for key in ASKED))
"""The target of scripts, manifests and flags; their translators report missing keys in their own terms."""


def job_schema() -> Schema:
    """Return the job file as JSON Schema (draft 2020-12), for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "description": "What a person asks to be run, on Slurm or on Kubernetes alike.",
        **JOB.schema(),
        "examples": [_EXAMPLE],
    }


_EXAMPLE: Final = {
    "apiVersion": "fairway/v1alpha1",
    "kind": "Job",
    "name": "train-llm",
    "gpus": "A100-80GB:8",
    "time": "72h",
    "command": ["python", "train.py"],
}
