"""Send requests to one API server, over the HTTP client that lightkube makes from a kubeconfig.

lightkube reads the kubeconfig and does TLS, client certificates, tokens, token files and exec plugins, and
requests new credentials on 401. Lists and watches are our own: it has neither bookmarks nor the
resourceVersion of a list.
"""

from __future__ import annotations

import asyncio
import ssl
import threading
from collections.abc import AsyncGenerator, Mapping
from typing import TYPE_CHECKING, Final, TypeVar

import httpx2
import msgspec

from fairway.engines.kubernetes.api.errors import ApiCall, Expired, from_exception, from_status
from fairway.model.errors import Refused
from fairway.model.fleet import Cluster, KubernetesConnection

if TYPE_CHECKING:
    from lightkube.config.models import UserExec

V = TypeVar("V")

_KUBECONFIG_LOCK: Final = threading.Lock()
"""Held while a kubeconfig is read. lightkube converts it with msgspec, which prepares a class at its first
use: a second thread that converts meanwhile crashes the process (msgspec 0.22)."""
JSON: Final = "application/json"
_CONNECT_SECONDS: Final = 5.0
_MAX_REPLY_BYTES: Final = 128 << 20
"""A page of 2,000 nodes with every image they hold listed is about 30 MB."""
_MAX_ERROR_BYTES: Final = 64 << 10
_BUSY_SECONDS: Final = (0.2, 0.5, 1.0, 2.0)
_DEAD_CONNECTION: Final = (httpx2.RemoteProtocolError, httpx2.ReadError, httpx2.WriteError)


class ApiServer:
    """A client of one API server. Every failure is a FairwayError, or Expired."""

    def __init__(self, http: httpx2.AsyncClient, server: str) -> None:
        self._http = http
        self.server = server

    async def get(
        self,
        path: str,
        params: Mapping[str, str],
        type_: type[V],
        call: ApiCall,
        *,
        timeout_seconds: float,
        accept: str = JSON,
    ) -> V:
        """Get and decode one reply. Retried once where a pooled connection turned out to be dead."""
        for last in (False, True):
            try:
                async with asyncio.timeout(timeout_seconds):
                    return msgspec.json.decode(await self._body(path, params, call, accept), type=type_)
            except Expired:
                raise
            except Exception as e:
                if last or not isinstance(e, _DEAD_CONNECTION):
                    raise from_exception(e, call) from e
        raise AssertionError("unreachable")  # the loop returns or raises

    async def send(
        self,
        method: str,
        path: str,
        call: ApiCall,
        *,
        timeout_seconds: float,
        params: Mapping[str, str] | None = None,
        body: object = None,
        content: str = JSON,
        accept: str = JSON,
    ) -> tuple[int, bytes]:
        """Send one request that may change something, and return status and body, whatever they are.

        A busy reply (429) is retried a few times, with growing pauses.
        """
        encoded = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": content, "Accept": accept}
        try:
            async with asyncio.timeout(timeout_seconds):
                for pause in (*_BUSY_SECONDS, None):
                    async with self._http.stream(
                        method, path, params=dict(params or {}), content=encoded, headers=headers
                    ) as response:
                        reply = await _read(response, _MAX_REPLY_BYTES)
                        if response.status_code != 429 or pause is None:
                            return response.status_code, reply
                    await asyncio.sleep(pause)
        except Exception as e:
            raise from_exception(e, call) from e
        raise AssertionError("unreachable")  # the loop returns or raises

    async def stream(
        self, path: str, params: Mapping[str, str], call: ApiCall, *, silence_seconds: float
    ) -> AsyncGenerator[bytes, None]:
        """Yield a reply chunk by chunk, the first one empty: it comes once the request was accepted.

        Fails when nothing at all comes for `silence_seconds`. Close it with `contextlib.aclosing`.
        """
        timeout = httpx2.Timeout(silence_seconds, connect=min(_CONNECT_SECONDS, silence_seconds))
        try:
            async with self._http.stream("GET", path, params=dict(params), timeout=timeout) as response:
                await _check(response, call)
                yield b""
                async for chunk in response.aiter_bytes():
                    yield chunk
        except Expired:
            raise
        except Exception as e:
            raise from_exception(e, call) from e

    async def close(self) -> None:
        """Close all connections."""
        await self._http.aclose()

    async def _body(self, path: str, params: Mapping[str, str], call: ApiCall, accept: str) -> bytes:
        headers = {"Accept": accept}
        async with self._http.stream("GET", path, params=dict(params), headers=headers) as response:
            await _check(response, call)
            return await _read(response, _MAX_REPLY_BYTES)


