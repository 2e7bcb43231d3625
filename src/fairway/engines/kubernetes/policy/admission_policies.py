"""Make the API server reject, by admission policies, what Kueue alone would admit.

They are the same for every team; a team's own limits are annotations of its namespace. This module has the
rules for objects that create pods, and the CEL that all policies share; `pod_policies` has those for pods.
Exempt are updates of Kubernetes' own controllers and of Kueue, which start and stop jobs that were admitted
long ago; the Jobs that a CronJob makes are checked like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from fairway.engines.kubernetes.api.kinds import (
    DEVICES,
    EXISTING,
    JOB_GPUS,
    JOB_SECONDS,
    PRIORITIES,
    TEAM,
    USER_GPUS,
    USER_QUEUES,
    Json,
)
from fairway.engines.kubernetes.nodes.devices import GPU_LIKE, KNOWN_GPU_RESOURCES
from fairway.model.workload_kinds import JOB as JOB_KIND
from fairway.model.workload_kinds import POD, WORKLOAD_KINDS, PodTemplatePath, WorkloadKind

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME: Final = "kueue.x-k8s.io/max-exec-time-seconds"
USER: Final = "fairway.dev/user"
"""An annotation of what a person created: its user.

The API server sets it; only callers with the permission to speak for users can override it.
"""
JOB: Final = "fairway.dev/job"
"""A label of the Jobs that Fairway created: the job's id."""
EXEMPT: Final = "fairway.dev/exempt"
"""A label of namespaces outside all teams whose GPU pods are not checked: drivers, monitoring."""
REVISION_LABELS: Final = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""Labels of pods that a ReplicaSet made for one revision, and what makes such ReplicaSets."""

JOBS, PODS, STRAYS, QUEUES = "fairway-jobs", "fairway-pods", "fairway-strays", "fairway-queues"
TOPOLOGY: Final = "fairway-topology"
QUEUE: Final = "main"
"""The queue of a team's jobs where a mutating policy can assign it."""
NEEDS_QUEUE: Final = f"a GPU job needs a queue: label {QUEUE_NAME}"
"""Jobs get one by `queue_policy`, once an API server has it in force."""
KUEUES_QUEUE: Final = "default"
"""The same where only Kueue can: it assigns a queue of this name to every job of the namespace."""

CLAIM_RESOURCE: Final = "deviceclass.resource.kubernetes.io/"
"""The prefix of resources by which Kueue counts claims of a DeviceClass."""
NO_CLAIMS: Final = "resource claims can hold GPUs that no queue counts: ask for GPUs in the limits"
CLAIM_BY_NAME: Final = (
    "no queue counts a resource claim by its name, which several pods may share: use a template of claims "
    "(resourceClaimTemplateName)"
)
IN_TEAMS: Final[list[Json]] = [{"key": TEAM, "operator": "Exists"}]
NEW_OWNER: Final = "an ownerReference with controller: true is set by the owner's own controller only"


@dataclass(frozen=True, slots=True)
class AdmissionFacts:
    """What the admission policies of a cluster depend on, beside the annotations of namespaces."""

    resources: tuple[str, ...]
    """The device resources of the pools."""
    queued: tuple[str, ...]
    """The priorities that have a queue of their own."""
    default: str
    """The priority of what names none."""
    assigns_queues: bool
    """Whether mutating policies assign queues to what asks for GPUs, and only to that."""
    claims: str = "no"
    """Whether resource claims can be for GPUs: `no`, `yes`, then they are rejected, or `counted`."""
    left_alone: tuple[str, ...] = ()
    """The namespaces outside teams that used GPUs before Fairway came."""
    frameworks: tuple[str, ...] = (JOB_KIND.framework,)
    """The integrations that Kueue has enabled, as far as its configuration can be read."""

    @property
    def kinds(self) -> tuple[WorkloadKind, ...]:
        """Return the kinds with an integration of their own that Kueue has enabled; Jobs always."""
        return tuple(
            k for k in WORKLOAD_KINDS if k is JOB_KIND or (k is not POD and k.framework in self.frameworks)
        )

    @property
    def queues(self) -> list[str]:
        """Return the queues of a team, without the suffixes of users."""
        return [QUEUE, *self.queued]


