"""Make the API server refuse, by admission policies, what Kueue alone would admit.

They are the same for every team; a team's own limits are annotations of its namespace. Exempt are
updates of Kubernetes' own controllers and of Kueue, which start and stop jobs that were admitted long ago;
the Jobs that a CronJob makes are checked like any other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
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

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
MAX_EXEC_TIME: Final = "kueue.x-k8s.io/max-exec-time-seconds"
USER: Final = "fairway.dev/user"
"""A Job's annotation: its user.

The API server sets it; only callers with the permission to speak for users can override it.
"""
JOB: Final = "fairway.dev/job"
"""A label of the Jobs that Fairway created: the job's id."""
EXEMPT: Final = "fairway.dev/exempt"
"""A label of namespaces outside all teams whose GPU pods are not checked: drivers, monitoring."""
REVISION_LABELS: Final = {"pod-template-hash": "Deployment", "rollouts-pod-template-hash": "Rollout"}
"""Labels of pods that a ReplicaSet made for one revision, and what makes such ReplicaSets."""

JOBS, PODS, STRAYS, QUEUES = "fairway-jobs", "fairway-pods", "fairway-strays", "fairway-queues"
QUEUE: Final = "main"
"""The queue of a team's jobs where a mutating policy can assign it."""
NEEDS_QUEUE: Final = f"a GPU job needs a queue: label {QUEUE_NAME}"
"""Jobs get one by `mutating_policy`, once an API server has it in force."""
KUEUES_QUEUE: Final = "default"
"""The same where only Kueue can: it assigns a queue of this name to every job of the namespace."""

_CONTROLLERS: Final = (
    "request.userInfo.username in "
    "['system:kube-controller-manager', 'system:serviceaccount:kube-system:job-controller']"
)
_NOT_CONTROLLER: Final = (
    "request.operation == 'CREATE' || "
    "!(request.userInfo.username.startsWith('system:serviceaccount:kube-system:') || "
    "request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.username.startsWith('system:serviceaccount:kueue-system:'))"
)
_MAY_SPEAK_FOR_USERS: Final = (
    "authorizer.group('fairway.dev').resource('users').namespace(request.namespace)"
    ".check('speak-for').allowed()"
)
"""Whether the caller may create jobs in the name of others: Fairway may, members may not."""
_MAY_CONTROL: Final = (
    "authorizer.group(o.apiVersion.contains('/') ? o.apiVersion.split('/')[0] : '')"
    ".resource(o.kind.lowerAscii() + 's').subresource('status').namespace(request.namespace)"
    ".check('update').allowed()"
)
"""Whether the caller is a controller of owner `o`: only those may write the status of its kind."""


def _controllers(object_: str) -> str:
    """Return CEL for the owners of an object that control it: at most one."""
    return f"{object_}.metadata.?ownerReferences.orValue([]).filter(o, o.?controller.orValue(false))"


def _claims(pod: str) -> str:
    """Return CEL for whether a pod has resource claims."""
    return f"size({pod}.?resourceClaims.orValue([])) > 0"


def _revision_of(label: str, kind: str) -> str:
    """Return CEL for the owner behind a ReplicaSet that `kind` makes for each revision of its template."""
    hash_ = f"object.metadata.?labels[?'{label}'].orValue('-')"
    return (
        f"o.kind == 'ReplicaSet' && o.name.endsWith('-' + {hash_}) "
        f"? '{kind}/' + o.name.substring(0, size(o.name) - size({hash_}) - 1)"
    )


