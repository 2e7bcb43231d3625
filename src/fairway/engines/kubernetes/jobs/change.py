"""Change Jobs that Kueue has not admitted: what Kubernetes lets change in a suspended Job, and nothing else.

Those are the scheduling of its pods and, from Kubernetes 1.35 on, their resources; the time limit and the
priority too. Kueue then updates the Job's Workload, which keeps its place in the queue.
"""

from __future__ import annotations

import copy
from typing import Any, Final

from fairway.engines.kubernetes.api.errors import request_error
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json
from fairway.engines.kubernetes.api.requests import MERGE, KubeRequests
from fairway.engines.kubernetes.jobs.lookup import look_up_workload
from fairway.engines.kubernetes.policy.admission_policies import PRIORITY_CLASS
from fairway.model.errors import Refused
from fairway.model.job import EngineId
from fairway.model.job_change import SUBMIT_AGAIN, job_started

_SCHEDULING: Final = ("nodeSelector", "affinity", "tolerations")
"""What Kubernetes lets change in the pod spec of a suspended Job."""


def check_change(before: Json, after: Json) -> None:
    """Return if a suspended object can be changed so. Raises Refused for what Kubernetes keeps as it is."""
    if _fixed(before) == _fixed(after):
        return
    what = "its queue, or what its pods receive and claim"
    if after["kind"] != "Job":
        what = f"anything but the priority of a {after['kind']}"
    elif before["spec"]["parallelism"] != after["spec"]["parallelism"]:
        what = "the number of its nodes, which its pods receive as a setting"
    raise Refused("CannotChange", f"Kubernetes does not let a Job that waits change {what}", SUBMIT_AGAIN)


async def change(requests: KubeRequests, engine_id: EngineId, after: Json) -> bool:
    """Change a Job that waits. Returns False if it has changed meanwhile: ask again. Raises Refused."""
    found = await look_up_workload(requests, engine_id, pods=False)
    if found is None or found.job.finished or not found.path:
        return True
    current = await requests.get(found.path, found.resource, Json)
    if current is None:
        return True
    patch = _patch(current, after)
    if not patch:
        return True
    if not current["spec"].get("suspend"):
        raise job_started(engine_id)
    patch.setdefault("metadata", {})["resourceVersion"] = current["metadata"]["resourceVersion"]
    call = requests.call("patch", found.resource)
    code, body = await requests.send(
        call, found.path, params={"fieldManager": FAIRWAY}, body=patch, content=MERGE
    )
    if code in {404, 409}:
        return False
    if not 200 <= code < 300:
        raise request_error(code, body, call)
    return True


def _patch(current: Json, after: Json) -> Json:
    """Return a merge patch of what differs. Returns nothing for an object that is so already."""
    patch: Json = {}
    priority = after["metadata"]["labels"][PRIORITY_CLASS]
    if current["metadata"].get("labels", {}).get(PRIORITY_CLASS) != priority:
        patch["metadata"] = {"labels": {PRIORITY_CLASS: priority}}
    if after["kind"] != "Job":
        return patch
    spec: Json = {}
    seconds = after["spec"].get("activeDeadlineSeconds")
    if current["spec"].get("activeDeadlineSeconds") != seconds:
        spec["activeDeadlineSeconds"] = seconds
    pod = _pod_patch(
        current["spec"]["template"]["spec"],
        after["spec"]["template"]["spec"],
        suspended=bool(current["spec"].get("suspend")),
    )
    if pod:
        spec["template"] = {"spec": pod}
    return patch | ({"spec": spec} if spec else {})


def _pod_patch(current: Json, after: Json, *, suspended: bool) -> Json:
    """Return what differs in a pod spec. That of a started Job has those of its flavor too."""
    patch: Json = {}
    have, want = current.get("nodeSelector") or {}, after.get("nodeSelector") or {}
    surplus = [key for key in have if key not in want] if suspended else []
    if surplus or any(have.get(key) != value for key, value in want.items()):
        patch["nodeSelector"] = {**dict.fromkeys(surplus), **want}
    if (current.get("affinity") or {}) != (after.get("affinity") or {}):
        patch["affinity"] = after.get("affinity")
    if suspended and current.get("tolerations", []) != after.get("tolerations", []):
        patch["tolerations"] = after.get("tolerations", [])
    container = copy.deepcopy(current["containers"][0])
    resources: dict[str, Any] = container.setdefault("resources", {})
    wanted = {name: after["containers"][0]["resources"][name] for name in ("requests", "limits")}
    if any((resources.get(name) or {}) != value for name, value in wanted.items()):
        resources.update(wanted)
        patch["containers"] = [container, *current["containers"][1:]]
    return patch


def _fixed(made: Json) -> Json:
    """Return an object without what can be changed while it is suspended."""
    fixed = copy.deepcopy(made)
    fixed["metadata"]["labels"].pop(PRIORITY_CLASS, None)
    if made["kind"] != "Job":
        return fixed
    fixed["spec"].pop("activeDeadlineSeconds", None)
    pod = fixed["spec"]["template"]["spec"]
    for name in _SCHEDULING:
        pod.pop(name, None)
    for name in ("requests", "limits"):
        pod["containers"][0]["resources"].pop(name, None)
    return fixed
