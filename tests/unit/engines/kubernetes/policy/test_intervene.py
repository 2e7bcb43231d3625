"""Who makes room for whom, whose turn it is, and how past use counts."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.policy.intervention.intervene import _shared_devices, unplaced_pod_sets
from fairway.engines.kubernetes.policy.intervention.preemption import select_victims
from fairway.engines.kubernetes.policy.intervention.snapshot import JobPod, Snapshot, take_snapshot
from fairway.engines.kubernetes.policy.intervention.starvation import MAX_HELP_SECONDS, Starvation
from fairway.engines.kubernetes.policy.intervention.usage_decay import (
    DecayedUsage,
    fair_share_factor,
    parse_usage,
    weights,
)
from fairway.engines.kubernetes.policy.workloads import Workload
from fairway.model.names import ClusterName
from tests.unit.engines.kubernetes.policy.fleets import fleet

GPU, PRODUCT = "nvidia.com/gpu", "nvidia.com/gpu.product"
TEAMS = """
teams:
  research:
    guarantee: { a100: 16 }
    teams: { nlp: { guarantee: { a100: 8 } }, vision: {} }
  product: { guarantee: { a100: 8 } }
"""
QUEUES = {
    f"{team}/{queue}": team if queue == "default" else f"{team}.low"
    for team in ("research", "nlp", "vision", "product")
    for queue in ("default", "low")
}


def as_type(body: object, type_: Any) -> Any:
    return msgspec.json.decode(msgspec.json.encode(body), type=type_)


class Cluster:
    """Nodes of 8 GPUs in racks of two, and jobs put on them by hand."""

    def __init__(self, nodes: int = 4) -> None:
        self.nodes = [
            {
                "metadata": {
                    "name": f"n{i}",
                    "labels": {PRODUCT: "NVIDIA-A100-SXM4-80GB", "topology.fairway/rack": f"r{i // 2}"},
                },
                "status": {
                    "allocatable": {GPU: "8"},
                    "conditions": [{"type": "Ready", "status": "True"}],
                },
            }
            for i in range(nodes)
        ]
        self.workloads: list[dict[str, Any]] = []
        self.pods: list[dict[str, Any]] = []

    def job(
        self, team: str, name: str, gpus: int, *nodes: str, pods: int = 1, priority: int = 0,
        low: bool = False, at: int = 0, together: str = "",
    ) -> str:  # fmt: skip
        queue = "low" if low else "default"
        container = {"resources": {"limits": {GPU: str(gpus)}}}
        pod_set: dict[str, Any] = {
            "count": len(nodes) or pods,
            "template": {"spec": {"containers": [container]}},
        }
        if together:
            pod_set["topologyRequest"] = {"required": together}
        body: dict[str, Any] = {
            "metadata": {
                "name": f"job-{name}", "namespace": team, "uid": name,
                "creationTimestamp": f"2026-01-01T00:00:{at:02d}Z", "ownerReferences": [{"name": name}],
            },
            "spec": {"queueName": queue, "priority": priority, "podSets": [pod_set]},
        }  # fmt: skip
        if nodes:
            usage = {"resourceUsage": {GPU: str(gpus * len(nodes))}, "flavors": {GPU: "a100"}}
            admission = {"clusterQueue": QUEUES[f"{team}/{queue}"], "podSetAssignments": [usage]}
            body["status"] = {"admission": admission}
        self.workloads.append(body)
        for node in nodes:
            spec = {"nodeName": node, "containers": [{"resources": {"requests": {GPU: str(gpus)}}}]}
            marks = {"kueue.x-k8s.io/workload": f"job-{name}"}
            self.pods.append(
                {"metadata": {"name": name, "namespace": team, "annotations": marks}, "spec": spec}
            )
        return name

    def stands(self, teams: str = TEAMS) -> Snapshot:
        return take_snapshot(
            fleet(teams),
            ClusterName("cloud"),
            as_type(self.workloads, list[Workload]),
            as_type(self.pods, list[JobPod]),
            as_type(self.nodes, list[NodeObject]),
            QUEUES,
        )

    def victims(self) -> set[str]:
        snapshot = self.stands()
        (waiting,) = snapshot.waiting
        made = select_victims(snapshot, waiting)
        return set() if made is None else {v.workload.metadata.uid for v in made[1]}


def test_pods_without_gpus_do_not_count_among_those_that_wait() -> None:
    """A Ray cluster has a head on CPUs, in a pod set of its own."""
    here = Cluster(nodes=1)
    here.job("product", "p", 8, "n0")
    here.job("product", "q", 8, "elsewhere")
    here.job("nlp", "ray", 8)
    head = {"count": 1, "template": {"spec": {"containers": [{"resources": {"limits": {"cpu": "1"}}}]}}}
    here.workloads[-1]["spec"]["podSets"].insert(0, head)
    assert here.victims() == {"p"}


def test_workloads_from_before_ask_for_places() -> None:
    here = Cluster()
    here.job("nlp", "old", 8)
    here.job("nlp", "together", 8, together="topology.fairway/rack")
    here.workloads[0]["spec"]["podSets"].insert(0, {"count": 1})
    numbered = {"podIndexLabel": "batch.kubernetes.io/job-completion-index"}
    here.workloads[0]["spec"]["podSets"][1]["topologyRequest"] = numbered
    old, together = as_type(here.workloads, list[Workload])
    assert unplaced_pod_sets(old, fleet(TEAMS)) == [1]
    assert unplaced_pod_sets(together, fleet(TEAMS)) == []
    placed = {**numbered, "podSetSliceRequiredTopology": "kubernetes.io/hostname", "podSetSliceSize": 1}
    here.workloads[0]["spec"]["podSets"][1]["topologyRequest"] = placed
    assert unplaced_pod_sets(as_type(here.workloads, list[Workload])[0], fleet(TEAMS)) == []


def test_the_cheapest_node_makes_room() -> None:
    here = Cluster()
    for i, sizes in enumerate([(4, 4), (2, 2, 4), (8,), (4, 2)]):  # n3 has 2 free
        for j, gpus in enumerate(sizes):
            here.job("product", f"p{i}{j}", gpus, f"n{i}")
    here.job("nlp", "mine", 8)
    assert here.victims() == {"p30", "p31"}


def test_a_place_for_less_takes_the_least_that_will_do() -> None:
    here = Cluster(nodes=1)
    for name, gpus in (("a", 1), ("b", 1), ("c", 2), ("d", 4)):
        here.job("product", name, gpus, "n0")
    here.job("product", "more", 8, "elsewhere")  # so that product is far beyond its 8
    here.job("nlp", "mine", 3)
    assert sum({"a": 1, "b": 1, "c": 2, "d": 4}[v] for v in here.victims()) == 3


def test_nothing_is_taken_from_a_team_within_its_guarantee() -> None:
    here = Cluster(nodes=2)
    here.job("product", "p", 8, "n0")
    here.job("research", "r", 8, "n1")
    here.job("nlp", "mine", 8)
    assert here.victims() == set()  # product holds its 8, research what it left to no child
    here.job("product", "q", 8, "elsewhere")
    assert here.victims() == {"p"}


def test_a_job_beyond_every_guarantee_takes_nothing() -> None:
    here = Cluster(nodes=4)
    for i in range(4):
        here.job("product", f"p{i}", 8, f"n{i}")
    here.job("vision", "mine", 8, pods=3)  # 24, research has 16
    assert here.victims() == set()


def test_a_sibling_gives_back_before_a_stranger_is_asked() -> None:
    here = Cluster(nodes=2)
    here.job("vision", "v0", 8, "n0")
    here.job("vision", "v1", 8, "n1")
    here.job("nlp", "mine", 8)
    assert len(here.victims()) == 1


def test_low_jobs_go_whatever_their_team_holds() -> None:
    here = Cluster(nodes=1)
    here.job("product", "l", 8, "n0", low=True)
    here.job("nlp", "mine", 8)
    assert here.victims() == {"l"}


def test_a_low_job_makes_nobody_go() -> None:
    here = Cluster(nodes=1)
    here.job("product", "p", 8, "n0")
    here.job("product", "q", 8, "elsewhere")
    here.job("nlp", "mine", 8, low=True)
    assert here.victims() == set()


def test_a_gang_that_must_be_together_gets_one_rack() -> None:
    here = Cluster()
    here.job("product", "a", 4, "n0")
    here.job("product", "b", 8, "n1")
    here.job("product", "c", 4, "n2")
    here.job("product", "d", 8, "n3")
    here.job("product", "e", 1, "n2")
    here.job("research", "gang", 8, pods=2, together="topology.fairway/rack")
    assert here.victims() == {"a", "b"}  # 12 in rack 0, 13 in rack 1


@given(st.data())
def test_room_is_always_made_lawfully_and_is_enough(data: st.DataObject) -> None:
    here = Cluster()
    for i in range(4):
        left = 8
        while left and data.draw(st.booleans()):
            gpus = data.draw(st.sampled_from([g for g in (1, 2, 4, 8) if g <= left]))
            left -= gpus
            team = data.draw(st.sampled_from(["product", "vision", "nlp"]))
            here.job(team, f"j{len(here.workloads)}", gpus, f"n{i}", low=data.draw(st.booleans()))
    here.job("nlp", "mine", data.draw(st.sampled_from([1, 2, 4, 8])))
    snapshot = here.stands()
    (waiting,) = snapshot.waiting
    made = select_victims(snapshot, waiting)
    if made is None:
        return
    supply, victims = made
    lost = sum(v.devices for v in victims if v.team.name == "product" and not v.low)
    assert lost == 0 or snapshot.used["product", supply] - lost >= 8
    freed = {node.name: node.free for node in snapshot.nodes[supply]}
    for victim in victims:
        for node, devices in victim.nodes.items():
            freed[node] += devices
    assert max(freed.values()) >= waiting.devices
    assert max(node.free for node in snapshot.nodes[supply]) < waiting.devices  # it did not fit before


def test_a_gang_overtaken_by_as_much_as_it_asks_for_has_its_turn() -> None:
    here, starvation = Cluster(), Starvation()
    here.job("product", "gang", 8, pods=2, at=10)
    here.job("product", "early", 8, "n0", at=5)
    here.job("product", "s0", 8, "n1", at=11)
    assert starvation.find_starved_job(here.stands(), 0) is None
    here.workloads.pop()
    here.job("product", "s1", 8, "n1", at=12)  # in s0's place
    starved = starvation.find_starved_job(here.stands(), 1)
    assert starved is not None
    assert starved.waiting.workload.metadata.uid == "gang"
    assert starved.strict_fifo
    assert not starved.blocked_teams | starved.blocked_queues
    assert starvation.find_starved_job(here.stands(), MAX_HELP_SECONDS + 2) is None  # enough is enough


def test_a_job_at_its_own_teams_ceiling_holds_nobody_else_back() -> None:
    capped = """
