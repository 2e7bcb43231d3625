"""Gives each situation the desk of its engine: one server and one policy for all of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from typing import Any, Final

import pytest
import pytest_asyncio
import yaml

from fairway.engines.slurm import SlurmEngine
from fairway.engines.slurm.policy.render import render_slurm
from fairway.files import parse_fleet
from lab.kubernetes import kwok
from lab.slurm import configure
from tests.contract.job_line import JobLine, job_line
from tests.integration.policy.policy_lab import governed
from tests.situations.desk import FLEET, Desk
from tests.situations.kueue import KubernetesDesk, KubernetesTools
from tests.situations.situation import ENGINES, SLURM, family
from tests.situations.slurm import SlurmDesk, SlurmTools
from tests.slurm_conf import conf_lines, slurm_lines

SLURM_POOLS: Final = """
gpu:
  cluster: lab
  gpu: A100-80GB
  capacity: owned
  price: 1.90
  slurm: {{ partition: gpu, gres: a100 }}
side:
  cluster: lab
  gpu: A100-80GB
  capacity: owned
  price: 2.40
  slurm: {{ partition: spot, gres: a100 }}
"""
KUBERNETES_POOLS: Final = """
gpu:
  cluster: lab
  gpu: A100-80GB
  capacity: owned
  price: 1.90
  topology: [topology.fairway/block, topology.fairway/rack]
  kubernetes: {{ node_labels: {{ nvidia.com/gpu.product: {model}, type: kwok }} }}
side:
  cluster: lab
  gpu: A100-80GB
  capacity: owned
  price: 2.40
  kubernetes: {{ node_labels: {{ type: real }} }}
"""


def with_teams(engine: str, text: str) -> str:
    """Give the fleet of a line the pools and teams of this module."""
    whole: dict[str, Any] = yaml.safe_load(text)
    pools = SLURM_POOLS if family(engine) == SLURM else KUBERNETES_POOLS
    whole["pools"] = yaml.safe_load(pools.format(model=kwok.MODEL))
    return yaml.safe_dump({**whole, **yaml.safe_load(FLEET)}, sort_keys=False)


def _desk(engine: str, line: JobLine) -> Desk:
    instance = governed(engine).instance
    if family(engine) == SLURM:
        return SlurmDesk(line, SlurmTools(instance, partial(_install, engine, line)))
    return KubernetesDesk(line, KubernetesTools(instance))


def _install(engine: str, line: JobLine) -> None:
    """Install the files of the fleet in force, as an administrator does."""
    import asyncio

    instance = governed(engine).instance
    fleet = parse_fleet(line.client("admin").fleet_file().text, "fleet.yaml")

    async def render() -> dict[str, str]:
        own = SlurmEngine(fleet.clusters[0], fleet.pools)
        try:
            found = await own.find_policy()
        finally:
            await own.close()
        return dict(render_slurm(fleet, fleet.clusters[0].name, found=found.settings))

    files = asyncio.run(render())
    configure(instance, slurm_lines(files), files["job_submit.lua"], conf_lines(files["slurmdbd.conf"]))


@pytest_asyncio.fixture(
    scope="session",
    loop_scope="session",
    params=[pytest.param(name, marks=getattr(pytest.mark, family(name))) for name in ENGINES],
)
async def desk(
    request: pytest.FixtureRequest, make_database: Callable[[str | None], str], migrated_url: str
) -> AsyncIterator[Desk]:
    """The desk of one engine."""
    engine: str = request.param
    database = make_database(migrated_url)
    async with job_line(engine, database, partial(with_teams, engine)) as line:
        yield _desk(engine, line)
