"""Connections to an API server that answers what a test says; no Kubernetes behind it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import httpx2

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.connection import ApiConnection
from fairway.model.fleet import Cluster, KubernetesConnection
from fairway.model.names import ClusterName

CLUSTER = Cluster(ClusterName("cloud"), KubernetesConnection("/etc/kubeconfig"))
SERVER = "https://cloud.example"


class Connections:
    """Makes connections as `connect` does, and answers their requests."""

    def __init__(self) -> None:
        self.made: list[ApiServer] = []
        self.status = 200
        self.seconds = 0.0
        """How long connecting takes."""
        self.failure: Exception | None = None

    async def connect(self, connection: KubernetesConnection) -> ApiServer:
        assert connection == CLUSTER.connection
        await asyncio.sleep(self.seconds)
        if self.failure is not None:
            raise self.failure
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(self.answer), base_url=SERVER)
        api = ApiServer(http, SERVER)
        self.made.append(api)
        return api

    async def answer(self, request: httpx2.Request) -> httpx2.Response:
        if self.status != 200:
            return httpx2.Response(self.status, json={"message": "no"})
        if "watch" in request.url.params:
            return httpx2.Response(200, content=_soon_over())
        return httpx2.Response(200, json={"items": [], "metadata": {"resourceVersion": "7"}})

    def is_closed(self, api: ApiServer) -> bool:
        return api._http.is_closed


async def _soon_over() -> AsyncIterator[bytes]:
    """A watch that ends as agreed, without an event."""
    await asyncio.sleep(0.05)
    yield b""


def connection(made: Connections, *, timeout_seconds: float = 5, clock: float = 0) -> ApiConnection:
    return ApiConnection(CLUSTER, timeout_seconds, connect=made.connect, clock=lambda: clock)
