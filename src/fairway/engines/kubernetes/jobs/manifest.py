"""Convert an order to a Kubernetes Job. Pure: the same order always makes the same Job.

The Job names no queue unless its priority has one of its own: the admission policy (or Kueue) puts it into
its team's, and where a team counts by user, into that of the user the order names.
"""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Iterator
from typing import Any, Final

from fairway.engines.kubernetes.api.kinds import FAIRWAY, MANAGED_BY, Json
from fairway.engines.kubernetes.jobs import gang
from fairway.engines.kubernetes.jobs.labels import labels_of
from fairway.engines.kubernetes.jobs.objects import HOLD_GATE, INDEX_LABEL
from fairway.engines.kubernetes.nodes.devices import (
    claims_devices,
    device_class_of,
    is_claimed,
    resource,
    resources_of,
)
from fairway.engines.kubernetes.policy.admission_policies import JOB, PRIORITY_CLASS, QUEUE_NAME, USER
from fairway.engines.kubernetes.policy.fields import parse_taint
from fairway.engines.kubernetes.policy.flavors import HOSTNAME
from fairway.engines.kubernetes.policy.translate import own_queues
from fairway.model.errors import Refused
from fairway.model.fleet import Capacity, Cluster, Fleet, KubernetesPlace, Pool
from fairway.model.job import JobSpec, Order, Tolerates, format_job_id
from fairway.model.team import Team

CONTAINER: Final = "job"
TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
GATED_BY: Final = "kueue.x-k8s.io/admission-gated-by"
_CLAIM: Final = "gpus"
"""The name of the claim in a pod, and of the request in the claim."""
CHECKPOINTS: Final = "/checkpoints"
TTL_SECONDS: Final = 86_400
"""How long an ended Job stays: a mirror that was down for a day still finds its end, and users its logs."""
SAFE_TO_DELETE: Final = "kueue.x-k8s.io/safe-to-forcefully-delete"
"""Kueue, where enabled (FailureRecoveryPolicy), gives up pods on nodes that do not respond."""
NODE_LOST_SECONDS: Final = 30
"""How long pods stay bound to a node that does not respond; Kubernetes' own default is 300."""
MAX_SCRIPT_LENGTH: Final = 100_000
"""Bytes: a single environment variable may have 128 KiB."""
_MAX_BACKOFF: Final = 1_000_000
"""The retries of pods are not limited by number: what ends them from outside is not their failure."""
_MAX_YAML: Final = 32_768
"""Characters of a preview, as JSON."""
_TERMINATED: Final = 143
"""The exit code of a command that SIGTERM ended."""

_COUNT_ATTEMPTS: Final = (
    # One line for each pod that ran, in a file for each node of a gang: the lines are attempts.
    'd="$FAIRWAY_CHECKPOINT_DIR/.fairway"; f="$d/attempts-$FAIRWAY_NODE_INDEX"\n'
    'if mkdir -p "$d" 2>/dev/null && echo "$FAIRWAY_POD" >> "$f" 2>/dev/null; then\n'
    '  n=0; while read -r _; do n=$((n + 1)); done < "$f"\n'
    '  [ "$n" -gt "$FAIRWAY_ATTEMPT" ] && export FAIRWAY_ATTEMPT="$n"\n'
    "fi\n"
)
_WRITE_SCRIPT: Final = (
    's="$(mktemp)" || exit 126\nprintf %s "$FAIRWAY_SCRIPT" > "$s" || exit 126\nunset FAIRWAY_SCRIPT\n'
)


