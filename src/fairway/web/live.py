"""What tells open pages that something changed: one look at the ledger for all of them."""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final, Protocol

import structlog
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fairway.api.access import hash_secret
from fairway.api.problems import ApiError
from fairway.ledger import Topic
from fairway.model.errors import FairwayError
from fairway.web.rules import PAGE, session_secret

LOOK_SECONDS: Final = 2.0
SESSIONS_SECONDS: Final = 60.0
"""How often sessions behind open pages are looked at: one that ended takes its streams with it."""
HEARTBEAT_SECONDS: Final = 15.0
"""Less than what things between us and a browser call idle."""
MOST_STREAMS: Final = 1000
MOST_OF_SESSION: Final = 20
_LEAST_SECONDS: Final[Mapping[Topic, float]] = {Topic.COST: 60.0}
"""How long a topic rests once it was told, where that is longer than a look."""

log = structlog.get_logger("fairway.web")


class Watched(Protocol):
    """What the pulse needs of the ledger."""

    async def versions(self) -> Mapping[Topic, str]: ...

    async def live_sessions(self, digests: Sequence[bytes]) -> frozenset[bytes]: ...


class Stream:
    """One open page: what it is still to be told."""

    def __init__(self, session: bytes) -> None:
        self.session = session
        self.ended = ""
        """Why it is over; empty: it is not."""
        self._due: set[Topic] = set()
        self._woken = asyncio.Event()

    def tell(self, topics: set[Topic]) -> None:
        self._due |= topics
        self._woken.set()

    def end(self, why: str) -> None:
        self.ended = why
        self._woken.set()

    async def wait(self, seconds: float) -> set[Topic]:
        """What changed, as soon as something did; nothing after `seconds`, or if it is over."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return set()
        self._woken.clear()
        due, self._due = self._due, set()
        return due


class Pulse:
    """Looks at the ledger while at least one page is open, and tells all of them what changed."""

    def __init__(
        self,
        ledger: Watched,
        *,
        seconds: float = LOOK_SECONDS,
        sessions_seconds: float = SESSIONS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._ledger = ledger
        self._seconds = seconds
        self._sessions_seconds = sessions_seconds
        self._clock = clock
        self._sleep = sleep
        self._streams: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None
        self._told: dict[Topic, str] = {}
        self._told_at: dict[Topic, float] = {}
        self._sessions_at = 0.0
        self._failing = False
        self._stopped = False

    def check_room(self, session: bytes) -> None:
        """Raise ApiError if no page more can be kept up to date."""
        of_session = Counter(stream.session for stream in self._streams)[session]
        if len(self._streams) >= MOST_STREAMS or of_session >= MOST_OF_SESSION or self._stopped:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "TooManyLivePages",
                "too many pages are open to keep them all up to date",
                "close some; this one still works when it is loaded again",
                headers={"Retry-After": "30"},
            )

    def open(self, session: bytes) -> Stream:
        """Begin to tell a page; the first one starts the looking."""
        stream = Stream(session)
        self._streams.add(stream)
        if self._stopped:
            stream.end("restart")
        elif self._task is None:
            self._told.clear()
            self._told_at.clear()
            self._sessions_at = self._clock() + self._sessions_seconds
            self._task = asyncio.create_task(self._look_again_and_again(), name="the pulse of the pages")
        return stream

    def close(self, stream: Stream) -> None:
        """The page is gone; the last one ends the looking."""
        self._streams.discard(stream)
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    def stop(self) -> None:
        """End every stream at once: the server stops, and must not wait for pages."""
        self._stopped = True
        for stream in self._streams:
            stream.end("restart")
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def quiet_seconds(self) -> dict[str, float]:
        """How long each topic has not changed. One that nobody looked at may have changed just now."""
        now = self._clock()
        return {topic.value: round(now - self._told_at.get(topic, now), 1) for topic in Topic}

    async def _look_again_and_again(self) -> None:
        while True:
            try:
                await self.look()
                self._failing = False
            except FairwayError as error:
                self._say_once(error.message, error.code)
            except Exception as error:  # whatever it is, pages must not stay silent for good
                self._say_once(f"{type(error).__name__}: {error}", "InternalError")
            await self._sleep(self._seconds)

    async def look(self) -> None:
        """Look once, and tell what changed."""
        now = self._clock()
        versions = await self._ledger.versions()
        first = not self._told
        changed = {t for t in versions if first or (versions[t] != self._told[t] and self._rested(t, now))}
        self._told |= {topic: versions[topic] for topic in changed}
        self._told_at |= dict.fromkeys(changed, now)
        if changed and not first:
            for stream in self._streams:
                stream.tell(changed)
        if now >= self._sessions_at:
            self._sessions_at = now + self._sessions_seconds
            await self._end_with_sessions()

    def _rested(self, topic: Topic, now: float) -> bool:
        return now - self._told_at.get(topic, 0.0) >= _LEAST_SECONDS.get(topic, 0.0)

    async def _end_with_sessions(self) -> None:
        live = await self._ledger.live_sessions(list({stream.session for stream in self._streams}))
        for stream in self._streams:
            if stream.session not in live:
                stream.end("signed-out")

    def _say_once(self, message: str, code: str) -> None:
        if not self._failing:
            log.warning("pages are not kept up to date", message=message, code=code)
        self._failing = True


class EventStream(StreamingResponse):
    """Server-sent events for one page, from its first byte to its last."""

    media_type = "text/event-stream"

    def __init__(self, pulse: Pulse, session: bytes, heartbeat: float = HEARTBEAT_SECONDS) -> None:
        self._pulse = pulse
        self._session = session
        self._heartbeat = heartbeat
        # Whatever buffers answers in between must not hold these back.
        super().__init__(self._nothing(), headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self._pulse.open(self._session)
        self.body_iterator = self._events(stream)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._pulse.close(stream)

    async def _events(self, stream: Stream) -> AsyncIterator[str]:
        yield event("hello", self._pulse.quiet_seconds())
        while not stream.ended:
            topics = await stream.wait(self._heartbeat)
            if topics:
                yield event("changed", sorted(topics))
            elif not stream.ended:
                yield ": still here\n\n"
        yield event("ended", stream.ended)

    async def _nothing(self) -> AsyncIterator[str]:
        return
        yield ""


def event(name: str, data: object) -> str:
    """One event as it goes over the wire."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def add_live(app: FastAPI, ledger: Watched) -> None:
    """What open pages listen to."""
    app.state.pulse = pulse = Pulse(ledger)

    @app.get("/live", dependencies=PAGE, include_in_schema=False)
    async def live(request: Request) -> Response:
        """Which topics changed, whenever they do."""
        session = hash_secret(session_secret(request))
        pulse.check_room(session)
        request.state.open_ended = True
        return EventStream(pulse, session)
