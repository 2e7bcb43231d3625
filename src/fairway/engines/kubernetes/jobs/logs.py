"""Read pod logs by byte offset. The API server has no offsets: the part before is read again.

A kubelet serves the newest of the files it rotates (10 MiB each by default), so that is bounded; after a
rotation, which shows as less data than was read before, the log restarts.
"""

from __future__ import annotations

from contextlib import aclosing
from typing import Final

from fairway.engines.kubernetes.api.errors import ApiCall, Expired
from fairway.engines.kubernetes.api.requests import KubeRequests
from fairway.engines.kubernetes.jobs.join import AttemptPods, ObservedJob, runs_of
from fairway.engines.kubernetes.jobs.lookup import get_typed
from fairway.engines.kubernetes.jobs.manifest import CONTAINER
from fairway.engines.kubernetes.jobs.objects import JobPodObject, PodFacts, pod_keeper
from fairway.engines.port import LogPart, Refused

MOST: Final = 1 << 20
"""Bytes of one reply."""
FARTHEST: Final = 64 << 20
"""How much of a log is read to reach an offset."""


async def read_log(
    requests: KubeRequests, known: ObservedJob, attempt: int, offset: int, limit: int, node: int
) -> LogPart:
    """Read the log of that attempt's and node's pod from `offset` on."""
    pod = _pod(known, attempt, node)
    if pod is None:
        return LogPart(b"", offset, ended=False)  # nothing of it has begun
    if offset > FARTHEST:
        raise Refused(
            "LogTooLong",
            f"pod {pod.name} printed more than {FARTHEST >> 20} MiB",
            f"read its end:  kubectl -n {known.namespace} logs {pod.name} --tail=1000",
        )
    path = f"/api/v1/namespaces/{known.namespace}/pods/{pod.name}"
    now = await get_typed(requests, path, "pods", JobPodObject)
    if now is None or now.metadata.uid != pod.uid:
        raise _gone(known, pod.name)
    facts = pod_keeper(())(now)
    over = now.status.phase in {"Succeeded", "Failed"} or (facts is not None and facts.ended is not None)
    several = len(now.spec.containers) > 1 and any(c.name == CONTAINER for c in now.status.container_statuses)
    limit = max(1, min(limit, MOST))
    data = await _read(requests, path, offset + limit, CONTAINER if several else "")
    if len(data) < offset:
        data, offset = data[:limit], 0
    else:
        data = data[offset:]
    return LogPart(data, offset + len(data), ended=over and len(data) < limit)


async def _read(requests: KubeRequests, path: str, most: int, container: str) -> bytes:
    params = {"limitBytes": str(most), **({"container": container} if container else {})}
    call = ApiCall(requests.api.server, "get", "pods/log")
    data = bytearray()
    try:
        stream = requests.api.stream(f"{path}/log", params, call, silence_seconds=requests.timeout_seconds)
        async with aclosing(stream) as chunks:
            async for chunk in chunks:
                data += chunk
                if len(data) > most:
                    break
    except Expired as e:
        raise Refused("LogGone", f"the log is no longer there: {e}", "look at the cluster's log store") from e
    except Refused as e:
        if e.code == "BadRequest" and "waiting to start" in e.message:
            return b""
        raise
    return bytes(data[:most])


def _pod(known: ObservedJob, attempt: int, node: int) -> PodFacts | None:
    """Return the pod. Returns None if that attempt has none so far."""
    runs = runs_of(known)
    number = attempt - known.earlier
    if number < 1:
        raise _gone(known, f"of attempt {attempt}")
    if number > len(runs):
        if known.job.finished or known.gone:
            raise _gone(known, f"of attempt {attempt}")
        return None
    run: AttemptPods = runs[number - 1]
    pod = run.pod(node)
    if pod is None:
        return None
    if any(p.gone for p in run.pods if p.facts.uid == pod.uid):
        raise _gone(known, pod.name)
    return pod


def _gone(known: ObservedJob, pod: str) -> Refused:
    return Refused(
        "LogGone",
        f"pod {pod} is gone, and took what it printed with it ({known.namespace}/{known.name})",
        "Kubernetes keeps no logs of preempted or deleted pods: collect them, or print to a shared folder",
    )
