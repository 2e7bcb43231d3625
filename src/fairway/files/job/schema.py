"""Define the keys of a job file; scripts, manifests and flags are translated to the same keys."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

from fairway.files.diagnostics import FaultCode, Severity, shown
from fairway.files.fleet.schema import API_VERSION
from fairway.files.job import values as jv
from fairway.files.job.manifest import ManifestValue
from fairway.files.schema import values as strings
from fairway.files.schema.containers import ExactlyOne, Key, ListOf, MapOf, Record
from fairway.files.schema.labels import LABEL_KEY, LABEL_VALUE, PROJECT_NAME
from fairway.files.schema.values import Integer, OneOf, Problem, Schema, Text
from fairway.model.job import MAX_NAME_LENGTH, Tolerates
from fairway.model.labels import MAX_LABELS

MAX_SCRIPT_LENGTH: Final = 1024 * 1024


def as_job_name(text: str) -> str:
    """Convert a text to the nearest valid job name."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:MAX_NAME_LENGTH].rstrip("-._")


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
    f"a name of letters, digits, '.', '_' and '-', at most {MAX_NAME_LENGTH} characters",
    r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?",
    MAX_NAME_LENGTH,
    FaultCode.BAD_NAME,
    normalize=as_job_name,
    examples=("train-llm",),
)
VARIABLE: Final = Text(
    "the name of a variable",
    r"[A-Za-z_][A-Za-z0-9_]*",
    255,
    FaultCode.BAD_NAME,
    normalize=lambda text: re.sub(r"[^A-Za-z0-9_]+", "_", text),
    rule=_variable_rule,
    examples=("WANDB_MODE",),
)
WORKDIR: Final = Text("a whole path", max_length=4096, rule=_whole_path_rule, examples=("/home/alice/llm",))
IMAGE: Final = Text(
    "a container image", r"[a-z0-9][A-Za-z0-9._:/@-]*", 1000, examples=("ghcr.io/acme/train:1.4",)
)

KIND: Final = Key("kind", OneOf(("Job",)), "Kind of the file.", example="Job", required=True)
JOB_NAME: Final = Key("name", NAME, "Name of the job.", example="train-llm", required=True)
TEAM: Final = Key("team", strings.NAME, "Team that the job belongs to; default: your default team.")
PRIORITY: Final = Key(
    "priority", strings.NAME, "One of the fleet's priorities; default: the fleet's default."
)
PROJECT: Final = Key("project", PROJECT_NAME, "Project that its cost is for; a team may allow only some.")
LABELS: Final = Key(
    "labels",
    MapOf(LABEL_KEY, LABEL_VALUE, "labels", max_entries=MAX_LABELS),
    "Labels, by key. Reports can group by those in the fleet file's cost.labels.",
)
POOL: Final = Key("pool", strings.NAME, "Pool to run in; default: Fairway chooses one and reports why.")
GPUS: Final = Key(
    "gpus",
    jv.Gpus(),
    "GPUs or slices on each node: model, memory range or MIG profile.",
    example="A100-80GB:8",
    required=True,
)
NODES: Final = Key(
    "nodes", Integer(1, 10_000), "Number of nodes; all start together or not at all.", default=1
)
CPUS: Final = Key("cpus", Integer(1, 10_000), "Cores on each node; default: set by the engine.")
MEMORY: Final = Key("memory", strings.MEMORY, "Memory on each node; default: set by the engine.")
TIME: Final = Key("time", jv.TimeLimit(), "Longest run time; default: the team's limit.")
IMAGE_KEY: Final = Key("image", IMAGE, "Container image on Kubernetes; Slurm ignores it.")
SETUP: Final = Key(
    "setup",
    jv.MultilineText("shell lines", jv.MAX_TEXT_LENGTH, "write shell lines:  setup: module load cuda"),
    "Shell lines to run before the command, e.g. module load cuda.",
)
COMMAND: Final = Key(
    "command",
    jv.Command(),
    "Command: a list of arguments, or a line for bash -c.",
    example="[python, train.py]",
)
SCRIPT: Final = Key(
    "script",
    jv.MultilineText(
        "a whole script that begins with #!",
        MAX_SCRIPT_LENGTH,
        "begin it with  #!/bin/bash; a script in a file is submitted by  fairway submit FILE",
        shebang=True,
    ),
    "A whole script with its #! line, instead of a command.",
)
ENV: Final = Key(
    "env",
    MapOf(VARIABLE, jv.AsWritten(jv.MAX_TEXT_LENGTH, 'write the value; an empty one as  ""'), "variables"),
    "Environment variables. Not for secrets.",
)
WORKDIR_KEY: Final = Key("workdir", WORKDIR, "Working directory on the nodes; default: set by the engine.")
ARRAY: Final = Key("array", jv.Indices(), "One task for each index: 0-99, 1,3,5-7 or a list.")
AFTER: Final = Key(
    "after",
    jv.OneOrMore(ListOf(jv.DependencyValue(), "jobs"), 1000),
    "Jobs that must finish first; `when` sets how.",
)
RETRIES: Final = Key(
    "retries", jv.RetryValue(), "How often it is retried after a failure, and after what delay."
)
TOLERATES: Final = Key(
    "tolerates",
    jv.OneOrMore(ListOf(OneOf(Tolerates), "words"), 10),
    "Allow preemption, spot nodes, or both.",
)
TOGETHER: Final = Key("together", OneOf(("rack",)), "rack: all nodes of the job in one rack.")

JOB_KEYS: Final[tuple[Key[Any], ...]] = (
    JOB_NAME,
    TEAM,
    PROJECT,
    LABELS,
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
_EXACTLY_ONE_PROGRAM: Final = ExactlyOne((COMMAND, SCRIPT), "say what to run:  command: [python, train.py]")
JOB: Final = Record("Fairway job", (API_VERSION, KIND, *JOB_KEYS), _EXACTLY_ONE_PROGRAM)
TRANSLATED_JOB: Final = Record("A job", tuple(replace(key, required=False) for key in JOB_KEYS))
"""The target of scripts, manifests and flags; their translators report missing keys in their own terms."""


MANIFEST: Final = Key(
    "manifest",
    ManifestValue(),
    "A whole Kubernetes object, such as a Deployment or a JobSet, instead of what to run; it says how many "
    "GPUs and nodes the job has.",
    example="{ apiVersion: apps/v1, kind: Deployment, ... }",
    required=True,
)
MANIFEST_KEYS: Final[tuple[Key[Any], ...]] = (
    JOB_NAME, TEAM, PROJECT, LABELS, PRIORITY, POOL, MANIFEST, TIME, AFTER, RETRIES, TOLERATES,
)  # fmt: skip
_OF_OTHER_JOBS: Final = {key.name: "a job without a manifest" for key in JOB_KEYS if key not in MANIFEST_KEYS}
MANIFEST_JOB: Final = Record(
    "Fairway job of a manifest", (API_VERSION, KIND, *MANIFEST_KEYS), elsewhere=_OF_OTHER_JOBS
)
TRANSLATED_MANIFEST: Final = Record(
    "A manifest", tuple(replace(key, required=False) for key in MANIFEST_KEYS), elsewhere=_OF_OTHER_JOBS
)
"""A manifest on its own, with flags."""


def job_schema() -> Schema:
    """Return the job file as JSON Schema (draft 2020-12), for editors and other tools."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": JOB.title,
        "description": "A job for Slurm or Kubernetes.",
        "type": "object",
        "anyOf": [JOB.schema(), MANIFEST_JOB.schema()],
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