def job_manifest(order: Order, fleet: Fleet, cluster: Cluster, *, in_set: bool = False) -> Json:
    """Return the Job to create. Raises Refused for what could never run on this cluster.

    `in_set`: for a JobSet, which makes a Service for its pods itself.
    """
    spec, pool = order.spec, fleet.pool(order.supply.pool)
    place = place_of(pool, cluster)
    seconds = spec.time_seconds or team_of(order, fleet).limits.job_seconds
    _check_can_run(order, pool)
    labels = labels_of(spec) | {MANAGED_BY: FAIRWAY, JOB: format_job_id(order.job)}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {
            "name": order.engine_name,
            "namespace": order.team,
            "labels": labels | queue_labels(order, fleet),
            "annotations": {USER: order.user, **({GATED_BY: HOLD_GATE} if order.hold else {})},
        },
        "spec": {
            "suspend": True,
            "completionMode": "Indexed",
            "completions": spec.nodes,
            "parallelism": spec.nodes,
            "backoffLimit": _MAX_BACKOFF,
            # A lost node or a drain brings the pod back. So does SIGTERM: Kueue leaves no condition on pods
            # of a job that it evicts. A command that fails ends the Job.
            "podFailurePolicy": {
                "rules": [
                    {
                        "action": "Ignore",
                        "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                    },
                    {"action": "Count", "onExitCodes": {"operator": "In", "values": [_TERMINATED]}},
                    {"action": "FailJob", "onExitCodes": {"operator": "NotIn", "values": [0]}},
                ]
            },
            "ttlSecondsAfterFinished": TTL_SECONDS,
            # It counts from each start, as Slurm's time limit does; Kueue's own counts over all attempts, and
            # leaves a Job behind that looks held.
            **({"activeDeadlineSeconds": seconds} if seconds else {}),
            "template": {
                "metadata": {
                    "labels": labels | (gang.POD_LABELS if spec.nodes > 1 and not in_set else {}),
                    "annotations": {
                        SAFE_TO_DELETE: "true",
                        **({TOPOLOGY: pool.topology[-1]} if spec.together else {}),
                    },
                },
                "spec": _pod(order, pool, place, fleet, cluster, in_set=in_set),
            },
        },
    }


def claim_template(order: Order, fleet: Fleet) -> Json | None:
    """Return the template of the claims of a job's pods. Returns None for a pool without a DeviceClass.

    It has one name for each class and number of GPUs and may exist already: its spec cannot change, and Kueue
    counts what it says.
    """
    device_class = device_class_of(order.supply, fleet.pool(order.supply.pool))
    if device_class is None:
        return None
    exactly = {
        "deviceClassName": device_class,
        "allocationMode": "ExactCount",
        "count": order.spec.gpus.count,
    }
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": {
            "name": _template_name(device_class, order.spec.gpus.count),
            "namespace": order.team,
            "labels": {MANAGED_BY: FAIRWAY},
        },
        "spec": {"spec": {"devices": {"requests": [{"name": _CLAIM, "exactly": exactly}]}}},
    }


def _template_name(device_class: str, count: int) -> str:
    return f"fairway-{count}-{device_class}"


def preview(*manifests: Json) -> str:
    """Return an object and what it needs as YAML; as JSON, which is YAML too, if it is long."""
    texts = [json.dumps(manifest, indent=2) for manifest in manifests]
    if sum(map(len, texts)) > _MAX_YAML:  # ruamel.yaml takes a second for 256 KiB
        return "\n---\n".join(texts)
    from ruamel.yaml import YAML  # noqa: PLC0415  (slow to import, and only previews need it)

    yaml, text = YAML(), io.StringIO()
    yaml.width = 100
    yaml.dump_all(manifests, text)
    return text.getvalue()


def queue_labels(order: Order, fleet: Fleet) -> dict[str, str]:
    """Return the labels for Kueue: the priority, and its queue if it has one of its own."""
    own = order.priority in {p.name for p in own_queues(fleet)}
    return {PRIORITY_CLASS: order.priority, **({QUEUE_NAME: order.priority} if own else {})}


def place_of(pool: Pool, cluster: Cluster) -> KubernetesPlace:
    """Return where a pool is. Raises Refused if it is not on this cluster."""
    if pool.cluster == cluster.name and isinstance(pool.place, KubernetesPlace):
        return pool.place
    raise Refused(
        "WrongCluster",
        f"pool {pool.name} is not on {cluster.name}",
        f"choose one that is:  fairway get pools --cluster {cluster.name}",
    )


def team_of(order: Order, fleet: Fleet) -> Team:
    """Return the team of an order. Raises Refused if it has no grant there."""
    team = next((t for t in fleet.teams if t.name == order.team), None)
    if team is None or team.grant(order.supply) is None:
        raise Refused(
            "NoGrant",
            f"team {order.team} has no grant on {order.supply}",
            f"show its grants:  fairway describe team {order.team}",
        )
    return team