_EXISTING_VARIABLES: Final[list[Json]] = [
    {"name": "claims", "expression": _claims("object.spec")},
    {"name": "controllers", "expression": _controllers("object")},
    {
        "name": "owners",
        "expression": "size(variables.controllers) == 0 ? ['Pod/' + object.metadata.?name.orValue('')] "
        ": variables.controllers.map(o, "
        + " : ".join(_revision_of(label, kind) for label, kind in REVISION_LABELS.items())
        + " : o.kind + '/' + o.name)",
    },
    {
        "name": "existing",
        "expression": f"namespaceObject.metadata.?annotations[?'{EXISTING}'].orValue('').split(',')"
        ".filter(e, e.contains('='))",
    },
]
_IS_EXISTING: Final = (
    "variables.owners.exists(w, variables.existing.exists(e, e.startsWith(w + '=') && "
    "variables.gpus <= int(e.split('=')[1]))) && "
    f"variables.controllers.all(o, {_MAY_CONTROL})"
)
"""Whether a pod belongs to a workload that used GPUs before the team was governed, and is no larger.

The name of a controlling owner counts only from its own controller: anybody could write it.
"""
_BASE: Final = "variables.queue.split('.')[0]"
"""A queue without the user's suffix."""
_JOB_USER: Final = f"object.metadata.?annotations[?'{USER}'].orValue('')"
_IN_TEAMS: Final[list[Json]] = [{"key": TEAM, "operator": "Exists"}]
_NO_CLAIMS: Final = "resource claims can hold GPUs that no queue counts: ask for GPUs in the limits"


def validating_policies(
    resources: Sequence[str],
    queued: Sequence[str],
    default: str,
    *,
    assigns_queues: bool,
    gpu_claims: bool = False,
    left_alone: Sequence[str] = (),
) -> Iterator[tuple[str, Json, Json]]:
    """Yield name, policy and binding of each admission policy.

    `resources` are the pools' device resources, `queued` the priorities that have a queue of their own.
    `assigns_queues`: `mutating_policy` assigns queues to GPU jobs, and only to those.
    `gpu_claims`: resource claims can be for GPUs, which no queue counts.
    `left_alone` are the namespaces outside teams that used GPUs before Fairway came.
    """
    job_policy = _job_policy(resources, queued, default, assigns_queues, gpu_claims)
    yield JOBS, job_policy, _binding(JOBS, _IN_TEAMS)
    # GPU pods that no Job created would use GPUs that no queue has counted.
    rule = f"variables.gpus == 0 || {_CONTROLLERS} || ({_IS_EXISTING})"
    checks = [_check(rule, "GPU pods are made by Jobs only")]
    if gpu_claims:
        checks.append(_check(f"!variables.claims || ({_IS_EXISTING})", _NO_CLAIMS))
    yield PODS, _pod_policy(resources, checks, _EXISTING_VARIABLES), _binding(PODS, _IN_TEAMS)
    message = f"GPU pods run in a team's namespace only, unless it has the label {EXEMPT}"
    checks = [_check("variables.gpus == 0", message)]
    yield STRAYS, _pod_policy(resources, checks), _binding(STRAYS, outside_teams(left_alone))


def outside_teams(left_alone: Sequence[str]) -> list[Json]:
    """Return the selector of namespaces outside teams where GPU pods are refused."""
    names = ["kube-system", *sorted(set(left_alone) - {"kube-system"})]
    return [
        {"key": TEAM, "operator": "DoesNotExist"},
        {"key": EXEMPT, "operator": "DoesNotExist"},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": names},
    ]


