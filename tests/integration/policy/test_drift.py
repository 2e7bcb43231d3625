"""Drift end to end: what somebody changed by the engine's own tools shows in time, and apply heals it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fairway.engines.kubernetes.api.kinds import JOB_GPUS, KINDS
from fairway.ledger import DriftEntry, DriftKind, Ledger
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.policy.objects import ObjectKey
from lab import Instance
from lab.kubernetes.cluster import Cluster as LabKubernetes
from tests.integration.policy.policy_lab import governed
from tests.integration.policy.policy_server import Policy, PolicyServer, fleet, policy_server, team
from tests.integration.server_process import Home, temporary_home

pytestmark = pytest.mark.timeout(400)

SEEN_WITHIN_SECONDS = 60
"""The promise. The server of these tests looks every 5 s; one that was not told otherwise, every 30."""

FIXED = {"Topology", "ResourceFlavor"}
"""Kueue lets nobody change a Topology, nor a ResourceFlavor that has one (all of ours do)."""


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


def teams() -> Fleet:
    return fleet(
        team("research", share=60, guarantee=16, members=("alice", "carol")),
        team("nlp", parent="research", guarantee=8, members=("dave",)),
        team("product", share=40, guarantee=8, borrow=4, members=("bob",)),
    )


@pytest.mark.slurm
@pytest.mark.parametrize("engine", ["slurm-24", "slurm-26"])
async def test_what_sacctmgr_changed_shows_and_is_healed(
    engine: str, home: Home, ledger: Ledger, database_url: str
) -> None:
    async with policy_server(governed(engine), home, ledger, database_url) as served:
        await served.applied(teams())
        before = await served.policy()
        qos = next(key for key in before if key.kind == "qos" and key.name.startswith("research"))

        def change() -> None:
            run = served.cluster.instance.run
            run("sacctmgr", "-i", "modify", "qos", qos.name, "set", "Priority=77")
            run("sacctmgr", "-i", "modify", "account", "product", "set", "fairshare=77")
            run(
                "sacctmgr",
                "-i",
                "modify",
                "user",
                "alice",
                "where",
                "account=research",
                "set",
                "fairshare=77",
            )
            run("sacctmgr", "-i", "delete", "user", "carol", "account=research")

        await asyncio.to_thread(change)
        seen = await _seen(
            served,
            {
                qos,
                ObjectKey("account", "product"),
                ObjectKey("association", "research/alice"),
                ObjectKey("association", "research/carol"),
            },
        )
        assert _one(seen, qos).found == 77
        assert _one(seen, ObjectKey("account", "product")) == DriftEntry(
            ObjectKey("account", "product"),
            DriftKind.CHANGED,
            "Fairshare",
            wanted=40,
            found=77,
            team=TeamName("product"),
        )
        assert _one(seen, ObjectKey("association", "research/carol")).kind is DriftKind.MISSING
        await _healed(served, before)


@pytest.mark.kubernetes
@pytest.mark.parametrize("engine", ["kubernetes"])
async def test_what_kubectl_changed_shows_and_is_healed(
    engine: str, home: Home, ledger: Ledger, database_url: str
) -> None:
    async with policy_server(governed(engine), home, ledger, database_url) as served:
        await served.applied(teams())
        before = await served.policy()
        changed = await asyncio.to_thread(_change_each_kind, served.cluster.instance, before)
        assert {key.kind for key in changed} == {key.kind for key in before} - FIXED
        seen = await _seen(served, changed)
        assert all(_one(seen, key).kind is DriftKind.CHANGED for key in changed)
        # Who it was, by the name under which the API server keeps what somebody wrote.
        assert all(_one(seen, key).changed_by for key in changed)
        await _healed(served, before)


async def _seen(served: PolicyServer, keys: set[ObjectKey]) -> list[DriftEntry]:
    """Exactly these objects are named, in time, by the command line too."""
    started = time.monotonic()
    while True:
        entries = [d.entry for d in await served.ledger.drift.page()]
        if {e.key for e in entries} == keys:
            break
        waited = time.monotonic() - started
        assert waited < SEEN_WITHIN_SECONDS, f"seen {sorted({str(e.key) for e in entries})} in {waited:.0f} s"
        await asyncio.sleep(0.5)
    shown = await asyncio.to_thread(served.home.fairway, "get", "drift", "-o", "json")
    assert shown.returncode == 0, shown.stderr
    assert all(key.name in shown.stdout for key in keys), shown.stdout
    return entries


async def _healed(served: PolicyServer, before: Policy) -> None:
    await served.applied(teams())
    assert await served.policy() == before
    assert await served.ledger.drift.page() == ()


def _one(entries: list[DriftEntry], key: ObjectKey) -> DriftEntry:
    return next(e for e in entries if e.key == key)


def _change_each_kind(instance: Instance, policy: Policy) -> set[ObjectKey]:
    """One object of every kind is changed by hand, where the API server lets one."""
    api = LabKubernetes(instance).api
    changed = set()
    for kind, change in _BY_HAND.items():
        key = min(key for key in policy if key.kind == kind)
        path = KINDS[kind].path(key.name)
        api.merge(path, change(api.get(path)))
        changed.add(key)
    return changed


def _more_quota(thing: dict[str, Any]) -> dict[str, Any]:
    groups = thing["spec"]["resourceGroups"]
    groups[0]["flavors"][0]["resources"][0]["nominalQuota"] = "31"
    return {"spec": {"resourceGroups": groups}}


def _one_more_subject(thing: dict[str, Any]) -> dict[str, Any]:
    eve = {"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "eve"}
    return {"subjects": [*thing["subjects"], eve]}


_BY_HAND: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
    "Namespace": lambda _: {"metadata": {"annotations": {JOB_GPUS: "99"}}},
    "WorkloadPriorityClass": lambda _: {"value": 7777},
    "Cohort": lambda _: {"spec": {"fairSharing": {"weight": "7"}}},
    "ClusterQueue": _more_quota,
    "LocalQueue": lambda _: {"spec": {"stopPolicy": "Hold"}},
    "RoleBinding": _one_more_subject,
    "ValidatingAdmissionPolicy": lambda _: {"spec": {"failurePolicy": "Ignore"}},
    "ValidatingAdmissionPolicyBinding": lambda _: {"spec": {"validationActions": ["Audit"]}},
    "MutatingAdmissionPolicy": lambda _: {"spec": {"failurePolicy": "Ignore"}},
    "MutatingAdmissionPolicyBinding": lambda _: {
        "spec": {"matchResources": {"namespaceSelector": {"matchLabels": {"by": "hand"}}}}
    },
}
