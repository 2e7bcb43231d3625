"""The Kubernetes engine.

`engine` is the entry point. `api` connects to the API server and follows objects with an informer, `nodes`
turns nodes and pods into observations, `policy` writes a fleet as Kueue, quota, RBAC and admission objects,
`jobs` submits and mirrors jobs.
"""

from fairway.engines.kubernetes.engine import KubernetesEngine

__all__ = ["KubernetesEngine"]
