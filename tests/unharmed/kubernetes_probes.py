"""What people try on a Kubernetes site with kubectl, and what comes of it."""

from __future__ import annotations

import json
import re
import secrets
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from fairway.engines.kubernetes.nodes.devices import is_known_gpu
from tests.unharmed.probes import Outcome, Result
from tests.waiting import Deadline

if TYPE_CHECKING:
    from lab.instance import Instance

Json = dict[str, Any]

LABEL = "unharmed"
QUEUE = "kueue.x-k8s.io/queue-name"
WAIT_SECONDS = 40.0
CALM_SECONDS = 4.0
"""Kueue, the controllers and the scheduler answer within this time, on a machine that is not busy."""
BEHIND_OTHERS = "no condition"
"""Kueue has not considered the job: it looks only at the first of a queue with StrictFIFO."""
OUTSIDE = "default"
"""A namespace that nobody set up; the administrator works there."""
KINDS = ("jobs.batch", "deployments.apps", "statefulsets.apps", "cronjobs.batch", "pods")


@dataclass(frozen=True, slots=True)
class Probe:
    """One thing that somebody does."""

    user: str | None
    """None: the administrator."""
    namespace: str
    what: str
    """For people: what is created, or done to something that exists."""
    manifest: str = ""
    """JSON of what is created, without its name; empty for a command."""
    command: tuple[str, ...] = ()
    target: str = ""
    """The Deployment or StatefulSet that a command is about."""
    gpus: bool = False

    def __str__(self) -> str:
        return f"{self.user or 'admin'} in {self.namespace}: {self.what}"


def probes_of(instance: Instance) -> list[Probe]:
    """Everybody in each namespace of the site: all kinds, with and without GPUs, within limits and beyond."""
    members = _members(instance)
    devices = _devices(instance)
    queues = _queues(instance)
    found: list[Probe] = []
    for namespace, user in members.items():
        found += _creations(user, namespace, devices, queues.get(namespace))
        stranger = next(u for u in ("bob", "alice") if u != user)
        for gpus in (0, 1):
            what = f"a stranger's Job of {gpus} GPUs"
            found.append(_create(stranger, namespace, what, _job(_pod(devices[0], gpus)), gpus))
    found += _creations(None, OUTSIDE, devices, None)
    # A LimitRange with a maximum of GPUs gives that many to every container that asks for none.
    given = _namespaces_that_give_gpus(instance)
    found = [replace(probe, gpus=probe.gpus or probe.namespace in given) for probe in found]
    found += _commands(instance, members)
    return found


def _namespaces_that_give_gpus(instance: Instance) -> set[str]:
    return {
        limits["metadata"]["namespace"]
        for limits in _get(instance, "limitranges")
        for item in limits["spec"]["limits"]
        for field_ in ("default", "max")
        if any(is_known_gpu(resource) for resource in item.get(field_, {}))
    }


def _members(instance: Instance) -> dict[str, str]:
    """Somebody who may edit each namespace."""
    found = {}
    for binding in _get(instance, "rolebindings"):
        meta, people = binding["metadata"], binding.get("subjects", ())
        if binding["roleRef"]["name"] == "edit" and people:
            found[meta["namespace"]] = people[0]["name"]
    return found


def _devices(instance: Instance) -> list[str]:
    """The GPU resources of the nodes, whole GPUs first."""
    nodes = _get(instance, "nodes")
    return sorted(
        {r for node in nodes for r in node["status"].get("allocatable", {}) if is_known_gpu(r)},
        key=lambda r: (r != "nvidia.com/gpu", r),
    )


def _queues(instance: Instance) -> dict[str, str]:
    queues = _get(instance, "localqueues.kueue.x-k8s.io")
    return {queue["metadata"]["namespace"]: queue["metadata"]["name"] for queue in queues}


