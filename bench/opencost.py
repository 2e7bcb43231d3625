"""What a mixed GPU load cost by OpenCost, by Fairway, and by the pods' own times: python -m bench.opencost.

Seven minutes of jobs through Kueue on the lab's KWOK nodes: long ones, many that are shorter than a scrape,
slices, and one whose node leaves. Two OpenCosts watch, one scraped every minute as its manifests say, one
every 15 s. The truth is added up by hand: GPUs × (finishedAt − startTime) of every pod, as Kubernetes has it.
Docs: docs/compare/opencost.md. Not among the benchmarks of `python -m bench`: it takes ten minutes.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import tempfile
import time
from collections.abc import Iterable, Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path

from bench.fleets import A100, PRIORITIES, PRODUCT
from bench.opencost_money import (
    Allocation,
    Held,
    There,
    fairway_costs,
    hand_costs,
    opencost_costs,
    table,
)
from bench.opencost_server import FairwayServer, fairway_server
from fairway.engines.kubernetes.engine import KubernetesEngine
from fairway.engines.port import Unreachable
from fairway.model.fleet import Capacity, Cluster, Fleet, KubernetesConnection, KubernetesPlace, Pool
from fairway.model.job import EngineId, GpuRequest, JobId, JobSpec, Order, SeenJob, engine_name
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName, UserName
from fairway.model.team import Grant, Supply, Team
from lab import Instance, find, obtain, opencost
from lab.kubernetes import kwok
from lab.kubernetes.api import NOT_NOW, Api, ApiError, Json

RESEARCH, PRODUCTS = TeamName("research"), TeamName("product")
GPU = Supply(PoolName("gpu"))
SLICES = (SliceName("1g.10gb"), SliceName("3g.40gb"))
SMALL, HALF = (Supply(PoolName("mig"), name) for name in SLICES)
GPU_HOUR = Decimal("3.60")  # a tenth of a cent a GPU-second: easy to read
NODES, GPUS = 3, 8
LEAVES_AFTER = 90.0
TAIL_SECONDS = 90.0  # for the last scrapes
SETTINGS = {60: ("5m", "1m"), 15: ("1m", "15s")}
"""Seconds between scrapes, and resolutions OpenCost is asked for, the first as it is set up: the defaults,
and what its maintainers advise for pods that live shortly."""
RESOLUTION_SECONDS = {60: 300, 15: 60}


@dataclass(frozen=True, slots=True)
class Step:
    """Jobs that begin together."""

    at: float
    team: TeamName
    name: str
    supply: Supply
    devices: int
    seconds: int
    count: int = 1


def load() -> list[Step]:
    """Seven minutes: what a shared cluster sees in a day, compressed."""
    steps = [
        Step(0, RESEARCH, "pretrain", GPU, 8, 380),
        Step(5, PRODUCTS, "loses-its-node", GPU, 4, 150),
        Step(30, PRODUCTS, "notebook", SMALL, 1, 300, 3),
        Step(40, RESEARCH, "serve", HALF, 1, 180),
        Step(150, RESEARCH, "finetune", GPU, 4, 100),
    ]
    # At all sorts of seconds of a minute: it matters to whoever samples.
    steps += [Step(10 + 37 * i, RESEARCH, "sweep", GPU, 1, 20, 2) for i in range(10)]
    steps += [Step(20 + 97 * i, PRODUCTS, "eval", GPU, 2, 75) for i in range(4)]
    return sorted(steps, key=lambda step: step.at)


def fleet_of(instance: Instance) -> Fleet:
    cluster = Cluster(ClusterName("lab"), KubernetesConnection(instance.facts()["fairway_kubeconfig"]))
    whole = Pool(GPU.pool, cluster.name, A100, Capacity.OWNED, GPU_HOUR, KubernetesPlace(PRODUCT))
    sliced = {label: f"{value}-MIG" for label, value in PRODUCT.items()}
    mig = replace(whole, name=SMALL.pool, place=KubernetesPlace(sliced), slices=SLICES)
    grants = (Grant(GPU, 12, borrow=12), Grant(SMALL, 2, borrow=2), Grant(HALF, 1, borrow=1))
    teams = tuple(
        Team(name, grants=grants, priorities=PRIORITIES, members=(UserName(f"of-{name}"),))
        for name in (RESEARCH, PRODUCTS)
    )
    return Fleet("bench", "USD", (cluster,), (whole, mig), teams)


# what happens


async def play(engine: KubernetesEngine, fleet: Fleet, began: float) -> None:
    numbers = iter(range(random.randrange(1 << 30, 1 << 31), 1 << 32))
    for step in load():
        await asyncio.sleep(max(0.0, began + step.at - time.time()))
        orders = [_order(step, JobId(next(numbers))) for _ in range(step.count)]
        async for sent in engine.submit(orders, fleet):
            if sent.engine_id is None:
                raise SystemExit(f"error: {step.name} was not taken: {sent}")


def _order(step: Step, job: JobId) -> Order:
    env = {kwok.RUN_FOR_ENV: f"{step.seconds}s"}
    spec = JobSpec(step.name, GpuRequest(step.devices), ("x",), image="x:1", env=env)
    name = engine_name("0c0s", job, 1, step.name)
    return Order(job, 1, name, spec, UserName(f"of-{step.team}"), step.team, PRIORITIES[1], step.supply)


async def lose_node(api: Api, began: float) -> tuple[str, float]:
    """Delete the node under the job that is to lose it, as clouds do; its name and when."""
    await asyncio.sleep(max(0.0, began + LEAVES_AFTER - time.time()))
    pods = api.get(f"/api/v1/namespaces/{PRODUCTS}/pods")["items"]
    node = next(p["spec"]["nodeName"] for p in pods if "loses-its-node" in p["metadata"]["name"])
    at = time.time()
    api.delete(f"/api/v1/nodes/{node}")
    return node, at


# who watches


async def mirror(engine: KubernetesEngine, fleet: Fleet, seen: dict[EngineId, SeenJob]) -> None:
    """Fairway's."""
    mark: str | None = None
    while True:
        try:
            batch = await engine.changes(mark, fleet)
        except Unreachable:
            continue
        mark = batch.mark
        seen.update((job.engine_id, job) for job in batch.jobs)


