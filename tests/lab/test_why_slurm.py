"""`fairway why` in every waiting situation of the Slurm review, on real Slurms that Fairway governs."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import pytest

from fairway import Client
from fairway.client.contexts import Target
from fairway.client.requests import job_spec
from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.render import render_slurm
from fairway.explain.engine_reasons import ENGINE_REASONS
from fairway.files import parse_fleet
from fairway.services.plans import plan_cluster
from fairway.wire.jobs import Job, Why, WhyReason
from lab import Instance
from lab.slurm import configure
from tests.integration.server_process import Home, temporary_home
from tests.lab.driving import up
from tests.plans import apply_plan
from tests.slurm_conf import conf_lines, slurm_lines
from tests.waiting import Deadline, until

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.nightly("a Slurm and a server for each version; unit tests have the recorded answers in CI"),
]

FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: why
currency: USD
clusters:
  hpc:
    engine: slurm
    url: {url}
    tools: {tools}
    credentials: {{ user: {user}, jwt_key_file: {jwt_key_file} }}
pools:
  a100:
    cluster: hpc
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    slurm: {{ partition: gpu, gres: a100 }}
teams:
  speech: {{ guarantee: {{ a100: 8 }}, borrow: {{ a100: 4 }}, members: [bob] }}
  vision: {{ guarantee: {{ a100: 8 }}, borrow: {{ a100: 8 }}, members: [alice] }}
  ops:
    guarantee: {{ a100: 8 }}
    borrow: {{ a100: 16 }}
    limits: {{ user: {{ gpus: 6 }}, job: {{ time: 1h }} }}
    members: [carol]
  data: {{ guarantee: {{ a100: 8 }}, members: [alice, bob, carol] }}
  broke:
    borrow: {{ a100: 8 }}
    members: [carol]
    budget: {{ amount: 0.001, every: month, at_limit: stop }}
users:
  alice: {{ default_team: vision }}
  bob: {{ default_team: speech }}
  carol: {{ default_team: ops }}
"""
SECONDS = 40.0
"""A silent wait is explained within thirty seconds; the rest is for a busy machine."""
RAW = re.compile(
    "|".join(rf"\b{re.escape(r.shown)}\b" for r in ENGINE_REASONS["Slurm"] if " " not in r.shown)
)


@dataclass
class Site:
    """A governed Slurm, the server that governs it, and a client of an operator."""

    instance: Instance
    client: Client

    def sbatch(self, user: str, *words: str) -> str:
        """Submit a job as somebody who does not know Fairway."""
        command = ("sbatch", "--parsable", "--output=/dev/null", "--time=30", *words, "--wrap=sleep 600")
        return self.instance.run(*command, user=user).stdout.strip().splitlines()[-1].partition(";")[0]

    def run(self, user: str, *words: str) -> str:
        """Submit one that starts, and wait until it runs."""
        number = self.sbatch(user, *words)
        until(lambda: self.slurm_state(number) == "RUNNING", 60, f"the start of {number}")
        until(lambda: self.runs(number), 60, f"{number} in the mirror")
        return number

    def runs(self, number: str) -> bool:
        job = self.job(number)
        return job is not None and job.state == "running"

    def slurm_state(self, number: str) -> str:
        return self.instance.run("squeue", "-h", "-j", number, "-o", "%T", check=False).stdout.strip()

    def job(self, number: str) -> Job | None:
        return next((j for j in self.client.jobs(most=200) if j.engine_id == number), None)

    def submit(self, name: str, *, hold: bool = False, after: Sequence[str] = ()) -> str:
        """Submit a job of alice's with Fairway; returns its id."""
        spec = job_spec(["sleep", "600"], name=name, gpus="A100-80GB", team="vision", after=after)
        (job,) = self.client.submit(spec, as_user="alice", hold=hold)
        return job.id

    def why(self, number: str, code: str) -> WhyReason:
        """Ask about a job of Slurm's until the answer is the expected one; fails with the last answer."""
        until(lambda: self.job(number) is not None, SECONDS, f"{number} in the mirror")
        job = self.job(number)
        assert job is not None
        return self.why_of(job.id, code)

    def why_of(self, job: str, code: str) -> WhyReason:
        """Ask about a job by Fairway's id."""
        deadline = Deadline(SECONDS)
        while True:
            found = self.client.why(job)
            if [r.code for r in found.reasons][:1] == [code]:  # tests/situations has the order of the rest
                return self.checked(found)
            assert not deadline.passed, f"expected {code}, got {found}"
            time.sleep(0.5)

    def checked(self, found: Why) -> WhyReason:
        reason = found.reasons[0]
        assert not RAW.fullmatch(reason.text) and reason.hint, found
        return reason

    def control(self, *words: str) -> None:
        self.instance.run("scontrol", *words)

    def clear(self) -> None:
        """Cancel everything, and wait until it is over for Slurm and for the mirror."""
        if sent := [job.id for job in self.client.jobs(states=["open"], native=False, most=50)]:
            self.client.cancel(sent)
        for user in ("alice", "bob", "carol"):
            self.instance.run("scancel", f"--user={user}", check=False)
        states = "PENDING,RUNNING,COMPLETING,CONFIGURING"
        until(lambda: not self.instance.run("squeue", "-h", "-t", states).stdout.strip(), 60, "all jobs' end")
        until(lambda: not list(self.client.jobs(states=["open"], most=50)), 60, "the mirror's end")


