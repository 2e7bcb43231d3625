"""Jobs and pods of a real Kubernetes, and hours of GPU use in each shape: `why` has the diagnosis of each.

A pod that no Job created is a service: it may wait, as those of the inference trace do most of the time.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator, Sequence
from itertools import islice

import pytest

from fairway.ledger import Ledger
from fairway.model.job import EngineId, JobId
from lab import Instance
from lab.gpus.dcgm import Options
from lab.gpus.shapes import Point
from lab.kubernetes import Api, kwok
from tests.integration.jobs.kubernetes_jobs import Stage, create, member, native
from tests.integration.telemetry.kubernetes_stage import afterwards, stage
from tests.integration.telemetry.shapes import CODES, GPUS, diagnosed, holdings, prometheus, serve, started
from tests.unit.advise.test_matrix import GENTD26, pods

__all__ = ["afterwards", "prometheus", "stage"]
pytestmark = [pytest.mark.kubernetes, pytest.mark.lab, pytest.mark.timeout(300)]

WHOLE_NODE = 8
"""Waits for storage are measured by node: the job that waits has one for itself."""


@pytest.fixture
def exempt(stage: Stage) -> Iterator[str]:
    """A namespace in which Fairway lets pods run that no Job made."""
    api, name = stage.cluster.api, f"exempt-{time.time_ns()}"
    meta = {"name": name, "labels": {"fairway.dev/exempt": "true"}}
    api.text("POST", "/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": meta})
    yield name
    api.delete(f"/api/v1/namespaces/{name}")


def serving(api: Api, namespace: str, name: str) -> EngineId:
    spec = native(name)["spec"]["template"]["spec"]
    pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    made = json.loads(api.text("POST", f"/api/v1/namespaces/{namespace}/pods", pod))
    return EngineId(f"{namespace}/pod/{name}/{made['metadata']['uid'][:8]}")


def training(api: Api, name: str, gpus: int) -> EngineId:
    job = native(name, gpus)
    job["spec"]["template"]["metadata"] = {"annotations": {kwok.RUN_FOR: "3600s"}}
    return create(api, "ml", job)


def quiet_pods(count: int) -> list[Sequence[Point]]:
    """The pods of the inference trace that did least, three hours of each; none if the trace is not here."""
    if not GENTD26.exists():
        return []
    series = sorted(pods(), key=lambda samples: sum(duty for duty, _ in samples))
    return [
        [(57.0 * n, 100 * duty, mib) for n, (duty, mib) in enumerate(samples[:190])]
        for samples in islice(series, count)
    ]


async def test_each_shape_has_its_diagnosis_and_services_have_none(
    stage: Stage, exempt: str, prometheus: Instance, ledger: Ledger, database_url: str
) -> None:
    alice, unique = member(stage, "alice"), time.time_ns()
    sent: dict[str, str] = {}
    for shape in CODES:
        gpus = WHOLE_NODE if shape == "io" else GPUS.get(shape, 1)
        sent[await asyncio.to_thread(training, alice, f"{shape}-{unique}", gpus)] = shape
    await started(ledger, stage.engine, stage.fleet, sent)  # what Kueue promised them, pods could take
    api, traced = stage.cluster.api, quiet_pods(3)
    sent[await asyncio.to_thread(serving, api, exempt, "idle")] = "idle service"
    for number in range(len(traced)):
        sent[await asyncio.to_thread(serving, api, exempt, f"replay-{number}")] = f"replay {number}"
    names, since = await started(ledger, stage.engine, stage.fleet, sent)
    shapes: dict[JobId, str] = {job: name.split()[0] for job, name in names.items()}
    points = {job: traced[int(name.split()[1])] for job, name in names.items() if name.startswith("replay")}
    jobs = list(names)
    options = Options(interval=60.0, hpc_job=False, pods=True)
    serve(prometheus, shapes, holdings(database_url, jobs), since, options, points)
    said = await diagnosed(prometheus, ledger, database_url, stage.fleet, jobs, since)
    codes = {names[job]: why.diagnosis.code if why.diagnosis else None for job, why in said.items()}
    services = {name: None for name in names.values() if " " in name}
    assert codes == {**CODES, **services}
    assert len(services) == 1 + len(traced)
