"""An order's script: whatever people write in it, the shell runs exactly that."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.engines.slurm.jobs.submit import SubmitContext, body, preview, script
from fairway.engines.slurm.policy.partitions import SupplySite
from fairway.model.errors import Refused
from fairway.model.fleet import Folders
from fairway.model.job import GpuRequest, JobId, JobSpec, Order, engine_name
from fairway.model.names import PoolName, PriorityName, SliceName, TeamName, UserName
from fairway.model.team import Supply

SITE = SupplySite(Supply(PoolName("gpu")), ("gpu",), "a100")
NORMAL = PriorityName("normal")
NOWHERE = Folders()
ECHO = "import json,os,sys; print(json.dumps([sys.argv[1:], dict(os.environ), os.getcwd()]))"

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=40)
nasty = text | st.sampled_from(
    ["'", '"', "$(id)", "`id`", "\nEND\n", "; exit 3", "\\", "--", "-n", "!!", "~"]
)


def _order(**spec: object) -> Order:
    told = JobSpec(**{"name": "train", "gpus": GpuRequest(2), "command": ("true",), **spec})  # type: ignore[arg-type]
    return Order(
        JobId(7),
        1,
        engine_name("mark", JobId(7), 1, told.name),
        told,
        UserName("alice"),
        TeamName("research"),
        NORMAL,
        SITE.supply,
    )


def _run(order: Order, folders: Folders = NOWHERE, **env: str) -> str:
    done = subprocess.run(
        ["/bin/bash"],
        input=script(order, SubmitContext(SITE, folders, NORMAL)).encode(),
        env={"PATH": "/usr/bin:/bin", **env},
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.decode()


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(words=st.lists(nasty, max_size=4), values=st.lists(nasty, max_size=3), name=nasty)
def test_words_and_variables_arrive_as_they_are(
    tmp_path: Path, words: list[str], values: list[str], name: str
) -> None:
    env = {f"V{n}": value for n, value in enumerate(values)}
    order = _order(
        name=name,
        command=(sys.executable, "-c", ECHO, *words),
        env=MappingProxyType(env),
        workdir=str(tmp_path),
    )
    arguments, seen, folder = json.loads(_run(order))
    assert arguments == words
    assert {key: seen[key] for key in env} == env
    assert seen["FAIRWAY_JOB_NAME"] == name
    assert seen["FAIRWAY_JOB_ID"] == "0007"
    assert folder == str(tmp_path)


@settings(max_examples=10, deadline=None)
@given(content=nasty)
def test_a_script_arrives_as_it_is(content: str) -> None:
    shown = f"#!{sys.executable}\nimport sys\nprint(open(sys.argv[0]).read() if 0 else {content!r}, end='')\n"
    assert _run(_order(command=(), script=shown)) == content


@settings(max_examples=10, deadline=None)
@given(value=nasty)
def test_setup_is_run_and_ends_where_it_ends(value: str) -> None:
    order = _order(setup=f"X={shlex.quote(value)}\nexport X", command=("printenv", "X"))
    assert _run(order) == value + "\n"


def test_setup_that_is_no_shell_ends_the_job() -> None:
    done = subprocess.run(
        ["/bin/bash"],
        input=script(_order(setup="echo 'open"), SubmitContext(SITE, Folders(), NORMAL)).encode(),
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert done.returncode != 0


def test_each_attempt_prints_into_its_own_file(tmp_path: Path) -> None:
    (tmp_path / "alice").mkdir()
    (tmp_path / "kept").mkdir()
    folders = Folders(logs=str(tmp_path), checkpoints=str(tmp_path / "kept"))
    order = replace(_order(command=("printenv", "FAIRWAY_ATTEMPT")), attempts_before=3)
    for restarts in ("", "1"):
        assert _run(order, folders, **({"SLURM_RESTART_COUNT": restarts} if restarts else {})) == ""
    name = order.engine_name
    assert (tmp_path / "alice" / f"{name}.1.out").read_text() == "4\n"
    assert (tmp_path / "alice" / f"{name}.2.out").read_text() == "5\n"
    assert (tmp_path / "alice" / f"{name}.2.out").stat().st_mode & 0o777 == 0o640
    for kept in (tmp_path / "kept" / "alice", tmp_path / "kept" / "alice" / "0007"):
        assert (kept.is_dir(), kept.stat().st_mode & 0o7777) == (True, 0o700)


def _refused(order: Order, folders: Folders) -> str:
    """What the script says that ends before the program."""
    done = subprocess.run(
        ["/bin/bash"],
        input=script(order, SubmitContext(SITE, folders, NORMAL)).encode(),
        env={"PATH": "/usr/bin:/bin"},
        capture_output=True,
        timeout=20,
        check=False,
    )
    assert (done.returncode, done.stdout) == (1, b"")
    return done.stderr.decode()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
@pytest.mark.parametrize("taken", ["alice", "alice/0007"])
def test_a_checkpoint_folder_of_somebody_else_is_not_used(tmp_path: Path, taken: str) -> None:
    theirs = tmp_path / taken
    theirs.mkdir(parents=True)
    theirs.chmod(0o777)
    os.chown(theirs, 65534, 65534)
    assert "is not your own" in _refused(_order(command=("echo", "ran")), Folders(checkpoints=str(tmp_path)))


@pytest.mark.parametrize("taken", ["alice", "alice/0007"])
def test_a_checkpoint_folder_is_no_link(tmp_path: Path, taken: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).symlink_to(elsewhere)
    assert "is not your own" in _refused(_order(command=("echo", "ran")), Folders(checkpoints=str(tmp_path)))
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to somebody else")
@pytest.mark.parametrize("taken", ["alice", "alice/train-fwmark-0007-1.1.out"])
def test_nothing_is_printed_where_somebody_else_reads(tmp_path: Path, taken: str) -> None:
    (tmp_path / "alice").mkdir()
    theirs = tmp_path / taken
    if not theirs.is_dir():
        theirs.touch(0o666)
    os.chown(theirs, 65534, 65534)
    assert "not your own" in _refused(_order(command=("echo", "secret")), Folders(logs=str(tmp_path)))
    assert not any(path.stat().st_size for path in (tmp_path / "alice").iterdir())


@pytest.mark.parametrize("taken", ["alice", "alice/train-fwmark-0007-1.1.out"])
@pytest.mark.parametrize("kind", ["link", "dangling"])
def test_nothing_is_printed_through_a_link(tmp_path: Path, taken: str, kind: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    if kind == "link" and taken == "alice":
        elsewhere.mkdir()
    elif kind == "link":
        elsewhere.touch()
    (tmp_path / taken).parent.mkdir(exist_ok=True)
    (tmp_path / taken).symlink_to(elsewhere)
    assert "not your own" in _refused(_order(command=("echo", "secret")), Folders(logs=str(tmp_path)))
    assert kind == "dangling" or elsewhere.is_dir() or elsewhere.read_bytes() == b""
    assert kind == "link" or not elsewhere.exists()


def test_the_body_says_what_slurm_must_know() -> None:
    order = replace(
        _order(
            nodes=3, cpus=4, memory_gb=8, time_seconds=61, together=True, project="llm", labels={"model": "m"}
        ),
        priority=PriorityName("urgent"),
        hold=True,
    )
    job = body(order, SubmitContext(replace(SITE, spot=True), Folders(logs="/logs/"), NORMAL))["job"]
    told = {key: job[key] for key in job if key not in ("script", "environment")}
    assert told == {
        "name": "train-fwmark-0007-1",
        "account": "research",
        "partition": "gpu",
        "tres_per_node": "gres/gpu:a100:2",
        "minimum_nodes": 3,
        "maximum_nodes": 3,
        "tasks": 3,
        "current_working_directory": "/tmp",
        "standard_output": "/logs/alice/train-fwmark-0007-1.slurm",
        "open_mode": ["APPEND"],
        "requeue": True,
        "comment": "fairway:0007 tolerates-loss project=llm model=m",
        "qos": "urgent",
        "time_limit": {"set": True, "number": 2},
        "cpus_per_task": 4,
        "memory_per_node": {"set": True, "number": 8192},
        "required_switches": {"set": True, "number": 1},
        "hold": True,
    }
    assert 'srun --nodes="$SLURM_JOB_NUM_NODES"' in job["script"]


def test_the_default_priority_needs_no_word() -> None:
    terms = SubmitContext(
        SupplySite(Supply(PoolName("mig"), SliceName("1g.10gb")), ("mig",), None), Folders(), NORMAL
    )
    job = body(_order(), terms)["job"]
    assert "qos" not in job
    assert job["tres_per_node"] == "gres/gpu:2"
    assert job["standard_output"] == "/dev/null"


def test_the_preview_is_a_script_for_sbatch() -> None:
    shown = preview(_order(time_seconds=60), SubmitContext(SITE, Folders(), NORMAL)).splitlines()
    assert shown[0].startswith("#!")
    assert "#SBATCH --gres=gpu:a100:2" in shown
    assert "#SBATCH --time=1" in shown
    assert shown[-1] == "exec -- true"


@pytest.mark.parametrize(
    "spec",
    [
        {"command": ("a\0b",)},
        {"command": ("\ud800",)},
        {"env": MappingProxyType({"A B": "1"})},
        {"env": MappingProxyType({"A": "\0"})},
        {"command": ()},
        {"script": "#!/bin/sh\n"},
    ],
)
def test_what_no_shell_can_carry_is_refused(spec: dict[str, object]) -> None:
    with pytest.raises(Refused):
        preview(_order(**spec), SubmitContext(SITE, Folders(), NORMAL))


def test_a_team_with_an_account_of_another_name_is_sent_as_that() -> None:
    terms = SubmitContext(SITE, Folders(), NORMAL, "ML_Team")
    assert body(_order(), terms)["job"]["account"] == "ML_Team"
