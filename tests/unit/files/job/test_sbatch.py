"""Scripts with #SBATCH lines: each option is translated, refused or left out with a word; none is lost."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairway.files import JobReport, check_job_file, check_jobs, given_by_flags
from fairway.files.job.sbatch import KNOWN_OPTIONS, LEFT_OUT, TRANSLATED, UNSUPPORTED
from fairway.model.job import After, GpuRequest, Tolerates, When, parse_job_id
from fairway.model.names import SliceName

EXAMPLE = Path(__file__).parents[4] / "examples/jobs/train.sh"


def checked(*lines: str, gpus: str = "--gpus-per-node=1", body: str = "srun x\n") -> JobReport:
    head = "".join(f"#SBATCH {line}\n" for line in (gpus, *lines) if line)
    return check_jobs(f"#!/bin/bash\n{head}{body}", "train.sh")


def only(report: JobReport) -> tuple[str, str]:
    (fault,) = report.faults
    return fault.code.value, fault.hint


def test_the_example() -> None:
    (job,) = check_job_file(EXAMPLE).jobs or ()
    assert (job.name, job.team, job.nodes, job.gpus) == ("train-llm", "research", 2, GpuRequest(8, "A100"))
    assert (job.cpus, job.memory_gb, job.time_seconds) == (64, 512, 129600)
    assert job.tolerates == {Tolerates.PREEMPTION}
    assert job.env == {"WANDB_MODE": "offline"}
    assert job.script == EXAMPLE.read_text()


OPTIONS: list[tuple[str, str, Any]] = [
    ("--job-name=a", "name", "a"),
    ("-J b", "name", "b"),
    ("-Jb", "name", "b"),
    ("-N 2", "nodes", 2),
    ("--nodes 2", "nodes", 2),
    ("-t 90", "time_seconds", 5400),
    ("--time=UNLIMITED", "time_seconds", None),
    ("--time=0", "time_seconds", None),
    ("-A research", "team", "research"),
    ("-q urgent", "priority", "urgent"),
    ("-a 0-2", "array", (0, 1, 2)),
    ("-c 4", "cpus", 4),
    ("--cpus-per-gpu=6", "cpus", 6),
    ("--mem=1500M", "memory_gb", 2),
    ("--mem=2048", "memory_gb", 2),
    ("--mem=1T", "memory_gb", 1024),
    ("--mem-per-gpu=10G", "memory_gb", 10),
    ("-D /work", "workdir", "/work"),
    ("--requeue", "tolerates", {Tolerates.PREEMPTION}),
    ("--no-requeue", "tolerates", frozenset()),
    ("--export=A=1,B='x y'", "env", {"A": "1", "B": "x y"}),
    ("--export=NONE", "env", {}),
    ("-n 1", "nodes", 1),
    ("--ntasks-per-node=1 -N 3 -n 3", "nodes", 3),
    (
        "-d afterok:8f3k:8f3m,afterany:8f3n",
        "after",
        (
            After(parse_job_id("8f3k") or 0),  # type: ignore[arg-type]
            After(parse_job_id("8f3m") or 0),  # type: ignore[arg-type]
            After(parse_job_id("8f3n") or 0, When.ENDED),  # type: ignore[arg-type]
        ),
    ),
]


@pytest.mark.parametrize(("line", "field", "value"), OPTIONS, ids=lambda v: str(v)[:24])
def test_an_option_is_translated(line: str, field: str, value: Any) -> None:
    report = checked(line)
    assert report.faults == () and report.jobs
    assert getattr(report.jobs[0], field) == value


@pytest.mark.parametrize(
    ("line", "gpus"),
    [
        ("--gres=gpu:4", GpuRequest(4)),
        ("--gres=gpu", GpuRequest(1)),
        ("--gres=gpu:h100", GpuRequest(1, "H100")),
        ("--gres=gpu:a100:4", GpuRequest(4, "A100")),
        ("--gres=gpu:a100_80gb:4", GpuRequest(4, "A100-80GB")),
        ("--gres=gpu:a100-80g:4", GpuRequest(4, "A100-80GB")),
        ("--gres gpu:1g.10gb:2", GpuRequest(2, slice=SliceName("1g.10gb"))),
        ("--gres=gpu:a100_1g.10gb", GpuRequest(1, slice=SliceName("1g.10gb"))),
        ("--gpus-per-node=h100:8", GpuRequest(8, "H100")),
        ("-G 8 -N 2", GpuRequest(4)),
        ("--gpus=8 --gpus-per-node=8", GpuRequest(8)),
        ("--gpus-per-task=2", GpuRequest(2)),
    ],
)
def test_gpus_are_counted_by_node(line: str, gpus: GpuRequest) -> None:
    report = checked(line, gpus="")
    assert report.jobs and report.jobs[0].gpus == gpus and report.faults == ()


@pytest.mark.parametrize(
    ("line", "code", "hint"),
    [
        ("--exclusive", "NoWordForIt", "ask for all GPUs of the node"),
        ("-w n1", "NoWordForIt", "name the pool"),
        ("--hold", "NoWordForIt", "say it to the command:  fairway submit --hold"),
        ("-H", "NoWordForIt", "say it to the command"),
        ("--signal=B:USR1@60", "NoWordForIt", "bring it back with"),
        ("--array=0-9%2", "NoWordForIt", "take it away:  0-9"),
        ("-n 8", "NoWordForIt", "say it in the script:  srun --ntasks=8"),
        ("--ntasks-per-node=8", "NoWordForIt", "say it in the script:  srun --ntasks-per-node=8"),
        ("-d singleton", "NoWordForIt", "use afterok"),
        ("-d afterok:8f3k?afterok:8f3m", "NoWordForIt", "use afterok"),
        ("-d afterok:no", "BadValue", "fairway get jobs"),
        ("-G 3 -N 2", "NoWordForIt", "ask by  --gpus-per-node"),
        ("--gres=gpu:a100:2", "NoWordForIt", "take one of them away"),
        ("--gres=gpu:1,shard:1", "NoWordForIt", "name a pool that has it"),
        ("--gres=gpu:a100:1,gpu:h100:1", "BadValue", "write GPUs of one kind"),
        ("-N 1-4", "BadValue", "write a whole number from 1"),
        ("--mem=0", "BadValue", "write an amount of memory"),
        ("--time=soon", "BadValue", "write a time as Slurm writes it"),
        ("--export=HOME", "NoWordForIt", "write its value"),
        ("--chdir=data", "BadPath", "write the whole path"),
        ("-A Research", "BadName", "write research"),
        ("--mail-user 'x", "BadValue", "close the quotes"),
        ("time=3", "BadValue", "write options like"),
    ],
)
def test_what_would_change_the_job_is_refused(line: str, code: str, hint: str) -> None:
    report = checked(line)
    found, said = only(report)
    assert report.jobs is None and found == code and said.startswith(hint)
    assert report.faults[0].line == 3


@pytest.mark.parametrize(
    ("line", "hint"),
    [
        ("--output=%j.out", "fairway logs JOB"),
        ("-e err.txt", "fairway logs JOB"),
        ("--mail-type=END", "Fairway sends no mail"),
        ("--comment=hello", "take the line away"),
        ("--job-naem=x", "did you mean job-name?"),
        ("--frobnicate", "take the line away if the job does not need it"),
        ("--export=ALL", "name what the job needs"),
        ("-p gpu", "name the pool"),
        ("-d afterok:12345", "fairway get jobs  shows the ids"),
        ("--job-name='my job'", "write my-job"),
    ],
)
def test_what_is_left_out_is_said(line: str, hint: str) -> None:
    report = checked(line)
    code, said = only(report)
    assert report.jobs and code == "LeftOut" and said.startswith(hint)
    assert report.faults[0].line == 3 and report.faults[0].severity == "warning"


def test_a_partition_is_read_as_the_pool_of_that_name_unless_one_is_given() -> None:
    (job,) = checked("-p hpc-a100").jobs or ()
    assert job.pool == "hpc-a100"
    text = "#!/bin/bash\n#SBATCH -p gpu -G 1\nx\n"
    report = check_jobs(text, "x.sh", given_by_flags({"pool": "other"}))
    assert report.jobs and report.jobs[0].pool == "other" and report.faults == ()


def test_lines_after_the_first_command_are_said_to_be_unread() -> None:
    report = checked(body="module load x\n#SBATCH --time=5\n")
    assert report.jobs and report.jobs[0].time_seconds is None
    assert (report.faults[0].code, report.faults[0].line) == ("LeftOut", 4)


def test_comments_and_blank_lines_do_not_end_the_header() -> None:
    text = "#!/bin/bash\n\n# a word\n##SBATCH --exclusive\n#SBATCH -G 2 # two\n\n  # x\n#SBATCH -N 2\nx\n"
    (job,) = check_jobs(text, "a.b.sh").jobs or ()
    assert (job.name, job.gpus, job.nodes) == ("a.b", GpuRequest(1), 2)


def test_an_array_that_reads_slurms_variable_is_warned_of() -> None:
    report = checked("-a 0-3", body="echo $SLURM_ARRAY_TASK_ID\n")
    assert report.jobs and only(report) == ("LeftOut", "read $FAIRWAY_ARRAY_INDEX instead")


def test_without_gpus_it_says_how_to_ask() -> None:
    code, hint = only(checked(gpus=""))
    assert code == "MissingKey" and "#SBATCH --gpus-per-node=8" in hint


def test_a_script_without_its_first_line() -> None:
    report = check_jobs("#SBATCH -G 1\nx\n", "x.sh")
    assert report.jobs is None and only(report)[1].startswith("begin it with  #!/bin/bash")


def test_it_is_bounded() -> None:
    assert only(checked("-d afterok:" + "8f3k:" * 9999))[0] == "OutOfRange"
    assert checked(*["-N 1"] * 1000).faults[-1].message == "there are more than 500 lines with options"


def test_no_option_is_in_two_tables() -> None:
    assert len(KNOWN_OPTIONS) == len(set(KNOWN_OPTIONS)) == len(TRANSLATED) + len(LEFT_OUT) + len(UNSUPPORTED)