async def govern(instance: Instance, text: str) -> None:
    """Apply a fleet and install the rendered files, as an administrator does."""
    fleet = parse_fleet(text, "fleet.yaml")
    cluster = fleet.clusters[0]
    engine = SlurmEngine(cluster, fleet.pools)
    try:
        plan = await plan_cluster(engine, fleet, cluster.name)
        applied = await apply_plan(engine, plan, force=True)
        assert applied.refusal is None, applied.refusal
        found = await engine.find_policy()
    finally:
        await engine.close()
    files = render_slurm(fleet, cluster.name, found.engine_version, dict(found.settings))
    await asyncio.to_thread(
        configure,
        instance,
        slurm_lines(files),
        files["job_submit.lua"],
        conf_lines(files["slurmdbd.conf"]),
    )


@pytest.fixture(scope="module", params=["24.11", "26.05"])
def site(request: pytest.FixtureRequest) -> Iterator[Site]:
    instance = up("slurm", f"why-{request.param.replace('.', '-')}", "--version", request.param)
    try:
        with temporary_home() as home:
            yield from _served(instance, home)
    finally:
        instance.wipe()


def _served(instance: Instance, home: Home) -> Iterator[Site]:
    text = FLEET.format(**instance.facts())
    asyncio.run(govern(instance, text))
    fleet = home.folder / "fleet.yaml"
    fleet.write_text(text)
    server = home.start("-f", str(fleet), "--listen", "127.0.0.1:0")
    with Client(Target(server.url, home.token_file.read_text().strip())) as client:
        done = home.fairway("apply", "-f", str(fleet), "--yes", "--force")
        assert done.returncode == 0, done.stdout + done.stderr
        yield Site(instance, client)
    server.stop()


