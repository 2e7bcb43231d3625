"""Notify open pages of changes by server-sent events: one poll of the ledger serves all pages."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from http import HTTPStatus
from typing import Final

import structlog
from fastapi import FastAPI, Request, Response
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from fairway.api.auth import caller_of
from fairway.api.problems import ApiError
from fairway.ledger import Ledger, Topic
from fairway.model.errors import FairwayError
from fairway.model.names import UserName
from fairway.services.tokens import hash_secret
from fairway.web.sessions import PAGE, session_secret

POLL_SECONDS: Final = 2.0
SESSIONS_SECONDS: Final = 60.0
"""How often the sessions of open pages are checked: the streams of an ended session are closed."""
HEARTBEAT_SECONDS: Final = 15.0
"""Shorter than the idle timeout of proxies between server and browser."""
MAX_STREAMS: Final = 1000
MAX_STREAMS_PER_USER: Final = 30
"""However many sessions they have: one user must not take the streams of all others."""
_MIN_INTERVALS: Final[Mapping[Topic, float]] = {Topic.COST: 60.0}
"""The shortest time between notifications of a topic, if longer than the polling interval."""

log = structlog.get_logger("fairway.web")


class Stream:
    """The event stream of one open page, with the topics to send."""

    def __init__(self, session: bytes, user: UserName) -> None:
        self.session = session
        self.user = user
        self.ended = ""
        """Why the stream has ended; empty while it is open."""
        self._due: set[Topic] = set()
        self._woken = asyncio.Event()

    def notify(self, topics: set[Topic]) -> None:
        self._due |= topics
        self._woken.set()

    def end(self, why: str) -> None:
        self.ended = why
        self._woken.set()

    async def wait(self, seconds: float) -> set[Topic]:
        """Wait for changed topics. Returns an empty set after `seconds`, or if the stream has ended."""
        try:
            async with asyncio.timeout(seconds):
                await self._woken.wait()
        except TimeoutError:
            return set()
        self._woken.clear()
        due, self._due = self._due, set()
        return due


class ChangePoller:
    """Polls the ledger while at least one page is open, and notifies all pages of changed topics."""

    def __init__(
        self,
        versions: Callable[[], Awaitable[Mapping[Topic, str]]],
        live_sessions: Callable[[Sequence[bytes]], Awaitable[frozenset[bytes]]],
        *,
        seconds: float = POLL_SECONDS,
        sessions_seconds: float = SESSIONS_SECONDS,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        self._versions = versions
        self._live_sessions = live_sessions
        self._seconds = seconds
        self._sessions_seconds = sessions_seconds
        self._clock = clock
        self._sleep = sleep
        self._streams: set[Stream] = set()
        self._task: asyncio.Task[None] | None = None
        self._notified: dict[Topic, str] = {}
        self._notified_at: dict[Topic, float] = {}
        self._sessions_at = 0.0
        self._failing = False
        self._stopped = False

    def check_stream_limit(self, user: UserName) -> None:
        """Raise ApiError if the limit of open streams is reached."""
        of_user = sum(stream.user == user for stream in self._streams)
        if len(self._streams) >= MAX_STREAMS or of_user >= MAX_STREAMS_PER_USER or self._stopped:
            raise ApiError(
                HTTPStatus.SERVICE_UNAVAILABLE,
                "TooManyLivePages",
                "too many pages are open to keep them all up to date",
                "close some; this one still works when it is loaded again",
                headers={"Retry-After": "30"},
            )

    def open(self, session: bytes, user: UserName) -> Stream:
        """Open a stream; the first one starts polling."""
        stream = Stream(session, user)
        self._streams.add(stream)
        if self._stopped:
            stream.end("restart")
        elif self._task is None:
            self._notified.clear()
            self._notified_at.clear()
            self._sessions_at = self._clock() + self._sessions_seconds
            self._task = asyncio.create_task(self._poll_forever(), name="the pulse of the pages")
        return stream

    def close(self, stream: Stream) -> None:
        """Close a stream; the last one stops polling."""
        self._streams.discard(stream)
        if not self._streams and self._task is not None:
            self._task.cancel()
            self._task = None

    def stop(self) -> None:
        """End all streams at once: a server that stops must not wait for open pages."""
        self._stopped = True
        for stream in self._streams:
            stream.end("restart")
        if self._task is not None:
            self._task.cancel()
            self._task = None

    def seconds_since_change(self) -> dict[str, float]:
        """Return the seconds since each topic changed; 0 if it was not polled yet."""
        now = self._clock()
        return {topic.value: round(now - self._notified_at.get(topic, now), 1) for topic in Topic}

    async def _poll_forever(self) -> None:
        while True:
            try:
                await self.poll_once()
                self._failing = False
            except FairwayError as error:
                self._warn_once(error.message, error.code)
            except Exception as error:  # polling must never end while pages are open
                self._warn_once(f"{type(error).__name__}: {error}", "InternalError")
            await self._sleep(self._seconds)

    async def poll_once(self) -> None:
        """Poll once and notify the streams of changed topics."""
        now = self._clock()
        versions = await self._versions()
        first = not self._notified
        changed = {
            t for t, v in versions.items() if first or (v != self._notified[t] and self._is_due(t, now))
        }
        self._notified |= {topic: versions[topic] for topic in changed}
        self._notified_at |= dict.fromkeys(changed, now)
        if changed and not first:
            for stream in self._streams:
                stream.notify(changed)
        if now >= self._sessions_at:
            self._sessions_at = now + self._sessions_seconds
            await self._end_signed_out()

    def _is_due(self, topic: Topic, now: float) -> bool:
        return now - self._notified_at.get(topic, 0.0) >= _MIN_INTERVALS.get(topic, 0.0)

    async def _end_signed_out(self) -> None:
        live = await self._live_sessions(list({stream.session for stream in self._streams}))
        for stream in self._streams:
            if stream.session not in live:
                stream.end("signed-out")

    def _warn_once(self, message: str, code: str) -> None:
        if not self._failing:
            log.warning("pages are not kept up to date", message=message, code=code)
        self._failing = True


class EventStream(StreamingResponse):
    """The response of `/live`: server-sent events for one page."""

    media_type = "text/event-stream"

    def __init__(
        self, poller: ChangePoller, session: bytes, user: UserName, heartbeat: float = HEARTBEAT_SECONDS
    ) -> None:
        self._poller = poller
        self._session = session
        self._user = user
        self._heartbeat = heartbeat
        # Proxies that buffer responses must not delay events.
        super().__init__((), headers={"X-Accel-Buffering": "no"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        stream = self._poller.open(self._session, self._user)
        self.body_iterator = self._events(stream)
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._poller.close(stream)

    async def _events(self, stream: Stream) -> AsyncIterator[str]:
        yield event("hello", self._poller.seconds_since_change())
        while not stream.ended:
            topics = await stream.wait(self._heartbeat)
            if topics:
                yield event("changed", sorted(topics))
            elif not stream.ended:
                yield ": still here\n\n"
        yield event("ended", stream.ended)


def event(name: str, data: object) -> str:
    """Format one server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


def add_live(app: FastAPI, ledger: Ledger) -> None:
    """Add the route of the event streams."""
    app.state.change_poller = poller = ChangePoller(ledger.change_feed.versions, ledger.sessions.live)

    @app.get("/live", dependencies=PAGE, include_in_schema=False)
    async def live(request: Request) -> Response:
        """Stream the names of changed topics."""
        session = hash_secret(session_secret(request))
        user = caller_of(request).user
        poller.check_stream_limit(user)
        request.state.open_ended = True
        return EventStream(poller, session, user)