def _creations(
    user: str | None, namespace: str, devices: Sequence[str], queue: str | None
) -> Iterator[Probe]:
    gpu = devices[0]
    cpu_pod = _pod()
    yield _create(user, namespace, "a Job", _job(cpu_pod))
    yield _create(user, namespace, "a Job of two pods", _job(cpu_pod, parallelism=2, completions=2))
    yield _create(user, namespace, "a Job without requests", _job(_pod(requests={})))
    yield _create(user, namespace, "a Job that no node can hold", _job(_pod(requests={"cpu": "9000"})))
    yield _create(user, namespace, "a suspended Job", _job(cpu_pod, suspend=True))
    yield _create(user, namespace, "a Job of another registry", _job(_pod(image="elsewhere/x:1")))
    yield _create(user, namespace, "a Job without a label", _job(cpu_pod, labels={}))
    yield _create(user, namespace, "a CronJob", _cron_job(cpu_pod))
    yield _create(user, namespace, "a bare pod", _bare_pod(cpu_pod))
    yield _create(user, namespace, "a Deployment", _deployment(cpu_pod))
    yield _create(user, namespace, "a StatefulSet", _stateful_set(cpu_pod))
    one = _pod(gpu, 1)
    yield _create(user, namespace, "a Job of 1 GPU", _job(one), 1)
    yield _create(user, namespace, "a Job of 64 GPUs", _job(_pod(gpu, 64)), 64)
    yield _create(user, namespace, "a bare pod of 1 GPU", _bare_pod(one), 1)
    yield _create(user, namespace, "a Deployment of 1 GPU", _deployment(one), 1)
    yield _create(user, namespace, "a StatefulSet of 1 GPU", _stateful_set(one), 1)
    for device in devices[1:]:
        yield _create(user, namespace, f"a Job of 1 {device}", _job(_pod(device, 1)), 1)
    if queue is not None:
        queued = {QUEUE: queue}
        yield _create(user, namespace, "a queued Job of 1 GPU", _job(one, queued, suspend=True), 1)
        yield _create(
            user, namespace, "a queued Job of 64 GPUs", _job(_pod(gpu, 64), queued, suspend=True), 64
        )
        yield _create(user, namespace, "a queued Job", _job(cpu_pod, queued, suspend=True))
    nowhere = {QUEUE: "no-such-queue"}
    yield _create(user, namespace, "a Job of 1 GPU in no queue", _job(one, nowhere, suspend=True), 1)


def _commands(instance: Instance, members: Mapping[str, str]) -> Iterator[Probe]:
    """What people do to what they have: it runs already, and stays theirs to restart."""
    for kind in ("deployments", "statefulsets"):
        for served in _get(instance, f"{kind}.apps"):
            namespace, name = served["metadata"]["namespace"], served["metadata"]["name"]
            target = f"{kind}/{name}"
            if namespace not in members:
                continue
            for what, command in (
                ("restart", ("rollout", "restart", target)),
                ("delete the pods of", ("delete", "pod", "--wait=false", f"--selector=app={name}")),
                ("annotate", ("annotate", "--overwrite", target, f"note={LABEL}")),
            ):
                yield Probe(members[namespace], namespace, f"{what} {target}", command=command, target=target)


# manifests


def _pod(
    device: str = "", count: int = 0, *, requests: Json | None = None, image: str = "registry.example/x:1"
) -> Json:
    asked = {"cpu": "100m", "memory": "64Mi"} if requests is None else requests
    limits = {device: str(count)} if count else {}
    container = {"name": "main", "image": image, "resources": {"requests": asked, "limits": limits}}
    return {"containers": [container], "tolerations": [{"operator": "Exists", "effect": "NoSchedule"}]}


def _job(pod: Json, labels: Json | None = None, **spec: Any) -> Json:
    own = {"cost-centre": "4711"} | (labels or {}) if labels != {} else {}
    template = {"metadata": {}, "spec": {**pod, "restartPolicy": "Never"}}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"labels": own},
        "spec": {"backoffLimit": 0, "template": template, **spec},
    }


def _cron_job(pod: Json) -> Json:
    job = _job(pod)
    return {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {},
        "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"metadata": job["metadata"], "spec": job["spec"]}},
    }


def _bare_pod(pod: Json) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {}, "spec": {**pod, "restartPolicy": "Never"}}


def _deployment(pod: Json) -> Json:
    spec = {"replicas": 1, "selector": {"matchLabels": {}}, "template": {"metadata": {}, "spec": pod}}
    return {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {}, "spec": spec}


def _stateful_set(pod: Json) -> Json:
    made = _deployment(pod)
    return {**made, "kind": "StatefulSet", "spec": {**made["spec"], "serviceName": "none"}}


def _create(user: str | None, namespace: str, what: str, manifest: Json, gpus: int = 0) -> Probe:
    return Probe(user, namespace, what, json.dumps(manifest), gpus=gpus > 0)


def _named(probe: Probe, name: str) -> str:
    """The manifest with a name, and a label on all its pods."""
    made = json.loads(probe.manifest)
    own = {LABEL: name}
    made["metadata"] |= {"name": name, "namespace": probe.namespace}
    made["metadata"]["labels"] = made["metadata"].get("labels", {}) | own
    spec = made["spec"].get("jobTemplate", made)["spec"]
    if "template" in spec:
        spec["template"]["metadata"]["labels"] = own
    if "selector" in spec:
        spec["selector"]["matchLabels"] = own
    return json.dumps(made)