def _check_can_run(order: Order, pool: Pool) -> None:
    spec = order.spec
    if spec.image is None:
        raise Refused(
            "NoImage",
            f"a job on Kubernetes needs an image, and {spec.name} has none",
            "set one: image: pytorch/pytorch:2.4.0-cuda12.4-cudnn9-runtime, or --image on the command line",
        )
    if not spec.command and spec.script is None:
        raise Refused("NoCommand", f"{spec.name} has no command and no script", "set a command or a script")
    check_spot(spec, pool)
    if spec.together and not pool.topology:
        raise Refused(
            "NoTopology",
            f"pool {pool.name} does not say which labels form a rack, so nodes cannot be placed together",
            f"set the labels in the fleet file: pools.{pool.name}.topology: [topology.kubernetes.io/rack]",
        )
    if spec.together and claims_devices(pool):
        raise Refused(
            "NoTopology",
            f"Kueue does not choose nodes for GPUs that pods claim, as those of pool {pool.name}, so nodes "
            "cannot be placed together",
            "take together away, or name a pool without a device class",
        )
    if spec.script is not None and len(spec.script.encode()) > MAX_SCRIPT_LENGTH:
        raise Refused(
            "ScriptTooLong",
            f"the script of {spec.name} has more than {MAX_SCRIPT_LENGTH} bytes",
            "put it into the image or a shared folder, and make its path the command",
        )


def check_spot(spec: JobSpec, pool: Pool) -> None:
    """Raise Refused if a pool's nodes can be lost, and the job does not tolerate it."""
    if pool.capacity is Capacity.SPOT and Tolerates.SPOT not in spec.tolerates:
        raise Refused(
            "SpotNotTolerated",
            f"pool {pool.name} is spot capacity, whose nodes can be lost, and {spec.name} does not "
            "tolerate it",
            "add tolerates: [spot], or name another pool",
        )


def _pod(
    order: Order, pool: Pool, place: KubernetesPlace, fleet: Fleet, cluster: Cluster, *, in_set: bool
) -> Json:
    folder = cluster.folders.checkpoints
    volumes, mounts = _checkpoints(order, folder)
    pod: Json = {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        # Otherwise the command would be process 1, which SIGTERM ends only if it has a handler, and every
        # preemption of a plain script would take the whole grace period.
        "shareProcessNamespace": True,
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "tolerations": [*map(toleration, place.taints), *_LOST_NODE_TOLERATIONS],
        "containers": [_container(order, pool, mounts, count_attempts=bool(folder), in_set=in_set)],
    }
    if order.spec.nodes > 1 and not in_set:
        pod["subdomain"] = gang.SERVICE
    if device_class := device_class_of(order.supply, pool):
        template = _template_name(device_class, order.spec.gpus.count)
        pod["resourceClaims"] = [{"name": _CLAIM, "resourceClaimTemplateName": template}]
    if place.node_labels:
        pod["nodeSelector"] = dict(place.node_labels)
    if expressions := node_expressions(order, pool, place, fleet):
        terms = [{"matchExpressions": expressions}]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        pod["affinity"] = {"nodeAffinity": required}
    if volumes:
        pod["volumes"] = volumes
    return pod


def node_expressions(order: Order, pool: Pool, place: KubernetesPlace, fleet: Fleet) -> list[Json]:
    """Return what nodes must match beside the labels of the pool."""
    expressions = list(_exclude_other_pools(pool, place, fleet))
    if order.avoid:
        expressions.append({"key": HOSTNAME, "operator": "NotIn", "values": list(order.avoid)})
    return expressions


def _exclude_other_pools(pool: Pool, place: KubernetesPlace, fleet: Fleet) -> Iterator[Json]:
    """Yield expressions that exclude nodes of the cluster's other pools, and their flavors.

    Kueue compares a selector with a flavor by the flavor's own labels only: a Job that asks for `type: a` may
    be given quota of a flavor of `product: b`, and then waits for ever for a node that is both.
    """
    for other in fleet.pools_of(pool.cluster):
        labels = other.place.node_labels if isinstance(other.place, KubernetesPlace) else {}
        if other.name == pool.name or not set(resources_of(other)) & set(resources_of(pool)):
            continue
        if any(place.node_labels.get(key, value) != value for key, value in labels.items()):
            continue  # the node selector already excludes it
        if key := next((key for key in sorted(labels) if key not in place.node_labels), None):
            yield {"key": key, "operator": "NotIn", "values": [labels[key]]}


