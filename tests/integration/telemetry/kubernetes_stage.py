"""Fixtures of tests on the lab's Kubernetes: a cluster under Fairway's policy, left as it was found."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest

from tests.integration.jobs.kubernetes_jobs import Stage
from tests.integration.policy.policy_lab import governed


@pytest.fixture(scope="module", autouse=True)
def afterwards() -> Iterator[None]:
    """The next module finds the cluster as this one did."""
    yield
    asyncio.run(governed("kubernetes").clear())


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    own = Stage.of(governed("kubernetes").instance)
    await own.apply()
    yield own
    await own.engine.close()
    own.clear()