# playing


@dataclass
class Snapshot:
    """The cluster as it is now."""

    pods: list[Json] = field(default_factory=list)
    events: list[Json] = field(default_factory=list)
    workloads: list[Json] = field(default_factory=list)
    served: dict[tuple[str, str], Json] = field(default_factory=dict)
    """Deployments and StatefulSets, by namespace and `kind/name`."""

    @classmethod
    def of(cls, instance: Instance) -> Snapshot:
        served = {
            (one["metadata"]["namespace"], f"{one['kind'].lower()}s/{one['metadata']['name']}"): one
            for one in _get(instance, "deployments.apps,statefulsets.apps")
        }
        return cls(
            _get(instance, "pods"),
            _get(instance, "events"),
            _get(instance, "workloads.kueue.x-k8s.io"),
            served,
        )


def play(instance: Instance, probes: Sequence[Probe]) -> dict[Probe, Outcome]:
    """Do all of it: what needs no GPUs at once, what does one thing in each namespace at a time."""
    outcomes: dict[Probe, Outcome] = {}
    for batch in _batches(probes):
        outcomes |= _play_batch(instance, batch)
    return outcomes


def _batches(probes: Sequence[Probe]) -> Iterator[list[Probe]]:
    yield [p for p in probes if not p.gpus and not p.command]
    for kind in ([p for p in probes if p.gpus], [p for p in probes if p.command]):
        waiting = list(kind)
        while waiting:
            batch: dict[str, Probe] = {}
            for probe in waiting:
                batch.setdefault(probe.namespace, probe)
            yield list(batch.values())
            waiting = [p for p in waiting if p not in batch.values()]


def _play_batch(instance: Instance, batch: Sequence[Probe]) -> dict[Probe, Outcome]:
    run = secrets.token_hex(3)
    began = datetime.now(UTC).replace(microsecond=0).isoformat().replace("+00:00", "Z")
    outcomes: dict[Probe, Outcome] = {}
    names: dict[Probe, str] = {}
    for number, probe in enumerate(batch):
        name = f"u{run}-{number:03d}"
        argv = probe.command or ("create", "--filename=-")
        stdin = _named(probe, name) if probe.manifest else ""
        done = instance.run(
            "kubectl", f"--namespace={probe.namespace}", *argv, user=probe.user, stdin=stdin, check=False
        )
        if done.returncode:
            outcomes[probe] = Outcome(Result.REFUSED, _words(done.stderr, name))
        else:
            names[probe] = name
    outcomes |= _settled(instance, names, began)
    _clean(instance)
    return outcomes


def _settled(instance: Instance, names: Mapping[Probe, str], began: str) -> dict[Probe, Outcome]:
    """What became of each once nothing moves any more."""
    deadline, calm = Deadline(WAIT_SECONDS), Deadline(CALM_SECONDS)
    last: dict[Probe, Outcome] = {}
    while names:
        snapshot = Snapshot.of(instance)
        now = {
            probe: _served(probe, snapshot, began) if probe.target else _outcome(name, snapshot)
            for probe, name in names.items()
        }
        if now != last:
            last, calm = now, Deadline(CALM_SECONDS)
        over = all(outcome.result is Result.RAN for outcome in now.values())
        if over or calm.passed or deadline.passed:
            return now
        time.sleep(0.3)
    return {}


def _outcome(name: str, snapshot: Snapshot) -> Outcome:
    pods = [p for p in snapshot.pods if p["metadata"].get("labels", {}).get(LABEL) == name]
    if any(p["status"].get("phase") in ("Running", "Succeeded") for p in pods):
        return Outcome(Result.RAN)
    if not pods and (refused := _refusal(name, snapshot.events)):
        return Outcome(Result.REFUSED, _words(refused, name))
    for pod in pods:
        for condition in pod["status"].get("conditions", ()):
            if condition["type"] == "PodScheduled" and condition["status"] == "False":
                return Outcome(Result.WAITS, _words(f"{condition['reason']}: {condition['message']}", name))
    for workload in snapshot.workloads:
        owners = [o["name"] for o in workload["metadata"].get("ownerReferences", ())]
        if name in owners:
            quota = [c for c in workload["status"].get("conditions", ()) if c["type"] == "QuotaReserved"]
            return Outcome(Result.WAITS, _words(quota[-1]["message"] if quota else BEHIND_OTHERS, name))
    return Outcome(Result.WAITS, f"{len(pods)} pods" if pods else "no pods")


