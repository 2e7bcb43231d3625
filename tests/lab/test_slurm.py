"""Real Slurm in the lab: up, used, killed, healed, down."""

from __future__ import annotations

import json
import os
import re
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from lab import Instance, find, mounts, obtain
from lab.slurm.site import Site, site_names
from lab.waiting import wait_until
from tests.lab.driving import (
    LOOPBACK,
    addresses_of,
    assert_nothing_is_left,
    lab,
    launch,
    ports,
    processes_about,
    status,
    up,
)
from tests.tier import sized
from tests.waiting import Deadline

pytestmark = [pytest.mark.lab, pytest.mark.timeout(300)]

DAEMONS = ("slurmctld", "slurmdbd", "slurmrestd", "mariadbd", "munged", "gpu002", "mig001")


# Both versions differ by their packages only; integration tests and scenarios use both in every run of CI.
@pytest.fixture(scope="module", params=sized(ci=["26.05"], nightly=["24.11", "26.05"]))
def slurm(request: pytest.FixtureRequest) -> Iterator[Instance]:
    version: str = request.param
    instance = up("slurm", f"slurm-{version.replace('.', '')}", "--version", version, "--nodes", "2")
    yield instance
    instance.wipe()
    assert_nothing_is_left(instance)


def submit(slurm: Instance, script: str, *options: str, user: str = "alice") -> str:
    return slurm.run("sbatch", "--parsable", *options, f"--wrap={script}", user=user).stdout.strip()


