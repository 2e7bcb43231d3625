"""Kubernetes: what an API server shows of its nodes and GPUs, kept up to date by an informer of our own.

`engine` is the way in. `client` reaches the API server, `informer` follows one kind of object into a
`store`, `wire` names the few fields we read, `facts` keeps what matters of them, `view` makes nodes of the
model out of facts.
"""

from fairway.engines.kubernetes.engine import KubernetesEngine

__all__ = ["KubernetesEngine"]
