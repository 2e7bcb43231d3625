"""Generated fleets on real engines: planned, applied, planned again to nothing; then changed, and the same.

Each follows the last one on the same cluster, so that every apply starts from what another fleet left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import TYPE_CHECKING, Final

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from fairway.engines.virtual import VirtualEngine
from fairway.model.fleet import Capacity, Cluster, EngineKind, KubernetesPlace, Pool, SlurmPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.services.plans import plan_cluster
from tests.integration.policy.policy_lab import KINDS, Governed, governed
from tests.plans import apply_plan
from tests.strategies.fleets import VIRTUAL, changed, fleets

if TYPE_CHECKING:
    from fairway.engines.port import Governs
    from fairway.model.fleet import Fleet
    from tests.strategies.fleets import Clusters

LAB: Final = ClusterName("lab")
ON_VIRTUAL, IN_CI, MANY = 200, 7, 20
# No shrinking: an example costs seconds, and the fleet that fails is told whole.
_PHASES: Final = (Phase.explicit, Phase.generate)
_SLOW_ENOUGH: Final = list(HealthCheck)


def drawn(examples: int) -> settings:
    """So many fleets, the same on every machine."""
    return settings(
        max_examples=examples,
        deadline=None,
        database=None,
        derandomize=True,
        phases=_PHASES,
        suppress_health_check=_SLOW_ENOUGH,
    )


def real_params() -> list[object]:
    return [pytest.param(name, marks=getattr(pytest.mark, kind.value)) for name, kind in KINDS.items()]


@pytest.fixture
def here(request: pytest.FixtureRequest) -> Iterator[Governed]:
    cluster = governed(request.param)
    yield cluster
    asyncio.run(cluster.clear())
    cluster.drop_namespaces()


def _clusters(here: Governed) -> Clusters:
    """The lab's own pools, as a fleet file would have them."""
    product = "nvidia.com/gpu.product"
    places = (
        (SlurmPlace("gpu", "a100"), SlurmPlace("mig"))
        if here.kind is EngineKind.SLURM
        else (
            KubernetesPlace({product: "NVIDIA-A100-SXM4-80GB"}),
            KubernetesPlace({product: "NVIDIA-A100-SXM4-80GB-MIG"}),
        )
    )
    whole = Pool(PoolName("gpu"), LAB, CATALOGUE["A100-80GB"], Capacity.OWNED, Decimal(1), places[0], gpus=32)
    cut = replace(
        whole,
        name=PoolName("mig"),
        place=places[1],
        slices=(SliceName("1g.10gb"), SliceName("3g.40gb")),
        gpus=2,
    )
    return [(Cluster(LAB, here.connection), [whole, cut])]


async def _settle(engine: Governs, fleet: Fleet) -> int:
    """Apply it; how many changes that were. The next plan must be empty."""
    plan = await plan_cluster(engine, fleet, LAB)
    applied = await apply_plan(engine, plan, force=True)
    if applied.refusal is not None:
        raise applied.refusal
    again = await plan_cluster(engine, fleet, LAB)
    assert not again.changes, [(c.action, c.key, c.fields) for c in again.changes]
    return len(plan.changes)


@pytest.mark.timeout(600)
@given(data=st.data())
@drawn(ON_VIRTUAL)
def test_on_the_virtual_engine(data: st.DataObject) -> None:
    first = data.draw(fleets(VIRTUAL))
    then = data.draw(changed(first))

    async def settle() -> None:
        engine = VirtualEngine(first.clusters[0], first.pools)
        await _settle(engine, first)
        await _settle(engine, then)
        assert await _settle(engine, first)
        await engine.close()

    asyncio.run(settle())


def _on_a_real_engine(data: st.DataObject, here: Governed) -> None:
    clusters = _clusters(here)
    first = data.draw(fleets(clusters, most_teams=6))
    then = data.draw(changed(first))

    async def settle() -> None:
        await here.settle(first)
        await here.settle(then)

    asyncio.run(settle())


@pytest.mark.timeout(600)
@pytest.mark.parametrize("here", real_params(), indirect=True)
@given(data=st.data())
@drawn(IN_CI)
def test_on_a_real_engine(data: st.DataObject, here: Governed) -> None:
    _on_a_real_engine(data, here)


@pytest.mark.nightly("many fleets; CI settles a few")
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("here", real_params(), indirect=True)
@given(data=st.data())
@drawn(MANY)
def test_many_on_a_real_engine(data: st.DataObject, here: Governed) -> None:
    _on_a_real_engine(data, here)
