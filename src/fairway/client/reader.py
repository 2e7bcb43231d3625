"""Read lists and documents for tables, fast: most of a short command's time is otherwise spent on imports.

A Reader sends GET requests with the standard library's client and decodes records. Whatever is not a plain
success, and any request through a proxy, goes to the ordinary Client, which retries and reports errors.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Sequence
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from typing import TYPE_CHECKING, Final, Self, Unpack, cast
from urllib.parse import quote, urlencode, urlsplit

from fairway import __version__
from fairway.client.contexts import Target
from fairway.client.filters import Filters, job_params
from fairway.client.records import Record, decode
from fairway.model.hosts import is_loopback

if TYPE_CHECKING:
    from fairway.wire import fleet as fleet_wire
    from fairway.wire import gpu_use as gpu_wire
    from fairway.wire import jobs as job_wire

CONNECT_SECONDS: Final = 5.0
READ_SECONDS: Final = 30.0
_MAX_PER_PAGE: Final = 500
_MAX_PAGES: Final = 100_000
_PROXIES: Final = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


class Reader:
    """Reads from one server with one token. Use it as a context manager. The results have wire types."""

    def __init__(self, target: Target, *, timeout_seconds: float | None = None) -> None:
        """`timeout_seconds` is that of each step of a request; None is that of the ordinary client."""
        self._target = target
        self._timeouts = (timeout_seconds or CONNECT_SECONDS, timeout_seconds or READ_SECONDS)
        self._connection: HTTPConnection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_error: object) -> None:
        if self._connection is not None:
            self._connection.close()

    def whoami(self) -> fleet_wire.Whoami:
        """Return the identity and rights of the token."""
        return cast("fleet_wire.Whoami", self._read("/v1/whoami"))

    def clusters(self) -> list[fleet_wire.Cluster]:
        """Return the clusters of the fleet."""
        return cast("list[fleet_wire.Cluster]", list(self._items("/v1/clusters")))

    def pools(self, cluster: str | None = None) -> list[fleet_wire.Pool]:
        """Return the pools of the fleet, or of one cluster."""
        params = [("cluster", cluster)] if cluster is not None else []
        return cast("list[fleet_wire.Pool]", list(self._items("/v1/pools", params)))

    def use_now(self) -> list[gpu_wire.SupplyUse]:
        """Return what held GPUs did in the last window that was read, by pool."""
        return cast("list[gpu_wire.SupplyUse]", self._read("/v1/use/now").supplies)

    def jobs(self, *, most: int | None = None, **filters: Unpack[Filters]) -> Iterator[job_wire.Job]:
        """Yield the jobs that match the filters, newest first, at most `most`."""
        params = job_params(filters, min(most or _MAX_PER_PAGE, _MAX_PER_PAGE))
        return cast("Iterator[job_wire.Job]", itertools.islice(self._items("/v1/jobs", params), most))

    def job(self, id: str) -> job_wire.JobDetail:  # noqa: A002
        """Return one job with its attempts and events."""
        return cast("job_wire.JobDetail", self._read(f"/v1/jobs/{_quoted(id)}"))

    def task_counts(self, id: str) -> job_wire.TaskCounts:  # noqa: A002
        """Return the number of tasks of an array by state."""
        return cast("job_wire.TaskCounts", self._read(f"/v1/jobs/{_quoted(id)}/tasks"))

    def why(self, id: str) -> job_wire.Why:  # noqa: A002
        """Return why a job waits, with a remedy for each reason, or how it runs or ended."""
        return cast("job_wire.Why", self._read(f"/v1/jobs/{_quoted(id)}/why"))

    def first_page(self, path: str, params: Sequence[tuple[str, str]]) -> Sequence[Record]:
        """Return the first page of a list. Returns nothing if the request fails: it is not tried again."""
        body = None if self._has_proxy() else self._try(path, params)
        try:
            return decode(body)["items"] if body is not None else ()
        except (ValueError, KeyError):
            return ()

    def _items(self, path: str, params: Sequence[tuple[str, str]] = ()) -> Iterator[Record]:
        cursor: list[tuple[str, str]] = []
        for _ in range(_MAX_PAGES):
            page = self._read(path, [*params, *cursor])
            yield from page["items"]
            if page.next_cursor is None:
                return
            cursor = [("cursor", page.next_cursor)]

    def _read(self, path: str, params: Sequence[tuple[str, str]] = ()) -> Record:
        body = None if self._has_proxy() else self._try(path, params)
        if body is not None:
            try:
                return decode(body)
            except ValueError:
                pass  # some other server: the ordinary client reports it
        return self._read_with_client(path, params)

    def _try(self, path: str, params: Sequence[tuple[str, str]]) -> bytes | None:
        """Send one request. Returns None if it fails or is not answered with 200."""
        target = urlsplit(self._target.url).path + path + (f"?{urlencode(params)}" if params else "")
        try:
            connection = self._connected()
            connection.request("GET", target, headers=self._headers())
            response = connection.getresponse()
            body = response.read()
        except (OSError, HTTPException, ValueError):
            self._connection = None
            return None
        return body if response.status == 200 else None

    def _connected(self) -> HTTPConnection:
        if self._connection is None:
            url, (seconds, read_seconds) = urlsplit(self._target.url), self._timeouts
            connection: HTTPConnection
            if url.scheme == "https":
                import ssl  # noqa: PLC0415 - only for a server with TLS

                tls = ssl.create_default_context(cafile=self._target.ca_file)
                connection = HTTPSConnection(url.hostname or "", url.port, timeout=seconds, context=tls)
            else:
                connection = HTTPConnection(url.hostname or "", url.port, timeout=seconds)
            connection.connect()
            connection.sock.settimeout(read_seconds)
            self._connection = connection
        return self._connection

    def _headers(self) -> dict[str, str]:
        headers = {"User-Agent": f"fairway/{__version__}", "Accept": "application/json"}
        if self._target.token:
            headers["Authorization"] = f"Bearer {self._target.token}"
        return headers

    def _has_proxy(self) -> bool:
        host = urlsplit(self._target.url).hostname or ""
        return not is_loopback(host) and any(os.environ.get(name) for name in _PROXIES)

    def _read_with_client(self, path: str, params: Sequence[tuple[str, str]]) -> Record:
        """Send the request again with the ordinary client, which retries it and raises what went wrong."""
        from fairway.client.client import Client  # noqa: PLC0415 - slow to import, and seldom needed

        with Client(self._target) as client:
            return decode(json.dumps(client._read(path, params)).encode())


def _quoted(segment: str) -> str:
    return quote(segment, safe="")
