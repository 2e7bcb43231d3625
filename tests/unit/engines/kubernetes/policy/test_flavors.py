"""A change of a pool keeps guarantees: one flavor a pool, changed in place or when it is empty."""

from __future__ import annotations

from dataclasses import replace

from fairway.engines.kubernetes.policy.translate import translate
from fairway.model.fleet import Fleet, KubernetesPlace
from fairway.model.names import ClusterName
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Value
from fairway.policy.plan import compute_changes
from tests.unit.engines.kubernetes.policy.fleets import applied, fleet, nothing

CLOUD = ClusterName("cloud")
FLAVOR = ObjectKey("ResourceFlavor", "a100")
LABELS: dict[str, Value] = {"spec.nodeLabels[nvidia.com/gpu.product]": "NVIDIA-A100-SXM4-80GB"}


def moved() -> Fleet:
    """The fleet with another topology of pool a100."""
    own = fleet()
    pools = (replace(p, topology=("topology.fairway/rack",)) if p.name == "a100" else p for p in own.pools)
    return replace(own, pools=tuple(pools))


def changes(wanted_fleet: Fleet, found: FoundPolicy) -> set[tuple[str, str]]:
    wanted = translate(wanted_fleet, CLOUD, found)
    return {(c.action.value, str(c.key)) for c in compute_changes(wanted, found)}


def flavor(fields: dict[str, Value], *, ours: bool) -> FoundObject:
    return FoundObject(FLAVOR, fields, ours=ours)


def queue_of_others(name: str = "handmade") -> FoundObject:
    return FoundObject(ObjectKey("ClusterQueue", name), {}, ours=False, after=(FLAVOR,))


def test_a_flavor_without_a_topology_is_changed_in_place() -> None:
    """Jobs that run in it stay counted (K8s F2)."""
    found = replace(nothing(**{"used.a100": "12"}), objects=(flavor(LABELS, ours=True),))
    made = changes(fleet(), found)
    assert ("update", "ResourceFlavor a100") in made
    assert not {key for _, key in made if "a100.2" in key}


def test_a_pool_with_jobs_keeps_its_flavor_and_the_rest_changes() -> None:
    """Two flavors over the same nodes would both seem empty (K8s F5)."""
    found = applied(translate(fleet(), CLOUD, nothing()), **{"used.a100": "8"})
    teams = tuple(replace(t, share=t.share + 1) for t in moved().teams)
    wanted = replace(moved(), teams=teams)
    made = changes(wanted, found)
    assert made
    assert not {key for _, key in made if key.startswith(("ResourceFlavor", "Topology"))}
    assert "PoolChangeWaits" in {n.code for n in translate(wanted, CLOUD, found).notices}
    empty = replace(found, settings={**found.settings, "used.a100": "0"})
    assert {("create", "ResourceFlavor a100.2"), ("delete", "ResourceFlavor a100")} <= changes(wanted, empty)
    assert "PoolChangeWaits" not in {n.code for n in translate(wanted, CLOUD, empty).notices}


def test_taints_of_a_pool_change_at_once() -> None:
    found = applied(translate(fleet(), CLOUD, nothing()), **{"used.spot": "8"})
    own = fleet()
    spot = KubernetesPlace({"fairway/capacity": "spot"}, ("fairway/other=true:NoSchedule",))
    pools = (replace(p, place=spot) if p.name == "spot" else p for p in own.pools)
    assert changes(replace(own, pools=tuple(pools)), found) == {("update", "ResourceFlavor spot")}


def test_a_new_name_is_a_free_one() -> None:
    """A name whose object is being deleted cannot be used (K8s F4)."""
    found = applied(translate(fleet(), CLOUD, nothing()), **{"terminating.ResourceFlavor": "a100.2,other"})
    assert ("create", "ResourceFlavor a100.3") in changes(moved(), found)


def test_a_flavor_in_queues_of_others_stays_as_it_is() -> None:
    for ours in (True, False):
        found = replace(nothing(), objects=(flavor(LABELS, ours=ours), queue_of_others()))
        made = changes(fleet(), found)
        assert ("create", "ResourceFlavor a100.2") in made
        assert not {made_key for made_key in made if made_key[1] == "ResourceFlavor a100"}


def test_a_flavor_that_people_made_stays_and_its_jobs_are_named() -> None:
    """Kueue would not let it be changed back at the end (K8s F2)."""
    found = replace(
        nothing(**{"used.a100": "12"}),
        objects=(flavor(LABELS, ours=False), queue_of_others("product")),
    )
    assert ("create", "ResourceFlavor a100.2") in changes(fleet(), found)
    said = {n.code: n.message for n in translate(fleet(), CLOUD, found).notices}
    assert "12 GPUs in ResourceFlavor a100" in said["OldFlavorInUse"]


def test_jobs_in_a_flavor_of_another_name_over_the_same_nodes_are_named() -> None:
    """They count against no guarantee, whatever people called it (K8s F5)."""
    for labels, is_named in (
        (LABELS, True),
        ({"spec.nodeLabels[nvidia.com/gpu.product]": "Tesla-T4"}, False),
    ):
        handmade = FoundObject(ObjectKey("ResourceFlavor", "gpu-large"), labels, ours=False)
        found = replace(nothing(**{"used.gpu-large": "12"}), objects=(handmade,))
        said = {n.code: n.message for n in translate(fleet(), CLOUD, found).notices}
        assert ("12 GPUs in ResourceFlavor gpu-large" in said.get("OldFlavorInUse", "")) == is_named
