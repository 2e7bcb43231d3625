"""Fixtures of tests on the lab's Kubernetes: a cluster under Fairway's policy, left as it was found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from lab import find
from tests.contract.driver import absent
from tests.integration.jobs.kubernetes_jobs import Stage
from tests.integration.policy.policy_lab import governed
from tests.scenarios.conftest import instance_of


@pytest.fixture(scope="module", autouse=True)
def afterwards() -> Iterator[None]:
    """The next module finds the cluster as this one did."""
    yield
    asyncio.run(governed("kubernetes").clear())


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    instance = find(instance_of("kubernetes"))
    if instance is None or instance.state == "down":
        absent("kubernetes", "make lab-up")
    own = Stage.of(instance)
    await own.apply()
    yield own
    await own.engine.close()
    own.clear()
