"""After leaving a site, its engine shows what it showed before Fairway, apart from times and ids."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairway.model.fleet import Fleet
from fairway.policy.objects import ObjectKey
from lab.kubernetes import site as kubernetes_site
from lab.slurm.site import Site, site_names
from tests.lab.driving import assert_nothing_is_left, up
from tests.lab.kubernetes_jobs import a_job
from tests.unharmed.leave_site import imported_site
from tests.unharmed.slurm_site import install, uninstall
from tests.waiting import until

if TYPE_CHECKING:
    from lab.instance import Instance

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(600),
    pytest.mark.nightly("a cluster for each site; unit tests have each rule of leaving in CI"),
]

ASSOCIATIONS = (
    "format=cluster,account,user,partition,parentname,fairshare,qos,defaultqos,grptres,grpjobs,grpsubmit,"
    "grpwall,grptresmins,grptresrunmins,maxjobs,maxsubmit,maxwall,maxtresperjob,maxtrespernode,maxtresmins,priority"
)
KUBERNETES_KINDS = (
    "namespaces",
    "topologies.kueue.x-k8s.io",
    "resourceflavors.kueue.x-k8s.io",
    "cohorts.kueue.x-k8s.io",
    "clusterqueues.kueue.x-k8s.io",
    "localqueues.kueue.x-k8s.io",
    "workloadpriorityclasses.kueue.x-k8s.io",
    "resourcequotas",
    "limitranges",
    "roles",
    "rolebindings",
    "validatingadmissionpolicies",
    "validatingadmissionpolicybindings",
    "mutatingadmissionpolicies",
    "mutatingadmissionpolicybindings",
    "deployments",
    "statefulsets",
    "jobs",
)
TIMES_AND_IDS = ("uid", "resourceVersion", "managedFields", "creationTimestamp", "generation")


def slurm_dump(instance: Instance) -> list[str]:
    """All that Slurm shows of its accounting and its partitions."""
    commands = (
        ("sacctmgr", "-nP", "show", "assoc", "wopi", "wopl", ASSOCIATIONS),
        ("sacctmgr", "-nP", "show", "assoc", ASSOCIATIONS),
        ("sacctmgr", "-nP", "show", "qos"),
        ("sacctmgr", "-nP", "show", "account", "withcoord"),
        ("sacctmgr", "-nP", "show", "user", "withcoord"),
        ("bash", "-c", "sacctmgr dump fairway file=/tmp/dump.cfg > /dev/null && grep -v '^#' /tmp/dump.cfg"),
        ("scontrol", "show", "partitions"),
        ("bash", "-c", "scontrol show config | grep -vE 'as of|BOOT_TIME|NEXT_JOB_ID|HASH_VAL'"),
    )
    return [line for command in commands for line in instance.run(*command).stdout.splitlines()]


def kubernetes_dump(instance: Instance) -> list[str]:
    """Every object of the kinds that Fairway may touch, as YAML people would compare."""
    lines: list[str] = []
    for kind in KUBERNETES_KINDS:
        shown = instance.run("kubectl", "get", kind, "-A", "-o", "json", check=False)
        if "have a resource type" in shown.stderr:
            continue  # a cluster without Kueue
        listed: dict[str, Any] = json.loads(shown.stdout)
        for item in listed["items"]:
            item.pop("status", None)
            item["metadata"] = {k: v for k, v in item["metadata"].items() if k not in TIMES_AND_IDS}
            lines.append(json.dumps(item, sort_keys=True))
    return lines


def differences(before: list[str], after: list[str]) -> list[str]:
    gone = [f"- {line}" for line in before if line not in after]
    return [*gone, *(f"+ {line}" for line in after if line not in before)]


def changed(fleet: Fleet) -> Fleet:
    """The fleet with another share for the first team, and nobody in the last one."""
    first, *others = fleet.teams
    teams = (replace(first, share=first.share + 1), *others)
    if others:
        teams = (*teams[:-1], replace(teams[-1], members=()))
    return replace(fleet, teams=teams)


def is_bare_namespace(line: str) -> bool:
    """Whether a difference is a namespace that Fairway created, which keeps nothing of Fairway's."""
    item: dict[str, Any] = json.loads(line[2:])
    own = {"kubernetes.io/metadata.name": item["metadata"]["name"]}
    return line.startswith("+") and item["kind"] == "Namespace" and item["metadata"].get("labels") == own


@asynccontextmanager
async def site_up(kind: str, name: str, *words: str) -> AsyncIterator[Instance]:
    instance = up(kind, f"leave-{name}", "--site", name, *words)
    try:
        yield instance
    finally:
        instance.wipe()
    assert_nothing_is_left(instance)


