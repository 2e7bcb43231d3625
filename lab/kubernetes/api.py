"""A small client for the lab's own use of the Kubernetes API; every call is bounded in time."""

from __future__ import annotations

import base64
import http.client
import json
import ssl
import urllib.parse
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

Json = dict[str, Any]

APPLY_PATCH = "application/apply-patch+yaml"
JSON = "application/json"
TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io"
MERGE_PATCH = "application/merge-patch+json"
CALL_SECONDS = 30.0
CONNECTIONS = 8


class ApiError(Exception):
    """The API server answered, and the answer was no."""

    def __init__(self, status: int, reason: str, message: str) -> None:
        super().__init__(f"{status} {reason}: {message}")
        self.status = status
        self.reason = reason
        self.message = message


# What a call may raise while a server is starting, restarting or gone.
NOT_NOW = (ApiError, OSError, http.client.HTTPException)


@dataclass(slots=True)
class Api:
    """One API server as one user."""

    host: str
    port: int
    tls: ssl.SSLContext
    token: str | None
    _kinds: dict[tuple[str, str], tuple[str, bool]] = field(default_factory=dict)

    @classmethod
    def from_kubeconfig(cls, path: Path) -> Api:
        """Read a kubeconfig of the lab's own making: embedded CA, one user with a token."""
        config = yaml.safe_load(path.read_text())
        cluster = config["clusters"][0]["cluster"]
        server = urllib.parse.urlsplit(cluster["server"])
        ca = base64.b64decode(cluster["certificate-authority-data"]).decode()
        return cls(
            host=server.hostname or "127.0.0.1",
            port=server.port or 443,
            tls=ssl.create_default_context(cadata=ca),
            token=config["users"][0]["user"].get("token"),
        )

    def text(
        self,
        method: str,
        path: str,
        body: Json | None = None,
        *,
        content: str = JSON,
        accept: str = JSON,
        seconds: float = CALL_SECONDS,
    ) -> str:
        """One request, on a connection of its own: nothing goes stale while servers are killed."""
        headers = {"Content-Type": content, "Accept": accept}
        if self.token:
            headers["Authorization"] = f"Bearer {self.token}"
        connection = http.client.HTTPSConnection(self.host, self.port, timeout=seconds, context=self.tls)
        try:
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            response = connection.getresponse()
            answer = response.read().decode(errors="replace")
        finally:
            connection.close()
        if response.status >= 400:
            raise _refusal(response.status, answer)
        return answer

    def call(self, method: str, path: str, body: Json | None = None, *, content: str = JSON) -> Json:
        """One request whose answer is an object."""
        answer: Json = json.loads(self.text(method, path, body, content=content))
        return answer

    def get(self, path: str, *, accept: str = JSON) -> Json:
        answer: Json = json.loads(self.text("GET", path, accept=accept))
        return answer

    def delete(self, path: str, **options: Any) -> None:
        """Delete; what is gone already counts as deleted."""
        try:
            self.call("DELETE", path, options or None)
        except ApiError as error:
            if error.status != 404:
                raise

    def create(self, path: str, body: Json) -> None:
        """Create; what is there already stays as it is."""
        try:
            self.call("POST", path, body)
        except ApiError as error:
            if error.status != 409:
                raise

    def merge(self, path: str, patch: Json) -> Json:
        return self.call("PATCH", path, patch, content=MERGE_PATCH)

    def apply(self, wanted: Json) -> Json:
        """Server-side apply of one object of any kind."""
        path = f"{self.path_of(wanted)}?fieldManager=lab&force=true"
        return self.call("PATCH", path, wanted, content=APPLY_PATCH)

    def path_of(self, wanted: Json) -> str:
        """Where an object lives, from the server's own discovery."""
        version, kind = wanted["apiVersion"], wanted["kind"]
        root = f"/api/{version}" if "/" not in version else f"/apis/{version}"
        if (version, kind) not in self._kinds:
            for resource in self.get(root)["resources"]:
                if "/" not in resource["name"]:
                    self._kinds[version, resource["kind"]] = (resource["name"], resource["namespaced"])
        if (version, kind) not in self._kinds:
            raise ApiError(404, "UnknownKind", f"the server has no {kind} in {version}")
        plural, namespaced = self._kinds[version, kind]
        meta = wanted["metadata"]
        namespace = f"/namespaces/{meta.get('namespace', 'default')}" if namespaced else ""
        return f"{root}{namespace}/{plural}/{meta['name']}"

    def each(self, act: Callable[[Json], object], objects: Iterable[Json]) -> None:
        """Do one thing to many objects over several connections at once."""
        with ThreadPoolExecutor(CONNECTIONS) as pool:
            for done in [pool.submit(act, item) for item in objects]:
                done.result()

    def ready(self) -> bool:
        """Whether the server says that it is ready."""
        try:
            return self.text("GET", "/readyz", seconds=5) == "ok"
        except NOT_NOW:
            return False


def _refusal(status: int, answer: str) -> ApiError:
    try:
        told = json.loads(answer)
        return ApiError(status, str(told.get("reason", "")), str(told.get("message", "")))
    except (ValueError, AttributeError):
        return ApiError(status, "", answer[:500])