def _job_policy(
    resources: Sequence[str], queued: Sequence[str], default: str, assigns_queues: bool, gpu_claims: bool
) -> Json:
    own_queues = _list(queued)
    checks = [
        ("variables.queue != ''", NEEDS_QUEUE),
        (
            "!has(variables.pod.nodeName) && "
            "(!has(variables.pod.schedulerName) || variables.pod.schedulerName == 'default-scheduler')",
            "nodeName and other schedulers are not allowed",
        ),
        (
            "!has(variables.pod.priorityClassName) || variables.pod.priorityClassName == ''",
            f"priorityClassName is not allowed: use the label {PRIORITY_CLASS}",
        ),
        (
            # Kueue lets through what a queue does not list, so that cpu and memory need no quota.
            f"oldObject != null || {_only_granted(resources)}",
            "the team has no grant on a pool with such devices",
        ),
        (
            "variables.jobGpus == '' || variables.gpus * variables.count <= int(variables.jobGpus)",
            "over the team's limit of GPUs a job",
        ),
        (
            "variables.userGpus == '' || variables.gpus * variables.count <= int(variables.userGpus)",
            "over the team's limit of GPUs a user",
        ),
        (
            "variables.jobSeconds == '' || "
            "(has(object.spec.activeDeadlineSeconds) && "
            "object.spec.activeDeadlineSeconds <= int(variables.jobSeconds)) || "
            "(variables.longest != '' && int(variables.longest) <= int(variables.jobSeconds))",
            "over the team's time limit a job, or without one: set spec.activeDeadlineSeconds",
        ),
        (
            "variables.priority in variables.priorities.split(',')",
            "the team may not use this priority class",
        ),
        (
            f"variables.priority in {own_queues} ? variables.base == variables.priority "
            f": !(variables.base in {own_queues})",
            "this priority class and the queue of its name go together",
        ),
        (
            "variables.slug == '' || variables.queue.endsWith('.' + variables.slug)",
            "this team counts by user, and this is not the user's own queue",
        ),
        (
            "oldObject == null || object.spec.parallelism == oldObject.spec.parallelism",
            "parallelism is fixed once submitted",
        ),
        (
            # Kueue leaves a Job alone whose controller it manages: it has asked for quota already. It manages
            # no CronJobs, and `kubectl create job --from=cronjob/NAME` writes such a reference.
            f"variables.newControllers.all(o, o.kind == 'CronJob' || {_MAY_CONTROL})",
            "an ownerReference with controller: true is set by the owner's own controller only",
        ),
        (
            "oldObject == null || !oldObject.spec.?suspend.orValue(false) || "
            f"object.spec.?suspend.orValue(false) || variables.controllers.exists(o, {_MAY_CONTROL})",
            "suspended jobs are started by Kueue only",
        ),
    ]
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("batch", "jobs", "CREATE", "UPDATE")]},
        "matchConditions": [{"name": "not-machinery", "expression": _NOT_CONTROLLER}],
        "variables": [
            {"name": "pod", "expression": "object.spec.template.spec"},
            {"name": "gpus", "expression": _devices("variables.pod", resources)},
            {"name": "controllers", "expression": _controllers("object")},
            {
                "name": "newControllers",
                "expression": f"oldObject == null ? variables.controllers : variables.controllers.filter("
                f"o, !{_controllers('oldObject')}.exists(p, p.uid == o.uid))",
            },
            {"name": "parallel", "expression": "has(object.spec.parallelism) ? object.spec.parallelism : 1"},
            {
                "name": "count",
                "expression": "has(object.spec.completions) && object.spec.completions < variables.parallel "
                "? object.spec.completions : variables.parallel",
            },
            {"name": "queue", "expression": _label(QUEUE_NAME, "")},
            {"name": "base", "expression": _BASE},
            {"name": "noted", "expression": _JOB_USER},
            {"name": "job", "expression": _label(JOB, "")},
            {
                "name": "user",
                "expression": "variables.noted == '' ? request.userInfo.username : variables.noted",
            },
            {"name": "slug", "expression": _slug()},
            {"name": "priority", "expression": _label(PRIORITY_CLASS, default)},
            {"name": "longest", "expression": _label(MAX_EXEC_TIME, "")},
            {"name": "jobGpus", "expression": _annotation(JOB_GPUS)},
            {"name": "userGpus", "expression": _annotation(USER_GPUS)},
            {"name": "jobSeconds", "expression": _annotation(JOB_SECONDS)},
            {"name": "priorities", "expression": _annotation(PRIORITIES)},
            {"name": "granted", "expression": f"{_annotation(DEVICES)}.split(',')"},
        ],
        "validations": [
            *(_check(f"variables.gpus == 0 || ({rule})", message) for rule, message in checks),
            *(_check(*check) for check in (_queue_checks(queued) if assigns_queues else ())),
            *([_check(_NO_NEW_CLAIMS, _NO_CLAIMS)] if gpu_claims else []),
            _check(*_USER_IS_SUBMITTER),
            _check(*_LABEL_IS_FAIRWAYS),
        ],
    }


