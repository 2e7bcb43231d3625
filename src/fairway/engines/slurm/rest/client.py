"""HTTP client of slurmrestd: limits on everything, and every failure mapped to Unreachable or Refused."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from typing import Any, Final, NoReturn, TypeVar

import httpx2
import msgspec

from fairway.engines.port import Refused, Unreachable
from fairway.engines.slurm.rest import versions as rest_versions
from fairway.engines.slurm.rest.tokens import Tokens
from fairway.engines.slurm.rest.wire import JobReply, NodesReply, OpenApi, PartitionsReply, Reply, ReplyError
from fairway.model.fleet import SlurmConnection

MAX_REPLY_BYTES: Final = 256 * 2**20
"""A node is about 1.7 kB: room for 150,000 of them, and a limit on what a broken peer can make us hold."""

# slurm_errno.h; the HTTP status alone does not tell them apart
_AUTHENTICATION: Final = frozenset({1007})
_NO_RIGHT: Final = frozenset({2002})
_CONTROLLER_AWAY: Final = frozenset({1800, 1801, 1802, 1803, 1804})
_JOBS_ACTIVE: Final = frozenset({7001})
# What is wrong with a request, by slurmctld, the accounting and the API's reader: 24.11 says 500 to all
_WRONG_REQUEST: Final = (range(2001, 3000), range(7001, 8000), range(9000, 10_000))

R = TypeVar("R", bound=Reply)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RestAnswer:
    """slurmrestd's answer to a request about a job."""

    status: int
    reply: JobReply


