"""Admission policies: what Kueue alone would admit, the API server refuses, with the reason.

They are the same for every team; a team's own limits are annotations of its namespace. Exempt are
Kubernetes' own controllers and Kueue, which start and stop jobs that were admitted long ago.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairway.engines.kubernetes.api.kinds import (
    DEVICES,
    JOB_GPUS,
    JOB_SECONDS,
    PRIORITIES,
    TEAM,
    USER_GPUS,
    USER_QUEUES,
    Json,
)
from fairway.engines.kubernetes.nodes.devices import KNOWN_GPU_RESOURCES

QUEUE_NAME: Final = "kueue.x-k8s.io/queue-name"
PRIORITY_CLASS: Final = "kueue.x-k8s.io/priority-class"
LONGEST: Final = "kueue.x-k8s.io/max-exec-time-seconds"
USER: Final = "fairway.dev/user"
"""A Job's annotation: its user.

The API server sets it; only callers that may speak for users can override it.
"""
JOB: Final = "fairway.dev/job"
"""A label of the Jobs that Fairway created: the job's id."""
EXEMPT: Final = "fairway.dev/exempt"
"""A label of namespaces outside all teams whose GPU pods are not checked: drivers, monitoring."""

JOBS, PODS, STRAYS, QUEUES = "fairway-jobs", "fairway-pods", "fairway-strays", "fairway-queues"
QUEUE: Final = "main"
"""The queue of a team's jobs, where a mutating policy can put them there."""
KUEUES_QUEUE: Final = "default"
"""The same where only Kueue can: it does so by this name, for every job of the namespace."""

_CONTROLLERS: Final = (
    "request.userInfo.username in "
    "['system:kube-controller-manager', 'system:serviceaccount:kube-system:job-controller']"
)
_NOT_MACHINERY: Final = (
    "!(request.userInfo.username.startsWith('system:serviceaccount:kube-system:') || "
    "request.userInfo.username == 'system:kube-controller-manager' || "
    "request.userInfo.username.startsWith('system:serviceaccount:kueue-system:'))"
)
_SPEAKS_FOR: Final = (
    "authorizer.group('fairway.dev').resource('users').namespace(request.namespace)"
    ".check('speak-for').allowed()"
)
"""Whether the caller may create jobs in the name of others: Fairway may, members may not."""
_IN_TEAMS: Final[list[Json]] = [{"key": TEAM, "operator": "Exists"}]
_OUTSIDE: Final[list[Json]] = [
    {"key": TEAM, "operator": "DoesNotExist"},
    {"key": EXEMPT, "operator": "DoesNotExist"},
    {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system"]},
]


def guards(
    resources: Sequence[str], queued: Sequence[str], default: str, *, placing: bool
) -> Iterator[tuple[str, Json, Json]]:
    """Yield name, policy and binding of each admission policy.

    `resources` are the pools' device resources, `queued` the priorities that have a queue of their own.
    `placing`: GPU jobs, and only those, are put into queues (`queue_guard`).
    """
    yield JOBS, _jobs(resources, queued, default, placing=placing), _binding(JOBS, _IN_TEAMS)
    yield PODS, _pods(resources), _binding(PODS, _IN_TEAMS)
    yield STRAYS, _strays(resources), _binding(STRAYS, _OUTSIDE)


def _jobs(resources: Sequence[str], queued: Sequence[str], default: str, *, placing: bool) -> Json:
    own = _list(queued)
    checks = [
        ("variables.queue != ''", f"a GPU job needs a queue: label {QUEUE_NAME}"),
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
            f"variables.priority in {own} ? variables.base == variables.priority "
            f": !(variables.base in {own})",
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
    ]
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("batch", "jobs", "CREATE", "UPDATE")]},
        "matchConditions": [{"name": "not-machinery", "expression": _NOT_MACHINERY}],
        "variables": [
            {"name": "pod", "expression": "object.spec.template.spec"},
            {"name": "gpus", "expression": _devices("variables.pod", resources)},
            {"name": "parallel", "expression": "has(object.spec.parallelism) ? object.spec.parallelism : 1"},
            {
                "name": "count",
                "expression": "has(object.spec.completions) && object.spec.completions < variables.parallel "
                "? object.spec.completions : variables.parallel",
            },
            {"name": "queue", "expression": _label(QUEUE_NAME, "")},
            {"name": "base", "expression": "variables.queue.split('.')[0]"},
            {"name": "noted", "expression": _noted("object")},
            {"name": "job", "expression": _label(JOB, "")},
            {
                "name": "user",
                "expression": "variables.noted == '' ? request.userInfo.username : variables.noted",
            },
            {"name": "slug", "expression": _slug()},
            {"name": "priority", "expression": _label(PRIORITY_CLASS, default)},
            {"name": "longest", "expression": _label(LONGEST, "")},
            {"name": "jobGpus", "expression": _annotation(JOB_GPUS)},
            {"name": "userGpus", "expression": _annotation(USER_GPUS)},
            {"name": "jobSeconds", "expression": _annotation(JOB_SECONDS)},
            {"name": "priorities", "expression": _annotation(PRIORITIES)},
            {"name": "granted", "expression": f"{_annotation(DEVICES)}.split(',')"},
        ],
        "validations": [
            *(_check(f"variables.gpus == 0 || ({rule})", words) for rule, words in checks),
            *([_check(*_NO_QUEUE)] if placing else []),
            _check(*_NOBODY_ELSES),
            _check(*_NOT_FAIRWAYS),
        ],
    }


