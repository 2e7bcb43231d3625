"""Make the API server reject GPU pods that no queue counts.

A pod that asks for a device is created with Kueue's gate, or by the controller of an object that Kueue
started and marked: Kueue writes the name of the Workload into the template. Only Kueue takes the gate off and
changes its marks. Kueue trusts a controlling owner, so only the owner's own controller may name one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from fairway.engines.kubernetes.api.kinds import TEAM, Json
from fairway.engines.kubernetes.policy.admission_policies import (
    BASE,
    CLAIM_BY_NAME,
    CONTROLLERS,
    EXEMPT,
    GATED,
    IN_TEAMS,
    IS_KUEUE,
    MAX_EXEC_TIME,
    MAY_CONTROL,
    MAY_SPEAK_FOR_USERS,
    NEW_OWNER,
    NO_CLAIMS,
    OBJECT_USER,
    POD_IS_EXISTING,
    POD_OWNERS,
    PODS,
    PRIORITY_CLASS,
    QUEUE,
    QUEUE_NAME,
    STRAYS,
    USER,
    AdmissionFacts,
    binding,
    cel_list,
    check,
    claims,
    devices,
    in_teams_queue,
    is_kind,
    label,
    limit_checks,
    limits,
    names_claim,
    only_granted,
    rule,
    slug,
)
from fairway.model.workload_kinds import POD

GATE: Final = "kueue.x-k8s.io/admission"
ELASTIC: Final = "kueue.x-k8s.io/elastic-job"
"""The annotation of an object that Kueue admits slice by slice, and the gate of pods by which it grows."""
WORKLOAD: Final = "kueue.x-k8s.io/workload"
"""The annotation of a pod, and of a template that Kueue started: its Workload."""
PARENT: Final = "kueue.x-k8s.io/pod-suspending-parent"
"""The annotation of pods that Kueue gates for what made them: its integration."""
GROUP: Final = "kueue.x-k8s.io/pod-group-name"
REPLICAS: Final = "fairway.dev/replicas"
"""An annotation in the template of a StatefulSet: the pods that its Workload counts."""
NOT_COUNTED: Final = "no queue counts this GPU pod"

_GROUP_MARKS: Final = (GROUP, "kueue.x-k8s.io/prebuilt-workload-name")
_SERVING_MARKS: Final = ("kueue.x-k8s.io/pod-group-serving", "kueue.x-k8s.io/pod-group-fast-admission")
_INDEX: Final = "apps.kubernetes.io/pod-index"
_CREATES_NO_PODS: Final = ("JobSet", "TrainJob", "RayJob", "RayService", "AppWrapper")


def pod_policies(facts: AdmissionFacts) -> Iterator[tuple[str, Json, Json]]:
    """Yield name, policy and binding of the rules for pods inside and outside the namespaces of teams."""
    policy = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule("", ["pods"], ["CREATE", "UPDATE"])]},
        "variables": [
            {"name": "gpus", "expression": devices("object.spec", facts.resources)},
            {"name": "asks", "expression": _asks(facts)},
            *CONTROLLERS,
            *POD_OWNERS,
            {"name": "left", "expression": POD_IS_EXISTING},
            {"name": "gate", "expression": _gated("object", GATE)},
            {"name": "started", "expression": _started(facts)},
            {"name": "queue", "expression": label(QUEUE_NAME, "")},
            {"name": "base", "expression": BASE},
            {"name": "priority", "expression": label(PRIORITY_CLASS, facts.default)},
            {"name": "longest", "expression": label(MAX_EXEC_TIME, "")},
            {"name": "noted", "expression": OBJECT_USER},
            {
                "name": "user",
                "expression": "variables.noted == '' ? request.userInfo.username : variables.noted",
            },
            {"name": "slug", "expression": slug()},
            {"name": "group", "expression": label(GROUP, "")},
            *limits(),
        ],
        "validations": [*_create_checks(facts), *_update_checks()],
    }
    yield PODS, policy, binding(PODS, IN_TEAMS)
    message = f"GPU pods run in a team's namespace only, unless it has the label {EXEMPT}"
    strays = {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": [rule("", ["pods"], ["CREATE"])]},
        "variables": [{"name": "gpus", "expression": devices("object.spec", facts.resources)}],
        "validations": [check(f"!({_asks(facts)})", message)],
    }
    yield STRAYS, strays, binding(STRAYS, outside_teams(facts.left_alone))


def outside_teams(left_alone: Sequence[str]) -> list[Json]:
    """Return the selector of namespaces outside teams where GPU pods are rejected."""
    names = ["kube-system", *sorted(set(left_alone) - {"kube-system"})]
    return [
        {"key": TEAM, "operator": "DoesNotExist"},
        {"key": EXEMPT, "operator": "DoesNotExist"},
        {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": names},
    ]


def _asks(facts: AdmissionFacts) -> str:
    return "variables.gpus > 0" + ("" if facts.claims == "no" else f" || {claims('object.spec')}")


def _gated(object_: str, *gates: str) -> str:
    return f"{object_}.spec.?schedulingGates.orValue([]).exists(g, g.name in {cel_list(gates)})"


def _started(facts: AdmissionFacts) -> str:
    """Return CEL for whether a pod is created out of an object that Kueue started.

    The annotation alone proves nothing, for anybody can write it into a template. But objects of these kinds
    that ask for GPUs are in a queue, see `workload_policy`, and their pods come when Kueue started them. Of
    what is gated, and of kinds that Kueue does not know, no pod comes this way. By pods with the other gate
    an elastic object grows: they wait for the slice of quota that Kueue adds.
    """
    kinds = [k for k in facts.kinds if k.framework not in GATED and k.kind not in _CREATES_NO_PODS]
    return (
        f"({annotation(WORKLOAD)} != '' || {_gated('object', ELASTIC)}) && "
        f"variables.controllers.exists(o, {is_kind(kinds)} && {MAY_CONTROL})"
    )


def annotation(key: str, object_: str = "object") -> str:
    """Return CEL for an annotation of the object."""
    return f"{object_}.metadata.?annotations[?'{key}'].orValue('')"


def _create_checks(facts: AdmissionFacts) -> Iterator[Json]:
    if POD.framework in facts.frameworks:
        accepted = f"add the label {QUEUE_NAME}: {QUEUE} to it"
    else:
        accepted = "use a batch Job, or enable the integration pod in the configuration of Kueue"
    checks = [
        (
            "variables.gate || variables.started",
            NOT_COUNTED,
            f"'{NOT_COUNTED} of ' + variables.owners[0] + ': {accepted}'",
        ),
        (
            only_granted("[object.spec]", facts.resources),
            "the team has no grant on a pool with such devices",
            "",
        ),
        (
            "!has(object.spec.nodeName) && "
            "object.spec.?schedulerName.orValue('default-scheduler') == 'default-scheduler' && "
            "!object.spec.?priorityClassName.orValue('').startsWith('system-')",
            "nodeName, other schedulers and priority classes of the system are not allowed",
            "",
        ),
        (
            # They would put the pod into a Workload that another object got.
            f"{cel_list(_GROUP_MARKS)}.all(k, !(k in object.metadata.?annotations.orValue({{}}))) && "
            "!('kueue.x-k8s.io/prebuilt-workload-name' in object.metadata.?labels.orValue({})) && "
            f"({cel_list(_SERVING_MARKS)}.all(k, !(k in object.metadata.?annotations.orValue({{}}))) || "
            f"variables.controllers.exists(o, o.kind == 'StatefulSet' && {MAY_CONTROL})) && "
            "(variables.group == '' || (size(variables.controllers) == 0 && "
            "!variables.group.matches('^(statefulset|leaderworkerset)-')))",
            "only Kueue puts a pod into the Workload of another object",
            "",
        ),
        (
            # Kueue does not see the scale subresource of a StatefulSet.
            f"{annotation(REPLICAS)} == '' || !variables.controllers.exists(o, o.kind == 'StatefulSet') || "
            f"int({label(_INDEX, '0')}) < int({annotation(REPLICAS)})",
            "a GPU StatefulSet keeps the replicas that it was created with: create it anew to grow it",
            "",
        ),
    ]
    for expression, message, say in checks:
        yield _create(expression, message) | ({"messageExpression": say} if say else {})
    yield _always(f"variables.newControllers.all(o, {MAY_CONTROL})", NEW_OWNER)
    root = "size(variables.controllers) > 0"
    for expression, message in limit_checks(facts, "false"):
        # What others own is counted with its root, but a pod that is queued alone has its own priority.
        other = "variables.queue == '' || variables.started" if "variables.priority " in expression else root
        yield _create(f"{other} || ({expression})", message)
    if facts.assigns_queues:
        yield _create(
            f"variables.queue == '' || {in_teams_queue(facts)}", "a GPU pod is in a queue of its team"
        )
    if facts.claims == "yes":
        yield check(f"oldObject != null || !({claims('object.spec')}) || ({POD_IS_EXISTING})", NO_CLAIMS)
    if facts.claims == "counted":
        named = names_claim("object.spec")
        yield check(f"oldObject != null || !{named} || ({POD_IS_EXISTING})", CLAIM_BY_NAME)
    yield _create(
        f"variables.noted in ['', request.userInfo.username] || {root} || {MAY_SPEAK_FOR_USERS}",
        f"the annotation {USER} is who submitted the pod, for good",
    )


def _update_checks() -> Iterator[Json]:
    gates = (f"(!{_gated('oldObject', gate)} || {_gated('object', gate)})" for gate in (GATE, ELASTIC))
    yield _update(" && ".join(gates), "only Kueue takes its gate off a pod")
    marks = [*(annotation(k) for k in (WORKLOAD, PARENT, *_GROUP_MARKS, *_SERVING_MARKS))]
    marks += [label("kueue.x-k8s.io/managed", ""), label(PRIORITY_CLASS, "")]
    same = " && ".join(f"{m} == {m.replace('object.', 'oldObject.', 1)}" for m in marks)
    yield _update(same, "only Kueue changes its marks on a pod")
    yield check(
        f"oldObject == null || variables.noted == {annotation(USER, 'oldObject')}",
        f"the annotation {USER} of a pod does not change",
    )


def _create(expression: str, message: str) -> Json:
    """Return a rule for the creation of pods that ask for devices."""
    return check(f"oldObject != null || !variables.asks || variables.left || ({expression})", message)


def _update(expression: str, message: str) -> Json:
    """Return a rule for updates of pods that ask for devices by others than Kueue."""
    return check(f"oldObject == null || !variables.asks || ({expression}) || {IS_KUEUE}", message)


def _always(expression: str, message: str) -> Json:
    return check(f"!variables.asks || ({expression})", message)
