from __future__ import annotations

from fairway.engines.kubernetes.nodes.facts import NodeFacts, PodDevices
from fairway.engines.kubernetes.nodes.observe import Overlap, observe_nodes
from fairway.model.names import PoolName, SliceName
from fairway.model.observation import Devices, Health
from tests.unit.engines.kubernetes.nodes.made import pool

GPU = "nvidia.com/gpu"
MIG = "nvidia.com/mig-1g.10gb"


def facts(
    capacity: dict[str, int] | None = None,
    allocatable: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
    *,
    down: str = "",
    cordoned: str = "",
) -> NodeFacts:
    capacity = {GPU: 8} if capacity is None else capacity
    return NodeFacts(
        labels=tuple(sorted((labels or {}).items())),
        capacity=tuple(sorted(capacity.items())),
        allocatable=tuple(sorted((capacity if allocatable is None else allocatable).items())),
        ready=not down,
        not_ready_reason=down,
        cordoned=bool(cordoned),
        cordon_reason=cordoned,
    )


def only(node: NodeFacts, *pools_and_holds: object) -> tuple[Devices, ...]:
    holds = [h for h in pools_and_holds if isinstance(h, PodDevices)]
    pools = tuple(p for p in pools_and_holds if not isinstance(p, PodDevices))
    return observe_nodes({"n": node}, holds, pools).nodes[0].devices  # type: ignore[arg-type]


def test_devices_are_counted() -> None:
    held = (PodDevices("n", ((GPU, 2),)), PodDevices("n", ((GPU, 1),)), PodDevices("elsewhere", ((GPU, 4),)))

    assert only(facts({GPU: 8}, {GPU: 7}), pool("p"), *held) == (
        Devices(PoolName("p"), GPU, None, total=8, in_use=3, unhealthy=1),
    )


def test_all_labels_of_a_pool_must_match() -> None:
    both = pool("p", {"gpu": "a100", "zone": "b"})

    assert only(facts(labels={"gpu": "a100", "zone": "b"}), both)[0].pool == "p"
    assert only(facts(labels={"gpu": "a100"}), both)[0].pool is None


def test_the_first_pool_in_the_file_gets_what_two_claim() -> None:
    seen = observe_nodes({"n": facts()}, [], (pool("first"), pool("second")))

    assert [d.pool for d in seen.nodes[0].devices] == ["first"]
    assert seen.overlaps == {Overlap(GPU, gets=PoolName("first"), misses=PoolName("second"))}


def test_pools_of_other_resources_share_a_node() -> None:
    seen = observe_nodes(
        {"n": facts({GPU: 4, MIG: 7})}, [], (pool("whole"), pool("cut", slices=("1g.10gb",)))
    )

    assert [(d.pool, d.slice, d.total) for d in seen.nodes[0].devices] == [
        ("whole", None, 4),
        ("cut", SliceName("1g.10gb"), 7),
    ]
    assert not seen.overlaps


def test_gpus_that_nobody_claims_are_shown_without_a_pool() -> None:
    assert only(facts({"amd.com/gpu": 8}), pool("p")) == (Devices(None, "amd.com/gpu", None, 8, 0, 0),)


def test_a_node_cut_into_slices_does_not_show_its_zero_whole_gpus() -> None:
    assert [d.kind for d in only(facts({GPU: 0, MIG: 7}), pool("whole"))] == [MIG]


def test_a_pools_node_that_lost_all_its_devices_is_still_a_node_of_the_pool() -> None:
    assert only(facts({GPU: 0}), pool("p")) == (Devices(PoolName("p"), GPU, None, 0, 0, 0),)


def test_held_devices_stay_when_their_plugin_goes() -> None:
    assert only(facts({GPU: 0}), pool("p"), PodDevices("n", ((GPU, 2),))) == (
        Devices(PoolName("p"), GPU, None, total=2, in_use=2, unhealthy=0),
    )


def test_nodes_without_gpus_are_nodes() -> None:
    seen = observe_nodes({"b": facts({}), "a": facts({})}, [], (pool("p"),))

    assert [(n.name, n.devices) for n in seen.nodes] == [("a", ()), ("b", ())]


def test_health() -> None:
    nodes = {
        "1": facts(),
        "2": facts(cordoned="cordoned by kubectl"),
        "3": facts(down="NotReady: x"),
        "4": facts(down="NotReady: x", cordoned="cordoned"),
    }

    assert [(n.health, n.reason) for n in observe_nodes(nodes, [], ()).nodes] == [
        (Health.READY, ""),
        (Health.DRAINED, "cordoned by kubectl"),
        (Health.DOWN, "NotReady: x"),
        (Health.DOWN, "NotReady: x; cordoned"),
    ]
