"""The informer against a real API server that is killed, forgets its history and is hard to reach.

Compared at the end: what the store holds, what a subscriber knows from changes alone, and a fresh list.
The API server is killed here, so these tests have a cluster of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import signal
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx2
import msgspec
import pytest

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.informer import Informer, InformerTiming, WatchedKind
from fairway.engines.kubernetes.api.wire import ObjectMeta
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Unreachable
from fairway.model.backoff import Backoff
from fairway.model.fleet import Cluster, KubernetesConnection
from fairway.model.names import ClusterName
from fairway.model.observation import Health, Observation
from lab import Instance, obtain
from lab.kubernetes.cluster import Cluster as LabCluster
from tests.integration.nodes.informer_chaos import Follower, State, Way, Writer, until
from tests.waiting import Deadline

pytestmark = [pytest.mark.kubernetes, pytest.mark.lab, pytest.mark.timeout(900)]

figures = logging.getLogger("figures")  # shown by --log-cli-level=INFO

LONG = 300.0
"""Seconds a machine with much else to do may take for anything here."""
HISTORY = 60
"""Changes an API server remembers for certain: it begins with room for a hundred of a kind."""

QUICK = InformerTiming(
    page_size=7, request_seconds=5, watch_seconds=2, silence_seconds=1, backoff=Backoff(0.1, 0.5)
)


class ConfigMap(msgspec.Struct):
    metadata: ObjectMeta
    data: dict[str, str] = {}


def value_of(config: ConfigMap) -> str:
    return config.data.get("value", "")


@pytest.fixture(scope="module")
def instance() -> Iterator[Instance]:
    own = obtain("kubernetes", "informer", None, {"nodes": 2})
    own.up()
    yield own
    own.wipe()


@pytest.fixture
def lab(instance: Instance) -> LabCluster:
    return LabCluster(instance)


@pytest.fixture
async def writer(lab: LabCluster) -> AsyncIterator[Writer]:
    space = f"chaos-{time.monotonic_ns()}"
    lab.api.create("/api/v1/namespaces", {"metadata": {"name": space}})
    async with httpx2.AsyncClient(
        base_url=f"https://127.0.0.1:{lab.api.port}",
        verify=lab.api.tls,
        headers={"Authorization": f"Bearer {lab.api.token}"},
        timeout=10,
    ) as http:
        yield Writer(http, f"/api/v1/namespaces/{space}/configmaps")


@asynccontextmanager
async def reached(
    lab: LabCluster, way: Way, api_type: type[ApiServer] = ApiServer
) -> AsyncIterator[ApiServer]:
    async with way.open() as url:
        api = api_type(
            httpx2.AsyncClient(base_url=url, headers={"Authorization": f"Bearer {lab.api.token}"}), url
        )
        yield api
        await api.close()


@asynccontextmanager
async def following(
    api: ApiServer, writer: Writer, timing: InformerTiming = QUICK
) -> AsyncIterator[tuple[Informer[ConfigMap, str], Follower]]:
    kind = WatchedKind("configmaps", writer.path, ConfigMap, value_of)
    informer, told = Informer(api, kind, timing=timing), Follower()
    informer.store.subscribe(told)
    informer.start()
    try:
        yield informer, told
        assert informer.alive, "the informer's task ended by itself"
    finally:
        await informer.stop()


def held(informer: Informer[ConfigMap, str]) -> State:
    return {key: (each.uid, each.version) for key, each in informer.store.items()}


async def all_agree(informer: Informer[ConfigMap, str], told: Follower, writer: Writer) -> State:
    """Store, subscriber and a fresh list show the same, a moment after the last write."""
    true = await writer.listed()
    with contextlib.suppress(AssertionError):  # told below by what differs
        await until(lambda: held(informer) == true, LONG, "the store is as the list")
    assert held(informer) == true
    assert told.state == true
    return true


def way_to(lab: LabCluster) -> Way:
    return Way(lab.api.port, lab.api.tls)


async def kill_and_restart(instance: Instance) -> None:
    await asyncio.to_thread(instance.kill, "kube-apiserver")
    await asyncio.sleep(1)
    await asyncio.to_thread(instance.start, "kube-apiserver")


async def test_the_api_server_is_killed_and_history_compacted_while_all_is_written(
    instance: Instance, lab: LabCluster, writer: Writer
) -> None:
    way = way_to(lab)
    async with reached(lab, way) as api, following(api, writer) as (informer, told):
        async with asyncio.timeout(LONG):
            await informer.synced()
        async with writer.writing():
            await writer.until_written(100)
            await kill_and_restart(instance)
            await writer.until_written(100)
            await asyncio.to_thread(lab.compact_etcd)
            await writer.until_written(20)

            way.block()  # the informer sleeps through all of this
            missed_from = len(writer.acknowledged)
            await writer.until_written(100)
            await asyncio.to_thread(lab.compact_etcd)
            await kill_and_restart(instance)
            missed = len(writer.acknowledged) - missed_from
            lists = informer.lists
            way.unblock()

            await writer.until_written(100)
        await all_agree(informer, told, writer)

        figures.info(
            "%d writes, %d of them unseen; %d deletions told, %d lists, %d reconnects",
            *(writer.writes, missed, told.deletions, informer.lists, informer.reconnects),
        )
        assert missed > 50
        assert informer.lists > lists, "history was gone: only a list could tell"
        assert told.deletions > 20


async def test_no_event_is_lost_or_told_twice_over_two_hundred_cuts(lab: LabCluster, writer: Writer) -> None:
    dice = random.Random(11)
    way = way_to(lab)
    endings = ["reset"] * 10 + ["close"] * 10 + ["freeze"]
    async with reached(lab, way) as api, following(api, writer) as (informer, told):
        async with asyncio.timeout(LONG):
            await informer.synced()
        way.break_by(lambda: (dice.randrange(1, 4000), dice.choice(endings)))
        way.block()
        way.unblock()
        # Through cuts it hears of a few changes at a time. If more were made meanwhile than the API server
        # remembers, it would have to list again, and rightly so.
        async with writer.writing(2, lambda: len(writer.acknowledged) - len(told.versions) < HISTORY):
            await until(lambda: way.cuts >= 200, 2 * LONG, "two hundred cuts")
        way.break_by(None)
        await all_agree(informer, told, writer)

        figures.info("%d cuts, %d writes, %d reconnects", way.cuts, writer.writes, informer.reconnects)
        assert informer.lists == 1, "nothing was forgotten, so nothing had to be listed again"
        lost = writer.acknowledged - told.versions
        assert not lost, f"{len(lost)} of {len(writer.acknowledged)} kept states were never told"


async def test_a_list_that_expires_between_two_pages_begins_again(
    instance: Instance, lab: LabCluster, writer: Writer
) -> None:
    pages = 0

    class Interrupted(ApiServer):
        """Between the first page and the second, everything changes and history is lost."""

        async def get(self, path: str, params: Mapping[str, str], *more: Any, **options: Any) -> Any:
            nonlocal pages
            pages += 1
            if pages == 2:
                await writer.burst(40)
                await asyncio.to_thread(lab.compact_etcd)
                await kill_and_restart(instance)
            return await super().get(path, params, *more, **options)

    await writer.burst(150)
    before = await writer.listed()
    async with reached(lab, way_to(lab), Interrupted) as api, following(api, writer) as (informer, told):
        async with asyncio.timeout(LONG):
            await informer.synced()
        assert await all_agree(informer, told, writer) != before
        assert pages > 2 + len(before) // QUICK.page_size, "the list did not begin again"
        assert informer.lists == 1


async def answered(engine: KubernetesEngine) -> Observation:
    """What it says once it can: an API server that comes back may take longer than one look lasts."""
    deadline = time.monotonic() + LONG
    while True:
        try:
            return await engine.observe()
        except Unreachable:
            if time.monotonic() > deadline:
                raise


async def test_the_engine_never_answers_from_memory_it_cannot_vouch_for(
    instance: Instance, lab: LabCluster
) -> None:
    kubeconfig = instance.facts()["fairway_kubeconfig"]
    engine = KubernetesEngine(
        Cluster(ClusterName("informer"), KubernetesConnection(kubeconfig)), (), timeout_seconds=6
    )
    try:
        await engine.observe()

        instance.kill("kube-apiserver", signal.SIGSTOP)  # every connection stays open, nothing answers
        await asyncio.sleep(2.5)
        async with asyncio.timeout(LONG):  # it ends by itself, which took it 6 s where there is time for it
            with pytest.raises(Unreachable):
                await engine.observe()
        instance.kill("kube-apiserver", signal.SIGCONT)
        assert len((await answered(engine)).nodes) == 3

        instance.kill("kube-apiserver")
        with pytest.raises(Unreachable):
            await engine.observe()
        with pytest.raises(Unreachable):
            await engine.observe()
        await asyncio.to_thread(instance.start, "kube-apiserver")
        lab.api.merge("/api/v1/nodes/gpu-0001", {"spec": {"unschedulable": True}})
        seen = await answered(engine)
        deadline = Deadline(LONG)  # the way of an event through a watch; never old memory
        while [n.name for n in seen.nodes if n.health is Health.DRAINED] != ["gpu-0001"]:
            assert not deadline.passed, "still the state before the change"
            await asyncio.sleep(0.05)
            seen = await answered(engine)
    finally:
        await engine.close()
        await engine.close()