_NOT_CONTROLLER: Final = (
    "request.operation == 'CREATE' || "
    "!(request.userInfo.username.startsWith('system:serviceaccount:kube-system:') || "
    "request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.username.startsWith('system:serviceaccount:kueue-system:'))"
)
MAY_SPEAK_FOR_USERS: Final = (
    "authorizer.group('fairway.dev').resource('users').namespace(request.namespace)"
    ".check('speak-for').allowed()"
)
"""Whether the caller may create jobs in the name of others: Fairway may, members may not."""


_MAY_UPDATE_STATUS: Final = (
    "authorizer.group(o.apiVersion.contains('/') ? o.apiVersion.split('/')[0] : '')"
    ".resource(o.kind.lowerAscii() + 's').subresource('status').namespace(request.namespace)"
    ".check('update').allowed()"
)
MAY_CONTROL: Final = (
    "(request.userInfo.username == 'system:kube-controller-manager' || "
    f"{_MAY_UPDATE_STATUS} || "
    "authorizer.group('fairway.dev').resource('owners').namespace(request.namespace)"
    ".check('control').allowed())"
)
"""Whether the caller is a controller of owner `o`: only those may write the status of its kind.

A controller whose kind has no status, or an irregular plural, needs the right `control` instead.
"""
IS_KUEUE: Final = (
    "authorizer.group('kueue.x-k8s.io').resource('workloads').subresource('status')"
    ".namespace(request.namespace).check('update').allowed()"
)
"""Whether the caller is Kueue: only it may write the status of Workloads."""


def controllers(object_: str) -> str:
    """Return CEL for the owners of an object that control it: at most one."""
    return f"{object_}.metadata.?ownerReferences.orValue([]).filter(o, o.?controller.orValue(false))"


CONTROLLERS: Final[list[Json]] = [
    {"name": "controllers", "expression": controllers("object")},
    {
        "name": "newControllers",
        "expression": "oldObject == null ? variables.controllers : variables.controllers.filter("
        f"o, !{controllers('oldObject')}.exists(p, p.uid == o.uid))",
    },
]
"""Variables with the controlling owners, and those of them that this request adds."""


def claims(pod: str) -> str:
    """Return CEL for whether a pod has resource claims."""
    return f"size({pod}.?resourceClaims.orValue([])) > 0"


def names_claim(pod: str) -> str:
    """Return CEL for whether a pod names a resource claim, instead of a template that makes one for it."""
    return f"{pod}.?resourceClaims.orValue([]).exists(c, has(c.resourceClaimName))"


def _revision_of(label: str, kind: str) -> str:
    """Return CEL for the owner behind a ReplicaSet that `kind` makes for each revision of its template."""
    hash_ = f"object.metadata.?labels[?'{label}'].orValue('-')"
    return (
        f"o.kind == 'ReplicaSet' && o.name.endsWith('-' + {hash_}) "
        f"? '{kind}/' + o.name.substring(0, size(o.name) - size({hash_}) - 1)"
    )


EXISTING_ENTRIES: Final[Json] = {
    "name": "existing",
    "expression": f"namespaceObject.metadata.?annotations[?'{EXISTING}'].orValue('').split(',')"
    ".filter(e, e.contains('='))",
}
POD_OWNERS: Final[list[Json]] = [
    {
        "name": "owners",
        "expression": "size(variables.controllers) == 0 "
        "? ['Pod/' + object.metadata.?name.orValue('')] : variables.controllers.map(o, "
        + " : ".join(_revision_of(label, kind) for label, kind in REVISION_LABELS.items())
        + " : o.kind + '/' + o.name)",
    },
    EXISTING_ENTRIES,
]
"""Variables with what a pod belongs to, and what used GPUs before the team was governed."""
POD_IS_EXISTING: Final = (
    "variables.owners.exists(w, variables.existing.exists(e, e.startsWith(w + '=') && "
    "variables.gpus <= int(e.split('=')[1]))) && "
    f"variables.controllers.all(o, {MAY_CONTROL})"
)
"""Whether a pod belongs to a workload that used GPUs before the team was governed, and is no larger.

The name of a controlling owner counts only from its own controller: anybody could write it.
"""
_IS_EXISTING: Final = (
    "oldObject != null && variables.existing.exists(e, "
    "e.startsWith(request.kind.kind + '/' + object.metadata.name + '='))"
)
BASE: Final = "variables.queue.split('.')[0]"
"""A queue without the user's suffix."""
OBJECT_USER: Final = f"object.metadata.?annotations[?'{USER}'].orValue('')"