_NO_NEW_CLAIMS: Final = f"oldObject != null || !({_claims('variables.pod')})"


def _queue_checks(queued: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yield what `mutating_policy` sees to when a job is created, and may not be changed later."""
    yield (
        f"variables.gpus > 0 || !({_is_teams_queue(queued)})",
        "a job without GPUs would never start in a team's queue of GPUs",
    )
    yield (
        f"variables.gpus == 0 || {_is_teams_queue(queued)} || (oldObject != null && "
        f"variables.queue == oldObject.metadata.?labels[?'{QUEUE_NAME}'].orValue(''))",
        "a GPU job stays in a queue of its team",
    )


def _is_teams_queue(queued: Sequence[str]) -> str:
    """Return CEL for whether a job names one of the queues that Fairway made in the namespace."""
    return f"variables.base in {_list([QUEUE, *queued])}"


_USER_IS_SUBMITTER: Final = (
    "oldObject == null "
    f"? variables.noted in ['', request.userInfo.username] || {_MAY_SPEAK_FOR_USERS} "
    f": variables.noted == oldObject.metadata.?annotations[?'{USER}'].orValue('')",
    f"the annotation {USER} is who submitted the job, for good",
)
_LABEL_IS_FAIRWAYS: Final = (
    "oldObject == null "
    f"? variables.job == '' || {_MAY_SPEAK_FOR_USERS} "
    f": variables.job == oldObject.metadata.?labels[?'{JOB}'].orValue('')",
    f"the label {JOB} is for jobs that Fairway made",
)


def mutating_policy(resources: Sequence[str], queued: Sequence[str]) -> tuple[str, Json, Json]:
    """Return name, policy and binding that assign the queue of the team, or of the user, to a GPU job.

    Other jobs get none: Kueue's own default would assign it to every job, and one without GPUs never starts
    in a queue whose flavors all have a topology ("no TAS flavor assigned"). One that names a team's queue, as
    the site's of that name may have asked for, loses it and runs at once. One that names another queue of
    the site stays there, see `site_queues`; a GPU job does not. The policy also sets the user of every job:
    Kubernetes objects do not record who created them.
    """
    names = _list([QUEUE, *queued])
    queue = f"(variables.queue in {names} ? variables.queue : '{QUEUE}')"
    queue += " + (variables.slug == '' ? '' : '.' + variables.slug)"
    set_queue = f"Object{{metadata: Object.metadata{{labels: {{'{QUEUE_NAME}': {queue}}}}}}}"
    set_user = f"Object{{metadata: Object.metadata{{annotations: {{'{USER}': variables.user}}}}}}"
    is_users = f"{_is_teams_queue(queued)} && !(variables.queue in {names})"
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [_rule("batch", "jobs", "CREATE")]},
        "variables": [
            {"name": "gpus", "expression": _devices("object.spec.template.spec", resources)},
            {"name": "queue", "expression": _label(QUEUE_NAME, "")},
            {"name": "base", "expression": _BASE},
            {
                "name": "user",
                "expression": f"{_JOB_USER} != '' && {_MAY_SPEAK_FOR_USERS} "
                f"? {_JOB_USER} : request.userInfo.username",
            },
            {"name": "slug", "expression": _slug()},
        ],
        "mutations": [
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}
            for expression in (f"variables.gpus > 0 && !({is_users}) ? {set_queue} : Object{{}}", set_user)
        ]
        + [{"patchType": "JSONPatch", "jsonPatch": {"expression": _leave_queue(queued)}}],
    }
    binding = {"policyName": QUEUES, "matchResources": {"namespaceSelector": {"matchExpressions": _IN_TEAMS}}}
    return QUEUES, policy, binding


def _leave_queue(queued: Sequence[str]) -> str:
    """Return CEL that takes a job without GPUs out of a team's queue.

    Kueue suspends jobs that name a queue, and so do people who write them.
    """
    return (
        f"variables.gpus == 0 && {_is_teams_queue(queued)} ? ["
        f"JSONPatch{{op: 'remove', path: '/metadata/labels/{QUEUE_NAME.replace('/', '~1')}'}}, "
        "JSONPatch{op: 'add', path: '/spec/suspend', value: false}] : []"
    )


def _slug() -> str:
    """Return CEL for the suffix of the user's queue in this namespace; empty: users have no queues."""
    return (
        f"({_annotation(USER_QUEUES)}.split(',').filter(p, p.startsWith(variables.user + '='))"
        ".map(p, p.split('=')[1]) + [''])[0]"
    )


def _pod_policy(resources: Sequence[str], checks: list[Json], variables: Sequence[Json] = ()) -> Json:
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("", "pods", "CREATE")]},
        "variables": [{"name": "gpus", "expression": _devices("object.spec", resources)}, *variables],
        "validations": checks,
    }


