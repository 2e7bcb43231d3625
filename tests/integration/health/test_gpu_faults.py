"""A GPU falls off the bus under a job of a real engine: the job comes back elsewhere, the node closes.

The exporter of the lab serves the fault, real Prometheus has it, and a real server reads it. On Kubernetes
the nodes are KWOK's: what a pod does there is written into its status.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psycopg
import pytest
import yaml

from fairway.model.job import JobState
from lab import Instance, obtain
from lab.gpus import Exporter
from lab.kubernetes import kwok
from lab.kubernetes.api import Api
from tests.contract.job_line import JobLine, job_line
from tests.integration.policy.policy_lab import governed
from tests.scenarios.stages.kubernetes_orders import PRODUCT
from tests.waiting import Deadline, eventually, until

pytestmark = [pytest.mark.lab, pytest.mark.timeout(500)]
MANY, FAILING = 40, 30
"""Nodes of the cluster, and how many of them fail at once."""


@pytest.fixture(scope="module")
def gpus() -> Iterator[Instance]:
    instance = obtain("gpus", f"test-{os.getpid()}-health", None, {})
    try:
        instance.up()
        yield instance
    finally:
        instance.wipe()


def watched(gpus: Instance, text: str, change: Callable[[Any], None] = lambda _: None) -> str:
    """A fleet whose GPUs are watched, and whose nodes are closed, up to a tenth of a pool."""
    whole = yaml.safe_load(text)
    whole["clusters"]["lab"]["telemetry"] = {"prometheus": gpus.env()["PROMETHEUS_URL"]}
    whole["health"] = {"broken": {"do": "cordon", "max_share": "10%"}}
    change(whole)
    return yaml.safe_dump(whole, sort_keys=False)


def failures(url: str) -> int:
    """How many retries a job used up."""
    with psycopg.connect(url) as db:
        (count,) = db.execute("SELECT max(failures) FROM job").fetchone() or (None,)
        assert count is not None
        return int(count)


def closed(line: JobLine) -> set[str]:
    """The nodes that the engine has closed because Fairway told it to."""
    return {one.node for one in line.client("admin").cordons() if one.done}


def told(line: JobLine, word: str) -> str:
    return line.run("describe", "job", word).stdout


@pytest.mark.slurm
@pytest.mark.nightly("tests/unit/ledger/telemetry covers the retry, tests/contract/test_cordon.py the engine")
@pytest.mark.parametrize("engine", ["slurm-24", "slurm-26"])
async def test_xid_79_on_slurm(engine: str, gpus: Instance, database_url: str) -> None:
    exporter = Exporter(gpus.env()["EXPORTER_URL"])
    slurm = governed(engine).instance
    async with job_line(engine, database_url, partial(watched, gpus)) as line:
        program = 'if [ "$FAIRWAY_ATTEMPT" = 1 ]; then sleep 6; exit 1; fi; exit 0'
        word = line.submit(name="train", gpus=2, retries=1, script=f"#!/bin/bash\n{program}\n")
        job = await asyncio.to_thread(line.until, word, JobState.RUNNING)
        (node,) = job.attempts[0].nodes
        try:
            exporter.hold(str(job.engine_id), node, [0, 1])
            exporter.fault(node, 1, xid=79)
            ended = await asyncio.to_thread(line.until, word, JobState.DONE, within=150)
            assert len(ended.attempts) == 2
            assert ended.attempts[1].nodes != [node]
            assert failures(database_url) == 0
            shown = told(line, word)
            assert "fell off the bus (XID 79)" in shown
            assert "not the program's fault" in shown
            assert "uses up no retry" in shown

            # One of four nodes is more than a tenth, but one always may be closed.
            await eventually(lambda: closed(line) == {node}, 60, "the node is closed")
            assert "fairway: GPU 1 fell off the bus" in slurm.run("scontrol", "show", "node", node).stdout
            assert "fell off the bus" in line.run("get", "gpu-events").stdout

            line.run("uncordon", node, by="alice", code=1)
            line.run("uncordon", node, by="admin")
            await eventually(lambda: node not in closed(line), 60, "the node is open")
            await eventually(
                lambda: "fairway" not in slurm.run("scontrol", "show", "node", node).stdout, 30, "no reason"
            )
        finally:
            exporter.fault(node, 1, xid=0)
            exporter.forget()
            slurm.run("scontrol", "update", f"nodename={node}", "state=resume", check=False)


@pytest.mark.kubernetes
@pytest.mark.nightly(
    "tests/unit/policy/test_cordons.py covers the limit, tests/contract/test_cordon.py the engine"
)
async def test_xid_79_and_thirty_nodes_on_kubernetes(gpus: Instance, database_url: str) -> None:
    exporter = Exporter(gpus.env()["EXPORTER_URL"])
    instance = governed("kubernetes").instance
    api = Api.from_kubeconfig(Path(instance.facts()["kubeconfig"]))
    few = kwok.wanted_nodes(instance.options["nodes"], instance.options["gpus"])
    await asyncio.to_thread(kwok.keep_nodes, api, kwok.wanted_nodes(MANY, 8))
    names = [f"gpu-{number:04d}" for number in range(MANY)]
    exporter.configure(hpc_job=False, pods=True)
    exporter.nodes(*({"name": name, "gpus": 8} for name in names))

    def fake(whole: Any) -> None:
        whole["pools"]["work"]["kubernetes"]["node_labels"] = {"type": "kwok", PRODUCT: kwok.MODEL}

    def cordoned() -> set[str]:
        items = api.get("/api/v1/nodes")["items"]
        return {n["metadata"]["name"] for n in items if n["spec"].get("unschedulable")}

    try:
        async with job_line("kubernetes", database_url, partial(watched, gpus, change=fake)) as line:
            lasts = {kwok.RUN_FOR_ENV: "1h"}
            word = line.submit(name="train", gpus=2, retries=1, command=["train"], env=lasts)
            job = await asyncio.to_thread(line.until, word, JobState.RUNNING)
            (node,) = job.attempts[0].nodes
            (pod,) = pods(api, str(job.engine_name))
            exporter.hold(str(job.engine_id), node, [0, 1], namespace="research", pod=pod)
            await eventually(lambda: bool(exporter.truth().holds[0].samples > 3), 30, "it is scraped")
            exporter.fault(node, 1, xid=79)
            fail(api, pod)  # at once: the engine tells of the end before Prometheus has the event
            await asyncio.to_thread(_runs_again, line, word)
            assert line.job(word).attempts[-1].nodes != [node]
            assert failures(database_url) == 0
            assert "fell off the bus (XID 79)" in told(line, word)
            await eventually(lambda: cordoned() == {node}, 60, "the node is cordoned")

            failing = names[:FAILING]
            for one in failing:
                exporter.fault(one, 3, xid=79)
            most = MANY // 10
            await eventually(lambda: len(cordoned()) >= most, 90, "nodes are cordoned")
            await asyncio.sleep(35)  # two rounds of the loop: the limit holds
            assert len(cordoned()) == most
            assert node in cordoned()
            events = line.client("admin").gpu_events(most=200)
            assert len({event.node for event in events}) >= FAILING
            lifted = cordoned()
            for one in sorted(lifted):
                line.run("uncordon", one, by="admin")
            # What lasts does not close them again, but there is room for others now.
            await eventually(lambda: not cordoned() & lifted, 60, "they are open again")
            await eventually(lambda: len(cordoned()) == most, 60, "others are cordoned")
            assert not cordoned() & lifted
    finally:
        for one in cordoned():
            api.merge(f"/api/v1/nodes/{one}", {"spec": {"unschedulable": None}})
        await asyncio.to_thread(kwok.keep_nodes, api, few)


def _runs_again(line: JobLine, word: str) -> None:
    deadline = Deadline(150)
    while True:
        job = line.job(word)
        if len(job.attempts) == 2 and job.state is JobState.RUNNING:
            return
        assert not deadline.passed, job
        time.sleep(0.5)


def pods(api: Api, job: str) -> list[str]:
    items = api.get("/api/v1/namespaces/research/pods")["items"]
    return [p["metadata"]["name"] for p in items if p["metadata"]["labels"].get("job-name") == job]


def fail(api: Api, pod: str) -> None:
    """End a pod's container as a program does that exits with 1."""
    path = f"/api/v1/namespaces/research/pods/{pod}"
    until(lambda: "running" in api.get(path)["status"]["containerStatuses"][0]["state"], 30, "it runs")
    (status,) = api.get(path)["status"]["containerStatuses"]
    now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    began = status["state"]["running"]["startedAt"]
    ended = {"exitCode": 1, "reason": "Error", "startedAt": began, "finishedAt": now}
    status |= {"ready": False, "state": {"terminated": ended}}
    api.merge(f"{path}/status", {"status": {"phase": "Failed", "containerStatuses": [status]}})
