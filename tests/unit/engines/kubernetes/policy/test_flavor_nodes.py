"""The GPUs of a flavor's nodes, where its labels do not say which they are."""

from __future__ import annotations

import msgspec

from fairway.engines.kubernetes.api.wire import NodeObject
from fairway.engines.kubernetes.policy.flavor_nodes import flavor_settings


def node(name: str, kind: str, product: str, **capacity: str) -> NodeObject:
    labels = {"gpu-type": kind, "nvidia.com/gpu.product": product}
    resources = {key.replace("__", "/").replace("_", "."): value for key, value in capacity.items()}
    body = {"metadata": {"name": name, "labels": labels}, "status": {"capacity": resources}}
    return msgspec.convert(body, NodeObject)


def test_flavors_have_the_product_of_their_nodes_and_others_are_counted_once() -> None:
    nodes = [
        node("h1", "h100", "NVIDIA-H100-80GB-HBM3", nvidia_com__gpu="8"),
        node("h2", "h100", "NVIDIA-H100-80GB-HBM3", nvidia_com__gpu="8"),
        node("t1", "shared", "Tesla-T4", nvidia_com__gpu="4"),
        node("c1", "cpu", "", cpu="64"),
    ]
    assert flavor_settings({"h100": {"gpu-type": "h100"}, "none": {"gpu-type": "x"}}, nodes) == {
        "flavor-product/h100": "NVIDIA-H100-80GB-HBM3",
        "uncounted-product/Tesla-T4": "nvidia.com/gpu",
    }
    # Nodes of several products say nothing of the flavor, but are counted by it.
    assert flavor_settings({"all": {}}, nodes) == {}


def test_how_many_pods_share_a_gpu_is_known_where_all_nodes_agree() -> None:
    def shared(name: str, kind: str, replicas: str) -> NodeObject:
        found = node(name, kind, "NVIDIA-L40S", nvidia_com__gpu_shared="32")
        found.metadata.labels["nvidia.com/gpu.replicas"] = replicas
        return found

    nodes = [shared("a", "x", "4"), shared("b", "x", "4"), shared("c", "y", "4"), shared("d", "y", "2")]
    found = flavor_settings({"x": {"gpu-type": "x"}, "y": {"gpu-type": "y"}}, nodes)
    assert {k: v for k, v in found.items() if "replicas" in k} == {"flavor-replicas/x": "4"}
    assert flavor_settings({}, nodes[:2])["uncounted-replicas/NVIDIA-L40S"] == "4"