async def look(api: Api, pods: dict[str, tuple[Json, float]]) -> None:
    """The newest of every pod, and when it was last there: twice a second, so that none escapes."""
    while True:
        with suppress(*NOT_NOW):
            for team in (RESEARCH, PRODUCTS):
                found = (await asyncio.to_thread(api.get, f"/api/v1/namespaces/{team}/pods?limit=1000"))[
                    "items"
                ]
                pods.update((pod["metadata"]["uid"], (pod, time.time())) for pod in found)
        await asyncio.sleep(0.5)


def deletions(api: Api) -> dict[str, int]:
    """When pods were deleted for their Jobs, by the events of those: a pod takes its own record along."""
    found = {}
    for team in (RESEARCH, PRODUCTS):
        path = f"/api/v1/namespaces/{team}/events?fieldSelector=reason=SuccessfulDelete&limit=1000"
        for event in api.get(path)["items"]:
            found[event["message"].removeprefix("Deleted pod: ")] = _seconds(event["lastTimestamp"])
    return found


def by_pods(pods: Iterable[tuple[Json, float]], deleted: Mapping[str, int]) -> list[Held]:
    """What each pod held, by Kubernetes' own times: until it finished, was deleted, or was seen last."""
    found = []
    for pod, last_seen in pods:
        status = pod["status"]
        if "startTime" not in status:
            continue
        container: Json = next(iter(status.get("containerStatuses", [])), {"state": {}})
        meta = pod["metadata"]
        if ended := container["state"].get("terminated", {}).get("finishedAt"):
            end = _seconds(ended)
        elif meta["name"] in deleted:
            end = deleted[meta["name"]]
        elif told := meta.get("deletionTimestamp"):  # which is when its grace is over
            end = _seconds(told) - meta.get("deletionGracePeriodSeconds", 0)
        else:
            end = int(last_seen)
        (resource, devices), *_ = [
            (key, int(value))
            for key, value in pod["spec"]["containers"][0]["resources"]["limits"].items()
            if key.startswith("nvidia.com/")
        ]
        slice_ = resource.partition("mig-")[2]
        supply = Supply(SMALL.pool, SliceName(slice_)) if slice_ else GPU
        held = Held(meta["namespace"], meta["name"], supply, devices, _seconds(status["startTime"]), end)
        found.append(held)
    return found


def by_attempts(seen: Iterable[SeenJob]) -> list[Held]:
    """What each attempt held, as Fairway's mirror tells it."""
    return [
        Held(
            job.team or "",
            job.name,
            job.supply,
            attempt.devices,
            int(attempt.started_at.timestamp()),
            int(attempt.ended_at.timestamp()),
        )
        for job in seen
        for attempt in job.attempts
        if job.supply is not None and attempt.ended_at is not None
    ]


def _seconds(text: str) -> int:
    return int(datetime.fromisoformat(text).timestamp())


