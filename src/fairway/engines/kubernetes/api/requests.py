"""Reads whole lists in pages and single objects, and writes objects, on an API server."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from fairway.engines.kubernetes.api.client import ApiServer
from fairway.engines.kubernetes.api.errors import ApiCall, Expired, from_status
from fairway.engines.kubernetes.api.kinds import FAIRWAY, Json, ObjectKind
from fairway.engines.kubernetes.api.wire import ListPage
from fairway.engines.port import Unreachable

PAGE: Final = 500
MOST_OBJECTS: Final = 500_000
"""Of one kind: beyond that something is wrong, and memory is worth more than an answer."""
MERGE: Final = "application/merge-patch+json"
APPLY: Final = "application/apply-patch+yaml"


class KubeRequests:
    """Sends requests to one API server, each with the same time limit."""

    def __init__(self, api: ApiServer, timeout_seconds: float) -> None:
        self.api = api
        self.timeout_seconds = timeout_seconds

    async def pages(
        self, path: str, resource: str, params: Mapping[str, str] | None = None, type_: Any = Json
    ) -> AsyncIterator[list[Any]]:
        """Yield every object of a list, a page at a time. A list that expires midway is restarted."""
        call = ApiCall(self.api.server, "list", resource)
        for _ in range(3):
            try:
                collected = []
                after, count = "", 0
                while True:
                    query = {"limit": str(PAGE), **(params or {}), **({"continue": after} if after else {})}
                    page = await self.api.get(
                        path, query, ListPage[type_], call, timeout_seconds=self.timeout_seconds
                    )
                    items = page.items or []
                    collected.append(items)
                    count += len(items)
                    if count > MOST_OBJECTS:
                        raise Unreachable(
                            "TooManyObjects",
                            f"{self.api.server} has more than {MOST_OBJECTS} {resource}",
                            f"look at what makes them:  kubectl get {resource} -A",
                        )
                    after = page.metadata.continue_
                    if not after:
                        break
            except Expired:
                continue
            for items in collected:
                yield items
            return
        raise Unreachable(
            "HistoryLost",
            f"{self.api.server} forgot its list of {resource} three times while it was read",
            "is etcd compacted every few seconds? Fairway tries again by itself",
        )

    async def every(
        self, path: str, resource: str, params: Mapping[str, str] | None = None, type_: Any = Json
    ) -> list[Any]:
        """Return every object of a list."""
        return [item async for items in self.pages(path, resource, params, type_) for item in items]

    async def object(self, path: str, resource: str) -> Json | None:
        """Return one object. Returns None if it does not exist."""
        call = ApiCall(self.api.server, "get", resource)
        code, said = await self.api.send("GET", path, call, timeout_seconds=self.timeout_seconds)
        if code == 404:
            return None
        return self._decoded(code, said, call)

    async def apply(self, kind: ObjectKind, name: str, body: Json) -> Json:
        """Apply an object by server-side apply. Forced: its ownership mark was checked before."""
        call = ApiCall(self.api.server, "patch", kind.resource)
        params = {"fieldManager": FAIRWAY, "force": "true"}
        code, said = await self.api.send(
            "PATCH", kind.path(name), call,
            timeout_seconds=self.timeout_seconds, params=params, body=body, content=APPLY,
        )  # fmt: skip
        return self._decoded(code, said, call)

    async def merge(self, path: str, resource: str, patch: Json, manager: str = FAIRWAY) -> Json:
        """Merge-patch these keys and leave the rest; null removes one."""
        call = ApiCall(self.api.server, "patch", resource)
        code, said = await self.api.send(
            "PATCH", path, call,
            timeout_seconds=self.timeout_seconds, params={"fieldManager": manager}, body=patch, content=MERGE,
        )  # fmt: skip
        return self._decoded(code, said, call)

    async def delete(self, kind: ObjectKind, name: str, uid: str) -> None:
        """Delete exactly this object; one that is already gone is no error."""
        call = ApiCall(self.api.server, "delete", kind.resource)
        options = {"preconditions": {"uid": uid}, "propagationPolicy": "Background"}
        code, said = await self.api.send(
            "DELETE", kind.path(name), call, timeout_seconds=self.timeout_seconds, body=options
        )
        if code != 404:
            self._decoded(code, said, call)

    def _decoded(self, code: int, said: bytes, call: ApiCall) -> Json:
        if 200 <= code < 300:
            answer: Json = msgspec.json.decode(said, type=Json)
            return answer
        refusal = from_status(code, said, call)
        if isinstance(refusal, Expired):
            raise Unreachable("Expired", f"{self.api.server}: {refusal}", "Fairway tries again by itself")
        raise refusal
