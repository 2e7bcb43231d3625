"""The kinds of objects that carry a policy: where they live, and which part of them Fairway governs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Union

MANAGED_BY: Final = "app.kubernetes.io/managed-by"
FAIRWAY: Final = "fairway"
"""The value of the mark, and the name under which Fairway owns fields."""
NUDGER: Final = "fairway-nudge"
"""The name under which a nudge writes: what it owns is nobody's drift."""
TEAM: Final = "fairway.dev/team"
RELEASED: Final = "fairway.dev/released"
"""On a namespace whose team went: it stays, with what people keep in it, and is Fairway's again on demand."""
NUDGED: Final = "fairway.dev/nudged"
"""Which fields a nudge holds, with the value policy gives them and the one the nudge gave."""

JOB_GPUS: Final = "fairway.dev/job-gpus"
JOB_SECONDS: Final = "fairway.dev/job-seconds"
USER_GPUS: Final = "fairway.dev/user-gpus"
PRIORITIES: Final = "fairway.dev/priorities"
DEVICES: Final = "fairway.dev/devices"
USER_QUEUES: Final = "fairway.dev/user-queues"
"""A team's limits, which devices its grants are on, and whose queue each member has where a team counts by
user (`alice=alice,bob@corp=bob-corp`): annotations of its namespace, which the admission policies read."""
NOTES: Final = (JOB_GPUS, JOB_SECONDS, USER_GPUS, PRIORITIES, DEVICES, USER_QUEUES)

Governed = Union[Mapping[str, "Governed"], None]  # noqa: UP007  (a recursive alias must be quoted in 3.11)
"""Which keys of an object are governed; None: everything below."""


@dataclass(frozen=True, slots=True)
class Kind:
    """One kind of object."""

    name: str
    root: str
    plural: str
    governed: Governed
    namespaced: bool = False
    optional: bool = False
    """Older API servers do not have it."""
    absent: Mapping[str, object] = field(default_factory=dict)
    """What the API server fills in where nothing is said: equal to saying nothing."""

    @property
    def api_version(self) -> str:
        return self.root.split("/", 2)[2]

    @property
    def list_path(self) -> str:
        return f"{self.root}/{self.plural}"

    def path(self, name: str) -> str:
        """Where the object of a key's name lives: `name`, or `namespace/name`."""
        if not self.namespaced:
            return f"{self.root}/{self.plural}/{name}"
        namespace, _, inner = name.partition("/")
        return f"{self.root}/namespaces/{namespace}/{self.plural}/{inner}"

    @property
    def resource(self) -> str:
        """As a rule of a ClusterRole names it."""
        group = "" if self.root.startswith("/api/") else self.api_version.partition("/")[0]
        return f"{self.plural}.{group}".rstrip(".")


_CORE, _KUEUE = "/api/v1", "/apis/kueue.x-k8s.io/v1beta2"
_RBAC, _ADMISSION = "/apis/rbac.authorization.k8s.io/v1", "/apis/admissionregistration.k8s.io/v1"

_QUOTA: Final[Governed] = {"parentName": None, "resourceGroups": None, "fairSharing": {"weight": None}}

NAMESPACE: Final = Kind(
    "Namespace", _CORE, "namespaces",
    {
        "metadata": {
            "labels": {TEAM: None},
            "annotations": dict.fromkeys(NOTES),
        }
    },
)  # fmt: skip
TOPOLOGY: Final = Kind("Topology", _KUEUE, "topologies", {"spec": {"levels": None}})
FLAVOR: Final = Kind(
    "ResourceFlavor", _KUEUE, "resourceflavors",
    {"spec": {"nodeLabels": None, "nodeTaints": None, "tolerations": None, "topologyName": None}},
)  # fmt: skip
PRIORITY_CLASS: Final = Kind("WorkloadPriorityClass", _KUEUE, "workloadpriorityclasses", {"value": None})
COHORT: Final = Kind("Cohort", _KUEUE, "cohorts", {"spec": _QUOTA})
CLUSTER_QUEUE: Final = Kind(
    "ClusterQueue", _KUEUE, "clusterqueues",
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
    absent={"spec.stopPolicy": "None", "spec.preemption.borrowWithinCohort.policy": "Never"},
)  # fmt: skip
LOCAL_QUEUE: Final = Kind(
    "LocalQueue", _KUEUE, "localqueues", {"spec": {"clusterQueue": None, "stopPolicy": None}},
    namespaced=True, absent={"spec.stopPolicy": "None"},
)  # fmt: skip
RESOURCE_QUOTA: Final = Kind(
    "ResourceQuota", _CORE, "resourcequotas", {"spec": {"hard": None}}, namespaced=True
)
ROLE_BINDING: Final = Kind(
    "RoleBinding", _RBAC, "rolebindings",
    {"roleRef": None, "subjects": None},
    namespaced=True,
)  # fmt: skip
ADMISSION_POLICY: Final = Kind(
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
ADMISSION_BINDING: Final = Kind(
    "ValidatingAdmissionPolicyBinding", _ADMISSION, "validatingadmissionpolicybindings",
    {
        "spec": {
            "policyName": None,
            "validationActions": None,
            "matchResources": {"namespaceSelector": None},
        }
    },
)  # fmt: skip

MUTATING_POLICY: Final = Kind(
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
MUTATING_BINDING: Final = Kind(
    "MutatingAdmissionPolicyBinding", _ADMISSION, "mutatingadmissionpolicybindings",
    {"spec": {"policyName": None, "matchResources": {"namespaceSelector": None}}},
    optional=True,
)  # fmt: skip

KINDS: Final[Mapping[str, Kind]] = {
    kind.name: kind
    for kind in (
        NAMESPACE, TOPOLOGY, FLAVOR, PRIORITY_CLASS, COHORT, CLUSTER_QUEUE, LOCAL_QUEUE, RESOURCE_QUOTA,
        ROLE_BINDING, ADMISSION_POLICY, ADMISSION_BINDING, MUTATING_POLICY, MUTATING_BINDING,
    )
}  # fmt: skip
