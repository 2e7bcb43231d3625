"""Faults planted in what keeps a Kubernetes site unharmed: the probes must find each."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from fairway.engines.kubernetes.api import kinds
from fairway.engines.kubernetes.policy import admission_policies, pod_policies, restore, translate, write
from fairway.engines.kubernetes.policy.admission_policies import AdmissionFacts
from fairway.model.fleet import ExistingWorkloads, Fleet, KubernetesConnection
from fairway.policy import leave
from tests.lab.driving import up
from tests.unharmed.kubernetes_probes import Probe, harms, play, probes_of
from tests.unharmed.leave_site import imported_site
from tests.unharmed.probes import Outcome

if TYPE_CHECKING:
    from lab.instance import Instance

pytestmark = [
    pytest.mark.lab,
    pytest.mark.timeout(900),
    pytest.mark.nightly("a cluster of its own; unit tests have each rule in CI"),
]

Fault = Callable[[pytest.MonkeyPatch], None]
TEAM = "llm"
PLAYED = (
    "a Job",
    "a queued Job",
    "a bare pod",
    "a Deployment",
    "a Job of 1 GPU",
    "a Deployment of 1 GPU",
    "restart deployments/chat",
)


Policy = tuple[str, Any, Any]


def edit(made: Policy, old: str, new: str) -> Policy:
    """An admission policy with other words in it."""
    name, policy, binding = made
    return name, json.loads(json.dumps(policy).replace(old, new)), binding


def workloads(old: str, new: str) -> Callable[[AdmissionFacts], Policy]:
    def changed(facts: AdmissionFacts) -> Policy:
        made = admission_policies.workload_policy(facts)
        assert old in json.dumps(made), old
        return edit(made, old, new)

    return changed


def pods(old: str, new: str) -> Callable[[AdmissionFacts], Iterator[Policy]]:
    def changed(facts: AdmissionFacts) -> Iterator[Policy]:
        made = list(pod_policies.pod_policies(facts))
        assert old in json.dumps(made), old
        yield from (edit(policy, old, new) for policy in made)

    return changed


def not_restored(kind: str) -> Callable[..., Any]:
    async def skip(requests: Any, of: Any, change: Any, body: Any) -> None:
        if of.name != kind:
            await restore.restore(requests, of, change, body)

    return skip


def stays(kind: str) -> Callable[..., str | None]:
    real = leave._needed

    def needed(key: Any, leaving: Any, jobs: Any) -> str | None:
        return "nobody knows why" if key.kind == kind else real(key, leaving, jobs)

    return needed


FAULTS: dict[str, Fault] = {
    "what ran before is refused (F1)": lambda patch: patch.setattr(
        translate, "annotation", lambda workloads: None
    ),
    "pods without GPUs are checked": lambda patch: patch.setattr(
        translate, "pod_policies", pods("!variables.asks || variables.left || (variables.gate", "(false")
    ),
    "jobs without GPUs need a queue": lambda patch: patch.setattr(
        translate,
        "workload_policy",
        workloads("!variables.asks || variables.child", "variables.child"),
    ),
    "a LocalQueue is changed in place (F3)": lambda patch: patch.setattr(
        write, "_is_made_anew", lambda kind, change: False
    ),
}
FAULTS_OF_LEAVING: dict[str, Fault] = {
    "a LocalQueue is not restored": lambda patch: patch.setattr(
        write, "restore", not_restored(kinds.LOCAL_QUEUE.name)
    ),
    "a ClusterQueue is not restored": lambda patch: patch.setattr(
        write, "restore", not_restored(kinds.CLUSTER_QUEUE.name)
    ),
    "the admission policies stay": lambda patch: patch.setattr(
        leave, "_needed", stays(kinds.ADMISSION_BINDING.name)
    ),
    "the quota of a ceiling stays": lambda patch: patch.setattr(
        leave, "_needed", stays(kinds.RESOURCE_QUOTA.name)
    ),
}

Before = dict[Probe, Outcome]


@pytest.fixture(scope="module")
def serving() -> Iterator[tuple[Instance, Before]]:
    """The site, and what people can do there before Fairway."""
    instance = up("kubernetes", "planted-serving", "--site", "serving")
    try:
        probes = [p for p in probes_of(instance) if p.namespace == TEAM and p.what in PLAYED]
        assert len(probes) == len(PLAYED)
        yield instance, play(instance, probes)
    finally:
        instance.wipe()


def teams_of(fleet: Fleet) -> frozenset[str]:
    return frozenset(str(team.name) for team in fleet.teams)


def with_a_ceiling(fleet: Fleet) -> Fleet:
    """A fleet whose team has a quota of pods: nothing that is left alone is in its way."""
    cluster = fleet.clusters[0]
    assert isinstance(cluster.connection, KubernetesConnection)
    connection = replace(cluster.connection, existing_workloads=ExistingWorkloads.REFUSE)
    teams = tuple(
        replace(team, grants=tuple(replace(g, guarantee=1, borrow=0) for g in team.grants))
        if team.name == TEAM
        else team
        for team in fleet.teams
    )
    return replace(fleet, clusters=(replace(cluster, connection=connection),), teams=teams)


@pytest.mark.parametrize("fault", FAULTS)
async def test_a_planted_harm_is_found(
    fault: str, serving: tuple[Instance, Before], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, before = serving
    async with imported_site(instance) as governed:
        FAULTS[fault](monkeypatch)
        try:
            await governed.govern()
        except AssertionError as refused:  # an apply that stops halfway
            found = [str(refused)]
        else:
            after = await asyncio.to_thread(play, instance, list(before))
            found = harms(before, after, teams_of(governed.fleet))
        monkeypatch.undo()
        await governed.leave()
    assert found != [], "no probe has found it"


@pytest.mark.parametrize("fault", FAULTS_OF_LEAVING)
async def test_a_planted_fault_of_leaving_is_found(
    fault: str, serving: tuple[Instance, Before], monkeypatch: pytest.MonkeyPatch
) -> None:
    instance, before = serving
    async with imported_site(instance) as governed:
        await governed.govern(with_a_ceiling(governed.fleet) if "ceiling" in fault else None)
        saved = dict(governed.saved)
        FAULTS_OF_LEAVING[fault](monkeypatch)
        await governed.leave()
        left = await asyncio.to_thread(play, instance, list(before))
        monkeypatch.undo()
        governed.saved = saved
        await governed.leave()
    assert harms(before, left, ()) != [], "no probe has found it"


async def test_a_queue_that_jobs_without_gpus_lose_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the site where a team inside another uses the other's ClusterQueue."""
    instance = up("kubernetes", "planted-quotas", "--site", "quotas")
    try:
        probes = [p for p in probes_of(instance) if p.namespace == "team-b" and p.what == "a queued Job"]
        before = play(instance, probes)
        async with imported_site(instance) as governed:
            monkeypatch.setattr(translate, "site_queues", lambda *args: iter(()))
            await governed.govern()
            after = await asyncio.to_thread(play, instance, probes)
            assert harms(before, after, teams_of(governed.fleet)) != [], "no probe has found it"
            monkeypatch.undo()
            await governed.leave()
        left = await asyncio.to_thread(play, instance, probes)
        assert harms(before, left, ()) == []
    finally:
        instance.wipe()


async def test_without_a_fault_nothing_is_found(serving: tuple[Instance, Before]) -> None:
    """The last one: the site is as it was, after all the faults."""
    instance, before = serving
    async with imported_site(instance) as governed:
        await governed.govern()
        after = await asyncio.to_thread(play, instance, list(before))
        assert harms(before, after, teams_of(governed.fleet)) == []
        await governed.leave()
    left = await asyncio.to_thread(play, instance, list(before))
    assert harms(before, left, ()) == []