@pytest.mark.parametrize("version", ["24.11", "26.05"])
@pytest.mark.parametrize("name", [name for name in site_names() if Site(name).has_accounting])
async def test_leaving_a_slurm_site_leaves_nothing_behind(name: str, version: str) -> None:
    async with site_up("slurm", name, "--version", version) as instance:
        before = slurm_dump(instance)
        async with imported_site(instance) as governed:
            await governed.govern()
            await install(instance, governed)
            await governed.govern(changed(governed.fleet))
            await install(instance, governed)
            refused = await governed.plan_leave()
            assert [o.code for o in refused.objections] == ["FilesInstalled"]
            assert differences(before, slurm_dump(instance)) != []
            uninstall(instance)
            await governed.leave()
            assert differences(before, slurm_dump(instance)) == []
            assert (await governed.leave()).changes == ()


async def test_leaving_ends_no_job_of_slurm_and_keeps_what_waits_in_the_queue() -> None:
    async with site_up("slurm", "campus") as instance:
        before = slurm_dump(instance)
        async with imported_site(instance) as governed:
            await governed.govern()
            await install(instance, governed)
            running = submitted(instance, "--wrap=sleep 600")
            waiting = submitted(instance, "--begin=now+1hour", "--wrap=true")
            until(lambda: state_of(instance, running)["JobState"] == "RUNNING", 60)
            qos = state_of(instance, running)["QOS"]
            assert "fairway" in state_of(instance, waiting)["QOS"]

            uninstall(instance, twins=True)
            plan = await governed.leave()
            assert ObjectKey("qos", qos) in (plan.staying or {})
            assert state_of(instance, running)["JobState"] == "RUNNING"
            moved = state_of(instance, waiting)
            assert moved["JobState"] == "PENDING"
            assert moved["Reason"] in ("BeginTime", "None")
            assert moved["QOS"] in ("normal", "debug", "long")
            assert "-lent" not in moved["Partition"]
            instance.run("scontrol", "update", f"jobid={waiting}", "starttime=now")
            until(lambda: state_of(instance, waiting)["JobState"] == "COMPLETED", 60)

            instance.run("scancel", running)
            until(lambda: state_of(instance, running)["JobState"] != "RUNNING", 60)
            uninstall(instance)
            await governed.leave()
            assert differences(before, slurm_dump(instance)) == []


def submitted(instance: Instance, *options: str) -> str:
    """The number of a GPU job that alice submits to her partition, as she always did."""
    common = ("--parsable", "--output=/dev/null", "--account=physics", "--partition=short", "--time=30")
    return instance.run("sbatch", *common, "--gres=gpu:1", *options, user="alice").stdout.strip()


def state_of(instance: Instance, job: str) -> dict[str, str]:
    shown = instance.run("scontrol", "--oneliner", "show", "job", job).stdout
    return dict(word.split("=", 1) for word in shown.split() if "=" in word)


# Without Kueue nothing can be applied, and so nothing left.
@pytest.mark.parametrize("name", [name for name in kubernetes_site.site_names() if name != "plain"])
async def test_leaving_a_kubernetes_site_leaves_nothing_behind(name: str) -> None:
    async with site_up("kubernetes", name) as instance:
        before = kubernetes_dump(instance)
        async with imported_site(instance) as governed:
            await governed.govern()
            await governed.govern(changed(governed.fleet))
            assert differences(before, kubernetes_dump(instance)) != []
            plan = await governed.leave()
            may_stay = any(n.code == "NamespacesStay" for n in plan.notices)

            def left() -> list[str]:
                found = differences(before, kubernetes_dump(instance))
                return [line for line in found if not (may_stay and is_bare_namespace(line))]

            until(lambda: not left(), 60, "what Fairway created is gone")  # Kueue's finalizers take a moment
            assert (await governed.leave()).changes == ()


async def test_leaving_ends_no_job_of_kubernetes_and_keeps_what_waits_in_the_queue() -> None:
    async with site_up("kubernetes", "queues") as instance:
        before = kubernetes_dump(instance)
        async with imported_site(instance) as governed:
            job = a_job("waits", 8, "600s", "main")  # the site's own jobs hold what nlp may have
            job["metadata"]["namespace"] = "nlp"
            instance.run("kubectl", "create", "-f", "-", stdin=json.dumps(job))
            running = running_pods(instance)
            assert running != set()
            await governed.govern()
            await governed.leave()
            assert running_pods(instance) == running
            assert "job-waits-" in instance.run("kubectl", "get", "workloads", "-n", "nlp").stdout
            await governed.leave()
            instance.run("kubectl", "delete", "job", "-n", "nlp", "waits")
            until(lambda: differences(before, kubernetes_dump(instance)) == [], 60, "the site is as it was")


def running_pods(instance: Instance) -> set[str]:
    """The uids of all running pods outside Kueue's own namespace."""
    pods = json.loads(instance.run("kubectl", "get", "pods", "-A", "-o", "json").stdout)["items"]
    own = [pod for pod in pods if pod["metadata"]["namespace"] != "kueue-system"]
    return {pod["metadata"]["uid"] for pod in own if pod["status"].get("phase") == "Running"}
