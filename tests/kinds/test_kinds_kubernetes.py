"""One workload of every kind lives through everything that Fairway promises of it, on real controllers.

All kinds go through the phases together: queued, preempted, back, held, cancelled. An independent watch
records their pods; at the end the ledger's GPU-seconds of each are compared with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from datetime import datetime
from typing import Any, Final

import pytest

from fairway.model.job import ENDED_JOBS, JobState
from fairway.wire import jobs as job_wire
from lab.kubernetes.api import ApiError
from tests.integration.server_process import Home, temporary_home
from tests.kinds import results
from tests.kinds.manifests import MANIFESTS, job
from tests.kinds.pods import gpu_seconds, gpus_of, pod_times
from tests.kinds.show import OWNER, SOON, TEAM, Show, Workload, placed_in, showing
from tests.waiting import Deadline

pytestmark = [
    pytest.mark.kubernetes,
    pytest.mark.lab,
    pytest.mark.timeout(1200),
    pytest.mark.nightly("minutes; the tests of the mirror and of the guard cover each kind in CI"),
]

_LOG = logging.getLogger(__name__)
PODS, GPUS = 2, 1
NEVER_BACK: Final = {
    "Pod": "Kueue deletes a bare pod that it preempts; nothing creates it anew",
    "PodGroup": "Kueue deletes the pods of a group that it preempts; nothing creates them anew",
}
NO_HOLD: Final = {
    "Pod": "a bare pod cannot be held: a pod that stops does not come back",
    "PodGroup": "the pods of a group cannot be held: pods that stop do not come back",
}
BATCH: Final = frozenset({"Job", "CronJob", "JobSet", "TrainJob", "RayJob", "PodGroup", "Pod"})
QUOTA_CODES: Final = frozenset({"QuotaInUse", "TeamAtCeiling", "PoolFull", "NotEnoughFree"})


@pytest.fixture
def home() -> Iterator[Home]:
    with temporary_home() as made:
        yield made


async def test_every_kind(home: Home, database_url: str) -> None:
    async with showing(home, database_url) as show:
        every = [
            Workload(kind, name, MANIFESTS[kind](name, GPUS, PODS))
            for kind in show.kinds(MANIFESTS)
            for name in [f"{kind.lower()}-{show.unique}"]
        ]
        try:
            await play(show, every)
        finally:
            results.save({one.kind: dict(one.found) for one in every})
        faults = [
            f"{one.kind} {name}: {one.found.get(name, 'not reached')}"
            for one in every
            for name in results.PROPERTIES
            if one.found.get(name) not in {"yes", NEVER_BACK.get(one.kind), NO_HOLD.get(one.kind)}
        ]
        assert not faults, "\n".join(faults)


async def play(show: Show, every: list[Workload]) -> None:
    for one in every:
        for wanted in one.objects:
            await asyncio.to_thread(show.create, show.alice, TEAM, wanted)
    late = await show.until("running", every, lambda one, row: _runs(show, one, row))
    note(every, "mirrored", late, "it was not seen running")
    for one in every:
        if one.kind == "CronJob":  # one Job is enough
            path = show.api.path_of(placed_in(one.objects[0], TEAM))
            await asyncio.to_thread(show.api.merge, path, {"spec": {"suspend": True}})
    note(every, "queued", await asyncio.to_thread(_unqueued, show, every), "no Workload of Kueue counts it")
    await _preempt(show, every)
    for one in every:
        one.id = (await asyncio.to_thread(show.rows, every))[one.name].id
    await _each(show.client.cancel, every)
    left = await show.until("cancelled", every, lambda one, row: _has_ended(row) and not show.pods(one))
    note(every, "cancelled", left, "it is still there")
    await show.until("usage", every, lambda one, row: not _usage_fault(show, one))
    for one in every:
        seconds, money = show.held(one)
        one.found["usage"] = _usage_fault(show, one) or "yes"
        paid = seconds > 0 and abs(money - seconds) < 0.01  # the price is 1 a GPU-second
        one.found["charged"] = "yes" if paid else f"{money} for {seconds} GPU-seconds"


def note(found: Iterable[Workload], name: str, failed: Iterable[Workload], why: str) -> None:
    """Write down the property of all of them."""
    bad = {one.name for one in failed}
    for one in found:
        one.found[name] = why if one.name in bad else "yes"


async def _preempt(show: Show, every: list[Workload]) -> None:
    """The team with the guarantee takes all GPUs, and gives them back. Meanwhile the others are held."""
    owners = [wanted for number in range(4) for wanted in job(f"owner-{show.unique}-{number}", 8, 1)]
    for wanted in owners:
        await asyncio.to_thread(show.create, show.bob, OWNER, wanted)
    stayed = await show.until("preempted", every, lambda one, row: not show.pods(one) and _lost(one, row))
    note(every, "preempted", stayed, "it kept its GPUs, or the ledger does not say that they were taken")
    waiting = [one for one in every if one.kind not in NEVER_BACK]
    lost = [one for one in every if one.kind in NEVER_BACK]
    note(every, "why", await asyncio.to_thread(_wrong_reasons, show, waiting), "another reason")
    for one in waiting:
        one.id = (await asyncio.to_thread(show.rows, every))[one.name].id
    await _each(show.client.hold, waiting)
    free = await show.until("held", waiting, lambda one, row: row is not None and row.state is JobState.HELD)
    for one in lost:
        for wanted in one.objects:
            await asyncio.to_thread(_remove, show, wanted)
    for wanted in owners:
        show.delete(wanted, OWNER)
    await _let_one_run(show)
    free += [one for one in waiting if show.pods(one)]
    await _each(show.client.release, waiting)
    away = await show.until("back", waiting, lambda one, row: _runs(show, one, row))
    note(waiting, "held", free, "it was not held, or started although it was")
    note(waiting, "back", away, "it did not come back after its release")
    for one in lost:
        one.found |= {"back": NEVER_BACK[one.kind], "held": NO_HOLD[one.kind]}
        for wanted in one.objects:
            await asyncio.to_thread(show.create, show.alice, TEAM, wanted)
    await show.until("again", lost, lambda one, row: _runs(show, one, row))


async def _let_one_run(show: Show) -> None:
    """Return once another job of the team has run: there is room, so what is held could have started."""
    name = f"probe-{show.unique}"
    probe = Workload("Job", name, job(name, 8, 4, 1))
    for wanted in probe.objects:
        await asyncio.to_thread(show.create, show.alice, TEAM, wanted)
    left = await show.until("room", [probe], lambda one, row: _has_ended(row))
    assert not left, "a job that nobody holds does not run"


async def _each(act: Callable[[str], object], workloads: Iterable[Workload]) -> None:
    for one in workloads:
        await asyncio.to_thread(act, one.id)


def _remove(show: Show, wanted: dict[str, Any]) -> None:
    """A person who finds a pod preempted removes what is left of it."""
    path = show.api.path_of(placed_in(wanted, TEAM))
    group = wanted["metadata"].get("labels", {}).get("kueue.x-k8s.io/pod-group-name")
    deadline = Deadline(SOON)
    while True:
        try:
            show.api.get(path)
        except ApiError as error:
            if error.status == 404:
                return
        assert not deadline.passed, f"{path} does not go"
        with suppress(ApiError):
            if group:
                show.api.delete(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{TEAM}/workloads/{group}")
            show.api.delete(path)
        time.sleep(0.2)


def _runs(show: Show, one: Workload, row: job_wire.Job | None) -> bool:
    """Whether it runs as its pods do, in the ledger and in the cluster."""
    return (
        row is not None
        and row.state is JobState.RUNNING
        and sum(gpus_of(pod) for pod in show.pods(one)) == GPUS * PODS
        and row.devices == GPUS * PODS
    )


def _has_ended(row: job_wire.Job | None) -> bool:
    return row is not None and row.state in ENDED_JOBS


def _lost(one: Workload, row: job_wire.Job | None) -> bool:
    """Whether the ledger shows that it waits, or ended. The Workload of a pod group waits for new pods."""
    return row is not None and (row.state is JobState.WAITING or (one.kind == "Pod" and _has_ended(row)))


def _unqueued(show: Show, every: list[Workload]) -> list[Workload]:
    """Those with a pod that no Workload of Kueue counts."""
    listed = show.api.get(f"/apis/kueue.x-k8s.io/v1beta2/namespaces/{TEAM}/workloads")["items"]
    counted = {w["metadata"]["name"] for w in listed if w.get("status", {}).get("admission")}
    key = "kueue.x-k8s.io/workload"
    return [
        one
        for one in every
        if not show.pods(one)
        or any(pod["metadata"].get("annotations", {}).get(key) not in counted for pod in show.pods(one))
    ]


def _wrong_reasons(show: Show, workloads: Iterable[Workload]) -> list[Workload]:
    """Those whose reason is none of quota that others use."""
    wrong = []
    rows = show.rows(workloads)
    for one in workloads:
        why = show.client.why(rows[one.name].id)
        if not QUOTA_CODES & {reason.code for reason in why.reasons}:
            _LOG.warning("why %s: %s %s", one.kind, why.summary, why.reasons)
            wrong.append(one)
    return wrong


def _usage_fault(show: Show, one: Workload) -> str:
    theirs, ours = _pod_seconds(show, one), show.held(one)[0]
    return "" if theirs == ours and theirs > 0 else f"{ours} GPU-seconds, its pods {theirs}"


def _pod_seconds(show: Show, one: Workload) -> int:
    """GPU-seconds by its pods; those of batch work that ran together count as a whole."""
    pods = show.recorder.started(one.name)
    if one.kind not in BATCH:
        return gpu_seconds(pods)
    times = sorted((start, end or start, gpus_of(pod)) for pod in pods for start, end in [pod_times(pod)])
    total = 0
    for group in _together(times):
        start, end = min(t[0] for t in group), max(t[1] for t in group)
        total += sum(t[2] for t in group) * int((end - start).total_seconds())
    return total


def _together(times: list[tuple[datetime, datetime, int]]) -> list[list[tuple[datetime, datetime, int]]]:
    groups: list[list[tuple[datetime, datetime, int]]] = []
    for one in times:
        if groups and one[0] < max(t[1] for t in groups[-1]):
            groups[-1].append(one)
        else:
            groups.append([one])
    return groups