# --- what objects of each kind ask for --------------------------------------------------------------------


def devices(pod: str, resources: Sequence[str]) -> str:
    """Return CEL for the devices a pod requests. Limits are enough: an extended resource must have one."""
    return (
        f"({_containers(pod)}).map(c, c.?resources.?limits.orValue({{}})"
        f".filter(r, {is_device(resources)})"
        ".map(r, quantity(string(c.resources.limits[r])).asInteger()).sum()).sum()"
    )


def only_granted(pods: str, resources: Sequence[str]) -> str:
    """Return CEL for whether pods request only devices of pools that the team has a grant on."""
    return (
        f"{pods}.all(p, ({_containers('p')}).all(c, c.?resources.?limits.orValue({{}})"
        f".all(r, !({is_device(resources)}) || r in variables.granted)))"
    )


def _containers(pod: str) -> str:
    return f"{pod}.?containers.orValue([]) + {pod}.?initContainers.orValue([])"


def is_device(resources: Sequence[str]) -> str:
    """Return CEL for whether resource `r` is a device: of a pool, or one that looks like a GPU."""
    names = {*resources, *(name for name in KNOWN_GPU_RESOURCES if not name.endswith("*"))}
    prefixes = [name.removesuffix("*") for name in KNOWN_GPU_RESOURCES if name.endswith("*")]
    is_prefixed = (f"r.startsWith('{prefix}')" for prefix in (*prefixes, CLAIM_RESOURCE))
    return " || ".join([f"r in {cel_list(sorted(names))}", *is_prefixed, f"r.matches('{GPU_LIKE}')"])


def object_variables(facts: AdmissionFacts) -> list[Json]:
    """Return the variables `pods`, `gpus`, `unread` and `asks` of a pod, or of what creates pods.

    `unread`: its templates are elsewhere, and what it asks for is not known: it counts as if it asked for
    GPUs.
    """
    readable = [k for k in facts.kinds if k.templates]
    unread = [k.kind for k in facts.kinds if not k.templates]
    gpus = {k.kind: _gpus(k, facts.resources) for k in readable}
    return [
        {"name": "kind", "expression": "request.kind.kind"},
        {"name": "pods", "expression": _by_kind({k.kind: _pods(k) for k in readable}, "[object.spec]")},
        {"name": "unread", "expression": f"variables.kind in {cel_list(unread)}"},
        {
            "name": "gpus",
            "expression": _by_kind(gpus, f"variables.unread ? 0 : {devices('object.spec', facts.resources)}"),
        },
        {
            "name": "asks",
            "expression": "variables.gpus > 0 || variables.unread"
            + ("" if facts.claims == "no" else f" || variables.pods.exists(p, {claims('p')})"),
        },
    ]


def _by_kind(expressions: dict[str, str], pod: str) -> str:
    """Return CEL that selects an expression by the kind of the object; `pod` is for pods."""
    return " : ".join([*(f"variables.kind == '{k}' ? {e}" for k, e in expressions.items()), pod])


def _pods(kind: WorkloadKind) -> str:
    """Return CEL for the pod specs of an object, one for each template."""
    return "(" + " + ".join(_each(path, lambda item: item) for path in kind.templates) + ")"


