"""Make the API server assign queues to what asks for GPUs, and places to what is queued.

Kueue's own default queue would be assigned to every object, also to those without GPUs. And where all
flavors of a queue have a topology, Kueue wants a place for every pod, also for those without GPUs, which get
no flavor: a Ray cluster with a head on CPUs would wait forever. So the queues of teams have one more flavor,
without a topology, and Workloads ask for places for those of their pods that ask for GPUs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairway.engines.kubernetes.api.kinds import Json
from fairway.engines.kubernetes.policy.admission_policies import (
    BASE,
    CONTROLLERS,
    IN_TEAMS,
    MAY_SPEAK_FOR_USERS,
    OBJECT_USER,
    POD_IS_EXISTING,
    POD_OWNERS,
    PRIORITY_CLASS,
    QUEUE,
    QUEUE_NAME,
    QUEUES,
    TOPOLOGY,
    USER,
    AdmissionFacts,
    cel_list,
    devices,
    in_teams_queue,
    is_child,
    label,
    object_rules,
    object_variables,
    rule,
    slug,
)
from fairway.engines.kubernetes.policy.flavors import HOSTNAME
from fairway.engines.kubernetes.policy.pod_policies import (
    ELASTIC,
    PARENT,
    REPLICAS,
    WORKLOAD,
    annotation,
)

ANYWHERE: Final = "fairway.anywhere"
"""The flavor without a topology. It has no quota, for a resource that nothing asks for."""
ANYWHERE_RESOURCE: Final = "fairway.dev/anywhere"
_MAX_POD_SETS: Final = 16
_TOPOLOGY_REQUESTS: Final = (
    "required",
    "preferred",
    "unconstrained",
    "podSetSliceRequiredTopology",
    "podSetSliceSize",
    "podsetSliceRequiredTopologyConstraints",
)


def queue_policy(facts: AdmissionFacts) -> tuple[str, Json, Json]:
    """Return name, policy and binding that assign a queue of the team to what asks for GPUs.

    A Job without GPUs that names a team's queue, as the site's of that name may have asked for, loses it and
    runs at once. One that names another queue of the site stays there, see `site_queues`; a GPU job does not.
    What is created by an object that Kueue queues has that one's place. Pods that anything else creates are
    queued one by one. The policy also sets the user of what people create: Kubernetes objects do not record
    who created them.
    """
    names = cel_list(facts.queues)
    is_users = f"{in_teams_queue(facts)} && !(variables.queue in {names})"
    queue = f"(variables.queue in {names} ? variables.queue : '{QUEUE}')"
    queue += " + (variables.slug == '' ? '' : '.' + variables.slug)"
    patches = [
        _add("labels", "variables.sets && !has(object.metadata.labels)"),
        _add("annotations", "variables.root && !has(object.metadata.annotations)"),
        _patch("labels", QUEUE_NAME, queue, f"variables.sets && !({is_users})"),
        # Else Kueue takes the priority of the pod's own PriorityClass.
        _patch("labels", PRIORITY_CLASS, f"'{facts.default}'", _NEEDS_PRIORITY),
        _patch("annotations", USER, "variables.user", "variables.root"),
        _patch("annotations", ELASTIC, "'true'", f"{_SCALES_ITSELF} && {annotation(ELASTIC)} == ''"),
        _leave_queue(facts),
        _record_replicas(),
        *_keep_elastic_gates(),
    ]
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {
            "resourceRules": [
                *object_rules(facts.kinds, "CREATE"),
                rule("", ["pods"], ["CREATE"]),
                rule("apps", ["statefulsets"], ["UPDATE"]),
                rule("ray.io", ["rayclusters"], ["UPDATE"]),
            ]
        },
        "variables": [
            # The number of pods does not matter here.
            {"name": "parallel", "expression": "1"},
            *object_variables(facts),
            {"name": "isPod", "expression": "variables.kind == 'Pod'"},
            *CONTROLLERS,
            *POD_OWNERS,
            {"name": "child", "expression": is_child(facts)},
            {"name": "left", "expression": POD_IS_EXISTING},
            {"name": "queue", "expression": label(QUEUE_NAME, "")},
            {"name": "base", "expression": BASE},
            {
                "name": "user",
                "expression": f"{OBJECT_USER} != '' && {MAY_SPEAK_FOR_USERS} "
                f"? {OBJECT_USER} : request.userInfo.username",
            },
            {"name": "slug", "expression": slug()},
            {
                "name": "root",
                "expression": "request.operation == 'CREATE' && "
                "(variables.asks || variables.kind == 'Job') && "
                "(variables.isPod ? size(variables.controllers) == 0 : !variables.child)",
            },
            {
                "name": "sets",
                "expression": "request.operation == 'CREATE' && variables.asks && "
                f"(variables.isPod ? {_IS_UNCOUNTED} && !variables.left : !variables.child)",
            },
        ],
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": " + ".join(patches)}}],
    }
    return QUEUES, policy, _binding(QUEUES)


_IS_UNCOUNTED: Final = f"{annotation(WORKLOAD)} == '' && {annotation(PARENT)} in ['', 'deployment']"
"""Whether nothing that Kueue queues created a pod: those of a Deployment are queued one by one."""
_SCALES_ITSELF: Final = (
    "variables.root && variables.sets && variables.kind == 'RayCluster' && "
    "object.spec.?enableInTreeAutoscaling.orValue(false) == true"
)
"""Whether Ray's autoscaler changes the size of a cluster: Kueue queues those only that are elastic."""
_NEEDS_PRIORITY: Final = f"variables.sets && variables.isPod && {label(PRIORITY_CLASS, '')} == ''"