teams:
  research: { guarantee: { a100: 8 }, borrow: { a100: 0 }, teams: { nlp: {}, vision: {} } }
  product: { guarantee: { a100: 8 } }
"""
    here, starvation = Cluster(), Starvation()
    here.job("nlp", "n", 4, "n0")
    here.job("vision", "v", 3, "n1")
    here.job("nlp", "waits", 2, at=1)  # 7 of 8 are held
    for i in range(4):
        here.job("product", f"p{i}", 1, "n2", at=2)
    assert starvation.find_starved_job(here.stands(capped), 0) is None  # what product has would not help it

    here.job("vision", "v2", 1, "n1", at=3)
    here.job("vision", "v3", 1, "n1", at=4)
    starved = starvation.find_starved_job(
        here.stands(capped), 1
    )  # what its sibling takes of the same ceiling would
    assert starved is not None
    assert starved.blocked_teams == {"vision"}


def test_other_teams_that_overtake_it_borrow_nothing_new_meanwhile() -> None:
    here, starvation = Cluster(), Starvation()
    here.job("product", "gang", 8, pods=4, at=10)
    here.job("vision", "v", 8, "n0", at=11)
    here.job("nlp", "n", 8, "n1", at=11)
    here.job("research", "l", 8, "n2", at=11, low=True)
    here.job("product", "own", 8, "n3", at=11)
    starved = starvation.find_starved_job(here.stands(), 0)
    assert starved is not None
    assert starved.strict_fifo
    assert starved.blocked_teams == {"research"}
    assert starved.blocked_queues == {"research.low"}


def test_like_jobs_do_not_overtake() -> None:
    here, starvation = Cluster(), Starvation()
    here.job("product", "mine", 8, at=10)
    for i in range(4):
        here.job("product", f"s{i}", 8, f"n{i}", at=11)
    assert starvation.find_starved_job(here.stands(), 0) is None


def test_a_job_that_can_never_run_stops_nobody() -> None:
    here, starvation = Cluster(nodes=2), Starvation()
    here.job("product", "huge", 8, pods=3, at=10)
    for i in range(4):
        here.job("product", f"s{i}", 8, "n0", at=11 + i)
    assert starvation.find_starved_job(here.stands(), 0) is None


def test_past_use_fades_by_half_lives_and_survives_a_restart() -> None:
    used = DecayedUsage(0, 0).advance(10, 60, devices=32)
    assert 300 < used.amount < 320  # 320 device-seconds, a little of it forgiven already
    assert used.advance(70, 60).amount == pytest.approx(used.amount / 2)
    assert DecayedUsage(0, 0).advance(1e6, 60, devices=8).amount == pytest.approx(8 * 60 / math.log(2))
    read = parse_usage(str(DecayedUsage(480, 1_700_000_000)))
    assert read == DecayedUsage(480, 1_700_000_000)
    assert parse_usage("whatever") is None


def test_a_team_that_used_its_share_counts_half_of_one_that_used_nothing() -> None:
    assert fair_share_factor(0, 100, 0.5) == 1
    assert fair_share_factor(50, 100, 0.5) == 0.5
    assert fair_share_factor(100, 100, 0.5) == 0.25
    assert fair_share_factor(0, 0, 0.5) == 1


def test_weights_keep_the_shares_of_those_that_used_alike() -> None:
    whole = fleet(
        "teams: { a: { share: 60, guarantee: { a100: 1 } }, b: { share: 40, guarantee: { a100: 1 } } }"
    )
    assert weights(whole.teams, {}) == {"a": 60, "b": 40}
    assert weights(whole.teams, {"a": 600, "b": 400}) == pytest.approx({"a": 60, "b": 40})
    after = weights(whole.teams, {"a": 1000, "b": 0})
    assert after["a"] < after["b"] == 80
    first_job = weights(whole.teams, {"a": 10, "b": 0}, baseline=100_000)
    assert first_job == pytest.approx({"a": 60, "b": 40}, rel=0.001)


def test_quotas_in_full_thousands_count() -> None:
    """Kubernetes writes 2000 as `2k`."""
    resources = [{"name": GPU, "nominalQuota": "2k"}, {"name": GPU, "nominalQuota": 24}]
    queue = {"spec": {"resourceGroups": [{"flavors": [{"name": "a100", "resources": resources}]}]}}
    assert _shared_devices([queue], []) == 2024