async def measure(
    instance: Instance,
    fleet: Fleet,
    server: FairwayServer,
    urls: Mapping[int, str],
    keep: Path,
    shorter: float | None,
) -> list[Allocation]:
    engine = KubernetesEngine(fleet.clusters[0], fleet.pools)
    api = Api.from_kubeconfig(Path(instance.env()["KUBECONFIG"]))
    began = (time.time() // 60 + 2) * 60  # a whole minute, so that OpenCost's windows are what they say
    print(f"begins at {_text(began)}", flush=True)
    seen: dict[EngineId, SeenJob] = {}
    pods: dict[str, tuple[Json, float]] = {}
    watchers = [asyncio.create_task(mirror(engine, fleet, seen)), asyncio.create_task(look(api, pods))]
    playing = asyncio.create_task(play(engine, fleet, began))
    try:
        node, left = await lose_node(api, began)
        await playing
        last = max(step.at + step.seconds for step in load())
        await asyncio.sleep(max(0.0, began + (shorter or last + TAIL_SECONDS) - time.time()))
    finally:
        for task in (*watchers, playing):
            task.cancel()
        await asyncio.gather(*watchers, playing, return_exceptions=True)
        await engine.close()
    ended = int(time.time() // 60 * 60)
    nodes = _nodes(int(began), ended, node, int(left))
    truth = by_pods(pods.values(), await asyncio.to_thread(deletions, api))
    ours = by_attempts(seen.values())
    window = f"{_text(began)},{_text(ended)}"
    answers = [
        await asyncio.to_thread(
            opencost_costs,
            url,
            window,
            resolution,
            f"OpenCost, scraped every {scrape} s, resolution {resolution}",
        )
        for scrape, url in urls.items()
        for resolution in SETTINGS[scrape]
    ]
    found = [
        hand_costs(truth, nodes, float(GPU_HOUR)),
        fairway_costs(ours, nodes, fleet),
        await asyncio.to_thread(server.costs),
        *answers,
    ]
    facts = {"window": window, "left": [node, _text(left)]}
    lives = {"pods": [_plain(held) for held in truth], "attempts": [_plain(held) for held in ours]}
    kept = {**facts, **lives, "found": [asdict(one) for one in found]}
    keep.parent.mkdir(parents=True, exist_ok=True)
    keep.write_text(json.dumps(kept, indent=1, default=str))
    return found


def clear(api: Api) -> None:
    """Take away the jobs of an earlier run."""
    for team in (RESEARCH, PRODUCTS):
        with suppress(ApiError):
            api.delete(f"/apis/batch/v1/namespaces/{team}/jobs?propagationPolicy=Background")


def _nodes(began: int, ended: int, left: str, at: int) -> list[There]:
    names = [f"gpu-{number:04d}" for number in range(NODES)]
    whole = [There({GPU: GPUS}, GPUS, began, at if name == left else ended) for name in names]
    return [*whole, There({SMALL: 4, HALF: 2}, 2, began, ended)]


def _plain(held: Held) -> list[object]:
    return [held.team, held.name, str(held.supply), held.devices, held.start, held.end]


def _text(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.opencost", description=__doc__)
    parser.add_argument(
        "--instance", default="cost-oc", help=f"a cluster of the lab of {NODES} × {GPUS} GPUs"
    )
    parser.add_argument("--keep", type=Path, default=Path("build/opencost.json"), help="where all is kept")
    parser.add_argument("--seconds", type=float, help="end sooner: to try whether all of it starts")
    args = parser.parse_args()
    instance = find(args.instance)
    if instance is None or instance.state == "down":
        up = f"python -m lab up kubernetes --name {args.instance} --nodes {NODES} --gpus {GPUS}"
        raise SystemExit(f"error: the lab's {args.instance} is not up\n\nhint: {up}")
    instance.up()  # brings back the node that an earlier run took away
    clear(Api.from_kubeconfig(Path(instance.env()["KUBECONFIG"])))
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(ignore_cleanup_errors=True)))
        folder.chmod(0o711)
        urls = {}
        for scrape in SETTINGS:
            prometheus = obtain("prometheus", f"{args.instance}-{scrape}s", None, {})
            prometheus.up()
            stack.callback(prometheus.wipe)
            setting = opencost.Setting(prometheus, scrape, RESOLUTION_SECONDS[scrape], str(GPU_HOUR))
            watching = opencost.running(Path(instance.env()["KUBECONFIG"]), setting, folder / str(scrape))
            urls[scrape] = stack.enter_context(watching)
        fleet = fleet_of(instance)
        server = stack.enter_context(fairway_server(fleet, folder / "fairway"))
        print(table(asyncio.run(measure(instance, fleet, server, urls, args.keep, args.seconds))))


if __name__ == "__main__":
    main()
