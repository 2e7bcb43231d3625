"""Define the kinds of objects that make up a policy: their paths, and the fields that Fairway governs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Union

Json = dict[str, Any]
"""An object of the API server, as JSON has it."""

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
FAIRWAY: Final = "fairway"
"""The value of the ownership mark, and the field manager under which Fairway owns fields."""
INTERVENER: Final = "fairway-intervention"
"""The field manager of interventions: fields it owns are not drift."""
TEAM: Final = "fairway.dev/team"
RELEASED: Final = "fairway.dev/released"
"""On a namespace whose team was removed: it stays, with its contents, and can be Fairway's again."""
OVERRIDDEN: Final = "fairway.dev/intervention"
"""The fields an intervention overrides, with the policy's value and the value in effect."""

JOB_GPUS: Final = "fairway.dev/job-gpus"
JOB_SECONDS: Final = "fairway.dev/job-seconds"
USER_GPUS: Final = "fairway.dev/user-gpus"
PRIORITIES: Final = "fairway.dev/priorities"
DEVICES: Final = "fairway.dev/devices"
USER_QUEUES: Final = "fairway.dev/user-queues"
"""Annotations of a team's namespace, which the admission policies read.

A team's limits, the devices its grants are on, and the queue of each member where a team counts by user
(`alice=alice,bob@corp=bob-corp`).
"""
EXISTING: Final = "fairway.dev/existing"
"""An annotation of a team's namespace: what used GPUs outside Jobs before the team was governed.

Each with the most GPUs of one of its pods (`Deployment/chat=2,Pod/debug=1`). Their pods are left alone.
"""
NAMESPACE_ANNOTATIONS: Final = (
    JOB_GPUS, JOB_SECONDS, USER_GPUS, PRIORITIES, DEVICES, USER_QUEUES, EXISTING,
)  # fmt: skip

Governed = Union[Mapping[str, "Governed"], None]  # noqa: UP007  (a recursive alias must be quoted in 3.11)
"""The keys of an object that are governed; None: everything below."""


@dataclass(frozen=True, slots=True)
class ObjectKind:
    """One kind of object."""

    name: str
    root: str
    plural: str
    governed: Governed
    namespaced: bool = False
    optional: bool = False
    """Older API servers do not have it."""
    server_defaults: Mapping[str, object] = field(default_factory=dict)
    """Defaults that the API server fills in: equal to leaving the field out."""

    @property
    def api_version(self) -> str:
        return self.root.split("/", 2)[2]

    @property
    def list_path(self) -> str:
        return f"{self.root}/{self.plural}"

    def path(self, name: str) -> str:
        """Return the path of the object of a key's name: `name`, or `namespace/name`."""
        if not self.namespaced:
            return f"{self.root}/{self.plural}/{name}"
        namespace, _, inner = name.partition("/")
        return f"{self.root}/namespaces/{namespace}/{self.plural}/{inner}"

    @property
    def resource(self) -> str:
        """The resource as a rule of a ClusterRole names it."""
        group = "" if self.root.startswith("/api/") else self.api_version.partition("/")[0]
        return f"{self.plural}.{group}".rstrip(".")


_CORE, KUEUE = "/api/v1", "/apis/kueue.x-k8s.io/v1beta2"
_RBAC, _ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"

_QUOTA: Final[Governed] = {"parentName": None, "resourceGroups": None, "fairSharing": {"weight": None}}

NAMESPACE: Final = ObjectKind(
    "Namespace", _CORE, "namespaces",
    {"metadata": {"labels": {TEAM: None}, "annotations": dict.fromkeys(NAMESPACE_ANNOTATIONS)}},
)  # fmt: skip
TOPOLOGY: Final = ObjectKind("Topology", KUEUE, "topologies", {"spec": {"levels": None}})
FLAVOR: Final = ObjectKind(
    "ResourceFlavor", KUEUE, "resourceflavors",
    {"spec": {"nodeLabels": None, "nodeTaints": None, "tolerations": None, "topologyName": None}},
)  # fmt: skip
PRIORITY_CLASS: Final = ObjectKind("WorkloadPriorityClass", KUEUE, "workloadpriorityclasses", {"value": None})
COHORT: Final = ObjectKind("Cohort", KUEUE, "cohorts", {"spec": _QUOTA})
CLUSTER_QUEUE: Final = ObjectKind(
    "ClusterQueue", KUEUE, "clusterqueues",
    {
        "spec": {
            "cohortName": None,
            "resourceGroups": None,
            "fairSharing": {"weight": None},
            "namespaceSelector": None,
            "queueingStrategy": None,
            "preemption": {
                "withinClusterQueue": None,
                "reclaimWithinCohort": None,
                "borrowWithinCohort": {"policy": None},
            },
            "flavorFungibility": {"whenCanBorrow": None, "whenCanPreempt": None},
            "stopPolicy": None,
            "admissionChecksStrategy": None,
        }
    },
    server_defaults={"spec.stopPolicy": "None", "spec.preemption.borrowWithinCohort.policy": "Never"},
)  # fmt: skip
LOCAL_QUEUE: Final = ObjectKind(
    "LocalQueue", KUEUE, "localqueues", {"spec": {"clusterQueue": None, "stopPolicy": None}},
    namespaced=True, server_defaults={"spec.stopPolicy": "None"},
)  # fmt: skip
RESOURCE_QUOTA: Final = ObjectKind(
    "ResourceQuota", _CORE, "resourcequotas", {"spec": {"hard": None}}, namespaced=True
)
ROLE_BINDING: Final = ObjectKind(
    "RoleBinding", _RBAC, "rolebindings", {"roleRef": None, "subjects": None}, namespaced=True
)
ADMISSION_POLICY: Final = ObjectKind(
    "ValidatingAdmissionPolicy", _ADMISSION, "validatingadmissionpolicies",
    {
        "spec": {
            "failurePolicy": None,
            "matchConstraints": {"resourceRules": None},
            "matchConditions": None,
            "variables": None,
            "validations": None,
        }
    },
)  # fmt: skip
ADMISSION_BINDING: Final = ObjectKind(
    "ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings",
    {"spec": {"policyName": None, "validationActions": None, "matchResources": {"namespaceSelector": None}}},
)  # fmt: skip

MUTATING_POLICY: Final = ObjectKind(
    "MutatingAdmissionPolicy", _ADMISSION, "mutatingadmissionpolicies",
    {
        "spec": {
            "failurePolicy": None,
            "reinvocationPolicy": None,
            "matchConstraints": {"resourceRules": None},
            "matchConditions": None,
            "variables": None,
            "mutations": None,
        }
    },
    optional=True,
)  # fmt: skip
MUTATING_BINDING: Final = ObjectKind(
    "MutatingAdmissionPolicyBinding", _ADMISSION, "mutatingadmissionpolicybindings",
    {"spec": {"policyName": None, "matchResources": {"namespaceSelector": None}}},
    optional=True,
)  # fmt: skip

KINDS: Final[Mapping[str, ObjectKind]] = {
    kind.name: kind
    for kind in (
        NAMESPACE, TOPOLOGY, FLAVOR, PRIORITY_CLASS, COHORT, CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_QUOTA,
        ROLE_BINDING, ADMISSION_POLICY, ADMISSION_BINDING, MUTATING_POLICY, MUTATING_BINDING,
    )
}  # fmt: skip