def _container(order: Order, pool: Pool, mounts: list[Json], *, count_attempts: bool, in_set: bool) -> Json:
    spec, claimed = order.spec, is_claimed(order.supply, pool)
    requests: Json = {} if claimed else {resource(order.supply, pool): str(spec.gpus.count)}
    limits = dict(requests)
    if spec.cpus is not None:
        requests["cpu"] = str(spec.cpus)
    if spec.memory_gb is not None:
        requests["memory"] = limits["memory"] = f"{spec.memory_gb}G"
    container: Json = {
        "name": CONTAINER,
        "image": spec.image,
        "command": [_escape(part) for part in _command(spec, count_attempts=count_attempts)],
        "env": _environment(order, count_attempts=count_attempts, in_set=in_set),
        "resources": {
            "requests": requests,
            "limits": limits,
            **({"claims": [{"name": _CLAIM}]} if claimed else {}),
        },
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    if spec.workdir is not None:
        container["workingDir"] = spec.workdir
    if mounts:
        container["volumeMounts"] = mounts
    return container


def _command(spec: JobSpec, *, count_attempts: bool) -> list[str]:
    """Return the command itself where nothing comes before it: an image without a shell can run it."""
    if spec.script is None and spec.setup is None and not count_attempts:
        return list(spec.command)
    lines = (_COUNT_ATTEMPTS if count_attempts else "") + (f"{spec.setup}\n" if spec.setup else "")
    # A setup may use `source` and `module`, which need bash.
    shell = "/bin/bash" if spec.setup else "/bin/sh"
    if spec.script is None:
        return [shell, "-c", f'{lines}exec "$@"', CONTAINER, *spec.command]
    return [shell, "-c", f'{_WRITE_SCRIPT}{lines}exec {_interpreter(spec.script)} "$s" "$@"', CONTAINER]


def _interpreter(script: str) -> str:
    """Return the interpreter in the script's first line: some mounts do not allow executing files."""
    first = script.partition("\n")[0]
    command = first[2:].split() if first.startswith("#!") else []
    return shlex.join(command or ["/bin/bash"])


def _environment(order: Order, *, count_attempts: bool, in_set: bool) -> list[Json]:
    spec = order.spec
    values = {
        **(gang.rendezvous(order, in_set=in_set) if spec.nodes > 1 else {}),
        **spec.env,
        "FAIRWAY_JOB_ID": format_job_id(order.job),
        "FAIRWAY_JOB_NAME": spec.name,
        "FAIRWAY_TEAM": order.team,
        "FAIRWAY_USER": order.user,
        "FAIRWAY_ATTEMPT": str(order.attempts_before + 1),
        "FAIRWAY_NODES": str(spec.nodes),
    }
    if order.array is not None:
        values["FAIRWAY_ARRAY_ID"] = format_job_id(order.array)
        values["FAIRWAY_ARRAY_INDEX"] = str(order.array_index)
    if count_attempts:
        values["FAIRWAY_CHECKPOINT_DIR"] = CHECKPOINTS
    if spec.script is not None:
        values["FAIRWAY_SCRIPT"] = spec.script
    env: list[Json] = [{"name": name, "value": _escape(value)} for name, value in values.items()]
    ranks = [name for name in gang.RANKS if name not in spec.env] if spec.nodes > 1 else []
    index = f"metadata.annotations['{INDEX_LABEL}']"
    env += [_from_pod(name, index) for name in ("FAIRWAY_NODE_INDEX", *ranks)]
    env.append(_from_pod("FAIRWAY_POD", "metadata.name"))
    return env


def _from_pod(name: str, path: str) -> Json:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _checkpoints(order: Order, folder: str | None) -> tuple[list[Json], list[Json]]:
    """Return volume and mount of the job's own part of the folder. The kubelet creates it."""
    if folder is None:
        return [], []
    source: dict[str, Any] = (
        {"persistentVolumeClaim": {"claimName": folder.removeprefix("pvc/")}}
        if folder.startswith("pvc/")
        else {"hostPath": {"path": folder, "type": "DirectoryOrCreate"}}
    )
    part = f"{order.team}/{format_job_id(order.job)}"
    mount = {"name": "checkpoints", "mountPath": CHECKPOINTS, "subPath": part}
    return [{"name": "checkpoints", **source}], [mount]


def toleration(taint: str) -> Json:
    """Return the toleration of a pool's taint."""
    parsed = parse_taint(taint)
    value = parsed.get("value")
    match = {"operator": "Equal", "value": value} if value else {"operator": "Exists"}
    return {"key": parsed["key"], **match, "effect": parsed["effect"]}


_LOST_NODE_TOLERATIONS: Final[list[Json]] = [
    {
        "key": f"node.kubernetes.io/{why}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": NODE_LOST_SECONDS,
    }
    for why in ("not-ready", "unreachable")
]


def _escape(value: str) -> str:
    """Escape `$`: Kubernetes expands $(NAME), and takes $$ for $, in commands and variables."""
    return value.replace("$", "$$")
