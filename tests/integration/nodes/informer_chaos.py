"""What makes an informer's life hard: a busy writer, and a way to the API server that keeps breaking."""

from __future__ import annotations

import asyncio
import contextlib
import random
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from fairway.engines.kubernetes.api.store import Added, Change, Deleted, Key, Modified, StoredObject

State = Mapping[Key, tuple[str, int]]
"""uid and version of every object."""


async def until(true: Callable[[], bool], within: float, what: str) -> None:
    """Wait for it in the loop that makes it so: a thread would read what changes under its hands."""
    deadline = asyncio.get_running_loop().time() + within
    while True:
        if true():
            return
        assert asyncio.get_running_loop().time() < deadline, f"{what}: not within {within:g} s"
        await asyncio.sleep(0.1)


class Follower:
    """A consumer that knows nothing but the changes it was told, and holds each against what it knew."""

    def __init__(self) -> None:
        self.held: dict[Key, StoredObject[str]] = {}
        self.versions: set[int] = set()
        self.deletions = 0

    def __call__(self, change: Change[str]) -> None:
        match change:
            case Added(key, now):
                assert key not in self.held, f"added twice: {change}"
            case Modified(key, before, now):
                assert self.held[key] == before, f"not what was told before: {change}"
                assert before.uid == now.uid
                assert before.version < now.version, f"back in time: {change}"
            case Deleted(key, before):
                assert self.held.pop(key) == before, f"not what was told before: {change}"
                self.deletions += 1
                return
        assert now.version not in self.versions, f"told twice: {change}"
        self.versions.add(now.version)
        self.held[key] = now

    @property
    def state(self) -> State:
        return {key: (held.uid, held.version) for key, held in self.held.items()}


@dataclass
class Writer:
    """Creates, changes, deletes and makes anew a few dozen ConfigMaps, as fast as the API server lets it."""

    http: httpx2.AsyncClient
    path: str
    names: int = 60
    acknowledged: set[int] = field(default_factory=set)
    """Versions of which the API server said that they are kept."""
    writes: int = 0
    _dice: random.Random = field(default_factory=lambda: random.Random(7))

    @asynccontextmanager
    async def writing(self, tasks: int = 4, may: Callable[[], bool] = lambda: True) -> AsyncIterator[None]:
        """Write all the while, whenever one may."""
        running = [asyncio.create_task(self._write_for_ever(i, tasks, may)) for i in range(tasks)]
        try:
            yield
        finally:
            for task in running:
                task.cancel()
            for ended in await asyncio.gather(*running, return_exceptions=True):
                assert isinstance(ended, asyncio.CancelledError), ended

    async def until_written(self, more: int, within: float = 300) -> None:
        """Until so many more writes are kept, however long the machine takes for them."""
        goal = self.writes + more
        await until(lambda: self.writes >= goal, within, f"{more} more writes")

    async def burst(self, writes: int) -> None:
        for _ in range(writes):
            await self._write(self._dice.randrange(self.names))

    async def _write_for_ever(self, first: int, step: int, may: Callable[[], bool]) -> None:
        while True:
            if not may():
                await asyncio.sleep(0.02)
                continue
            # each task has names of its own, so that no two fight for one
            await self._write(self._dice.randrange(first, self.names, step))

    async def _write(self, number: int) -> None:
        try:
            await self._one(f"c-{number:03d}")
        except httpx2.TransportError:
            await asyncio.sleep(0.2)  # the API server is being killed: that is the point

    async def _one(self, name: str) -> None:
        dice = self._dice.random()
        if dice < 0.4:
            done = await self._send("DELETE", f"{self.path}/{name}")
            if dice < 0.2 or done.status_code >= 500:
                return
        body = {"metadata": {"name": name}, "data": {"value": "x" * self._dice.randrange(1, 400)}}
        done = await self._send("PATCH", f"{self.path}/{name}", body, "application/merge-patch+json")
        if done.status_code == 404:
            done = await self._send("POST", self.path, body)
        if done.status_code in (200, 201):
            self.acknowledged.add(int(done.json()["metadata"]["resourceVersion"]))
            self.writes += 1

    async def _send(
        self, method: str, path: str, body: object = None, content: str = "application/json"
    ) -> httpx2.Response:
        answer = await self.http.request(method, path, json=body, headers={"Content-Type": content})
        if answer.status_code >= 500 or answer.status_code == 429:
            await asyncio.sleep(0.1)
        return answer

    async def listed(self) -> State:
        """All objects by a fresh list, from the API server itself."""
        answer = await self.http.get(self.path, timeout=120)
        answer.raise_for_status()
        items: list[dict[str, Any]] = answer.json()["items"]
        metas = [item["metadata"] for item in items]
        return {(m["namespace"], m["name"]): (m["uid"], int(m["resourceVersion"])) for m in metas}


class Way:
    """A way to the API server: takes plain HTTP, speaks TLS onwards, and breaks as it is told.

    TLS ends here, so that a cut hits any byte of the conversation, in the middle of a line or of a header,
    and not only the end of a TLS record.
    """

    def __init__(self, port: int, tls: ssl.SSLContext) -> None:
        self.cuts = 0
        self.blocked = False
        self._upstream = port
        self._tls = tls
        self._budget: Callable[[], tuple[int, str]] | None = None
        self._open: set[asyncio.Task[None]] = set()

    def break_by(self, budget: Callable[[], tuple[int, str]] | None) -> None:
        """Each new connection carries so many bytes, then ends by `reset`, `close` or `freeze`."""
        self._budget = budget

    def block(self) -> None:
        """End every connection and take no other until `unblock`."""
        self.blocked = True
        for task in self._open:
            task.cancel()

    def unblock(self) -> None:
        self.blocked = False

    @asynccontextmanager
    async def open(self) -> AsyncIterator[str]:
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        try:
            yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        finally:
            server.close()
            self.block()
            await asyncio.gather(*self._open, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            if not self.blocked:
                await self._carry(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            self._open.discard(task)
            with contextlib.suppress(Exception):
                writer.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        up_reader, up_writer = await asyncio.open_connection("127.0.0.1", self._upstream, ssl=self._tls)
        asking = asyncio.create_task(_pump(reader, up_writer))
        try:
            if self._budget is None:
                await _pump(up_reader, writer)
                return
            size, ending = self._budget()
            if not await _pump(up_reader, writer, size):
                return
            self.cuts += 1
            if ending == "freeze":  # as if the peer had lost its power: no end, no reset, nothing
                await asyncio.sleep(60)
            elif ending == "close":
                writer.close()
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
            up_writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, most: int | None = None) -> bool:
    """Carry bytes over, in small parts if there is a most; whether that was reached before the end."""
    left = most
    while chunk := await reader.read(65536 if left is None else min(left, 997)):
        writer.write(chunk)
        await writer.drain()
        if left is not None:
            left -= len(chunk)
            if left <= 0:
                return True
    writer.close()
    return False
