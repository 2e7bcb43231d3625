"""Let the pods of a job on several nodes find each other: a JobSet, or a Job and a Service. Pure.

Both give each pod a name in DNS. The variables are those that torchrun and other launchers read.
"""

from __future__ import annotations

from typing import Final

from fairway.engines.kubernetes.api.kinds import FAIRWAY, MANAGED_BY, Json
from fairway.model.job import Order
from fairway.model.workload_kinds import JOB_SET

MASTER_PORT: Final = "29500"
"""Where the first node listens for the others: the default of PyTorch."""
RANKS: Final = ("RANK", "NODE_RANK", "PET_NODE_RANK")
"""Variables with the number of the node."""
SERVICE: Final = "fairway-gangs"
"""The Service of a team's Jobs on several nodes."""
POD_LABELS: Final = {"fairway.dev/gang": "true"}
"""The labels of their pods."""
_TTL: Final = "ttlSecondsAfterFinished"
_PART: Final = "n"
"""The name of the one Job in a JobSet: short, because it is part of the names of pods."""
_MAX_NAME: Final = 63


def rendezvous(order: Order, *, in_set: bool) -> dict[str, str]:
    """Return the variables that are the same on every node. Those of the user come first.

    torchrun reads PET_*; a launcher that starts one process on each node reads the others.
    """
    spec = order.spec
    name, nodes, each = order.engine_name, str(spec.nodes), str(spec.gpus.count)
    host = f"{name}-{_PART}-0-0.{name}" if in_set else f"{name}-0.{SERVICE}"
    host, port = spec.env.get("MASTER_ADDR", host), spec.env.get("MASTER_PORT", MASTER_PORT)
    return {
        "MASTER_ADDR": host,
        "MASTER_PORT": port,
        "WORLD_SIZE": nodes,
        "NPROC_PER_NODE": each,
        "PET_MASTER_ADDR": host,
        "PET_MASTER_PORT": port,
        "PET_NNODES": nodes,
        "PET_NPROC_PER_NODE": each,
    }


def fits_job_set(order: Order) -> bool:
    """Return whether a job may be a JobSet: it has several nodes, and a name that JobSet accepts.

    The names of its pods, with their five random letters, must be names that a Service may have.
    """
    name, nodes = order.engine_name, order.spec.nodes
    return nodes > 1 and name[0].isalpha() and len(f"{name}-{_PART}-0-{nodes - 1}-abcde") <= _MAX_NAME


def job_set(job: Json) -> Json:
    """Return the JobSet of a Job on several nodes. A pod that fails ends it, as it ends the Job."""
    spec = {key: value for key, value in job["spec"].items() if key not in {"suspend", _TTL}}
    return {
        "apiVersion": JOB_SET.api_version,
        "kind": JOB_SET.kind,
        "metadata": job["metadata"],
        "spec": {
            "suspend": True,
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {"maxRestarts": 0},
            _TTL: job["spec"][_TTL],
            "replicatedJobs": [{"name": _PART, "replicas": 1, "template": {"spec": spec}}],
        },
    }


def service(namespace: str) -> Json:
    """Return the headless Service for the pods of a team's Jobs on several nodes.

    All of them share it, so that a Job that exists has it too, whatever happens while it is created.
    """
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": SERVICE, "namespace": namespace, "labels": {MANAGED_BY: FAIRWAY}},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": True,  # pods find each other before all of them are ready
            "selector": POD_LABELS,
        },
    }
