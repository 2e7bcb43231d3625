"""Job files: what they come to, what is wrong with them, and that the schema says the same."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from fairway.files import (
    Fault,
    check_flags,
    check_job_bytes,
    check_job_file,
    check_jobs,
    given_by_flags,
    job_schema,
    name_of_command,
)
from fairway.model.job import After, GpuRequest, JobId, JobSpec, Retries, Tolerates, When, parse_job_id
from tests.unit.files.yaml_values import plain

JOBS = Path(__file__).parents[4] / "examples/jobs"
EXAMPLES = sorted(p for p in JOBS.iterdir() if p.suffix in (".yaml", ".sh"))
OWN = [p for p in EXAMPLES if p.read_text().startswith("# yaml-language-server")]
SCHEMA = job_schema()
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)
HEAD = "apiVersion: fairway/v1alpha1\nkind: Job\n"
SMALL = f"{HEAD}name: small\ngpus: 1\ncommand: [x]\n"


def word(text: str) -> JobId:
    number = parse_job_id(text)
    assert number is not None
    return number


def only_fault(text: str) -> Fault:
    report = check_jobs(text, "job.yaml")
    (fault,) = report.faults
    return fault


def jobs_of(text: str) -> tuple[JobSpec, ...]:
    jobs = check_jobs(text, "job.yaml").jobs
    assert jobs is not None
    return jobs


def with_(key: str, value: str) -> str:
    """SMALL with a key that it has not, or another value for one that it has."""
    lines = [line for line in SMALL.splitlines() if not line.startswith(f"{key}:")]
    return "\n".join([*lines, f"{key}: {value}"]) + "\n"


def test_project_and_labels() -> None:
    text = SMALL + "project: llm\nlabels: { experiment: e12, team.example.com/model: Llama-3 }\n"
    (job,) = jobs_of(text)
    assert (job.project, job.labels) == ("llm", {"experiment": "e12", "team.example.com/model": "Llama-3"})
    given = given_by_flags({"project": "vision", "labels": {"experiment": "e13"}})
    (job,) = check_jobs(text, "job.yaml", given).jobs or ()
    assert job.project == "vision"
    assert job.labels == {"experiment": "e13", "team.example.com/model": "Llama-3"}


@pytest.mark.parametrize(
    ("key", "value", "code"),
    [
        ("project", "a b", "BadName"),
        ("project", "x" * 64, "BadName"),
        ("labels", "{ project: llm }", "ReservedName"),
        ("labels", "{ fairway.dev/user: eve }", "ReservedName"),
        ("labels", "{ kueue.x-k8s.io/queue-name: q }", "ReservedName"),
        ("labels", "{ 'a b': x }", "BadName"),
        ("labels", "{ a: 'x y' }", "BadValue"),
        ("labels", "{ " + ", ".join(f"k{n}: v" for n in range(17)) + " }", "OutOfRange"),
    ],
)
def test_projects_and_labels_are_bounded(key: str, value: str, code: str) -> None:
    assert only_fault(with_(key, value)).code == code


def test_a_small_job_is_the_usual_one() -> None:
    assert jobs_of(SMALL) == (JobSpec("small", GpuRequest(), command=("x",)),)


def test_every_word() -> None:
    (job,) = check_job_file(JOBS / "everything.yaml").jobs or ()
    assert job == JobSpec(
        name="train-llm",
        gpus=GpuRequest(8, "A100-80GB"),
        command=("torchrun", "train.py", "--epochs", "3"),
        team="research",  # type: ignore[arg-type]
        priority="urgent",  # type: ignore[arg-type]
        pool="hpc-a100",  # type: ignore[arg-type]
        nodes=4,
        cpus=64,
        memory_gb=512,
        time_seconds=36 * 3600,
        image="ghcr.io/acme/train:1.4",
        setup="module load cuda/12.4\nsource /shared/venvs/llm/bin/activate\n",
        env={"WANDB_MODE": "offline", "OMP_NUM_THREADS": "8"},
        workdir="/shared/llm",
        after=(After(word("8f3k")), After(word("8f3m"), When.ENDED)),
        retries=Retries(3, 60, 1800),
        tolerates=frozenset(Tolerates),
        together=True,
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.name)
def test_an_example_is_sound(path: Path) -> None:
    report = check_job_file(path)
    assert report.jobs and report.faults == ()


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_an_example_passes_the_schema(path: Path) -> None:
    assert path.read_text().startswith("# yaml-language-server: $schema=job.schema.json\n")
    for document in path.read_text().split("\n---\n"):
        VALIDATOR.validate(plain(document))


def test_the_schema_is_the_committed_one_and_its_example_is_sound() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    assert json.loads((JOBS / "job.schema.json").read_text()) == SCHEMA, "run `make reference`"
    for example in SCHEMA["examples"]:
        VALIDATOR.validate(example)
        assert check_jobs(json.dumps(example), "x").faults == ()


def test_several_jobs_in_one_file() -> None:
    small, large = jobs_of((JOBS / "several.yaml").read_text())
    assert (small.gpus.memory_gb, large.gpus.memory_gb) == ((16, 24), (80, None))
    assert large.script is not None and large.script.startswith("#!/bin/bash\n")
    assert len(jobs_of(SMALL + "---\n" + SMALL + "---\n# nothing\n---\n" + SMALL)) == 3
    many = check_jobs("---\n".join([SMALL] * 1001), "x")
    assert many.jobs is None and many.faults[0].code == "SeveralDocuments"


def test_a_fault_of_the_second_job_stands_at_its_line() -> None:
    fault = only_fault(SMALL + "---\n" + SMALL.replace("gpus: 1", "gpu: 1"))
    assert (fault.code, fault.line, fault.hint) == ("UnknownKey", 10, "did you mean gpus?")


def test_an_anchor_of_one_job_is_unknown_to_the_next() -> None:
    report = check_jobs(with_("env", "&e { A: 1 }") + "---\n" + with_("env", "*e"), "x")
    assert [f.code for f in report.faults] == ["UnknownAlias"]


SOUND: list[tuple[str, str, Any]] = [
    ("command", "echo $HOME | wc", ("bash", "-c", "echo $HOME | wc")),
    ("command", "[python, -c, '', 1e-4, 010, true]", ("python", "-c", "", "1e-4", "010", "true")),
    ("time", "90m", 5400),
    ("time", "1-12:00:00", 129600),
    ("time", "72:00:00", 259200),
    ("time", "2-0", 172800),
    ("array", "0-3", (0, 1, 2, 3)),
    ("array", "1,3,5-7", (1, 3, 5, 6, 7)),
    ("array", "0-90:30", (0, 30, 60, 90)),
    ("array", "[7, 1, 3]", (1, 3, 7)),
    ("array", "'5'", (5,)),
    ("after", "8f3k", (After(word("8f3k")),)),
    # YAML takes these for numbers; they are ids.
    ("after", "[1e10, 0042, 1234]", (After(word("1e10")), After(word("0042")), After(word("1234")))),
    ("after", "{ job: 8f3k, when: failed }", (After(word("8f3k"), When.FAILED),)),
    ("retries", "3", Retries(3)),
    ("retries", "{ count: 2, first: 2h }", Retries(2, 7200, 7200)),
    ("tolerates", "spot", frozenset({Tolerates.SPOT})),
    ("together", "rack", True),
    ("env", "{ A: 1, B: 1e-4, C: true, D: '' }", {"A": "1", "B": "1e-4", "C": "true", "D": ""}),
    ("gpus", "H100:8", GpuRequest(8, "H100")),
    ("gpus", "'8'", GpuRequest(8)),
    ("name", "Train_LLM.v2", "Train_LLM.v2"),
]  # fmt: skip


@pytest.mark.parametrize(("key", "value", "comes_to"), SOUND, ids=lambda v: str(v)[:20])
def test_every_form(key: str, value: str, comes_to: Any) -> None:
    field = {"time": "time_seconds"}.get(key, key)
    assert getattr(jobs_of(with_(key, value))[0], field) == comes_to
    VALIDATOR.validate(plain(with_(key, value)))


MISTAKES = [
    ("gpus", "8xA100", "BadValue", "write A100:8"),
    ("gpus", "0", "BadValue", "request at least one: jobs without GPUs go to the engine itself"),
    ("gpus", "[1]", "WrongType", "write GPUs for each node"),
    ("gpus", "9999", "OutOfRange", "GPUs count per node: say how many nodes, too"),
    ("gpus", "1g.11gb", "UnknownSlice", "did you mean"),
    ("gpus", "80GB..40GB", "BadValue", "write 40GB..80GB"),
    ("time", "90", "BadValue", "add the unit, e.g.  90h  or  90m"),
    ("time", "10:30", "BadValue", "say which it is:  10h30m  or  10m30s"),
    ("time", "3 days", "BadValue", "write 3d"),
    ("time", "0s", "OutOfRange", "write a time from 1s"),
    ("time", "{}", "WrongType", "write a time"),
    ("command", "[]", "WrongType", "write  [python, train.py]"),
    ("command", "['']", "BadValue", "begin with the program"),
    ("command", "[x, ~]", "WrongType", "write a value after the ':', or take the key away"),
    ("command", '"a\\0b"', "BadValue", "take that character away"),
    ("array", "0-99%4", "NoWordForIt", "take it away:  0-99"),
    ("array", "100", "WrongType", "write the first and the last:  0-100; for one index a list:  [100]"),
    ("array", "0..9", "BadValue", "write 0-9"),
    ("array", "9-0", "BadValue", "write 0-9"),
    ("array", "0-10000", "OutOfRange", "split it into several arrays"),
    ("array", "[1, x]", "BadValue", "write whole numbers:  [0, 1, 2]"),
    ("after", "first-job", "BadValue", "fairway get jobs  shows them"),
    ("after", "{ job: 8f3k, when: done }", "NotOneOf", "write one of ok, failed, ended"),
    ("after", "[8f3k, 8f3k]", "RepeatedValue", "take one of them away"),
    ("retries", "-1", "OutOfRange", "write a whole number from 0 to 1,000"),
    ("retries", "{ count: 1, first: 2h, longest: 1h }", "OutOfRange", "raise longest, or lower first"),
    ("retries", "{ first: 2h }", "MissingKey", "add:  count: 3"),
    ("tolerates", "[spots]", "NotOneOf", "did you mean spot?"),
    ("together", "yes", "NotOneOf", "write rack"),
    ("env", "{ FAIRWAY_TEAM: x }", "ReservedName", "choose a name that does not begin with FAIRWAY_"),
    ("env", "{ a-b: x }", "BadName", "write a_b"),
    ("env", "{ A: }", "WrongType", "write a value after the ':', or take the key away"),
    ("workdir", "data", "BadPath", "write the whole path, beginning with /, as the nodes see it"),
    ("name", "my job!", "BadName", "write my-job"),
    ("memory", "64G", "BadValue", "write 64GB"),
    ("nodes", "0", "OutOfRange", "write a whole number from 1 to 10,000"),
    ("setup", "''", "BadValue", "write shell lines:  setup: module load cuda"),
    ("kind", "Fleet", "NotAJob", "look at it with  fairway check -f FILE"),
    ("kind", "job", "NotOneOf", "did you mean Job?"),
    ("gpu", "8", "UnknownKey", "take it away, or use one of"),
    ("script", "train.sh", "NotExactlyOne", "say what to run:  command: [python, train.py]"),
]


@pytest.mark.parametrize(("key", "value", "code", "hint"), MISTAKES, ids=lambda v: str(v)[:20])
def test_a_mistake_is_found_with_its_place_and_a_hint(key: str, value: str, code: str, hint: str) -> None:
    faults = [f for f in check_jobs(with_(key, value), "job.yaml").faults if f.code == code]
    assert faults, check_jobs(with_(key, value), "job.yaml").faults
    assert faults[0].hint.startswith(hint)
    assert faults[0].line >= 1 and (key in faults[0].path or code == "NotExactlyOne")


BEYOND_A_SCHEMA = {"ReservedName", "RepeatedValue", "BadPath", "UnknownSlice", "NotAJob"}


@pytest.mark.parametrize(("key", "value", "code", "hint"), MISTAKES, ids=lambda v: str(v)[:20])
def test_the_schema_refuses_what_it_can_express(key: str, value: str, code: str, hint: str) -> None:
    told = (key, value)
    if code in BEYOND_A_SCHEMA or told in {
        ("gpus", "80GB..40GB"), ("time", "0s"), ("array", "9-0"), ("array", "0-10000"), ("command", "['']"),
        ("command", '"a\\0b"'), ("retries", "{ count: 1, first: 2h, longest: 1h }"),
    }:  # fmt: skip
        return
    assert list(VALIDATOR.iter_errors(plain(with_(key, value)))), told


def test_every_fault_at_once() -> None:
    text = f"{HEAD}nam: x\ngpus: 8xA100\ntime: 90\nenv: {{ 1: x }}\nafter: x\n"
    report = check_jobs(text, "job.yaml")
    assert report.jobs is None
    assert [f.code for f in report.faults] == [
        "NotExactlyOne",
        "UnknownKey",
        "BadValue",
        "BadValue",
        "KeyNotText",
        "BadValue",
    ]


def test_a_gpu_type_only_the_fleet_may_know_is_a_warning() -> None:
    report = check_jobs(with_("gpus", "A100-64GB:4"), "job.yaml")
    assert report.jobs and report.jobs[0].gpus == GpuRequest(4, "A100-64GB")
    (warning,) = report.warnings
    assert (warning.code, warning.path, warning.found) == ("UnknownGpuType", "gpus", "A100-64GB:4")


def test_a_secret_among_the_variables_is_warned_of() -> None:
    report = check_jobs(with_("env", "{ HF_TOKEN: x, WANDB_API_KEY: y, PAD_TOKEN: z }"), "job.yaml")
    assert report.jobs and [(f.code, f.path) for f in report.warnings] == [
        ("SecretInFile", "env.HF_TOKEN"),
        ("SecretInFile", "env.WANDB_API_KEY"),
    ]
    hidden = only_fault(with_("env", '{ A: "pass\\0word" }'))
    assert "pass" not in hidden.found + hidden.message + hidden.hint


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\xff", "NotUtf8"),
        (b"", "EmptyFile"),
        (b"x" * (1024 * 1024 + 1), "FileTooLarge"),
        (b"a: [", "NotYaml"),
        (b"just words", "WrongType"),
        (b"apiVersion: v1\nkind: Secret\n", "BadManifest"),
        (b"#!/bin/bash\r\nx\r\n", "BadValue"),
    ],
)
def test_what_is_no_job_at_all(data: bytes, code: str) -> None:
    report = check_job_bytes(data, "x")
    assert report.jobs is None and code in [f.code for f in report.faults]


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    assert check_job_file(tmp_path / "nothing.yaml").faults[0].code == "FileUnreadable"
    assert check_job_file(tmp_path).faults[0].code == "FileUnreadable"


# --- flags ------------------------------------------------------------------------------------------------


def test_flags_count_before_the_file_and_variables_are_added() -> None:
    given = given_by_flags(
        {"gpus": "H100:2", "nodes": "3", "env": {"B": "9", "C": "3"}, "after": ["8f3k:ended"]}
    )
    (job,) = check_jobs(with_("env", "{ A: 1, B: 2 }"), "job.yaml", given).jobs or ()
    assert (job.gpus, job.nodes) == (GpuRequest(2, "H100"), 3)
    assert job.env == {"A": "1", "B": "9", "C": "3"}
    assert job.after == (After(word("8f3k"), When.ENDED),)


def test_a_flag_mends_what_the_file_lacks() -> None:
    given = given_by_flags({"gpus": "1", "command": ["y"]})
    (job,) = check_jobs(SMALL.replace("gpus: 1\n", ""), "job.yaml", given).jobs or ()
    assert (job.gpus, job.command) == (GpuRequest(), ("y",))
    (job,) = check_jobs("#!/bin/sh\nx\n", "a/train.sh", given_by_flags({"gpus": "1"})).jobs or ()
    assert (job.name, job.script, job.command) == ("train", "#!/bin/sh\nx\n", ())


def test_flags_alone_make_a_job() -> None:
    given = given_by_flags(
        {"gpus": "40GB..:2", "name": "x", "command": ["a", "b"], "retries": "2", "array": "5"}
    )
    assert check_flags(given).jobs == (
        JobSpec("x", GpuRequest(2, memory_gb=(40, None)), ("a", "b"), array=(5,), retries=Retries(2)),
    )


def test_a_flag_that_is_wrong_is_named() -> None:
    report = check_flags(given_by_flags({"nodes": "many", "tolerates": ["rain"]}))
    assert report.jobs is None
    assert [f.path for f in report.faults] == ["nodes", "tolerates[0]"]


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["python", "train.py"], "train"),
        (["python3.11", "-u", "src/train_llm.py", "--lr", "3"], "train_llm"),
        (["/usr/bin/nvidia-smi"], "nvidia-smi"),
        (["env", "A=1", "bash", "run.sh"], "run"),
        (["torchrun", "--nproc", "8", "train.py"], "train"),
        (["python", "-m", "x"], "python"),
        (["!!"], "job"),
        ([], "job"),
    ],
)
def test_a_job_without_a_name_is_called_by_its_command(command: list[str], name: str) -> None:
    assert name_of_command(command) == name