def test_limits_of_the_policy_are_known_as_ours(site: Site) -> None:
    """Rows 1, 2, 3 and 20: the ceiling, the user's limit, the ceiling behind a QOS list, the time limit."""
    site.run("bob", "-A", "speech", "--gres=gpu:a100:6", "-w", "gpu001")
    site.run("bob", "-A", "speech", "--gres=gpu:a100:4", "-w", "gpu002")
    at_ceiling = site.why(site.sbatch("bob", "-A", "speech", "--gres=gpu:a100:4"), "TeamAtCeiling")
    assert "speech already uses 10 of the 12 GPUs" in at_ceiling.text
    site.run("carol", "-A", "ops", "--gres=gpu:a100:6", "-w", "gpu003")
    user = site.why(site.sbatch("carol", "-A", "ops", "--gres=gpu:a100:1"), "UserLimit")
    assert "carol already uses 6 of the 6 GPUs" in user.text and "limits.user.gpus" in user.hint
    site.run("alice", "-A", "vision", "--gres=gpu:a100:8", "-w", "gpu004")
    site.run("alice", "-A", "vision", "--gres=gpu:a100:2", "-w", "gpu002")
    listed = site.why(site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:8"), "TeamAtCeiling")
    assert "vision already uses 10 of the 16 GPUs" in listed.text
    long = site.sbatch("carol", "-A", "ops", "--gres=gpu:a100:1", "--time=5:00:00")
    assert "limits.job.time" in site.why(long, "JobTimeLimit").hint
    site.clear()


def test_what_no_node_can_hold_never_starts(site: Site) -> None:
    """Rows 4, 5 and 19."""
    assert "16" in site.why(site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:16"), "NoNodeFits").text
    large = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", "--mem=900G")
    assert "900 GB of memory" in site.why(large, "NoNodeFits").text
    for name in ("gpu", "gpu-lent"):
        site.control("update", f"PartitionName={name}", "MaxTime=02:00:00")
    long = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", "--time=5:00:00")
    assert "allows 2 h at most" in site.why(long, "TimeAbovePartition").text
    for name in ("gpu", "gpu-lent"):
        site.control("update", f"PartitionName={name}", "MaxTime=UNLIMITED")
    site.clear()


def test_nodes_and_partitions_that_take_no_work(site: Site) -> None:
    """Rows 6, 16 and 17."""
    site.control("update", "NodeName=gpu001", "State=DRAIN", "Reason=broken fan")
    named = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", "-w", "gpu001")
    found = site.why(named, "NodesUnavailable")
    assert "gpu001" in found.text and "broken fan" in found.text
    site.control("update", "NodeName=gpu001", "State=RESUME")
    site.clear()
    for name in ("gpu", "gpu-lent"):
        site.control("update", f"PartitionName={name}", "State=DOWN")
    closed = site.why(site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1"), "PartitionClosed")
    assert "gpu" in closed.text
    for name in ("gpu", "gpu-lent"):
        site.control("update", f"PartitionName={name}", "State=UP")
    site.clear()
    times = ("StartTime=now", "Duration=60")
    site.control("create", "reservation", "ReservationName=demo", *times, "Users=bob", "Nodes=gpu001")
    reserved = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", "-w", "gpu001")
    site.why(reserved, "NodesUnavailable")
    site.control("delete", "ReservationName=demo")
    site.clear()


def test_room_and_turn(site: Site) -> None:
    """Rows 7, 8 and 9: none within a guarantee, none to borrow, and who is before."""
    for number, node in enumerate(("gpu001", "gpu002", "gpu003", "gpu004")):
        account = ("speech", "data", "ops", "data")[number]
        user = {"speech": "bob", "ops": "carol", "data": "alice"}[account]
        site.run(user, "-A", account, "--gres=gpu:a100:4", "-w", node)
    within = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:8")
    assert "at most 4 on one node" in site.why(within, "NotEnoughFree").text
    site.clear()
    for user, account in (("bob", "speech"), ("alice", "vision"), ("alice", "data"), ("carol", "ops")):
        gpus = 6 if account == "ops" else 8
        site.run(user, "-A", account, f"--gres=gpu:a100:{gpus}")
    first = site.sbatch("alice", "-A", "data", "--gres=gpu:a100:8", "--job-name=first")
    site.why(first, "NotEnoughFree")
    second = site.sbatch("bob", "-A", "data", "--gres=gpu:a100:8", "--nice=2000000000")
    turn = site.why(second, "NotItsTurn")
    known = site.job(first)
    assert known is not None and f"first ({known.id}) by alice" in turn.text
    site.clear()


def test_dependencies_holds_and_times(site: Site) -> None:
    """Rows 10 and 12 to 15."""
    before = site.run("alice", "-A", "vision", "--gres=gpu:a100:1", "--job-name=before")
    after = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", f"--dependency=afterok:{before}")
    known = site.job(before)
    assert known is not None
    assert f"before ({known.id}, running) by alice" in site.why(after, "AfterAnother").text
    site.instance.run("scancel", before)
    never = site.why(after, "DependencyNeverMet")
    assert known.id in never.text and "dependency=" in never.hint
    held = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", "--hold")
    assert "fairway release" in site.why(held, "Held").hint
    by_admin = site.sbatch("alice", "-A", "vision", "--gres=gpu:a100:1", "--begin=now+1hour")
    assert "UTC, in 59 min" in site.why(by_admin, "NotYetTime").text
    site.control("hold", by_admin)
    site.why(by_admin, "HeldByAdmin")
    site.clear()


def test_a_dependency_of_fairways_own(site: Site) -> None:
    """Row 11."""
    first = site.submit("first", hold=True)
    second = site.submit("second", after=[first])
    assert site.why_of(second, "AfterAnother").text == f"The job starts after first ({first}, on hold)."
    site.clear()


def test_a_cluster_that_is_away(site: Site) -> None:
    """Row 21."""
    site.instance.kill("slurmrestd")
    try:
        found = site.why_of(site.submit("sent-later"), "ClusterAway")
        assert "Cluster hpc is unreachable: " in found.text and "fairway get clusters" in found.hint
    finally:
        site.instance.start("slurmrestd")
    until(lambda: site.client.clusters()[0].reason is None, 60, "the cluster's return")
    site.clear()


def test_a_spent_budget(site: Site) -> None:
    """Row 18."""
    site.run("carol", "-A", "broke", "--gres=gpu:a100:4")
    waits = site.sbatch("carol", "-A", "broke", "--gres=gpu:a100:8")
    deadline = Deadline(90)
    job = None
    while job is None or "BudgetSpent" not in [r.code for r in site.client.why(job.id).reasons]:
        job = site.job(waits)
        assert not deadline.passed, job and site.client.why(job.id)
        time.sleep(0.5)
    site.clear()
