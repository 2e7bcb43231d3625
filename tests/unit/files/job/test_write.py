"""A job file that was written reads back as the same job."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.files.job.load import check_jobs
from fairway.files.job.write import compose_job
from fairway.model.job import After, GpuRequest, JobId, JobSpec, Retries, Tolerates, When
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName

PLAIN = JobSpec("train-llm", GpuRequest(8, "A100-80GB"), ("python", "train.py"))
TEXTS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=40)
LINES = st.lists(TEXTS | st.just(""), min_size=1, max_size=4).map("\n".join)


def read_back(spec: JobSpec) -> JobSpec:
    text = compose_job(spec)
    report = check_jobs(text, "job.yaml")
    assert report.jobs is not None, (text, [f.message for f in report.faults])
    return report.jobs[0]


def test_it_reads_as_a_person_would_write_it() -> None:
    spec = replace(
        PLAIN, time_seconds=72 * 3600, setup="module load cuda\nulimit -n 4096\n", array=(0, 1, 2, 7)
    )
    assert compose_job(spec) == (
        "apiVersion: fairway/v1alpha1\n"
        "kind: Job\n"
        "name: train-llm\n"
        "gpus: A100-80GB:8\n"
        "time: 3d\n"
        "setup: |\n"
        "  module load cuda\n"
        "  ulimit -n 4096\n"
        "command: [python, train.py]\n"
        'array: "0-2,7"\n'
    ).replace("gpus: A100-80GB:8", 'gpus: "A100-80GB:8"')


@pytest.mark.parametrize(
    "changed",
    [
        {"gpus": GpuRequest(2)},
        {"project": "llm", "labels": {"experiment": "1", "a.example/b": "true"}},
        {"gpus": GpuRequest(1, None, (40, 80))},
        {"gpus": GpuRequest(2, None, None, SliceName("1g.10gb"))},
        {"command": (), "script": "#!/bin/bash\n#SBATCH --gpus=8\n\tsrun python train.py\n\necho done\n"},
        {"command": (), "script": "#!/bin/sh\necho no end"},
        {
            "command": (
                "bash",
                "-c",
                "echo 'a: b' # c",
                "",
                "true",
                "1e3",
                "0042",
                "- x",
                "{}",
                "ü€😀",
                "a\\nb",
            )
        },
        {"team": TeamName("no"), "priority": PriorityName("urgent"), "pool": PoolName("hpc-a100")},
        {"nodes": 4, "cpus": 16, "memory_gb": 64, "together": True},
        {"image": "ghcr.io/acme/train:1.4", "workdir": "/home/alice/my llm"},
        {"env": {"A": "", "B": "1", "C": "yes", "D": "a: b"}},
        {"array": (3,)},
        {"array": (0, 2, 4, 5, 6)},
        {"after": (After(JobId(32**3)), After(JobId(42), When.ENDED))},
        {"retries": Retries(3), "tolerates": frozenset(Tolerates)},
        {"retries": Retries(2, 60, 600)},
    ],
)
def test_every_key_reads_back(changed: dict[str, object]) -> None:
    spec = replace(PLAIN, **changed)  # type: ignore[arg-type]
    assert read_back(spec) == spec


@given(st.lists(TEXTS, min_size=1, max_size=4).map(tuple), LINES.filter(str.strip), TEXTS)
def test_any_text_reads_back(command: tuple[str, ...], setup: str, value: str) -> None:
    spec = replace(PLAIN, command=command, setup=setup, env={"X": value})
    assert read_back(spec) == spec
