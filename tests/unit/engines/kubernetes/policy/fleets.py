"""Fleets on one Kubernetes cluster, as `files` would make them."""

from __future__ import annotations

from fairway.engines.kubernetes.policy.admission_policies import AdmissionFacts
from fairway.files import parse_fleet
from fairway.model.fleet import Fleet
from fairway.policy.objects import FoundObject, FoundPolicy, ObjectKey, Translation, Value

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  cloud: { engine: kubernetes, kubeconfig: /nowhere }
pools:
  a100:
    cluster: cloud
    gpu: A100-80GB
    capacity: owned
    price: 1.90
    kubernetes: { node_labels: { nvidia.com/gpu.product: NVIDIA-A100-SXM4-80GB } }
    topology: [topology.fairway/block, topology.fairway/rack]
  mig:
    cluster: cloud
    gpu: A100-80GB
    slices: [1g.10gb, 3g.40gb]
    capacity: owned
    price: 1.90
    kubernetes: { node_labels: { nvidia.com/mig.strategy: mixed } }
  spot:
    cluster: cloud
    gpu: A100-80GB
    capacity: spot
    price: 0.60
    kubernetes: { node_labels: { fairway/capacity: spot }, taints: [fairway/spot=true:NoSchedule] }
"""

FAMILY = """
teams:
  research:
    share: 60
    guarantee: { a100: 16, mig/1g.10gb: 2 }
    borrow: { a100: 8 }
    limits: { job: { gpus: 16, time: 1h } }
    teams:
      nlp: { share: 2, guarantee: { a100: 8 }, members: [alice] }
      vision: { members: [carol] }
  product:
    share: 40
    guarantee: { a100: 12 }
    borrow: { a100: 4 }
    priorities: [urgent, normal]
    members: [anna, bob]
"""

SETTINGS = {
    "kueue.configuration": "read",
    "kueue.version": "v0.19.2",
    "kueue.fairSharing.preemptionStrategies": "LessThanOrEqualToFinalShare, LessThanInitialShare",
    "kueue.resources.quotaCheckStrategy": "excludeResourcePrefixes: cpu, memory",
    "kueue.integrations.frameworks": "batch/job, pod, deployment, statefulset",
    "kueue.featureGates": "",
    "capacity.a100": "32",
    "capacity.mig/1g.10gb": "4",
    "capacity.mig/3g.40gb": "2",
    "capacity.spot": "16",
    "rbac.fairway-member": "present",
    "served.MutatingAdmissionPolicy": "yes",
    "served.MutatingAdmissionPolicyBinding": "yes",
}


JOBS_ONLY = {"kueue.integrations.frameworks": "batch/job"}
"""The settings of a Kueue that queues no pods but those of Jobs."""
FACTS = AdmissionFacts(("nvidia.com/gpu",), ("low",), "normal", assigns_queues=True)


def fleet(teams: str = FAMILY) -> Fleet:
    """A fleet of these teams on all three pools."""
    return parse_fleet(HEAD + teams, "fleet.yaml")


def nothing(**settings: str) -> FoundPolicy:
    """A cluster without any policy."""
    return FoundPolicy("kubernetes v1.36.3, kueue v0.19.2", (), SETTINGS | settings)


def applied(wanted: Translation, **settings: str) -> FoundPolicy:
    """The cluster after everything wanted was written."""
    objects = tuple(
        FoundObject(o.key, o.fields, ours=True, after=o.after, team=o.team) for o in wanted.objects
    )
    return FoundPolicy("kubernetes v1.36.3, kueue v0.19.2", objects, SETTINGS | settings)


def fields_of(wanted: Translation, kind: str, name: str) -> dict[str, Value]:
    """The fields of one wanted object."""
    return dict(next(o.fields for o in wanted.objects if o.key == ObjectKey(kind, name)))
