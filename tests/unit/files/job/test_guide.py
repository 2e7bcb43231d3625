"""What the guide to jobs shows is valid, and it names every word, option and variable there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fairway.files import check_jobs
from fairway.files.job.sbatch import TRANSLATED
from fairway.files.job.schema import JOB_KEYS

GUIDE = (Path(__file__).parents[4] / "docs/guides/jobs.md").read_text()
BLOCKS = re.findall(r"```yaml\n(.*?)```", GUIDE, re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS, ids=range(len(BLOCKS)))
def test_every_job_in_it_is_sound(block: str) -> None:
    report = check_jobs(block, "job.yaml")
    assert report.jobs and report.faults == ()


def test_it_names_every_key() -> None:
    table = GUIDE[GUIDE.index("| key |") : GUIDE.index("## GPUs")]
    assert [key.name for key in JOB_KEYS if f"`{key.name}`" not in table] == []


def test_it_names_every_option_of_sbatch_that_is_read() -> None:
    unsaid = {"no-requeue", "ntasks-per-node", "gpus-per-task"}
    assert [name for name in sorted(TRANSLATED - unsaid) if f"--{name}" not in GUIDE] == []


GPUS = re.findall(r"^\| `([^`]+)` \|", GUIDE.split("\n## GPUs\n")[1].split("\n## ")[0], re.MULTILINE)


@pytest.mark.parametrize("text", GPUS)
def test_every_way_to_ask_for_gpus_is_one(text: str) -> None:
    job = f"apiVersion: fairway/v1alpha1\nkind: Job\nname: x\ngpus: {text}\ncommand: [x]\n"
    assert check_jobs(job, "x").faults == ()


def test_the_fault_it_shows_is_the_one_that_is_said() -> None:
    text = "#!/bin/bash\n#SBATCH -G 1\n\n\n#SBATCH --exclusive\nx\n"
    (fault,) = check_jobs(text, "train.sh").faults
    assert f"error: {fault.message}\n" in GUIDE and f"hint: {fault.hint}\n" in GUIDE