def ended(slurm: Instance, job: str, seconds: float = 60) -> str:
    """How a job ended, by the accounting database."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        state = slurm.run("sacct", "-nXP", "-j", job, "-o", "state").stdout.strip()
        if state not in ("", "PENDING", "RUNNING", "COMPLETING"):
            return state
        time.sleep(0.3)
    raise AssertionError(f"job {job} has not ended: {slurm.run('scontrol', 'show', 'job', job).stdout}")


def rest(slurm: Instance, path: str) -> Any:
    facts = slurm.facts(secrets=True)
    headers = {"X-SLURM-USER-NAME": facts["user"], "X-SLURM-USER-TOKEN": facts["token"]}
    request = urllib.request.Request(f"{facts['url']}/slurm/v0.0.42/{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=30) as answer:
        return json.load(answer)


def test_it_is_the_version_that_was_asked_for(slurm: Instance) -> None:
    assert f" {slurm.version}." in slurm.run("sinfo", "--version").stdout


def test_jobs_run_on_gpus_as_their_user(slurm: Instance) -> None:
    job = submit(slurm, "id -un; echo $CUDA_VISIBLE_DEVICES", "--gres=gpu:a100:2", "--output=%j.out")
    assert ended(slurm, job) == "COMPLETED"
    assert slurm.run("cat", f"{job}.out", user="alice").stdout.split() == ["alice", "0,1"]
    slice_job = submit(slurm, "true", "--partition=mig", "--gres=gpu:1g.10gb:1", user="bob")
    assert ended(slurm, slice_job) == "COMPLETED"


def test_rest_shows_fairway_every_node_and_everyones_jobs(slurm: Instance) -> None:
    job = submit(slurm, "sleep 30", "--gres=gpu:a100:1", user="carol")
    nodes = {node["name"]: node for node in rest(slurm, "nodes/")["nodes"]}
    assert set(nodes) == {"gpu001", "gpu002", "mig001"}
    assert nodes["gpu001"]["gres"].startswith("gpu:a100:8")
    assert [str(seen["job_id"]) for seen in rest(slurm, f"job/{job}")["jobs"]] == [job]
    slurm.run("scancel", job)


def test_fairway_may_change_policy(slurm: Instance) -> None:
    slurm.run("sacctmgr", "-i", "add", "account", "research", user="fairway")
    said = slurm.run("sacctmgr", "-i", "add", "account", "product", user="alice", check=False)
    assert said.returncode != 0


def put(script: Path, text: str) -> None:
    """Slurm reads the script anew when its time has changed, by whole seconds."""
    changed = script.stat().st_mtime + 2
    script.write_text(text)
    os.utime(script, (changed, changed))


def test_a_lua_script_judges_every_job(slurm: Instance) -> None:
    script = slurm.folder / "root/etc/slurm/job_submit.lua"
    before = script.read_text()
    refuse = (
        'function slurm_job_submit(job) slurm.log_user("the lab says no") return slurm.ERROR end\n'
        "function slurm_job_modify() return slurm.SUCCESS end\n"
    )
    put(script, refuse)
    try:
        said = slurm.run("sbatch", "--wrap=true", user="alice", check=False)
    finally:
        put(script, before)
    assert said.returncode != 0
    assert "the lab says no" in said.stderr
    assert ended(slurm, submit(slurm, "true")) == "COMPLETED"


def test_everything_listens_on_loopback_and_its_own_ports(slurm: Instance) -> None:
    held = addresses_of(slurm)
    assert set(held.values()) == {LOOPBACK}
    assert set(held) <= ports(slurm)
    assert len(held) == 3 + 3  # slurmctld, slurmdbd, slurmrestd; three slurmd


def test_what_a_running_step_opens_is_on_loopback_too(slurm: Instance) -> None:
    daemons = addresses_of(slurm)
    job = submit(slurm, "srun sleep 30", "--nodes=2", "--ntasks-per-node=1")
    deadline = Deadline(30)
    while not (more := addresses_of(slurm).keys() - daemons.keys()):
        assert not deadline.passed, "srun opened nothing"
        time.sleep(0.2)
    assert {addresses_of(slurm).get(port, LOOPBACK) for port in more} == {LOOPBACK}
    slurm.run("scancel", job)
    assert ended(slurm, job).startswith("CANCELLED")


def _runs(instance: str, program: str) -> bool:
    found = find(instance)
    return found is not None and any(program in line for line in processes_about(str(found.folder)))


@pytest.mark.timeout(900)
def test_up_that_is_killed_midway_is_finished_by_the_next() -> None:
    # The installer lives on for a while, and so does the server that it starts.
    for daemon in ("mariadb-install-db", "mariadbd", "slurmdbd", "slurmctld"):
        started = launch("up", "slurm", "--name", "midway", "--nodes", "1")
        wait_until(partial(_runs, "midway", daemon), 180, f"{daemon} did not start")
        started.kill()
        started.communicate()
    instance = up("slurm", "midway")
    try:
        assert status("midway")["state"] == "up"
        assert ended(instance, submit(instance, "true")) == "COMPLETED"
    finally:
        lab("wipe", "midway")
    assert_nothing_is_left(instance)


def test_a_kernel_without_overlay_gets_a_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    real = mounts.mount

    def no_overlay(*arguments: str | Path) -> bool:
        return "overlay" not in arguments and real(*arguments)

    monkeypatch.setattr(mounts, "mount", no_overlay)
    instance = obtain("slurm", "copied", "26.05", {"nodes": 1})
    try:
        instance.up()
        assert (instance.folder / "root/.copied").exists()
        assert ended(instance, submit(instance, "true")) == "COMPLETED"
        instance.down()
        assert_nothing_is_left(instance)
        assert not (instance.folder / "root/proc/self").exists()
    finally:
        instance.wipe()
    assert not instance.folder.exists()


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_killed_daemon_is_healed_by_up(slurm: Instance, daemon: str) -> None:
    lab("kill", slurm.name, daemon)
    assert (status(slurm.name)["state"], status(slurm.name)["dead"]) == ("degraded", [daemon])
    others = {name: slurm.daemon(name) for name in slurm.alive}

    up("slurm", slurm.name)

    assert status(slurm.name)["state"] == "up"
    assert {name: slurm.daemon(name) for name in others} == others  # only the dead one is new
    where = ["--partition=mig"] if daemon == "mig001" else ["--nodelist=gpu002"]
    assert ended(slurm, submit(slurm, "true", *where)) == "COMPLETED"


def test_a_daemon_may_be_restarted_alone(slurm: Instance) -> None:
    before = slurm.daemon("gpu001")
    lab("restart", slurm.name, "gpu001")
    after = slurm.daemon("gpu001")
    assert after is not None
    assert after != before
    assert "gpu001" in lab("kill", slurm.name, "gpu9", fails=True)  # the hint names those there are


def test_after_a_restart_the_accounting_knows_where_slurmctld_listens(slurm: Instance) -> None:
    """Without that address every change of an association that slurmctld must hear of fails."""
    for daemon in ("slurmctld", "slurmdbd", "slurmctld"):
        lab("restart", slurm.name, daemon)
        known = slurm.run("sacctmgr", "-nP", "show", "cluster", "format=controlhost,controlport").stdout
        assert known.strip() == f"127.0.0.1|{slurm.port('control')}"
        slurm.run("sacctmgr", "-i", "modify", "user", "alice", "where", "account=lab", "set", "rawusage=0")


def test_down_ends_a_running_job_too_and_up_remembers(slurm: Instance) -> None:
    done = submit(slurm, "true")
    assert ended(slurm, done) == "COMPLETED"
    running = submit(slurm, "trap '' TERM; while :; do sleep 1; done")
    deadline = Deadline(30)
    while "RUNNING" not in slurm.run("squeue", "-h", "-j", running, "-o", "%T").stdout:
        assert not deadline.passed
        time.sleep(0.2)

    lab("down", slurm.name)

    assert_nothing_is_left(slurm)
    assert status(slurm.name)["state"] == "down"
    assert "is down" in lab("run", slurm.name, "sinfo", fails=True)
    before = ports(slurm)
    again = up("slurm", slurm.name)
    assert ports(again) == before
    assert ended(again, done) == "COMPLETED"


def test_two_of_one_version_live_side_by_side(slurm: Instance) -> None:
    other = up("slurm", f"{slurm.name}-too", "--version", slurm.version, "--nodes", "1")
    try:
        assert not ports(slurm) & ports(other)
        job = submit(other, "sleep 60", "--job-name=only-here")
        assert "only-here" not in slurm.run("squeue", "-h", "-o", "%j").stdout
        assert "only-here" in other.run("squeue", "-h", "-o", "%j").stdout
        other.run("scancel", job)
    finally:
        lab("wipe", other.name)
    assert_nothing_is_left(other)
    assert not other.folder.exists()
    assert ended(slurm, submit(slurm, "true")) == "COMPLETED"


@pytest.mark.nightly("a thousand slurmd take minutes; CI runs the same with a few")
def test_a_thousand_nodes() -> None:
    big = up("slurm", "big", "--nodes", "1000")
    try:
        assert big.run("sinfo", "-h", "-p", "gpu", "-o", "%D %t").stdout.split() == ["1000", "idle"]
        gpus = sum(node["gres"].startswith("gpu:a100:8") * 8 for node in rest(big, "nodes/")["nodes"])
        assert gpus == 8000
        assert ended(big, submit(big, "true", "--nodes=20", "--gres=gpu:8")) == "COMPLETED"
    finally:
        lab("wipe", "big")
    assert_nothing_is_left(big)


@pytest.mark.parametrize("site", sized(ci=["mixed"], nightly=site_names()))
def test_a_cluster_as_a_site_has_it(site: str) -> None:
    """Up with its own partitions, accounts and groups; a job runs; a second `up` changes nothing."""
    instance = up("slurm", f"site-{site}", "--site", site)
    try:
        assert not [line for line in lab("up", "slurm", "--name", instance.name).splitlines() if "✗" in line]
        partitions = instance.run("sinfo", "--noheader", "--format=%R").stdout.split()
        assert set(partitions) == set(
            re.findall(r"PartitionName=(?!DEFAULT)(\S+)", Site(site).text("slurm.conf"))
        )
        job = submit(instance, "hostname", "--time=1", "--ntasks=1")
        wait_until(
            lambda: "COMPLETED" in instance.run("scontrol", "show", "job", job).stdout,
            60,
            "the job does not end",
        )
        if site == "mixed":
            denied = instance.run("sbatch", "-p", "gpu", "--wrap=true", "-t", "1", user="carol", check=False)
            assert "group not permitted" in denied.stderr
            assert submit(instance, "true", "-p", "gpu", "--gres=gpu:1", "-t", "1")
            taken = f"{instance.name} exists already"
            assert taken in lab("up", "slurm", "--name", instance.name, "--site", "zoo", fails=True)
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)
