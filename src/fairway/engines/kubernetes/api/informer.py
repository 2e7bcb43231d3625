"""Follow all objects of one kind: a paged list, then a watch, for ever, without a gap.

After a break the watch resumes from the last version seen, so that the API server itself sends what happened
meanwhile. Where it no longer can (410 Expired), everything is listed again and the store computes the
difference: subscribers see the deletions and changes of the gap like any other.

The store has caught up after a full list, or after a watch that ended as agreed. After a broken watch it has
not: the next watch is then a short one, whose regular end shows that nothing is left to be sent. A watch that
is merely silent may be an idle cluster or a dead peer: `fresh` probes, and no watch is left silent for long.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

import msgspec

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.errors import ApiCall, Expired, from_exception, from_status
from fairway.engines.kubernetes.api.store import Key, Store, StoredObject
from fairway.engines.kubernetes.api.wire import ApiStatus, Bare, HasMeta, ListPage, WatchEvent
from fairway.engines.port import Unreachable
from fairway.model.backoff import Backoff
from fairway.model.errors import FairwayError

W = TypeVar("W", bound=HasMeta)
T = TypeVar("T")
V = TypeVar("V")

_LONGEST_LINE: Final = 8 << 20
"""etcd accepts objects of up to 1.5 MB; an event is one object in JSON."""
_MOST_PAGING_RESTARTS: Final = 3
_BACKOFF: Final = Backoff(first_seconds=0.1, longest_seconds=10)


@dataclass(frozen=True, slots=True)
class WatchedKind(Generic[W, T]):
    """A kind of object that an informer follows, and what to keep of each."""

    resource: str
    path: str
    wire: type[W]
    keep: Callable[[W], T | None]
    """Returns None if the object is not wanted."""
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
    gone: bool


class Informer(Generic[W, T]):
    """Keeps `store` equal to what the API server has, from `start` to `stop`."""

    def __init__(
        self,
        api: ApiServer,
        kind: WatchedKind[W, T],
        *,
        pace: InformerTiming | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.store: Store[T] = Store()
        self.last_contact: float | None = None
        """When the last byte arrived, by `clock`; None: never."""
        self.lists = 0
        """Full lists read; all but the first are relists."""
        self.reconnects = 0
        """Watches that broke and were resumed from the version they had reached."""
        self._api = api
        self._kind = kind
        self._pace = pace or InformerTiming()
        self._clock = clock
        self._page = ListPage[kind.wire]  # type: ignore[name-defined]
        self._object = msgspec.json.Decoder(kind.wire)
        self._event = msgspec.json.Decoder(WatchEvent)
        self._bare = msgspec.json.Decoder(Bare)
        self._version: int | None = None
        self._failures = 0
        self._caught_up = False
        self._current = False
        self._synced = asyncio.Event()
        self._hurry = asyncio.Event()
        self._waiting: list[asyncio.Future[None]] = []
        self._task: asyncio.Task[None] | None = None

    @property
    def version(self) -> int | None:
        """The resourceVersion up to which the store has seen everything; None: a list is due."""
        return self._version

    @property
    def relists(self) -> int:
        """The number of full lists that were repeated because history was gone."""
        return max(0, self.lists - 1)

    @property
    def current(self) -> bool:
        """Whether everything is known as of the last contact: no broken watch is still to be resumed."""
        return self._current

    @property
    def alive(self) -> bool:
        """Whether the task runs; it ends by `stop`, or by a bug."""
        return self._task is not None and not self._task.done()

    def start(self) -> None:
        """Start following, in a separate task."""
        if self._task is None:
            self._task = asyncio.create_task(self._follow(), name=f"informer {self._kind.path}")

    async def stop(self) -> None:
        """Stop the task; the store stays as it is."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await task
            self._settle(Unreachable("Closed", "the informer was stopped", "start it again"))

    async def synced(self) -> None:
        """Wait for the first full list. The caller limits the wait."""
        await self._synced.wait()

    async def fresh(self, within_seconds: float) -> None:
        """Return once the store is known to be current, or raise why it cannot be.

        A byte on the watch within the last `within_seconds` is proof. Otherwise one small list probes the API
        server (and through it etcd).
        """
        if not self.alive:
            raise Unreachable("Closed", "nothing follows the cluster any more", "start the informer")
        if not self._current:
            return await self._next_outcome()
        silence = self._silence()
        if silence > self._pace.watch_seconds + self._pace.silence_seconds + self._pace.request_seconds:
            raise Unreachable(
                "WatchStalled",
                f"no sign of life from {self._api.server} for {silence:.0f} s",
                "Fairway's server is overloaded or was suspended; it connects anew by itself",
            )
        if silence > within_seconds:
            params = {**self._kind.selectors, "limit": "1"}
            await self._get(params, ListPage[Bare])
        return None

    # -- the loop

    async def _follow(self) -> None:
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
                # a subscriber or we ourselves are at fault: not to be hidden by trying again
                self._settle(
                    Unreachable(
                        "InformerFailed",
                        f"following {self._kind.resource} ended by {type(e).__name__}: {e}",
                        "this should not happen; please report it with the server's log",
                    )
                )
                raise

    def _failed(self, error: FairwayError | Expired) -> None:
        self._failures += 1
        self._current = self._caught_up = False
        if isinstance(error, Expired):
            self._version = None
            return  # not an outcome: the list that follows is
        self.reconnects += self._version is not None
        self._settle(error)

    async def _pause(self) -> None:
        """Back off exponentially with jitter, unless a caller is waiting."""
        chance = random.random()  # noqa: S311  (spread, not a secret)
        self._hurry.clear()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._pace.backoff.seconds(self._failures, chance)):
                await self._hurry.wait()

    # -- list

    async def _list(self) -> None:
        for _ in range(_MOST_PAGING_RESTARTS):
            try:
                listed, version = await self._pages()
            except Expired:
                continue  # the first page is too old for the next one by now: begin again
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
        params = {**self._kind.selectors, "limit": str(self._pace.page_size)}
        while True:
            page: ListPage[W] = await self._get(params, self._page)
            self._touch()
            for item in page.items or ():
                value = self._kind.keep(item)
                if value is not None:
                    listed[_key(item)] = StoredObject(item.metadata.uid, self._number(item), value)
            if not page.metadata.continue_:
                return listed, int(page.metadata.resource_version)
            params["continue"] = page.metadata.continue_

    # -- watch

    async def _watch(self, version: int) -> None:
        seconds = self._pace.watch_seconds if self._caught_up else self._pace.catch_up_seconds
        params = {
            **self._kind.selectors,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": str(version),
            "timeoutSeconds": str(seconds),
        }
        lines = LineSplitter(_LONGEST_LINE)
        silence = seconds + self._pace.silence_seconds
        stream = self._api.stream(self._kind.path, params, self._call("watch"), silence_seconds=silence)
        async with contextlib.aclosing(stream) as chunks:
            async for chunk in chunks:
                self._touch()
                if self._caught_up and not self._current:
                    self._settle(None)  # listed a moment ago, and the way to hear of changes is open
                for line in self._whole_lines(lines, chunk):
                    self._take(self._decoded(line))
        self._failures = 0
        self._caught_up = True
        self._settle(None)

    def _whole_lines(self, lines: LineSplitter, chunk: bytes) -> list[bytes]:
        try:
            return lines.feed(chunk)
        except ValueError as e:
            raise from_exception(e, self._call("watch")) from e

    def _decoded(self, line: bytes) -> DecodedEvent[W]:
        try:
            event = self._event.decode(line)
            if event.type == "ERROR":
                status = msgspec.json.decode(event.object, type=ApiStatus)
                raise from_status(status.code, bytes(event.object), self._call("watch"))
            if event.type == "BOOKMARK":
                return DecodedEvent(
                    int(self._bare.decode(event.object).metadata.resource_version), None, gone=False
                )
            item = self._object.decode(event.object)
            return DecodedEvent(int(item.metadata.resource_version), item, gone=event.type == "DELETED")
        except (msgspec.DecodeError, ValueError) as e:
            raise from_exception(e, self._call("watch")) from e

    def _take(self, seen: DecodedEvent[W]) -> None:
        """Apply one event to the store and its subscribers without an await: all of it happens or none."""
        if (item := seen.item) is not None:
            value = None if seen.gone else self._kind.keep(item)
            if value is None:
                self.store.remove(_key(item), item.metadata.uid, seen.version)
            else:
                self.store.put(_key(item), StoredObject(item.metadata.uid, seen.version, value))
        self._reached(seen.version)

    def _reached(self, version: int) -> None:
        self._version = max(version, self._version or 0)
        self._failures = 0

    # -- small things

    def _touch(self) -> None:
        self.last_contact = self._clock()

    def _silence(self) -> float:
        return float("inf") if self.last_contact is None else self._clock() - self.last_contact

    def _call(self, verb: str) -> ApiCall:
        return ApiCall(self._api.server, verb, self._kind.resource)

    async def _get(self, params: Mapping[str, str], type_: type[V]) -> V:
        return await self._api.get(
            self._kind.path, params, type_, self._call("list"), timeout_seconds=self._pace.request_seconds
        )

    async def _next_outcome(self) -> None:
        """Wait until the informer has caught up, or has just failed to."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(waiter)
        self._hurry.set()
        try:
            await waiter
        finally:
            if waiter in self._waiting:
                self._waiting.remove(waiter)

    def _settle(self, error: FairwayError | None) -> None:
        self._current = error is None
        waiting, self._waiting = self._waiting, []
        for waiter in waiting:
            if waiter.done():
                continue
            if error is None:
                waiter.set_result(None)
            else:
                waiter.set_exception(error)

    @staticmethod
    def _number(item: W) -> int:
        return int(item.metadata.resource_version)


class LineSplitter:
    """Splits a stream into lines, none longer than agreed. Half a line at the end of a stream is no event."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = b""

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the lines that `chunk` completes."""
        *whole, self._rest = (self._rest + chunk).split(b"\n")
        if len(self._rest) > self._longest:
            raise ValueError(f"a line of more than {self._longest} bytes")
        return [line for line in whole if line]


def _key(item: HasMeta) -> Key:
    return (item.metadata.namespace, item.metadata.name)
