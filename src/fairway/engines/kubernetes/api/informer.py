"""Follow all objects of one kind: a paged list, then a watch, for ever, without a gap.

After a break the watch resumes from the last version received, so that the API server itself sends what
happened meanwhile. Where it no longer can (410 Expired), everything is listed again and the store computes
the difference: subscribers get the deletions and changes of the gap like any other.

The store has caught up after a full list, or after a watch that ended as agreed. After a broken watch it has
not: the next watch is then a short one, whose regular end shows that nothing is left to be sent. A watch that
is merely silent may be an idle cluster or a dead peer: `ensure_fresh` probes, and no watch stays silent for
long.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec
import structlog

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.errors import ApiCall, Expired, from_exception, from_status
from fairway.engines.kubernetes.api.store import Key, Store, StoredObject
from fairway.engines.kubernetes.api.wire import ApiStatus, HasMeta, ListPage, MetadataOnly, WatchEvent
from fairway.engines.port import Unreachable
from fairway.model.backoff import Backoff
from fairway.model.errors import FairwayError

_log = structlog.get_logger(__name__)

W = TypeVar("W", bound=HasMeta)
T = TypeVar("T")
V = TypeVar("V")

_MAX_LINE_LENGTH: Final = 8 << 20
"""etcd accepts objects of up to 1.5 MB; an event is one object in JSON."""
_MAX_PAGING_RESTARTS: Final = 3
_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=10)


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[W, T]):
    """A kind of object that an informer follows, and what it stores of each."""

    resource: str
    path: str
    wire: type[W]
    transform: Callable[[W], T | None]
    """Returns what is stored of an object. Returns None if it is not wanted."""
    selectors: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class InformerTiming:
    """Time limits, pauses and page size of an informer."""

    page_size: int = 2000
    """About 30 MB of real nodes, each with its list of images; smaller pages cost a round trip each."""
    request_seconds: float = 30
    watch_seconds: int = 30
    """Short, because the end of a watch proves that it was alive; a renewal costs two packets."""
    catch_up_seconds: int = 1
    silence_seconds: float = 5
    """Beyond `watch_seconds`, before a watch without a sign of life counts as dead."""
    backoff: Backoff = _BACKOFF


@dataclass(frozen=True, slots=True)
class DecodedEvent(Generic[W]):
    """One event of a watch. Without an item it is a bookmark: nothing happened up to this version."""

    version: int
    item: W | None
    deleted: bool


class Informer(Generic[W, T]):
    """An informer that keeps `store` equal to the objects of the API server, from `start` to `stop`."""

    def __init__(
        self,
        api: ApiServer,
        kind: WatchedKind[W, T],
        *,
        timing: InformerTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store: Store[T] = Store()
        self.lists = 0
        """Full lists read; all but the first are relists."""
        self.reconnects = 0
        """Watches that broke and were resumed from the version they had reached."""
        self._api = api
        self._kind = kind
        self._timing = timing or InformerTiming()
        self._clock = clock
        self._page = ListPage[kind.wire]  # type: ignore[name-defined]
        self._object = msgspec.json.Decoder(kind.wire)
        self._event = msgspec.json.Decoder(WatchEvent)
        self._metadata_only = msgspec.json.Decoder(MetadataOnly)
        self._last_contact = float("-inf")
        """When the last byte arrived, by `clock`."""
        self._version: int | None = None
        """The resourceVersion up to which the store has every change; None: a list is due."""
        self._failures = 0
        self._caught_up = False
        self._current = False
        """Whether the store was complete at the last contact: no broken watch is still to be resumed."""
        self._synced = asyncio.Event()
        self._retry_now = asyncio.Event()
        self._waiters: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def alive(self) -> bool:
        """Whether the task runs; it ends by `stop`, or by a bug."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start following, in a separate task."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"informer {self._kind.path}")

    async def stop(self) -> None:
        """Stop the task; the store stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            self._resolve_waiters(Unreachable("Closed", "the informer was stopped", "start it again"))

    async def synced(self) -> None:
        """Wait for the first full list. The caller limits the wait."""
        await self._synced.wait()

    async def ensure_fresh(self, within_seconds: float) -> None:
        """Return once the store is known to be current, or raise why it cannot be.

        A byte on the watch within the last `within_seconds` is proof. Otherwise one small list probes the API
        server (and through it etcd).
        """
        if not self.alive:
            raise Unreachable("Closed", "the cluster is no longer watched", "start the informer")
        if not self._current:
            return await self._next_outcome()
        silence = self._clock() - self._last_contact
        if silence > self._timing.watch_seconds + self._timing.silence_seconds + self._timing.request_seconds:
            raise Unreachable(
                "WatchStalled",
                f"no events from {self._api.server} for {silence:.0f} s",
                "Fairway's server is overloaded or was suspended; it reconnects automatically",
            )
        if silence > within_seconds:
            params = {**self._kind.selectors, "limit": "1"}
            await self._get(params, ListPage[MetadataOnly])
        return None

    # -- the loop

    async def _run(self) -> None:
        while True:
            try:
                if self._version is None:
                    await self._list()
                else:
                    await self._watch(self._version)
            except (FairwayError, Expired) as e:
                self._failed(e)
                await self._pause()
            except Exception as e:
                # A bug of a subscriber or of the informer: retrying would hide it.
                _log.exception("an informer failed", resource=self._kind.resource, server=self._api.server)
                self._resolve_waiters(
                    Unreachable(
                        "InformerFailed",
                        f"following {self._kind.resource} ended by {type(e).__name__}: {e}",
                        "this is a bug: please report it with the server's log",
                    )
                )
                raise

    def _failed(self, error: FairwayError | Expired) -> None:
        self._failures += 1
        self._current = self._caught_up = False
        if isinstance(error, Expired):
            self._version = None
            return  # the waiters wait for the list that follows
        self.reconnects += self._version is not None
        self._resolve_waiters(error)

    async def _pause(self) -> None:
        """Back off exponentially with jitter, unless a caller is waiting."""
        chance = random.random()  # noqa: S311  (spread, not a secret)
        self._retry_now.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._timing.backoff.seconds(self._failures, chance)):
                await self._retry_now.wait()

    # -- list

    async def _list(self) -> None:
        for _ in range(_MAX_PAGING_RESTARTS):
            try:
                listed, version = await self._pages()
            except Expired:
                continue  # the first page is too old for the next one by now: start again
            self.lists += 1
            self._version = version
            self.store.replace(listed, version)
            self._caught_up = True
            self._synced.set()
            return
        raise Unreachable(
            "ListExpired",
            f"{self._api.server} forgets a list of {self._kind.resource} before its last page is read",
            "the API server is overloaded or etcd is compacted too often: look at its log",
        )

    async def _pages(self) -> tuple[dict[Key, StoredObject[T]], int]:
        listed: dict[Key, StoredObject[T]] = {}
        params = {**self._kind.selectors, "limit": str(self._timing.page_size)}
        while True:
            page: ListPage[W] = await self._get(params, self._page)
            self._last_contact = self._clock()
            for item in page.items or ():
                value = self._kind.transform(item)
                if value is not None:
                    version = int(item.metadata.resource_version)
                    listed[_key(item)] = StoredObject(item.metadata.uid, version, value)
            if not page.metadata.continue_:
                return listed, int(page.metadata.resource_version)
            params["continue"] = page.metadata.continue_

    # -- watch

    async def _watch(self, version: int) -> None:
        seconds = self._timing.watch_seconds if self._caught_up else self._timing.catch_up_seconds
        params = {
            **self._kind.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(seconds),
        }
        lines = LineSplitter(_MAX_LINE_LENGTH)
        silence = seconds + self._timing.silence_seconds
        stream = self._api.stream(self._kind.path, params, self._call("watch"), silence_seconds=silence)
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                self._last_contact = self._clock()
                if self._caught_up and not self._current:
                    self._resolve_waiters(None)  # listed a moment ago, and the watch for changes is open
                for event in self._decode(lines, chunk):
                    self._apply(event)
        self._failures = 0
        self._caught_up = True
        self._resolve_waiters(None)

    def _decode(self, lines: LineSplitter, chunk: bytes) -> Iterator[DecodedEvent[W]]:
        """Yield the events that `chunk` completes, each before the next one is decoded."""
        try:
            for line in lines.feed(chunk):
                event = self._event.decode(line)
                if event.type == "ERROR":
                    status = msgspec.json.decode(event.object, type=ApiStatus)
                    raise from_status(status.code, bytes(event.object), self._call("watch"))
                if event.type == "BOOKMARK":
                    meta = self._metadata_only.decode(event.object).metadata
                    yield DecodedEvent(int(meta.resource_version), None, deleted=False)
                else:
                    item = self._object.decode(event.object)
                    version = int(item.metadata.resource_version)
                    yield DecodedEvent(version, item, deleted=event.type == "DELETED")
        except (msgspec.DecodeError, ValueError) as e:
            raise from_exception(e, self._call("watch")) from e

    def _apply(self, event: DecodedEvent[W]) -> None:
        """Apply one event to the store and its subscribers without an await: all of it happens or none."""
        if (item := event.item) is not None:
            value = None if event.deleted else self._kind.transform(item)
            if value is None:
                self.store.remove(_key(item), item.metadata.uid, event.version)
            else:
                self.store.put(_key(item), StoredObject(item.metadata.uid, event.version, value))
        self._version = max(event.version, self._version or 0)
        self._failures = 0

    # -- requests and waiters

    def _call(self, verb: str) -> ApiCall:
        return ApiCall(self._api.server, verb, self._kind.resource)

    async def _get(self, params: Mapping[str, str], type_: type[V]) -> V:
        return await self._api.get(
            self._kind.path, params, type_, self._call("list"), timeout_seconds=self._timing.request_seconds
        )

    async def _next_outcome(self) -> None:
        """Wait until the informer has caught up, or has just failed to."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiters.append(waiter)
        self._retry_now.set()
        try:
            await waiter
        finally:
            if waiter in self._waiters:
                self._waiters.remove(waiter)

    def _resolve_waiters(self, error: FairwayError | None) -> None:
        self._current = error is None
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)


class LineSplitter:
    """A splitter of a stream into lines of limited length. A partial last line is no event."""

    def __init__(self, max_length: int) -> None:
        self._max_length = max_length
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes."""
        *complete, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self._max_length:
            raise ValueError(f"a line of more than {self._max_length} bytes")
        return [line for line in complete if line]


def _key(item: HasMeta) -> Key:
    return (item.metadata.namespace, item.metadata.name)
