"""Each shape of GPU use gets its diagnosis through a real Prometheus, and a healthy job gets none."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime

import psycopg
import pytest

from fairway.cli.output.jobs import why_lines
from fairway.ledger import Ledger
from fairway.model.job import JobId
from lab import Instance
from lab.gpus.dcgm import Options
from tests.integration.telemetry.shapes import CODES, GPUS, diagnosed, holdings, prometheus, serve
from tests.metered import CLUSTER, Hand
from tests.unit.services.test_gpu_use import FLEET

__all__ = ["prometheus"]
pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]

SINCE = int(datetime(2027, 1, 5, 8, tzinfo=UTC).timestamp())


def run(db: psycopg.Connection[object], number: int, shape: str, holder: str, *, indices: bool) -> JobId:
    hand = Hand(db)
    gpus = GPUS.get(shape, 1)
    job = hand.job(hand.class_())
    db.execute(
        "UPDATE job SET gpus = %s, devices = %s, name = %s, started_at = to_timestamp(%s) WHERE id = %s",
        (gpus, gpus, shape, SINCE, job),
    )
    hand.attempt(job, 1, SINCE, devices=gpus)
    db.execute(
        "INSERT INTO attempt_gpu (job, attempt, node, cluster, holders, gpus) VALUES (%s, 1, %s, %s, %s, %s)",
        (job, f"n{number}", CLUSTER, [holder], list(range(gpus)) if indices else []),
    )
    return JobId(job)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(
            Options(cgroups="jobstats"),
            id="hpc_job, jobid",
            marks=pytest.mark.nightly("CI has the form of cgroup_info on real Slurm"),
        ),
        pytest.param(Options(dcgm="4.6", hpc_job=False), id="indices"),
        pytest.param(
            Options(hpc_job=False, pods=True),
            id="pods",
            marks=pytest.mark.nightly("CI has pods on real Kubernetes"),
        ),
    ],
)
async def test_each_shape_has_its_diagnosis(
    prometheus: Instance, ledger: Ledger, database_url: str, options: Options
) -> None:
    with psycopg.connect(database_url, autocommit=True) as db:
        shapes = {
            run(
                db,
                n,
                shape,
                f"ml/{shape}-0-abcde" if options.pods else str(100 + n),
                indices=not options.pods,
            ): shape
            for n, shape in enumerate(CODES)
        }
    jobs = list(shapes)
    serve(prometheus, shapes, holdings(database_url, jobs), SINCE, replace(options, interval=60.0))
    said = await diagnosed(prometheus, ledger, database_url, FLEET, jobs, SINCE)
    codes = {shapes[job]: why.diagnosis.code if why.diagnosis else None for job, why in said.items()}
    assert codes == CODES
    for why in said.values():
        if why.diagnosis is not None:
            assert why.diagnosis.code in "\n".join(line.text for line in why_lines(why, 100))
