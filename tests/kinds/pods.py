"""An independent watch of pods that outlives an API server that is killed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import yaml

from fairway.model.job import EngineId
from lab import Instance
from tests.kinds.manifests import GPU

Pod = dict[str, Any]


class PodRecorder:
    """The last state of every pod of a namespace, deleted ones too."""

    def __init__(self, instance: Instance, namespace: str) -> None:
        self.pods: dict[str, Pod] = {}
        self.reconnected = 0
        self.listed = asyncio.Event()
        """Set once no later event can be missed."""
        config = yaml.safe_load(Path(instance.facts()["kubeconfig"]).read_text())
        self._url = f"{config['clusters'][0]['cluster']['server']}/api/v1/namespaces/{namespace}/pods"
        self._headers = {"Authorization": f"Bearer {config['users'][0]['user']['token']}"}
        self._version = ""

    async def follow(self) -> None:
        """Watch until cancelled. After a lost connection it goes on where it was, so nothing is missed."""
        async with httpx2.AsyncClient(verify=False, headers=self._headers, timeout=30) as client:
            while True:
                try:
                    await self._watch(client)
                except (httpx2.HTTPError, json.JSONDecodeError):
                    self.reconnected += 1
                await asyncio.sleep(0.1)

    async def _watch(self, client: httpx2.AsyncClient) -> None:
        if not self._version:
            self._version = await self._current(client)
            self.listed.set()
        params = {"watch": "true", "resourceVersion": self._version, "allowWatchBookmarks": "true"}
        async with client.stream("GET", self._url, params=params) as lines:
            if lines.status_code != 200:
                return
            async for line in lines.aiter_lines():
                event = json.loads(line)
                if event["type"] == "ERROR":
                    assert event["object"]["code"] == 410, event
                    break
                self._version = event["object"]["metadata"]["resourceVersion"]
                if event["type"] != "BOOKMARK":
                    self.pods[event["object"]["metadata"]["uid"]] = event["object"]
            else:
                return
        await self._catch_up(client)

    async def _current(self, client: httpx2.AsyncClient) -> str:
        return str((await client.get(self._url)).json()["metadata"]["resourceVersion"])

    async def _catch_up(self, client: httpx2.AsyncClient) -> None:
        """Read every version since the last event: a new API server has none of them, but etcd does."""
        for version in range(int(self._version) + 1, int(await self._current(client)) + 1):
            exactly = {"resourceVersion": str(version), "resourceVersionMatch": "Exact"}
            listed = await client.get(self._url, params=exactly)
            assert listed.status_code == 200, listed.text
            for pod in listed.json()["items"]:
                self.pods[pod["metadata"]["uid"]] = pod
            self._version = str(version)

    def of(self, engine_id: EngineId) -> list[Pod]:
        """The pods that have started of a job, in the order in which they were created."""
        return [pod for pod in self.created_of(engine_id) if pod["status"].get("startTime")]

    def created_of(self, engine_id: EngineId) -> list[Pod]:
        """All pods of a Job or, where several nodes are a JobSet, of its Jobs."""
        name = engine_id.split("/")[1]
        owners = ("jobset.sigs.k8s.io/jobset-name", "batch.kubernetes.io/job-name")
        mine = [
            pod
            for pod in self.pods.values()
            if name in {pod["metadata"].get("labels", {}).get(label) for label in owners}
        ]
        return sorted(mine, key=lambda pod: str(pod["metadata"]["creationTimestamp"]))

    def started(self, name: str) -> list[Pod]:
        """The pods with GPUs of the workload with this name, as far as they have started."""
        return [
            pod
            for pod in self.pods.values()
            if f"{pod['metadata']['name']}-".startswith(f"{name}-")
            and gpus_of(pod)
            and pod["status"].get("startTime")
        ]

    def running(self, name: str) -> list[Pod]:
        return [pod for pod in self.started(name) if pod_times(pod)[1] is None]


def gpus_of(pod: Pod) -> int:
    return sum(int(c.get("resources", {}).get("limits", {}).get(GPU, 0)) for c in pod["spec"]["containers"])


def pod_times(pod: Pod) -> tuple[datetime, datetime | None]:
    """When a pod started and ended: its containers' end, else when its deletion was requested."""
    start = datetime.fromisoformat(pod["status"]["startTime"])
    ends = [
        datetime.fromisoformat(c["state"]["terminated"]["finishedAt"])
        for c in pod["status"].get("containerStatuses", [])
        if "terminated" in c["state"]
    ]
    if ends:
        return start, max(start, *ends)
    asked = pod["metadata"].get("deletionTimestamp")
    grace = timedelta(seconds=pod["metadata"].get("deletionGracePeriodSeconds", 0))
    return start, max(start, datetime.fromisoformat(asked) - grace) if asked else None


def gpu_seconds(pods: Iterable[Pod]) -> int:
    """The GPU-seconds of pods that have ended, each by itself."""
    total = 0
    for pod in pods:
        start, end = pod_times(pod)
        assert end is not None, f"{pod['metadata']['name']} has not ended"
        total += gpus_of(pod) * int((end - start).total_seconds())
    return total
