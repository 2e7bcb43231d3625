from __future__ import annotations

import pytest

from fairway.engines.kubernetes.nodes.devices import is_known_gpu
from fairway.engines.kubernetes.nodes.facts import PodDevices, node_transform, pod_transform, requested
from tests.unit.engines.kubernetes.nodes.made import node, pod, pool, ready

GPU = "nvidia.com/gpu"


def runs(*gpus: int) -> list[dict[str, object]]:
    return [{"resources": {"requests": {GPU: str(n), "cpu": "500m"}}} for n in gpus]


def sidecar(gpus: int) -> list[dict[str, object]]:
    return [{**runs(gpus)[0], "restartPolicy": "Always"}]


@pytest.mark.parametrize(
    ("containers", "init", "held"),
    [
        pytest.param(runs(2), [], 2, id="one container"),
        pytest.param(runs(2, 3), [], 5, id="containers run side by side"),
        pytest.param(runs(2), runs(1), 2, id="a smaller init container adds nothing"),
        pytest.param(runs(2), runs(4), 4, id="a larger init container is what is held"),
        pytest.param(runs(2), runs(3, 4, 1), 4, id="init containers run one after the other"),
        pytest.param(runs(2), sidecar(1), 3, id="a sidecar stays beside the containers"),
        pytest.param(runs(2), sidecar(1) + sidecar(1), 4, id="sidecars add up"),
        pytest.param(runs(2), sidecar(1) + runs(4), 5, id="an init container runs beside earlier sidecars"),
        pytest.param(
            runs(2), runs(4) + sidecar(1), 4, id="a sidecar does not run beside earlier init containers"
        ),
        pytest.param(runs(2), sidecar(1) + runs(3) + sidecar(2) + runs(3), 6, id="both, mixed"),
        pytest.param([], [], 0, id="nothing"),
        pytest.param(runs(0), [], 0, id="zero"),
    ],
)
def test_what_the_scheduler_sets_aside(
    containers: list[dict[str, object]], init: list[dict[str, object]], held: int
) -> None:
    asked = requested(pod(containers=containers, initContainers=init), is_known_gpu)

    assert asked == (((GPU, held),) if held else ())


def test_resources_are_maximised_one_by_one() -> None:
    mig = "nvidia.com/mig-1g.10gb"
    mixed = pod(
        containers=[{"resources": {"requests": {GPU: "1", mig: "3"}}}],
        initContainers=[{"resources": {"requests": {GPU: "2", mig: "1"}}}],
        overhead={GPU: "1"},
    )

    assert requested(mixed, is_known_gpu) == ((GPU, 3), (mig, 3))


def test_pods_without_gpus_are_not_kept() -> None:
    keep = pod_transform([pool("p")])

    assert keep(pod(containers=[{"resources": {"requests": {"cpu": "4"}}}, {}])) is None
    assert keep(pod(containers=runs(1), nodeName="")) is None
    assert keep(pod(containers=runs(1))) == PodDevices("n1", ((GPU, 1),))


def test_a_pools_own_resource_counts() -> None:
    own = pod(containers=[{"resources": {"requests": {"example.com/accelerator": "2"}}}])

    assert pod_transform([pool("p")])(own) is None
    assert pod_transform([pool("p", resource="example.com/accelerator")])(own) == PodDevices(
        "n1", (("example.com/accelerator", 2),)
    )


def test_only_what_pools_ask_for_is_kept_of_a_node() -> None:
    kept = node_transform([pool("p", {"gpu": "a100"})])(
        node(
            metadata={"name": "n1", "labels": {"gpu": "a100", "kubernetes.io/os": "linux"}},
            status={
                "capacity": {"cpu": "128", "memory": "2Ti", GPU: "8", "amd.com/gpu": "1"},
                "allocatable": {"cpu": "127", GPU: "7", "amd.com/gpu": "1"},
                "conditions": [{"type": "DiskPressure", "status": "False"}, ready()],
                "images": [{"names": ["x"]}],
            },
        )
    )

    assert kept.labels == (("gpu", "a100"),)
    assert kept.capacity == (("amd.com/gpu", 1), (GPU, 8))
    assert kept.allocatable == (("amd.com/gpu", 1), (GPU, 7))
    assert kept.ready
    assert not kept.cordoned


@pytest.mark.parametrize(
    ("condition", "words"),
    [
        (
            ready(
                "False",
                reason="KubeletNotReady",
                message="no network",
                lastTransitionTime="2026-01-02T03:04:05Z",
            ),
            "NotReady since 2026-01-02T03:04:05Z: KubeletNotReady: no network",
        ),
        (
            ready("Unknown", reason="NodeStatusUnknown", message="Kubelet stopped posting node status."),
            "Ready is unknown: NodeStatusUnknown: Kubelet stopped posting node status.",
        ),
        (ready("False"), "NotReady"),
        (
            {"type": "MemoryPressure", "status": "False"},
            "Ready is unknown: NoStatus: its kubelet has never reported",
        ),
    ],
)
def test_a_node_that_is_not_ready_says_why_and_since_when(condition: dict[str, str], words: str) -> None:
    kept = node_transform([])(node(status={"conditions": [condition]}))

    assert not kept.ready
    assert kept.not_ready_reason == words


def test_a_cordon_names_who_wrote_it_and_when() -> None:
    managed = [
        {"manager": "kubelet", "time": "2026-01-01T00:00:00Z", "fieldsV1": {"f:status": {"f:capacity": {}}}},
        {"manager": "odd"},
        {
            "manager": "kubectl-cordon",
            "time": "2026-01-02T00:00:00Z",
            "fieldsV1": {"f:spec": {"f:unschedulable": {}}},
        },
    ]
    kept = node_transform([])(
        node(metadata={"name": "n1", "managedFields": managed}, spec={"unschedulable": True})
    )

    assert kept.cordoned
    assert kept.cordon_reason == "cordoned since 2026-01-02T00:00:00Z by kubectl-cordon"
    assert node_transform([])(node(spec={"unschedulable": True})).cordon_reason == "cordoned"


def test_a_cordon_says_why_if_somebody_wrote_it_down() -> None:
    notes = {"fairway.dev/drain-reason": "fan is noisy", "fairway.dev/drained-by": "dana", "other": "x"}
    drained = node(metadata={"name": "n1", "annotations": notes}, spec={"unschedulable": True})

    assert node_transform([])(drained).cordon_reason == "cordoned by dana: fan is noisy"