def _gpus(kind: WorkloadKind, resources: Sequence[str]) -> str:
    """Return CEL for all devices that an object asks for."""

    def of_template(path: PodTemplatePath) -> str:
        counts = ["variables.parallel"] if kind is JOB_KIND else [_number(count) for count in path.counts]
        if path.leader:  # one of each group is created from another template
            counts[-1] = f"({counts[-1]} - ({_select('object', path.leader)}.hasValue() ? 1 : 0))"
        each = _each(path, lambda item: "".join(f"{c} * " for c in counts) + devices(item, resources))
        return f"{each}.sum()"

    return "(" + " + ".join(of_template(path) for path in kind.templates) + ")"


def _number(path: tuple[str, ...]) -> str:
    base, rest = ("i", path[path.index("*") + 1 :]) if "*" in path else ("object", path)
    return f"int({_select(base, rest)}.orValue(1))"


def _each(path: PodTemplatePath, expression: Callable[[str], str]) -> str:
    """Return CEL for a list with an expression of each pod spec; `i` is the item that its template is in."""
    if "*" not in path.template:
        return f"[{expression(_spec('object', path.template))}]"
    at = path.template.index("*")
    items, rest = _select("object", path.template[:at]), path.template[at + 1 :]
    if path.template[at - 1].endswith("ReplicaSpecs"):  # a mapping, by role
        values = f"{items}.orValue({{}})"
        return f"{values}.map(k, {values}[k]).map(i, {expression(_spec('i', rest))})"
    return f"{items}.orValue([]).map(i, {expression(_spec('i', rest))})"


def _spec(base: str, template: tuple[str, ...]) -> str:
    return f"{_select(base, (*template, 'spec'))}.orValue({{}})"


def _select(base: str, path: tuple[str, ...]) -> str:
    return base + "".join(f".?{name}" for name in path)


# --- the policy for objects that create pods --------------------------------------------------------------


def workload_policy(facts: AdmissionFacts) -> tuple[str, Json, Json]:
    """Return name, policy and binding of the rules for Jobs and all other kinds that Kueue integrates."""
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": object_rules(facts.kinds, "CREATE", "UPDATE")},
        "matchConditions": [{"name": "not-machinery", "expression": _NOT_CONTROLLER}],
        "variables": [
            {
                "name": "parallel",
                "expression": "int(object.spec.?completions.orValue(object.spec.?parallelism.orValue(1))) "
                "< int(object.spec.?parallelism.orValue(1)) "
                "? int(object.spec.completions) : int(object.spec.?parallelism.orValue(1))",
            },
            *object_variables(facts),
            *CONTROLLERS,
            {"name": "child", "expression": is_child(facts)},
            EXISTING_ENTRIES,
            {"name": "left", "expression": _IS_EXISTING},
            {"name": "queue", "expression": label(QUEUE_NAME, "")},
            {"name": "base", "expression": BASE},
            {"name": "noted", "expression": OBJECT_USER},
            {"name": "job", "expression": label(JOB, "")},
            {
                "name": "user",
                "expression": "variables.noted == '' ? request.userInfo.username : variables.noted",
            },
            {"name": "slug", "expression": slug()},
            {"name": "priority", "expression": label(PRIORITY_CLASS, facts.default)},
            {"name": "longest", "expression": label(MAX_EXEC_TIME, "")},
            *limits(),
        ],
        "validations": [*_object_checks(facts)],
    }
    return JOBS, policy, binding(JOBS, IN_TEAMS)


def limits() -> list[Json]:
    """Return the variables with the limits of a namespace's team."""
    return [
        {"name": "jobGpus", "expression": namespace_annotation(JOB_GPUS)},
        {"name": "userGpus", "expression": namespace_annotation(USER_GPUS)},
        {"name": "jobSeconds", "expression": namespace_annotation(JOB_SECONDS)},
        {"name": "priorities", "expression": namespace_annotation(PRIORITIES)},
        {"name": "granted", "expression": f"{namespace_annotation(DEVICES)}.split(',')"},
    ]


