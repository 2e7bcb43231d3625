"""Read pod logs by byte offset. The API server has no offsets: the part before is read again.

A kubelet serves the newest of the files it rotates (10 MiB each by default), so that is bounded; after a
rotation, which shows as less data than was read before, the log restarts.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from fairway.engines.kubernetes.api.errors import ApiCall, Expired
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.attempts import group_by_attempt, pod_of_node
from fairway.engines.kubernetes.jobs.manifest import CONTAINER
from fairway.engines.kubernetes.jobs.objects import JobPodObject, PodFacts, pod_transform
from fairway.engines.kubernetes.jobs.observed import ObservedJob
from fairway.engines.port import LogPart
from fairway.model.errors import Refused

MAX_BYTES: Final = 1 << 20
"""Bytes of one reply."""
MAX_OFFSET: Final = 64 << 20
"""How much of a log is read to reach an offset."""


async def read_log(
    requests: KubeRequests,
    job: ObservedJob,
    attempt: int,
    offset: int,
    limit: int,
    node: int,
    replica: str = "",
) -> LogPart:
    """Read the log of a replica's pod, or of the pod of an attempt on a node, from `offset` on."""
    pod = _replica(job, replica) if replica else _pod(job, attempt, node)
    if pod is None:
        return LogPart(b"", offset, ended=False)  # the attempt has no pod yet
    if offset > MAX_OFFSET:
        raise Refused(
            "LogTooLong",
            f"pod {pod.name} printed more than {MAX_OFFSET >> 20} MiB",
            f"read its end:  kubectl -n {job.namespace} logs {pod.name} --tail=1000",
        )
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod.name}"
    current = await requests.get(path, "pods", JobPodObject)
    if current is None or current.metadata.uid != pod.uid:
        raise _log_gone(job, pod.name)
    facts = pod_transform(())(current)
    ended = current.status.phase in {"Succeeded", "Failed"} or (facts is not None and facts.ended is not None)
    statuses = current.status.container_statuses
    several = len(current.spec.containers) > 1 and any(c.name == CONTAINER for c in statuses)
    limit = max(1, min(limit, MAX_BYTES))
    data = await _read(requests, path, offset + limit, CONTAINER if several else "")
    if len(data) < offset:
        data, offset = data[:limit], 0
    else:
        data = data[offset:]
    return LogPart(data, offset + len(data), ended=ended and len(data) < limit)


async def _read(requests: KubeRequests, path: str, max_bytes: int, container: str) -> bytes:
    params = {"limitBytes": str(max_bytes), **({"container": container} if container else {})}
    call = ApiCall(requests.api.server, "get", "pods/log")
    data = bytearray()
    try:
        stream = requests.api.stream(f"{path}/log", params, call, silence_seconds=requests.timeout_seconds)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > max_bytes:
                    break
    except Expired as e:
        raise Refused("LogGone", f"the log is no longer there: {e}", "look at the cluster's log store") from e
    except Refused as e:
        if e.code == "BadRequest" and "waiting to start" in e.message:
            return b""
        raise
    return bytes(data[:max_bytes])


def _replica(job: ObservedJob, name: str) -> PodFacts:
    """Return the pod of a replica that exists. A StatefulSet names the next pod as the last one."""
    for pod in job.pods:
        if pod.facts.name == name and not pod.deleted:
            return pod.facts
    raise _log_gone(job, name)


def _pod(job: ObservedJob, attempt: int, node: int) -> PodFacts | None:
    """Return the pod of a node of an attempt. Returns None if there is none so far."""
    attempts = group_by_attempt(job)
    number = attempt - job.forgotten_attempts
    if number < 1 or (number > len(attempts) and (job.job.finished or job.deleted_at)):
        raise _log_gone(job, f"of attempt {attempt}")
    if number > len(attempts):
        return None
    pod = pod_of_node(attempts[number - 1], node)
    if pod is None:
        return None
    if pod.deleted:
        raise _log_gone(job, pod.facts.name)
    return pod.facts


def _log_gone(job: ObservedJob, pod: str) -> Refused:
    return Refused(
        "LogGone",
        f"pod {pod} is deleted, and its output with it ({job.namespace}/{job.name})",
        "Kubernetes keeps no logs of preempted or deleted pods: collect them, or write to a shared directory",
    )