def _binding(policy: str, namespaces: list[Json]) -> Json:
    return {
        "policyName": policy,
        "validationActions": ["Deny"],
        "matchResources": {"namespaceSelector": {"matchExpressions": namespaces}},
    }


def _rule(group: str, resource: str, *operations: str) -> Json:
    return {
        "apiGroups": [group],
        "apiVersions": ["v1"],
        "operations": list(operations),
        "resources": [resource],
        "scope": "*",
    }


def _check(expression: str, message: str) -> Json:
    return {"expression": expression, "message": message, "reason": "Forbidden"}


def _devices(pod: str, resources: Sequence[str]) -> str:
    """Return CEL for the devices a pod requests. Limits are enough: an extended resource must have one."""
    total = _sum(resources)
    return f"{pod}.containers{total} + ({pod}.?initContainers.orValue([])){total}"


def _sum(resources: Sequence[str]) -> str:
    return (
        ".map(c, has(c.resources) && has(c.resources.limits) ? "
        f"c.resources.limits.filter(r, {_is_device(resources)})"
        ".map(r, quantity(string(c.resources.limits[r])).asInteger()).sum() : 0).sum()"
    )


def _only_granted(resources: Sequence[str]) -> str:
    """Return CEL for whether a pod requests only devices of pools that the team has a grant on."""
    containers = "(variables.pod.containers + variables.pod.?initContainers.orValue([]))"
    return (
        f"{containers}.all(c, !has(c.resources) || !has(c.resources.limits) || "
        f"c.resources.limits.all(r, !({_is_device(resources)}) || r in variables.granted))"
    )


def _is_device(resources: Sequence[str]) -> str:
    """Return CEL for whether resource `r` is a device: of a pool, or one that looks like a GPU."""
    names = {*resources, *(name for name in KNOWN_GPU_RESOURCES if not name.endswith("*"))}
    prefixes = [name.removesuffix("*") for name in KNOWN_GPU_RESOURCES if name.endswith("*")]
    is_prefixed = (f"r.startsWith('{prefix}')" for prefix in prefixes)
    return " || ".join([f"r in {_list(sorted(names))}", *is_prefixed, f"r.matches('{GPU_LIKE}')"])


def _list(items: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{item}'" for item in items) + "]"


def _label(key: str, default: str) -> str:
    return f"object.metadata.?labels[?'{key}'].orValue('{default}')"


def _annotation(key: str) -> str:
    """Return CEL for an annotation of the namespace."""
    return f"namespaceObject.metadata.?annotations[?'{key}'].orValue('')"