def limit_checks(facts: AdmissionFacts, services: str) -> Iterator[tuple[str, str]]:
    """Yield the rules that a team's limits set for what a person creates.

    `services` is CEL for whether it runs until somebody ends it: a time limit is for what ends by itself.
    """
    own_queues = cel_list(facts.queued)
    yield (
        "variables.jobGpus == '' || variables.gpus <= int(variables.jobGpus)",
        "over the team's limit of GPUs a job",
    )
    yield (
        "variables.userGpus == '' || variables.gpus <= int(variables.userGpus)",
        "over the team's limit of GPUs a user",
    )
    yield (
        f"variables.jobSeconds == '' || {services} || "
        "(int(object.spec.?activeDeadlineSeconds.orValue(0)) > 0 && "
        "int(object.spec.activeDeadlineSeconds) <= int(variables.jobSeconds)) || "
        "(variables.longest != '' && int(variables.longest) <= int(variables.jobSeconds))",
        "over the team's time limit a job, or without one: set spec.activeDeadlineSeconds, or the label "
        f"{MAX_EXEC_TIME}",
    )
    yield (
        "variables.priority in variables.priorities.split(',')",
        "the team may not use this priority class",
    )
    yield (
        f"variables.priority in {own_queues} ? variables.base == variables.priority "
        f": !(variables.base in {own_queues})",
        "this priority class and the queue of its name go together",
    )
    yield (
        "variables.slug == '' || variables.queue.endsWith('.' + variables.slug)",
        "this team counts by user, and this is not the user's own queue",
    )


def _object_checks(facts: AdmissionFacts) -> Iterator[Json]:
    services = f"variables.kind in {cel_list([k.kind for k in facts.kinds if k.service])}"
    # Kueue holds back the pods of these kinds one by one, whatever their owner says.
    gated = cel_list([k.kind for k in facts.kinds if k.framework in GATED])
    roots = [
        (f"variables.queue != '' || (oldObject != null && variables.kind in {gated})", NEEDS_QUEUE),
        *limit_checks(facts, services),
    ]
    if facts.assigns_queues:
        roots.append(
            (
                f"{in_teams_queue(facts)} || (oldObject != null && (variables.kind in {gated} || "
                f"variables.queue == oldObject.metadata.?labels[?'{QUEUE_NAME}'].orValue('')))",
                "a GPU job stays in a queue of its team",
            )
        )
    for rule, message in roots:
        yield check(f"!variables.asks || variables.child || variables.left || ({rule})", message)
    for rule, message in (
        (
            "variables.pods.all(p, !has(p.nodeName) && "
            "p.?schedulerName.orValue('default-scheduler') == 'default-scheduler')",
            "nodeName and other schedulers are not allowed",
        ),
        (
            "variables.pods.all(p, p.?priorityClassName.orValue('') == '')",
            f"priorityClassName is not allowed: use the label {PRIORITY_CLASS}",
        ),
        (
            # Kueue may let through what a queue does not list, so that cpu and memory need no quota.
            f"oldObject != null || {only_granted('variables.pods', facts.resources)}",
            "the team has no grant on a pool with such devices",
        ),
        (
            "oldObject == null || variables.kind != 'Job' || "
            "object.spec.parallelism == oldObject.spec.parallelism",
            "parallelism is fixed once submitted",
        ),
        (
            "oldObject == null || variables.kind != 'Job' || !oldObject.spec.?suspend.orValue(false) || "
            f"object.spec.?suspend.orValue(false) || variables.controllers.exists(o, {MAY_CONTROL})",
            "suspended jobs are started by Kueue only",
        ),
    ):
        yield check(f"variables.gpus == 0 || variables.left || ({rule})", message)
    yield check(
        # Kueue leaves alone what a controller that it manages created: it has asked for quota already. It
        # manages no CronJobs, and `kubectl create job --from=cronjob/NAME` writes such a reference. Templates
        # of Jobs and of what is gated cannot gain GPUs unseen; others can by an update.
        f"(!variables.asks && (variables.kind == 'Job' || variables.kind in {gated})) || "
        f"variables.newControllers.all(o, o.kind == 'CronJob' || {MAY_CONTROL})",
        NEW_OWNER,
    )
    if facts.assigns_queues:
        yield check(
            f"variables.kind != 'Job' || variables.asks || variables.child || !({in_teams_queue(facts)})",
            "a job without GPUs would never start in a team's queue of GPUs",
        )
    if facts.claims == "yes":
        yield check(f"oldObject != null || !variables.pods.exists(p, {claims('p')})", NO_CLAIMS)
    if facts.claims == "counted":
        yield check(f"oldObject != null || !variables.pods.exists(p, {names_claim('p')})", CLAIM_BY_NAME)
    yield check(*_USER_IS_SUBMITTER)
    yield check(*_LABEL_IS_FAIRWAYS)