def connection_of(cluster: Cluster) -> KubernetesConnection:
    """Return the cluster's connection. Raises Refused if it is not a Kubernetes cluster."""
    if isinstance(cluster.connection, KubernetesConnection):
        return cluster.connection
    raise Refused(
        "WrongEngine",
        f"cluster {cluster.name} is not a Kubernetes cluster",
        "set engine: kubernetes and a kubeconfig for it in the fleet file",
    )


async def connect(connection: KubernetesConnection) -> ApiServer:
    """Connect to the API server that a kubeconfig names, or that this pod runs under."""
    # lightkube takes 0.3 s to import, and reading certificates blocks: not in the event loop
    return await asyncio.to_thread(_connect, connection)


def _connect(connection: KubernetesConnection) -> ApiServer:
    from lightkube.config.client_adapter import ConnectionParams  # noqa: PLC0415
    from lightkube.config.kubeconfig import KubeConfig  # noqa: PLC0415

    source = connection.kubeconfig or "the pod's service account"
    try:
        with _KUBECONFIG_LOCK:
            if connection.kubeconfig is None:
                config = KubeConfig.from_service_account()
            else:
                config = KubeConfig.from_file(connection.kubeconfig)
        chosen = config.get(connection.context)
        if chosen is None or chosen.user is None:
            raise KeyError("the context's user")  # noqa: TRY301  (reported like any other gap in the file)
        if chosen.user.exec is not None:
            _allow_exec_v1(chosen.user.exec)
        timeout = httpx2.Timeout(30, connect=_CONNECT_SECONDS)
        parameters = ConnectionParams(timeout=timeout).httpx_params(chosen)
        _accept_lenient_authorities(parameters["verify"])
        return ApiServer(httpx2.AsyncClient(**parameters), chosen.cluster.server)
    except Exception as e:  # yaml, msgspec, ssl, OSError, KeyError, ConfigError: the file is unusable
        raise Refused("BadKubeconfig", f"cannot use {source}: {_fault(e)}", _fix(connection)) from e


def _accept_lenient_authorities(context: ssl.SSLContext) -> None:
    """Accept the certificate authorities that kubectl accepts.

    Python from 3.13 on rejects an authority without a key usage extension, as many clusters' own lack. Chain,
    name and dates are still verified.
    """
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT


def _allow_exec_v1(plugin: UserExec) -> None:
    """Let lightkube, which supports only the betas, run a plugin of v1: the replies are the same."""
    from lightkube.config.models import NameValue  # noqa: PLC0415

    v1 = "client.authentication.k8s.io/v1"
    if plugin.apiVersion == v1:
        info = {"apiVersion": v1, "kind": "ExecCredential", "spec": {"interactive": False}}
        variable = NameValue("KUBERNETES_EXEC_INFO", msgspec.json.encode(info).decode())
        plugin.env = [*(plugin.env or []), variable]
        plugin.apiVersion = f"{v1}beta1"


def _fault(error: Exception) -> str:
    if isinstance(error, KeyError):
        return f"{error} is missing or not defined"
    return " ".join(str(error).split()) or type(error).__name__


def _fix(connection: KubernetesConnection) -> str:
    if connection.kubeconfig is None:
        return "name a kubeconfig in the fleet file, or run the server in a pod with a service account"
    context = f" --context {connection.context}" if connection.context else ""
    return f"make this work first: kubectl --kubeconfig {connection.kubeconfig}{context} get nodes"


async def _check(response: httpx2.Response, call: ApiCall) -> None:
    """Raise unless the status is 200."""
    if response.status_code == 200:
        return
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > _MAX_ERROR_BYTES:
            break
    raise from_status(response.status_code, bytes(body), call)


async def _read(response: httpx2.Response, limit: int) -> bytes:
    body = bytearray()
    async for chunk in response.aiter_bytes():
        body += chunk
        if len(body) > limit:
            raise ValueError(f"more than {limit >> 20} MiB in one answer")
    return bytes(body)
