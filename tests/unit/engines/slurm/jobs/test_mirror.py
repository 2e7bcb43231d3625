"""Lines of squeue and records of sacct, as values."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.slurm.jobs import sacct, squeue
from fairway.engines.slurm.jobs.squeue import FleetLookup, JobDevices, SqueueRow
from fairway.engines.slurm.nodes.devices import PoolMatcher
from fairway.engines.slurm.nodes.hostlist import expand
from fairway.files import parse_fleet
from fairway.model.job import Attempt, Ending, JobState, NodeGpus
from fairway.model.names import NodeName, PoolName, SliceName
from fairway.model.price import CostRules
from fairway.model.team import Supply

FLEET = parse_fleet(
    """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc: { engine: slurm, url: "http://h:1", credentials: { jwt_key_file: /k } }
pools:
  gpu: { cluster: hpc, gpu: A100-80GB, capacity: owned, price: 1, slurm: { partition: gpu, gres: a100 } }
  mig:
    cluster: hpc
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1
    slurm: { partition: mig }
teams:
  research: { share: 1, guarantee: { gpu: 8 }, members: [alice] }
""",
    "fleet.yaml",
)
WORDS = FleetLookup(FLEET, PoolMatcher(FLEET.pools))
GPU = Supply(PoolName("gpu"))
SECRET = "\x1e0123"


def row(**said: str) -> SqueueRow:
    plain = {
        "jobarrayid": "12",
        "jobid": "12",
        "state": "RUNNING",
        "starttime": "1000",
        "endtime": "9000",
        "username": "alice",
        "account": "research",
        "partition": "gpu-lent",
        "submittime": "900",
        "timelimit": "1-02:03:04",
        "restartcnt": "0",
        "exit_code": "0:0",
        "reason": "None",
        "numnodes": "2",
        "nodelist": "gpu[001-002]",
        "tres_alloc": "cpu=2,mem=2000M,node=2,billing=4,gres/gpu=4,gres/gpu:a100=4",
        "tres_per_node": "gres/gpu:a100:2",
        "tres_per_job": "N/A",
        "admin_comment": "fairway:normal",
        "wckey": "",
        "comment": "(null)",
        "name": "train",
    }
    return SqueueRow(**{**plain, **said})


def at(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC)


def test_a_running_job() -> None:
    job = squeue.to_job(row(), WORDS)
    assert job.attempts == (Attempt(at(1000), (NodeName("gpu001"), NodeName("gpu002")), 4),)
    assert (job.state, job.team, job.supply, job.gpus, job.nodes) == (JobState.RUNNING, "research", GPU, 2, 2)
    assert (job.priority, job.time_seconds, job.ended_at) == ("normal", 93784, None)


def test_exporters_name_a_task_by_its_own_number() -> None:
    (attempt,) = squeue.to_job(
        row(jobarrayid="12_1", jobid="13"), WORDS, {NodeName("gpu002"): (4, 5)}
    ).attempts
    assert attempt.gpus == (
        NodeGpus(NodeName("gpu001"), ("13", "12_1")),
        NodeGpus(NodeName("gpu002"), ("13", "12_1"), (4, 5)),
    )
    assert squeue.to_job(row(tres_alloc="cpu=2", tres_per_node="N/A"), WORDS).attempts[0].gpus == ()
    (attempt,) = sacct.to_job([record(jobid="12_1", jobidraw="13")], WORDS).attempts
    assert attempt.gpus == (NodeGpus(NodeName("gpu001"), ("13", "12_1")),)


@pytest.mark.parametrize(
    ("state", "reason", "job", "ending"),
    [
        ("COMPLETED", "None", JobState.DONE, Ending.DONE),
        ("FAILED", "NonZeroExitCode", JobState.FAILED, Ending.FAILED),
        ("OUT_OF_MEMORY", "OutOfMemory", JobState.FAILED, Ending.FAILED),
        ("CANCELLED", "None", JobState.CANCELLED, Ending.CANCELLED),
        ("TIMEOUT", "TimeLimit", JobState.TIMED_OUT, Ending.TIMED_OUT),
        ("PREEMPTED", "None", JobState.FAILED, Ending.PREEMPTED),
        ("NODE_FAIL", "None", JobState.FAILED, Ending.NODE_LOST),
        ("COMPLETING", "None", JobState.RUNNING, None),
        ("SUSPENDED", "None", JobState.RUNNING, None),
        ("CONFIGURING", "None", JobState.RUNNING, None),
    ],
)
def test_states_that_ran(state: str, reason: str, job: JobState, ending: Ending | None) -> None:
    seen = squeue.to_job(row(state=state, reason=reason), WORDS)
    assert seen.state is job
    assert seen.attempts[0].ending is ending
    assert seen.attempts[0].ended_at == (at(9000) if ending else None)


@pytest.mark.parametrize(
    ("state", "reason", "job"),
    [
        ("PENDING", "Priority", JobState.WAITING),
        ("PENDING", "JobHeldUser", JobState.HELD),
        ("PENDING", "JobHeldAdmin", JobState.HELD),
        ("PENDING", "launch failed requeued held", JobState.HELD),
        ("REQUEUED", "None", JobState.WAITING),
        ("REQUEUE_HOLD", "None", JobState.HELD),
        ("SPECIAL_EXIT", "None", JobState.HELD),
    ],
)
def test_states_that_wait_have_no_attempt(state: str, reason: str, job: JobState) -> None:
    seen = squeue.to_job(row(state=state, reason=reason), WORDS)
    assert (seen.state, seen.attempts, seen.gpus) == (job, (), 2)


@pytest.mark.parametrize(
    ("state", "reason", "code"),
    [
        ("PENDING", "Priority", "NotItsTurn"),
        ("PENDING", "Resources", "NotEnoughFree"),
        ("PENDING", "ReqNodeNotAvail, UnavailableNodes:gpu001", "NodesUnavailable"),
        ("PENDING", "JobHeldAdmin", "HeldByAdmin"),
        ("PENDING", "LicensesOfTheMoon", ""),
        ("PENDING", "None", ""),
        ("RUNNING", "Resources", ""),
        ("CANCELLED", "Resources", ""),
    ],
)
def test_what_waits_has_the_code_of_its_reason(state: str, reason: str, code: str) -> None:
    assert squeue.to_job(row(state=state, reason=reason), WORDS).reason_code == code


def test_the_gate_of_one_of_two_partitions_is_no_reason() -> None:
    def code(partition: str) -> str:
        waiting = row(state="PENDING", reason="MaxJobsPerAccount", partition=partition)
        return squeue.to_job(waiting, WORDS).reason_code

    assert (code("gpu"), code("gpu,gpu-lent")) == ("NotAdmitted", "")


def test_what_slurm_guesses_of_a_waiting_job_is_no_change() -> None:
    waiting = row(state="PENDING", starttime="5000", endtime="6000")
    assert squeue.without_estimates(waiting) == squeue.without_estimates(
        waiting._replace(starttime="N/A", endtime="N/A")
    )
    assert squeue.without_estimates(row()) != squeue.without_estimates(row(starttime="1001"))


def test_a_gang_that_ends_keeps_its_nodes() -> None:
    assert squeue.starts_completing(row(), row(state="COMPLETING", nodelist="gpu002"))
    assert not squeue.starts_completing(row(state="PENDING"), row(state="COMPLETING"))
    assert not squeue.starts_completing(row(), row(state="FAILED"))


@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_no_name_forges_a_line(names: list[str]) -> None:
    # What follows a separator in a comment may shift the rest, which its own user chose as well.
    rows = [row(jobarrayid=str(n), name=name) for n, name in enumerate(names)]
    forged = row(comment="a\x1fb", name="c")
    assert squeue.parse("\x1f".join(forged).encode())[:-2] == forged[:-2]
    output = "".join("\x1f".join(one) + SECRET + "\n" for one in rows).encode()
    assert [squeue.parse(line) for line in squeue.split_lines(output, SECRET)] == rows
    assert [squeue.job_key(line) for line in squeue.split_lines(output, SECRET)] == [
        r.jobarrayid.encode() for r in rows
    ]


LABELLED = FleetLookup(
    replace(FLEET, cost=CostRules(labels=("experiment", "model"))), PoolMatcher(FLEET.pools)
)
COMMENT = "ticket 7, project=llm experiment=e1 owner=bob model=not/valid"


@pytest.mark.parametrize(
    ("wckey", "comment", "project"),
    [
        ("", "(null)", ""),
        ("(null)", "", ""),
        ("*", "", ""),
        ("vision", "", "vision"),
        ("vision", COMMENT, "vision"),  # chosen for this job
        ("*default", COMMENT, "llm"),
        ("*default", "hello", "default"),
        ("", COMMENT, "llm"),
        ("", "fairway:8f3k tolerates-loss", ""),
    ],
)
def test_a_project_is_the_wckey_or_in_the_comment(wckey: str, comment: str, project: str) -> None:
    job = squeue.to_job(row(wckey=wckey, comment=comment), LABELLED)
    assert job.project == project
    assert job.labels == ((("experiment", "e1"),) if comment == COMMENT else ())
    assert squeue.to_job(row(comment=comment), WORDS).labels == ()
    history = [record(wckey=wckey, comment=comment)]
    ended = sacct.to_job(history, LABELLED)  # a site may store no comments: what is missing is not known
    assert (ended.project, ended.labels) == (job.project or None, job.labels or None)


def record(**said: str) -> sacct.SacctRow:
    plain = dict.fromkeys(sacct.SacctRow._fields, "")
    plain |= {
        "jobid": "12",
        "jobname": "train",
        "state": "COMPLETED",
        "submit": "900",
        "start": "1000",
        "end": "2000",
    }
    plain |= {
        "exitcode": "0:0",
        "nodelist": "gpu001",
        "nnodes": "1",
        "alloctres": "gres/gpu:a100=2,gres/gpu=2",
    }
    plain |= {
        "restarts": "0",
        "user": "alice",
        "account": "research",
        "partition": "gpu",
        "timelimitraw": "10",
    }
    return sacct.SacctRow(**{**plain, **said})


@given(names=st.lists(st.text(st.characters(exclude_categories=["Cs"])), min_size=1, max_size=5))
def test_no_name_forges_a_record(names: list[str]) -> None:
    made = [record(jobid=str(n), jobname=name) for n, name in enumerate(names)]
    output = "".join("".join(f + SECRET for f in one) + "\n" for one in made).encode()
    assert list(sacct.records(output, SECRET)) == made


def test_a_job_that_came_back_as_the_accounting_tells_it() -> None:
    records = [
        record(
            submit="2000", start="2100", end="2200", state="CANCELLED by 2001", restarts="1", exitcode="0:15"
        ),
        record(state="PREEMPTED", restarts="0"),
    ]
    history = sacct.by_job(records)["12"]
    job = sacct.to_job(history, WORDS)
    assert [a.ending for a in job.attempts] == [Ending.PREEMPTED, Ending.CANCELLED]
    assert (job.submitted_at, job.ended_at, job.state) == (at(900), at(2200), JobState.CANCELLED)
    assert (job.exit_code, job.attempts[1].signal, job.earlier_attempts) == (None, 15, 0)
    assert sacct.is_over(history)
    assert not sacct.is_over(history[1:])  # the first record is still to come
    assert sacct.is_complete(history, WORDS)
    late = (history[0]._replace(end="Unknown", state="RUNNING"), *history[1:])
    assert sacct.is_over(late)
    assert not sacct.is_complete(late, WORDS)  # how the first run ended is, too
    waited = (late[0]._replace(nodelist="None assigned", start="Unknown"), *history[1:])
    assert sacct.is_complete(waited, WORDS)  # it never ran
    assert sacct.past_attempts(history, 1, WORDS) == job.attempts[:1]
    assert sacct.past_attempts(history, 3, WORDS) is None
    assert sacct.past_attempts([record(end="Unknown", state="RUNNING")], 1, WORDS) is None


def test_an_array_that_waits_as_one_is_left_out() -> None:
    output = "".join(f + SECRET for f in record(jobid="5_[0-3]")).encode()
    assert not list(sacct.records(output, SECRET))


def test_a_look_back_goes_in_windows() -> None:
    assert list(sacct.windows(0, 3 * 86_400))[-1][1] == 3 * 86_400
    assert len(list(sacct.windows(0, 3 * 86_400))) == 12


@pytest.mark.parametrize(
    ("partition", "tres", "asked", "share"),
    [
        ("gpu", "gres/gpu=2,gres/gpu:a100=2", "", JobDevices(GPU, 2)),
        ("gpu,gpu-lent", "gres/gpu=2,gres/gpu:a100=2", "", JobDevices(GPU, 2)),
        ("gpu", "cpu=1,gres/gpu=2", "gres/gpu:a100:1", JobDevices(GPU, 2)),  # types are not counted there
        ("gpu", "cpu=1,gres/gpu=2", "gres/gpu:1", JobDevices(GPU, 2)),
        ("gpu", "cpu=1", "gres:gpu:a100:1", JobDevices(GPU, 2)),  # nothing is
        (
            "mig",
            "gres/gpu=1,gres/gpu:3g.40gb=1",
            "",
            JobDevices(Supply(PoolName("mig"), SliceName("3g.40gb")), 1),
        ),
        ("cpu", "cpu=4,mem=1G", "", JobDevices(None, 0)),
        ("other", "gres/gpu=2,gres/gpu:h100=2", "", JobDevices(None, 2)),
    ],
)
def test_devices(partition: str, tres: str, asked: str, share: JobDevices) -> None:
    assert WORDS.devices(partition, tres, asked, 2) == share


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu001", ["gpu001"]),
        ("gpu[001-003,007],login", ["gpu001", "gpu002", "gpu003", "gpu007", "login"]),
        ("r[1-2]n[08-09]", ["r1n08", "r1n09", "r2n08", "r2n09"]),
        ("", []),
        ("None assigned", []),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert list(expand(text)) == names


def test_limits_and_exit_codes() -> None:
    assert [squeue.parse_time_limit(t) for t in ("10:00", "1:00:00", "UNLIMITED", "NOT_SET")] == [
        600,
        3600,
        None,
        None,
    ]
    assert squeue.parse_exit_code("7:0", "FAILED") == (7, None)
    assert squeue.parse_exit_code("0:15", "CANCELLED") == (None, 15)
    assert squeue.parse_exit_code("0:0", "TIMEOUT") == (None, None)
    assert squeue.parse_exit_code("0:0", "COMPLETED") == (0, None)


def test_an_account_of_another_name_is_its_team() -> None:
    teams = tuple(replace(team, account="ML_Team") for team in FLEET.teams[:1])
    lookup = FleetLookup(replace(FLEET, teams=teams), PoolMatcher(FLEET.pools))
    assert lookup.team("ml_team") == teams[0].name  # Slurm stores names in lower case
    assert lookup.team(teams[0].name) is None