class SlurmRest:
    """A client of one slurmrestd, using the first API version that both sides support."""

    def __init__(self, connection: SlurmConnection, *, timeout_seconds: float) -> None:
        self._url = connection.url
        self._user = connection.user
        self._by_key = connection.token_file is None
        self._tokens = Tokens(connection)
        self._version = rest_versions.SPOKEN[0]
        # Slurm's API is a neighbour, never behind the proxy that the environment may name
        self._http = httpx2.AsyncClient(timeout=timeout_seconds, trust_env=False)

    async def nodes(self) -> NodesReply:
        return await self._ask("nodes", NodesReply)

    async def partitions(self) -> PartitionsReply:
        return await self._ask("partitions", PartitionsReply)

    async def policy(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the policy API and return its plain JSON. Returns None if it changed nothing.

        Such records are written back as they were read, so they are not narrowed to a few fields.
        """
        status, said = await self._send(method, path, None if body is None else msgspec.json.encode(body))
        if status == HTTPStatus.NOT_MODIFIED:
            return None
        faults = _faults(said)
        if status != HTTPStatus.OK or faults:
            wrong = any(fault.error_number in some for fault in faults for some in _WRONG_REQUEST)
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY if wrong else status, faults)
        return self._decode(said, dict)

    async def serves(self, path: str) -> Any:
        """Get a resource that only some versions have, as plain JSON. Returns None if it is not served."""
        status, said = await self._send("GET", path, None)
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            self._refuse(status, _faults(said))
        return self._decode(said, dict)

    async def act(
        self, method: str, resource: str, body: object = None, user: str | None = None
    ) -> RestAnswer:
        """Send a request about jobs, as the service's user or another, and return the answer unjudged.

        Raises Unreachable when nothing that speaks Slurm's API answers, and for the reasons that any request
        may be refused; why a job was refused is for the caller to judge.
        """
        data = None if body is None else msgspec.json.encode(body)
        status, said = await self._send(method, rest_versions.path(self._version, resource), data, user)
        if status == HTTPStatus.NOT_FOUND and not _faults_listed(said):
            await self._find_version()
            status, said = await self._send(method, rest_versions.path(self._version, resource), data, user)
        reply = self._decode(said, JobReply) if said[:1] == b"{" else JobReply(errors=_faults(said))
        numbers = {fault.error_number for fault in reply.errors}
        if status in (401, 511, 502, 503, 504) or numbers & (_AUTHENTICATION | _CONTROLLER_AWAY):
            self._refuse(status, reply.errors)
        return RestAnswer(status, reply)

    def fail(self, answer: RestAnswer) -> NoReturn:
        """Raise the error for an unexpected answer."""
        self._refuse(answer.status, answer.reply.errors)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    async def close(self) -> None:
        await self._http.aclose()

    async def _ask(self, resource: str, kind: type[R]) -> R:
        status, body = await self._get(rest_versions.path(self._version, resource))
        if status == HTTPStatus.NOT_FOUND:
            await self._find_version()
            status, body = await self._get(rest_versions.path(self._version, resource))
        if status != HTTPStatus.OK:
            self._refuse(status, _faults(body))
        reply = self._decode(body, kind)
        if reply.errors:  # slurmrestd says 200 to some requests that failed
            self._refuse(status, reply.errors)
        return reply

    async def _find_version(self) -> None:
        """Read which API versions are served now; Slurm may have been upgraded."""
        status, body = await self._get(rest_versions.DESCRIPTION_PATH)
        if status != HTTPStatus.OK:
            self._not_slurmrestd(f"answered {status} to {rest_versions.DESCRIPTION_PATH}")
        versions = rest_versions.served(self._decode(body, OpenApi).paths)
        if (version := rest_versions.choose(versions)) is None:
            raise Refused(
                "EngineVersionUnknown",
                f"slurmrestd at {self._url} serves {', '.join(versions) or 'no version of the Slurm API'}; "
                f"Fairway speaks {', '.join(sorted(rest_versions.SPOKEN))}",
                "run a slurmrestd of Slurm 23.11 or later, with its slurmctld plugin:  slurmrestd -s list",
            )
        self._version = version

    async def _get(self, path: str) -> tuple[int, bytes]:
        return await self._send("GET", path, None)

    async def _send(
        self, method: str, path: str, body: bytes | None, user: str | None = None
    ) -> tuple[int, bytes]:
        token = self._tokens.kept(user or self._user)
        if token is None:
            sign = self._tokens.current if user is None else partial(self._tokens.of, user)
            token = await asyncio.to_thread(sign)
        headers = {"X-SLURM-USER-NAME": user or self._user, "X-SLURM-USER-TOKEN": token}
        if body is not None:
            headers["Content-Type"] = "application/json"
        url = self._url.rstrip("/") + path
        try:
            async with self._http.stream(method, url, headers=headers, content=body) as reply:
                return reply.status_code, await self._read(reply)
        except httpx2.TimeoutException as error:
            raise self.silent() from error
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise Refused(
                "UrlUnusable",
                f"{self._url} is no address of a slurmrestd: {error}",
                "write  url: http://HOST:6820",
            ) from error
        except httpx2.HTTPError as error:
            raise Unreachable(
                "ClusterUnreachable",
                f"no connection to slurmrestd at {self._url}: {error or type(error).__name__}",
                "on its host:  systemctl status slurmrestd",
            ) from error

    async def _read(self, reply: httpx2.Response) -> bytes:
        body = bytearray()
        async for chunk in reply.aiter_bytes():
            body += chunk
            if len(body) > MAX_REPLY_BYTES:
                raise Refused(
                    "ReplyTooLarge",
                    f"slurmrestd at {self._url} sent more than {MAX_REPLY_BYTES // 2**20} MiB",
                    "check that the url is slurmrestd's own:  scontrol show nodes | wc -c",
                )
        return bytes(body)

    def silent(self) -> Unreachable:
        """Return the error for a timeout."""
        return Unreachable(
            "ClusterUnreachable",
            f"slurmrestd at {self._url} did not answer in time",
            "on its host:  scontrol ping; systemctl status slurmrestd",
        )

    def _decode(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._not_slurmrestd(f"sent something else than the Slurm API's JSON ({error})")

    def _not_slurmrestd(self, what: str) -> NoReturn:
        raise Refused(
            "NotSlurmrestd",
            f"{self._url} {what}",
            f"check that the url is slurmrestd's:  curl {self._url.rstrip('/')}"
            f"{rest_versions.DESCRIPTION_PATH}",
        )

    def _refuse(self, status: int, faults: tuple[ReplyError, ...]) -> NoReturn:
        numbers = {fault.error_number for fault in faults}
        said = (
            "; ".join(text for fault in faults if (text := fault.error or fault.description))
            or f"HTTP {status}"
        )
        if status in (401, 511) or numbers & _AUTHENTICATION:
            self._tokens.forget()
            raise Refused(
                "CredentialsRejected",
                f"Slurm at {self._url} rejected the token of {self._user}: {said}",
                self._relogin,
            )
        if status == HTTPStatus.FORBIDDEN or numbers & _NO_RIGHT:
            raise Refused(
                "RightMissing",
                f"Slurm at {self._url} does not let {self._user} do this: {said}",
                f"sacctmgr modify user {self._user} set adminlevel=operator  (to apply: administrator)",
            )
        if numbers & _JOBS_ACTIVE:
            raise Refused(
                "TeamBusy",
                f"Slurm at {self._url} keeps it, because jobs of it are still active: {said}",
                "wait for them, or end them:  squeue --account=TEAM",
            )
        if numbers & _CONTROLLER_AWAY or status in (502, 503, 504):
            raise Unreachable(
                "ControllerUnreachable",
                f"slurmrestd at {self._url} answers, but its slurmctld does not: {said}",
                "on slurmctld's host:  scontrol ping; systemctl status slurmctld",
            )
        if 400 <= status < 500:
            raise Refused(
                "EngineRefused",
                f"slurmrestd at {self._url} refused ({status}): {said}",
                "journalctl -u slurmrestd",
            )
        raise Unreachable(
            "EngineFailed",
            f"Slurm at {self._url} failed ({status}): {said}",
            "journalctl -u slurmrestd -u slurmctld",
        )

    @property
    def _relogin(self) -> str:
        if self._by_key:
            return (
                "the key must be the cluster's own, and both clocks right:  "
                "scontrol show config | grep AuthAlt; timedatectl"
            )
        return f"make a new token:  scontrol token username={self._user} lifespan=86400"


def _faults_listed(body: bytes) -> bool:
    """Return whether the API itself answered with a fault, rather than the path being missing."""
    return any(fault.error_number for fault in _faults(body))


def _faults(body: bytes) -> tuple[ReplyError, ...]:
    """Parse the faults of an error reply; some replies are plain text."""
    try:
        return msgspec.json.decode(body, type=Reply).errors
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = body[:200].decode("utf-8", errors="replace").strip()
        return (ReplyError(error=text),) if text else ()
