"""Ask a Prometheus, or whatever speaks its query API, within bounds of time and size."""

from __future__ import annotations

import asyncio
import math
from http import HTTPStatus
from pathlib import Path
from typing import Final, NoReturn, TypeVar

import httpx2
import msgspec

from fairway.model.errors import PermanentError, TemporaryError
from fairway.model.fleet import Telemetry

QUERY_SECONDS: Final = 30.0
MAX_REPLY_BYTES: Final = 256 * 2**20
_MAX_TOKEN_BYTES: Final = 64 * 1024
_PATH: Final = "/api/v1/query"


class TelemetryUnreachable(TemporaryError):
    """Prometheus does not answer, or not with a whole answer; it may do so later."""


class TelemetryRefused(PermanentError):
    """Prometheus refuses what Fairway asks until somebody changes something."""


class Labels(msgspec.Struct, frozen=True, cache_hash=True, gc=False):
    """The labels of a series that Fairway looks at; the others are skipped."""

    name: str = msgspec.field(name="__name__", default="")
    node: str = ""
    host: str = msgspec.field(name="Hostname", default="")
    hostname: str = ""
    gpu: str = ""
    uuid: str = msgspec.field(name="UUID", default="")
    old_uuid: str = msgspec.field(name="uuid", default="")
    instance_id: str = msgspec.field(name="GPU_I_ID", default="")
    profile: str = msgspec.field(name="GPU_I_PROFILE", default="")
    model: str = msgspec.field(name="modelName", default="")
    hpc_job: str = ""
    namespace: str = ""
    pod: str = ""
    exported_namespace: str = ""
    exported_pod: str = ""
    nvlink_uuid: str = msgspec.field(name="gpu_uuid", default="")
    serial: str = msgspec.field(name="DCGM_FI_DEV_SERIAL", default="")
    xid: str = ""
    code: str = msgspec.field(name="fairway_code", default="")
    """What a query of Fairway's marks a row with."""
    nodename: str = ""
    instance: str = ""

    @property
    def host_label(self) -> str:
        """The label that names the host."""
        return "node" if self.node else "Hostname" if self.host else "hostname"

    @property
    def host_name(self) -> str:
        return self.node or self.host or self.hostname

    @property
    def gpu_uuid(self) -> str:
        return self.uuid or self.old_uuid or self.nvlink_uuid

    @property
    def storable(self) -> bool:
        """Whether PostgreSQL takes the names of the device: an exporter may send any character."""
        return "\0" not in self.host_name + self.gpu + self.instance_id

    @property
    def machine(self) -> str:
        """The host of a series that is not of a GPU, where only the target's address may name it."""
        return self.host_name or self.nodename or self.instance.rpartition(":")[0] or self.instance

    @property
    def holder(self) -> str:
        """Who holds the GPU: a Slurm job id, `namespace/pod`, or empty.

        Where Prometheus does not honor the exporter's labels, `pod` is the exporter's own.
        """
        if self.hpc_job:
            return self.hpc_job
        if self.exported_pod:
            return f"{self.exported_namespace}/{self.exported_pod}"
        return f"{self.namespace}/{self.pod}" if self.pod else ""


