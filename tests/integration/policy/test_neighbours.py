"""Objects without Fairway's mark stand beside ours, of every kind, and nothing we do changes them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from fairway.engines.kubernetes.api.kinds import KINDS
from fairway.files import parse_fleet
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.policy.policy_lab import Governed, governed, shown

if TYPE_CHECKING:
    from fairway.model.fleet import Fleet

pytestmark = pytest.mark.timeout(300)

OURS = "research"
"""A team of ours: some neighbours live in its own namespace or account."""
FLEET = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: neighbours
currency: USD
clusters: { lab: { engine: virtual } }
pools:
  gpu: { cluster: lab, gpu: A100-80GB, capacity: owned, price: 1, virtual: { nodes: 4 } }
"""
TEAMS = """
teams:
  research:
    guarantee: { gpu: 16 }
    members: [alice]
    teams: { nlp: { guarantee: { gpu: 8 }, members: [carol] } }
  product: { guarantee: { gpu: 16 }, members: [bob] }
"""
CHANGED = """
teams:
  research: { share: 3, guarantee: { gpu: 8 }, borrow: { gpu: 4 }, members: [alice] }
"""


def kubernetes_neighbours(namespace: str) -> Iterator[dict[str, Any]]:
    """One of every kind that lives in a namespace."""
    kueue, rbac = "kueue.x-k8s.io/v1beta2", "rbac.authorization.k8s.io"
    yield _object(kueue, "LocalQueue", namespace, spec={"clusterQueue": "neighbour"})
    yield _object("v1", "ResourceQuota", namespace, spec={"hard": {"pods": "7"}})
    yield _object(
        f"{rbac}/v1",
        "RoleBinding",
        namespace,
        roleRef={"apiGroup": rbac, "kind": "ClusterRole", "name": "view"},
        subjects=[{"kind": "User", "apiGroup": rbac, "name": "dave"}],
    )


def cluster_neighbours() -> Iterator[dict[str, Any]]:
    """One of every kind that lives outside namespaces."""
    kueue, admission = "kueue.x-k8s.io/v1beta2", "admissionregistration.k8s.io/v1"
    quota = {"name": "nvidia.com/gpu", "nominalQuota": 3}
    group = {"coveredResources": ["nvidia.com/gpu"], "flavors": [{"name": "neighbour", "resources": [quota]}]}
    yield _object("v1", "Namespace")
    yield _object(kueue, "Topology", spec={"levels": [{"nodeLabel": "kubernetes.io/hostname"}]})
    yield _object(kueue, "ResourceFlavor", spec={"nodeLabels": {"neighbour": "yes"}})
    yield _object(kueue, "WorkloadPriorityClass", value=7)
    yield _object(kueue, "Cohort", spec={"resourceGroups": [group]})
    yield _object(
        kueue,
        "ClusterQueue",
        spec={"cohortName": "neighbour", "namespaceSelector": {}, "resourceGroups": [group]},
    )
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    pods = {"matchConstraints": {"resourceRules": [rule]}}
    bound = {"policyName": "neighbour"}
    yield _object(
        admission, "ValidatingAdmissionPolicy", spec=pods | {"validations": [{"expression": "true"}]}
    )
    yield _object(
        admission, "ValidatingAdmissionPolicyBinding", spec=bound | {"validationActions": ["Audit"]}
    )
    never = [{"name": "never", "expression": "false"}]
    nothing = "[JSONPatch{op: 'test', path: '/kind', value: 'Pod'}]"
    patch = {"patchType": "JSONPatch", "jsonPatch": {"expression": nothing}}
    yield _object(
        admission,
        "MutatingAdmissionPolicy",
        spec=pods | {"reinvocationPolicy": "Never", "mutations": [patch], "matchConditions": never},
    )
    yield _object(admission, "MutatingAdmissionPolicyBinding", spec=bound)


def _object(version: str, kind: str, namespace: str | None = None, **body: Any) -> dict[str, Any]:
    metadata = {"name": "neighbour", **({"namespace": namespace} if namespace else {})}
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **body}


@pytest.mark.kubernetes
@pytest.mark.parametrize("name", ["kubernetes"])
async def test_nothing_of_others_changes(name: str) -> None:
    here = governed(name)
    fleet = _at_home(here, TEAMS)
    api = LabKubernetes(here.instance).api
    planted = [*cluster_neighbours(), *kubernetes_neighbours("neighbour"), *kubernetes_neighbours(OURS)]
    assert {thing["kind"] for thing in planted} == set(KINDS), "a kind without a neighbour"

    def plant() -> None:
        for thing in planted:
            api.apply(thing)

    def look() -> dict[str, str]:
        return {api.path_of(thing): shown(api.get(api.path_of(thing))) for thing in planted}

    try:
        await here.apply(fleet)
        await asyncio.to_thread(plant)
        before = await asyncio.to_thread(look)
        assert not (await here.plan(fleet)).changes, "neighbours are no change of ours"
        for after in (CHANGED, TEAMS, CHANGED, "teams: {}"):
            assert (await here.settle(_at_home(here, after))).changes
            assert await asyncio.to_thread(look) == before
    finally:
        for thing in reversed(planted):
            await asyncio.to_thread(api.delete, api.path_of(thing))
        await here.clear()
        await asyncio.to_thread(here.drop_namespaces)


def _at_home(here: Governed, teams: str) -> Fleet:
    fleet = parse_fleet(FLEET + teams, "neighbours.yaml")
    return here.home(fleet, fleet.clusters[0].name)