GATED: Final = ("deployment", "statefulset", "leaderworkerset.x-k8s.io/leaderworkerset")
"""Integrations whose pods are created with Kueue's gate. All others start objects that Kueue suspended."""


def in_teams_queue(facts: AdmissionFacts) -> str:
    """Return CEL for whether an object names one of the queues that Fairway made in the namespace."""
    return f"variables.base in {cel_list(facts.queues)}"


def is_child(facts: AdmissionFacts) -> str:
    """Return CEL for whether an object was created by one that Kueue queues.

    The pods of a LeaderWorkerSet's leaders own the StatefulSets of its workers.
    """
    return f"variables.controllers.exists(o, o.kind == 'Pod' || {is_kind(facts.kinds)})"


def is_kind(kinds: Collection[WorkloadKind]) -> str:
    """Return CEL for whether owner `o` is of one of these kinds."""
    names = cel_list([f"{k.group}/{k.kind}" for k in kinds])
    return f"(o.apiVersion.split('/')[0] + '/' + o.kind) in {names}"


_USER_IS_SUBMITTER: Final = (
    "oldObject == null "
    f"? variables.noted in ['', request.userInfo.username] || variables.child || {MAY_SPEAK_FOR_USERS} "
    f": variables.noted == oldObject.metadata.?annotations[?'{USER}'].orValue('')",
    f"the annotation {USER} is who submitted the job, for good",
)
_LABEL_IS_FAIRWAYS: Final = (
    "oldObject == null "
    f"? variables.job == '' || variables.child || {MAY_SPEAK_FOR_USERS} "
    f": variables.job == oldObject.metadata.?labels[?'{JOB}'].orValue('')",
    f"the label {JOB} is for jobs that Fairway made",
)


# --- parts of policies ------------------------------------------------------------------------------------


def slug() -> str:
    """Return CEL for the suffix of the user's queue in this namespace; empty: users have no queues."""
    return (
        f"({namespace_annotation(USER_QUEUES)}.split(',').filter(p, p.startsWith(variables.user + '='))"
        ".map(p, p.split('=')[1]) + [''])[0]"
    )


def binding(policy: str, namespaces: list[Json]) -> Json:
    """Return the binding of a validating policy to namespaces."""
    return {
        "policyName": policy,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchExpressions": namespaces}},
    }


def object_rules(kinds: Sequence[WorkloadKind], *operations: str) -> list[Json]:
    """Return the rules that match kinds, those of a group together, whatever their version."""
    groups: dict[str, list[str]] = {}
    for kind in kinds:
        groups.setdefault(kind.group, []).append(kind.plural)
    return [rule(group, plurals, operations) for group, plurals in groups.items()]


def rule(group: str, resources: Sequence[str], operations: Sequence[str]) -> Json:
    """Return a rule that matches resources of a group."""
    return {
        "apiGroups": [group],
        "apiVersions": ["*"],
        "operations": list(operations),
        "resources": list(resources),
        "scope": "*",
    }


def check(expression: str, message: str) -> Json:
    """Return a validation; its message also identifies it."""
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def cel_list(items: Sequence[str]) -> str:
    """Return CEL for a list of strings."""
    return "[" + ", ".join(f"'{item}'" for item in items) + "]"


def label(key: str, default: str) -> str:
    """Return CEL for a label of the object."""
    return f"object.metadata.?labels[?'{key}'].orValue('{default}')"


def namespace_annotation(key: str) -> str:
    """Return CEL for an annotation of the namespace."""
    return f"namespaceObject.metadata.?annotations[?'{key}'].orValue('')"
