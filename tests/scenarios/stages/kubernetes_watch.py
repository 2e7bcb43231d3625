"""Looks at a cluster as an auditor would: every event, so that nothing between two looks is missed."""

from __future__ import annotations

import http.client
import json
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from lab.kubernetes.api import NOT_NOW, Json

if TYPE_CHECKING:
    from lab.kubernetes.api import Api

_PAUSE_SECONDS = 0.2
_WATCH_SECONDS = 300  # the server ends a watch then; it is begun anew where it ended
_READ_SECONDS = 330


class Watch(threading.Thread):
    """Follows one list of the API server, and tells of every event in order, the list itself first."""

    def __init__(self, api: Api, path: str, tell: Callable[[str, Json], None]) -> None:
        super().__init__(daemon=True, name=f"watch {path}")
        self._api = api
        self._path = path
        self._tell = tell
        self._stopped = threading.Event()
        self._connection: http.client.HTTPSConnection | None = None
        self.synced = threading.Event()

    def run(self) -> None:
        while not self._stopped.is_set():
            try:
                self._follow(self._list())
            except (
                *NOT_NOW,
                ValueError,
                AttributeError,
            ):  # the last: closed by stop() in the middle of a read
                time.sleep(_PAUSE_SECONDS)

    def stop(self) -> None:
        """End it, also in the middle of waiting for an event."""
        self._stopped.set()
        if self._connection is not None and self._connection.sock is not None:
            self._connection.sock.close()

    def _list(self) -> str:
        listed = self._api.get(self._path)
        self._tell("LIST", listed)
        self.synced.set()
        version: str = listed["metadata"]["resourceVersion"]
        return version

    def _follow(self, version: str) -> None:
        while not self._stopped.is_set():
            connection = http.client.HTTPSConnection(
                self._api.host, self._api.port, timeout=_READ_SECONDS, context=self._api.tls
            )
            self._connection = connection
            try:
                query = f"watch=1&resourceVersion={version}&timeoutSeconds={_WATCH_SECONDS}"
                connection.request(
                    "GET", f"{self._path}?{query}", headers={"Authorization": f"Bearer {self._api.token}"}
                )
                response = connection.getresponse()
                while line := response.readline():
                    event: Json = json.loads(line)
                    if event["type"] == "ERROR":  # too old: list again
                        return
                    version = event["object"]["metadata"]["resourceVersion"]
                    self._tell(event["type"], event["object"])
            finally:
                connection.close()
