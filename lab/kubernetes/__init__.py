"""Real Kubernetes with Kueue on loopback; KWOK plays most nodes, real kubelets run the others.

From Python, for what only Kubernetes can do:

    from lab import find
    from lab.kubernetes import Cluster
    cluster = Cluster(find("kubernetes"))
    cluster.set_node_ready("gpu-0001", False)
    cluster.compact_etcd()
"""

from lab.kubernetes.api import Api, ApiError
from lab.kubernetes.cluster import Cluster, Kubernetes

KIND = Kubernetes()

__all__ = ["KIND", "Api", "ApiError", "Cluster", "Kubernetes"]