class Point(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A time and a value."""

    at: float
    text: str


class VectorRow(msgspec.Struct, frozen=True, gc=False):
    """One row of an instant vector."""

    metric: Labels
    value: Point

    @property
    def number(self) -> float:
        return parse_number(self.value.text)


class MatrixRow(msgspec.Struct, frozen=True, gc=False):
    """One series with its samples."""

    metric: Labels
    values: tuple[tuple[float, str], ...]


class _VectorData(msgspec.Struct):
    result: tuple[VectorRow, ...]


class _MatrixData(msgspec.Struct):
    result: tuple[MatrixRow, ...]


class _VectorReply(msgspec.Struct):
    status: str
    data: _VectorData
    warnings: tuple[str, ...] = ()


class _MatrixReply(msgspec.Struct):
    status: str
    data: _MatrixData
    warnings: tuple[str, ...] = ()


class _ErrorReply(msgspec.Struct):
    error: str = ""


R = TypeVar("R", _VectorReply, _MatrixReply)


def parse_number(text: str) -> float:
    """Parse a sample's value; NaN and infinities are no measurement and become NaN."""
    number = float(text)
    return number if math.isfinite(number) else math.nan


class Prometheus:
    """A client of one cluster's Prometheus."""

    def __init__(self, source: Telemetry, *, timeout_seconds: float = QUERY_SECONDS) -> None:
        self._source = source
        self._timeout = timeout_seconds
        verify = source.ca_file if source.ca_file is not None else True
        self._http = httpx2.AsyncClient(
            timeout=timeout_seconds + 5, trust_env=False, follow_redirects=False, verify=verify
        )

    async def vector(self, query: str, at: float) -> tuple[VectorRow, ...]:
        """Return the rows of an instant query that yields a vector."""
        reply = self._decoded(await self._ask(query, at), _VectorReply)
        return reply.data.result

    async def matrix(self, query: str, at: float) -> tuple[MatrixRow, ...]:
        """Return the samples that an instant query of a range selector yields."""
        reply = self._decoded(await self._ask(query, at), _MatrixReply)
        return reply.data.result

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, query: str, at: float) -> bytes:
        form = {"query": query, "time": f"{at:.3f}", "timeout": f"{self._timeout:g}s"}
        url = self._source.prometheus.rstrip("/") + _PATH
        try:
            headers = await asyncio.to_thread(self._headers)
            async with self._http.stream("POST", url, data=form, headers=headers) as response:
                content = bytearray()
                async for chunk in response.aiter_bytes():
                    content += chunk
                    if len(content) > MAX_REPLY_BYTES:
                        self._fail(f"sent more than {MAX_REPLY_BYTES // 2**20} MiB")
                if response.status_code != HTTPStatus.OK:
                    self._refuse(response.status_code, bytes(content))
                return bytes(content)
        except httpx2.TimeoutException:
            self._fail("did not respond in time")
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise TelemetryRefused(
                "TelemetryRefused",
                f"{self._source.prometheus} is not the address of a Prometheus: {error}",
                "write  telemetry: { prometheus: http://HOST:9090 }  in the fleet file",
            ) from error
        except httpx2.HTTPError as error:
            self._fail(f"is not reachable: {error or type(error).__name__}")

    def _headers(self) -> dict[str, str]:
        # To compress and expand some megabytes costs both sides more than to send them.
        plain = {"Accept-Encoding": "identity"}
        if self._source.token_file is None:
            return plain
        try:
            with Path(self._source.token_file).open("rb") as file:
                token = file.read(_MAX_TOKEN_BYTES).decode("ascii").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise TelemetryRefused(
                "TelemetryRefused",
                f"cannot read the token for {self._source.prometheus} in {self._source.token_file}: {error}",
                f"let the user of this server read it:  ls -l {self._source.token_file}",
            ) from error
        return plain | {"Authorization": f"Bearer {token}"}

    def _decoded(self, content: bytes, kind: type[R]) -> R:
        try:
            reply = msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._fail(f"sent something else than the answer to a query: {error}")
        if reply.status != "success" or any("partial" in text.lower() for text in reply.warnings):
            self._fail(f"sent a part of the answer only: {'; '.join(reply.warnings) or reply.status}")
        return reply

    def _refuse(self, status: int, content: bytes) -> NoReturn:
        try:
            said = msgspec.json.decode(content, type=_ErrorReply).error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            said = content[:200].decode("utf-8", errors="replace").strip()
        message = f"the Prometheus at {self._source.prometheus} answers {status}: {said[:500]}"
        if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            raise TelemetryRefused(
                "TelemetryRefused",
                message,
                "name a file with a valid token:  telemetry: { token_file: PATH }",
            )
        if status == HTTPStatus.BAD_REQUEST and "parse" in said:
            raise TelemetryRefused(
                "TelemetryRefused",
                message,
                "correct  telemetry: { select: … }  in the fleet file: label matchers as in PromQL",
            )
        if status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED) or 300 <= status < 400:
            raise TelemetryRefused(
                "TelemetryRefused",
                message,
                f"name the address before /api/v1:  curl {self._source.prometheus}/api/v1/status/buildinfo",
            )
        self._fail(f"answers {status}: {said[:500]}")

    def _fail(self, problem: str) -> NoReturn:
        raise TelemetryUnreachable(
            "TelemetryUnreachable",
            f"the Prometheus at {self._source.prometheus} {problem}",
            f"nothing is lost while it keeps its samples:  curl {self._source.prometheus}/-/ready",
        )
