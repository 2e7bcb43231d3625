"""Read lists and single objects from an API server, and write objects."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec

from fairway.engines.kubernetes.api.client import JSON, ApiServer
from fairway.engines.kubernetes.api.errors import ApiCall, Expired, request_error
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json, ObjectKind
from fairway.engines.kubernetes.api.wire import ListPage
from fairway.engines.port import Unreachable

A = TypeVar("A")
B = TypeVar("B")

PAGE: Final = 500
MAX_OBJECTS: Final = 500_000
"""Of one kind: beyond that something is wrong, and memory is worth more than an answer."""
MAX_CONCURRENT: Final = 16
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"
METADATA: Final = "application/json;as=PartialObjectMetadata;v=v1;g=meta.k8s.io"
METADATA_LIST: Final = "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io"
"""What to accept where only metadata is wanted: the API server leaves the rest out."""
_METHODS: Final = {"get": "GET", "create": "POST", "patch": "PATCH", "delete": "DELETE"}


class KubeRequests:
    """The requests to one API server, all with the same time limit."""

    def __init__(self, api: ApiServer, timeout_seconds: float) -> None:
        self.api = api
        self.timeout_seconds = timeout_seconds

    async def list_all(
        self,
        path: str,
        resource: str,
        params: Mapping[str, str] | None = None,
        type_: Any = Json,
        accept: str = JSON,
    ) -> list[Any]:
        """Return every object of a list, read in pages. A list that expires midway is restarted."""
        call = self.call("list", resource)
        for _ in range(3):
            objects: list[Any] = []
            query = {"limit": str(PAGE), **(params or {})}
            try:
                while True:
                    page = await self.api.get(
                        path,
                        query,
                        ListPage[type_],
                        call,
                        timeout_seconds=self.timeout_seconds,
                        accept=accept,
                    )
                    objects += page.items or ()
                    if len(objects) > MAX_OBJECTS:
                        raise Unreachable(
                            "TooManyObjects",
                            f"{self.api.server} has more than {MAX_OBJECTS} {resource}",
                            f"look at what makes them:  kubectl get {resource} -A",
                        )
                    if not page.metadata.continue_:
                        return objects
                    query["continue"] = page.metadata.continue_
            except Expired:
                continue
        raise Unreachable(
            "HistoryLost",
            f"{self.api.server} forgot its list of {resource} three times while it was read",
            "is etcd compacted every few seconds? Fairway retries automatically",
        )

    async def get(self, path: str, resource: str, type_: type[A], accept: str = JSON) -> A | None:
        """Return one object, as far as `type_` has fields for it. Returns None if it does not exist."""
        call = self.call("get", resource)
        code, body = await self.send(call, path, accept=accept)
        if code == 404:
            return None
        return msgspec.json.decode(_checked(code, body, call), type=type_)

    async def apply(self, kind: ObjectKind, name: str, body: Json) -> Json:
        """Apply an object by server-side apply. Forced: its ownership mark was checked before."""
        params = {"fieldManager": FAIRWAY, "force": "true"}
        return await self._patch(kind.path(name), kind.resource, params, body, APPLY)

    async def merge(self, path: str, resource: str, patch: Json, manager: str = FAIRWAY) -> Json:
        """Merge-patch these keys and leave the rest; null removes one."""
        return await self._patch(path, resource, {"fieldManager": manager}, patch, MERGE)

    async def delete(
        self, path: str, resource: str, uid: str, accepted: frozenset[int] = frozenset({404})
    ) -> None:
        """Delete exactly this object. Statuses in `accepted` are no error: it is gone already."""
        call = self.call("delete", resource)
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        code, body = await self.send(call, path, body=options)
        if code not in accepted:
            _checked(code, body, call)

    def call(self, verb: str, resource: str) -> ApiCall:
        """Return a call of this API server, as errors name it."""
        return ApiCall(self.api.server, verb, resource)

    async def send(
        self,
        call: ApiCall,
        path: str,
        *,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> tuple[int, bytes]:
        """Send one request, and return status and body, whatever they are."""
        return await self.api.send(
            _METHODS[call.verb], path, call,
            timeout_seconds=self.timeout_seconds, params=params, body=body, content=content, accept=accept,
        )  # fmt: skip

    async def _patch(
        self, path: str, resource: str, params: Mapping[str, str], body: Json, content: str
    ) -> Json:
        call = self.call("patch", resource)
        code, reply = await self.send(call, path, params=params, body=body, content=content)
        patched: Json = msgspec.json.decode(_checked(code, reply, call), type=Json)
        return patched


def _checked(code: int, body: bytes, call: ApiCall) -> bytes:
    """Return the body of a reply. Raises the error of any other status than success."""
    if 200 <= code < 300:
        return body
    raise request_error(code, body, call)


async def concurrently(items: Sequence[A], act: Callable[[A], Awaitable[B]]) -> AsyncGenerator[B, None]:
    """Run `act` on sixteen items at a time; yield each result as it comes.

    At the first failure nothing new is started; what is under way is awaited and yielded, then it is raised.
    """
    waiting = iter(items)
    running: set[asyncio.Task[B]] = set()
    failure: BaseException | None = None

    def start() -> None:
        while len(running) < MAX_CONCURRENT and (item := next(waiting, None)) is not None:
            running.add(asyncio.ensure_future(act(item)))

    try:
        start()
        while running:
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            running -= done
            for task in done:
                if (error := task.exception()) is None:
                    yield task.result()
                else:
                    failure = failure or error
            if failure is None:
                start()
    finally:
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    if failure is not None:
        raise failure