def _served(probe: Probe, snapshot: Snapshot, began: str) -> Outcome:
    """Whether what a command changed has all its pods again."""
    one = snapshot.served[probe.namespace, probe.target]
    spec, status = one["spec"], one["status"]
    wanted = spec["replicas"]
    current = status.get("observedGeneration") == one["metadata"]["generation"]
    updated = status.get("updatedReplicas", 0) >= wanted or one["kind"] == "StatefulSet"
    if (
        current
        and updated
        and status.get("readyReplicas", 0) >= wanted
        and _all_young(probe, snapshot, began)
    ):
        return Outcome(Result.RAN)
    recent = [e for e in snapshot.events if (e.get("lastTimestamp") or "") >= began]
    refused = _refusal(probe.target.partition("/")[2], recent)
    return Outcome(Result.REFUSED, _words(refused, "")) if refused else Outcome(Result.WAITS, "replicas")


def _all_young(probe: Probe, snapshot: Snapshot, began: str) -> bool:
    """Whether the pods that a command takes away are gone."""
    if probe.command[0] == "annotate":
        return True
    app = probe.target.partition("/")[2]
    mine = [
        p
        for p in snapshot.pods
        if p["metadata"]["namespace"] == probe.namespace and p["metadata"].get("labels", {}).get("app") == app
    ]
    return bool(mine) and all(p["metadata"]["creationTimestamp"] >= began for p in mine)


def _refusal(name: str, events: Collection[Json]) -> str:
    """Why a controller cannot make pods, in its own words."""
    for event in events:
        about = event["involvedObject"].get("name", "")
        if event.get("reason") == "FailedCreate" and (about == name or about.startswith(f"{name}-")):
            return str(event.get("message", ""))
    return ""


def _clean(instance: Instance) -> None:
    """Take away what the probes made, and wait until it is gone."""
    options = ("--all-namespaces", f"--selector={LABEL}", "--timeout=60s", "--wait=true")
    instance.run("kubectl", "delete", ",".join(KINDS), *options, check=False, timeout=90)
    deadline = Deadline(WAIT_SECONDS)
    while not deadline.passed:
        left = [p for p in _get(instance, "pods") if LABEL in p["metadata"].get("labels", {})]
        if not left:
            return
        time.sleep(0.3)


def _get(instance: Instance, kinds: str) -> list[Json]:
    done = instance.run("kubectl", "get", kinds, "--all-namespaces", "--output=json", check=False)
    if done.returncode:
        return []  # the site has no such kind: no Kueue
    items: list[Json] = json.loads(done.stdout)["items"]
    return items


def _words(text: str, name: str) -> str:
    """Words without what differs from run to run."""
    last = (text.strip().splitlines() or [""])[-1]
    if name:
        last = re.sub(rf"{name}(-[a-z0-9]+)*", "NAME", last)
    return re.sub(r"(-[a-z0-9]{5,10})+\b(?=\")", "", last)[:300]


# judging


def harms(
    before: Mapping[Probe, Outcome], after: Mapping[Probe, Outcome], teams: Collection[str]
) -> list[str]:
    """What broke the promise: `teams` are the namespaces whose GPU work is governed now.

    New GPU work where nobody used GPUs before is taken away on purpose: the plan says so, see `taken_away`.
    """
    found = []
    for probe, was in before.items():
        now = after[probe]
        # A team's Job whose pods were refused may wait in a queue now: it runs no more than before.
        widened = was.result is Result.REFUSED and now.result is Result.RAN
        if was == Outcome(Result.WAITS, BEHIND_OTHERS) and now.result is Result.RAN:
            continue  # no limit held it, only a job before it in a strict queue, which has started since
        if widened or (not _may_change(probe, teams) and now.result is not was.result):
            found.append(f"{probe}: {was} -> {now}")
    return found


def taken_away(
    before: Mapping[Probe, Outcome], after: Mapping[Probe, Outcome], teams: Collection[str]
) -> dict[str, list[str]]:
    """New GPU work that runs no more as it did, by namespace: the plan has to announce it."""
    found: dict[str, list[str]] = {}
    for probe, was in before.items():
        if _may_change(probe, teams) and after[probe].result is not was.result:
            found.setdefault(probe.namespace, []).append(f"{probe}: {was} -> {after[probe]}")
    return found


def _may_change(probe: Probe, teams: Collection[str]) -> bool:
    return probe.gpus and (probe.namespace in teams or probe.namespace == OUTSIDE)