def _binding(policy: str) -> Json:
    return {"policyName": policy, "matchResources": {"namespaceSelector": {"matchExpressions": IN_TEAMS}}}


def _escape(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")


def _add(field: str, condition: str) -> str:
    return f"({condition} ? [JSONPatch{{op: 'add', path: '/metadata/{field}', value: {{}}}}] : [])"


def _patch(field: str, key: str, value: str, condition: str) -> str:
    path = f"/metadata/{field}/{_escape(key)}"
    return f"({condition} ? [JSONPatch{{op: 'add', path: '{path}', value: {value}}}] : [])"


def _leave_queue(facts: AdmissionFacts) -> str:
    """Return CEL that takes a job without GPUs out of a team's queue.

    Kueue suspends jobs that name a queue, and so do people who write them.
    """
    return (
        f"(variables.kind == 'Job' && !variables.asks && !variables.child && {in_teams_queue(facts)} ? ["
        f"JSONPatch{{op: 'remove', path: '/metadata/labels/{_escape(QUEUE_NAME)}'}}, "
        "JSONPatch{op: 'add', path: '/spec/suspend', value: false}] : [])"
    )


def _record_replicas() -> str:
    """Return CEL that writes into the template of a GPU StatefulSet how many pods its Workload counts.

    Kueue makes the Workload when there are replicas for the first time, and never changes its size.
    """
    had = f"oldObject.spec.template.metadata.?annotations[?'{REPLICAS}'].orValue('')"
    value = (
        "request.operation == 'CREATE' ? string(object.spec.?replicas.orValue(1)) "
        f": {had} in ['', '0'] && oldObject.spec.?replicas.orValue(1) == 0 "
        f"? string(object.spec.?replicas.orValue(1)) : {had}"
    )
    has_annotations = "has(object.spec.template.metadata) && has(object.spec.template.metadata.annotations)"
    has_metadata = "has(object.spec.template.metadata)"
    path = "/spec/template/metadata"
    return (
        f"(variables.kind == 'StatefulSet' && variables.asks && !variables.child && ({value}) != '' ? ("
        f"({has_metadata} ? [] : [JSONPatch{{op: 'add', path: '{path}', value: {{}}}}]) + "
        f"({has_annotations} ? [] : [JSONPatch{{op: 'add', path: '{path}/annotations', value: {{}}}}]) + "
        f"[JSONPatch{{op: 'add', path: '{path}/annotations/{_escape(REPLICAS)}', value: ({value})}}]) : [])"
    )


def _keep_elastic_gates() -> Iterator[str]:
    """Yield CEL that puts Kueue's gate back into the templates of an elastic RayCluster.

    Kueue adds it at creation and requires it from then on, but `kubectl apply` of a changed manifest replaces
    the whole list of worker groups.
    """
    elastic = (
        "request.operation == 'UPDATE' && variables.kind == 'RayCluster' && "
        f"{annotation(ELASTIC)} == 'true' && {annotation(ELASTIC, 'oldObject')} == 'true'"
    )
    groups = "object.spec.?workerGroupSpecs.orValue([])"
    indices = ", ".join(str(i) for i in range(_MAX_POD_SETS))
    head, group = "object.spec.?headGroupSpec.?template.?spec", f"{groups}[i].?template.?spec"
    gate = f"[{{'name': '{ELASTIC}'}}]"
    missing = "{}.hasValue() && !{}.?schedulingGates.hasValue()"
    gates = "/template/spec/schedulingGates"
    yield (
        f"({elastic} && {missing.format(head, head)} ? "
        f"[JSONPatch{{op: 'add', path: '/spec/headGroupSpec{gates}', value: {gate}}}] : [])"
    )
    yield (
        f"({elastic} ? [{indices}].filter(i, i < size({groups}) && {missing.format(group, group)})"
        ".map(i, JSONPatch{op: 'add', path: '/spec/workerGroupSpecs/' + string(i) + "
        f"'{gates}', value: {gate}}}) : [])"
    )


def topology_policy(facts: AdmissionFacts) -> tuple[str, Json, Json]:
    """Return name, policy and binding by which the GPU pods of Workloads in teams' queues get places.

    The request is for slices of one pod on one node: a form that Kueue marks pods for, and that any node
    meets. `unconstrained` means the same, but Kueue expects such pods to be marked by whoever wrote it. Pods
    that claim their GPUs get a flavor without a topology, and so no place.

    Kueue writes the pod sets of a Workload anew when its waiting job is changed: a request that was there
    stays. No other update adds one, because those of an admitted Workload must not change.
    """
    pod_set = "object.spec.podSets[i]"
    asks = f"({devices(f'{pod_set}.template.spec', facts.resources)}) > 0"
    indices = ", ".join(str(i) for i in range(_MAX_POD_SETS))
    had = "'podSetSliceRequiredTopology' in oldObject.spec.podSets[i].?topologyRequest.orValue({})"
    keeps = f"(request.operation == 'CREATE' || (i < size(oldObject.spec.podSets) && {had}))"
    path = "'/spec/podSets/' + string(i) + '/topologyRequest"
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [rule("kueue.x-k8s.io", ["workloads"], ["CREATE", "UPDATE"])]},
        "variables": [
            {"name": "queue", "expression": "object.spec.?queueName.orValue('')"},
            {"name": "base", "expression": BASE},
            {
                "name": "placed",
                "expression": f"!({in_teams_queue(facts)}) ? [] : [{indices}].filter(i, "
                f"i < size(object.spec.podSets) && {keeps} && {asks} && !{cel_list(_TOPOLOGY_REQUESTS)}"
                f".exists(k, k in {pod_set}.?topologyRequest.orValue({{}})))",
            },
        ],
        "mutations": [
            {
                "patchType": "JSONPatch",
                "jsonPatch": {
                    "expression": f"variables.placed.filter(i, !has({pod_set}.topologyRequest))"
                    f".map(i, JSONPatch{{op: 'add', path: {path}', value: {{}}}}) + variables.placed.map(i, "
                    f"JSONPatch{{op: 'add', path: {path}/podSetSliceRequiredTopology', value: '{HOSTNAME}'}})"
                    " + variables.placed.map(i, "
                    f"JSONPatch{{op: 'add', path: {path}/podSetSliceSize', value: 1}})"
                },
            }
        ],
    }
    return TOPOLOGY, policy, _binding(TOPOLOGY)