_NO_QUEUE: Final = (
    "variables.gpus > 0 || variables.queue == ''",
    "a job without GPUs needs no queue, and would never start in one",
)

_NOBODY_ELSES: Final = (
    "oldObject == null "
    f"? variables.noted in ['', request.userInfo.username] || {_SPEAKS_FOR} "
    f": variables.noted == oldObject.metadata.?annotations[?'{USER}'].orValue('')",
    f"the annotation {USER} is who submitted the job, for good",
)
_NOT_FAIRWAYS: Final = (
    "oldObject == null "
    f"? variables.job == '' || {_SPEAKS_FOR} "
    f": variables.job == oldObject.metadata.?labels[?'{JOB}'].orValue('')",
    f"the label {JOB} is for jobs that Fairway made",
)


def queue_guard(resources: Sequence[str], queued: Sequence[str]) -> tuple[str, Json, Json]:
    """Return the mutating policy that puts a GPU job into its team's queue, or its user's; others in none.

    It also sets the user of every job: Kubernetes objects do not record who created them. Kueue's own default
    would put every job there, and one without GPUs never starts in a queue whose flavors all have a topology
    ("no TAS flavor assigned").
    """
    own = f"(variables.queue == '' ? '{QUEUE}' : variables.queue)"
    own += " + (variables.slug == '' ? '' : '.' + variables.slug)"
    labels = f"Object{{metadata: Object.metadata{{labels: {{'{QUEUE_NAME}': {own}}}}}}}"
    whose = f"Object{{metadata: Object.metadata{{annotations: {{'{USER}': variables.user}}}}}}"
    open_ = f"variables.queue in {_list(['', QUEUE, *queued])}"
    policy = {
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "matchConstraints": {"resourceRules": [_rule("batch", "jobs", "CREATE")]},
        "variables": [
            {"name": "gpus", "expression": _devices("object.spec.template.spec", resources)},
            {"name": "queue", "expression": _label(QUEUE_NAME, "")},
            {
                "name": "user",
                "expression": f"{_noted('object')} != '' && {_SPEAKS_FOR} "
                f"? {_noted('object')} : request.userInfo.username",
            },
            {"name": "slug", "expression": _slug()},
        ],
        "mutations": [
            {
                "patchType": "ApplyConfiguration",
                "applyConfiguration": {
                    "expression": f"variables.gpus > 0 && {open_} ? {labels} : Object{{}}"
                },
            },
            {"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": whose}},
        ],
    }
    binding = {"policyName": QUEUES, "matchResources": {"namespaceSelector": {"matchExpressions": _IN_TEAMS}}}
    return QUEUES, policy, binding


def _slug() -> str:
    """Return CEL for the user's queue suffix in this namespace; empty: the team does not count by user."""
    return (
        f"({_annotation(USER_QUEUES)}.split(',').filter(p, p.startsWith(variables.user + '='))"
        ".map(p, p.split('=')[1]) + [''])[0]"
    )


def _pods(resources: Sequence[str]) -> Json:
    """Refuse GPU pods that no Job created: else their creators would have GPUs that no queue has counted."""
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("", "pods", "CREATE")]},
        "variables": [{"name": "gpus", "expression": _devices("object.spec", resources)}],
        "validations": [_check(f"variables.gpus == 0 || {_CONTROLLERS}", "GPU pods are made by Jobs only")],
    }


def _strays(resources: Sequence[str]) -> Json:
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [_rule("", "pods", "CREATE")]},
        "variables": [{"name": "gpus", "expression": _devices("object.spec", resources)}],
        "validations": [
            _check(
                "variables.gpus == 0",
                f"GPU pods run in a team's namespace only, unless it has the label {EXEMPT}",
            )
        ],
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
    own = f"{pod}.containers{_sum(resources)}"
    first = f"({pod}.?initContainers.orValue([])){_sum(resources)}"
    return f"{own} + {first}"


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
    known = [name for name in KNOWN_GPU_RESOURCES if not name.endswith("*")]
    exact = sorted({*known, *resources})
    starts = [name.removesuffix("*") for name in KNOWN_GPU_RESOURCES if name.endswith("*")]
    return " || ".join([f"r in {_list(exact)}", *(f"r.startsWith('{start}')" for start in starts)])


def _list(words: Sequence[str]) -> str:
    return "[" + ", ".join(f"'{word}'" for word in words) + "]"


def _label(key: str, otherwise: str) -> str:
    return f"object.metadata.?labels[?'{key}'].orValue('{otherwise}')"


def _noted(thing: str) -> str:
    return f"{thing}.metadata.?annotations[?'{USER}'].orValue('')"


def _annotation(key: str) -> str:
    return f"namespaceObject.metadata.?annotations[?'{key}'].orValue('')"
