"""The HTTP client of slurmrestd, and the tokens that authenticate its requests.

Every request is limited in time and size, and every failure is mapped to Unreachable or Refused.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any, Final, NoReturn, TypeVar

import httpx2
import msgspec
from joserfc import jwt
from joserfc.errors import JoseError
from joserfc.jwk import OctKey

from fairway.engines.port import Unreachable
from fairway.engines.slurm.rest import versions
from fairway.engines.slurm.rest.wire import JobReply, NodesReply, OpenApi, PartitionsReply, Reply, ReplyError
from fairway.model.errors import Refused
from fairway.model.fleet import SlurmConnection
from fairway.model.names import is_system_user

LIFETIME_SECONDS: Final = 300
"""Short, so that a leaked token soon expires."""
RENEW_SECONDS: Final = 120
"""Renewed when so little is left: more than a request may take, plus a margin for clock differences."""
MAX_CACHED_TOKENS: Final = 10_000
"""Users whose tokens are cached at once."""
KEY_HINT: Final = (
    "the key must be the cluster's own, and both clocks right:  "
    "scontrol show config | grep AuthAlt; timedatectl"
)
MAX_REPLY_BYTES: Final = 256 * 2**20
"""A node is about 1.7 kB: room for 150,000 of them, and a limit on what a broken peer can make us hold."""

# slurm_errno.h; the HTTP status alone does not tell them apart
_AUTHENTICATION: Final = frozenset({1007})
_NO_RIGHT: Final = frozenset({2002})
_CONTROLLER_AWAY: Final = frozenset({1800, 1801, 1802, 1803, 1804})
_ACCOUNTING_AWAY: Final = frozenset({7000})
_ACCOUNTING_SOURCES: Final = ("slurmdb_", "openapi_get_db_conn")
"""Prefixes of functions that ask slurmdbd: also partitions need it, for the names of resources."""
_JOBS_ACTIVE: Final = frozenset({7001})
# What is wrong with a request, by slurmctld, the accounting and the API's reader: 24.11 says 500 to all
_WRONG_REQUEST: Final = (range(2001, 3000), range(7001, 8000), range(9000, 10_000))

R = TypeVar("R", bound=Reply)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class JobResponse:
    """slurmrestd's response to a request about jobs."""

    status: int
    reply: JobReply


class Tokens:
    """Provides valid tokens; reads the files only when it must."""

    def __init__(self, connection: SlurmConnection, clock: Callable[[], float] = time.time) -> None:
        self._connection = connection
        self._clock = clock
        self._signed: dict[str, tuple[str, float]] = {}
        """By user: a token and when it expires."""
        self.slurm_user: str | None = None
        """SlurmUser of slurm.conf, if slurmrestd shows it; `slurm`, the usual one, is refused anyway."""

    def current(self) -> str:
        """Return a token for the connection's user. Raises Refused if none is available."""
        if self._connection.token_file is not None:
            return _from_file(self._connection.token_file)
        if self._connection.jwt_key_file is None:
            raise Refused(
                "CredentialsMissing",
                "the cluster names neither a jwt_key_file nor a token_file",
                "add  credentials: { jwt_key_file: PATH }  to the cluster in the fleet file",
            )
        return self._signed_token(self._connection.user, self._connection.jwt_key_file)

    def of(self, user: str) -> str:
        """Return a token for any person. Raises Refused without the cluster's key, and for system users."""
        self.require_person(user)
        if self._connection.token_file is not None or self._connection.jwt_key_file is None:
            raise Refused(
                "CannotActForUsers",
                f"with a token of {self._connection.user} alone, no job can be sent as {user}",
                "give Fairway the cluster's key:  credentials: { jwt_key_file: PATH }",
            )
        return self._signed_token(user, self._connection.jwt_key_file)

    def require_person(self, user: str) -> None:
        """Raise Refused for a user that can become any other: root, SlurmUser, Fairway's own.

        This is the last check before Slurm. Digits alone are refused too: Slurm reads them as a uid.
        """
        own = (self._connection.user, self.slurm_user)
        if is_system_user(user) or user in own or user.strip().lstrip("+-").isdecimal():
            raise Refused(
                "SystemUser",
                f"{user} is a user of the system or of Fairway itself, or a uid: no jobs are submitted as it",
                "submit as the owner of the job, with the name that  getent passwd  shows",
            )

    def cached(self, user: str) -> str | None:
        """Return a cached token that is still valid. Reads no file. Returns None if there is none."""
        token, expires = self._signed.get(user, ("", 0.0))
        return token if self._clock() <= expires - RENEW_SECONDS else None

    def forget(self) -> None:
        """Drop cached tokens after a rejection, so that the key, which may have changed, is read again."""
        self._signed.clear()

    def _signed_token(self, user: str, key_file: str) -> str:
        if token := self.cached(user):
            return token
        now = int(self._clock())
        if len(self._signed) >= MAX_CACHED_TOKENS:
            self._signed.clear()
        key = _read(key_file)
        claims = {"sun": user, "iat": now, "exp": now + LIFETIME_SECONDS}
        try:
            token = jwt.encode({"alg": "HS256"}, claims, OctKey.import_key(key))
        except (JoseError, ValueError) as error:
            raise Refused(
                "CredentialsUnusable",
                f"{key_file} holds no key that can sign: {error}",
                "name a copy of the file in slurm.conf's  AuthAltParameters=jwt_key=PATH",
            ) from error
        self._signed[user] = (token, now + LIFETIME_SECONDS)
        return token


def _from_file(token_file: str) -> str:
    text = _read(token_file).decode("ascii", errors="replace").strip()
    token = text.removeprefix("SLURM_JWT=")  # as `scontrol token` prints it
    if not token.isascii() or len(token.split()) != 1:
        raise Refused(
            "CredentialsUnusable",
            f"{token_file} does not hold one token",
            f"scontrol token username=USER lifespan=86400 > {token_file}",
        )
    return token


def _read(name: str) -> bytes:
    try:
        content = Path(name).read_bytes()
    except OSError as error:
        raise Refused(
            "CredentialsUnreadable",
            f"cannot read {name}: {error.strerror}",
            f"let the user of this server read it:  ls -l {name}",
        ) from error
    if not content.strip():
        raise Refused("CredentialsUnusable", f"{name} is empty", f"ls -l {name}")
    return content


class SlurmRest:
    """A client of one slurmrestd, using the first API version that both sides support."""

    def __init__(self, connection: SlurmConnection, *, timeout_seconds: float) -> None:
        self._url = connection.url
        self._user = connection.user
        self._has_key = connection.token_file is None
        self.tokens = Tokens(connection)
        self._version = versions.SUPPORTED[0]
        # Slurm's API is a neighbour, never behind the proxy that the environment may name
        self._http = httpx2.AsyncClient(timeout=timeout_seconds, trust_env=False)

    async def nodes(self) -> NodesReply:
        return await self._get("nodes", NodesReply)

    async def partitions(self) -> PartitionsReply:
        return await self._get("partitions", PartitionsReply)

    async def get_typed(self, resource: str, kind: type[R]) -> R:
        """Get a resource of slurmctld with the fields that `kind` has."""
        return await self._get(resource, kind)

    async def request(self, method: str, path: str, body: object = None) -> Any:
        """Send a request to the policy API and return its plain JSON. Returns None if it changed nothing.

        Such records are written back as they were read, so they are not narrowed to a few fields.
        """
        status, content = await self._send(method, path, body)
        if status == HTTPStatus.NOT_MODIFIED:
            return None
        errors = _errors(content)
        if status != HTTPStatus.OK or errors:
            wrong = any(error.error_number in numbers for error in errors for numbers in _WRONG_REQUEST)
            self._refuse(HTTPStatus.UNPROCESSABLE_ENTITY if wrong else status, errors)
        return self._decode(content, dict)

    async def get_if_served(self, path: str) -> Any:
        """Get a resource that only some versions have, as plain JSON. Returns None if it is not served."""
        status, content = await self._send("GET", path)
        if status == HTTPStatus.NOT_FOUND:
            return None
        if status != HTTPStatus.OK:
            self._refuse(status, _errors(content))
        return self._decode(content, dict)

    async def find_slurm_user(self) -> None:
        """Read SlurmUser, so that nothing is sent as it; slurmrestd shows it from 26.05 on."""
        with suppress(Refused):  # a configuration that is not shown is no reason to send nothing
            reply = await self.get_if_served(versions.CONF_PATH)
            shown = ((reply or {}).get("slurm_conf") or {}).get("SlurmUser") or ""
            self.tokens.slurm_user = str(shown).partition("(")[0] or None

    async def request_jobs(
        self, method: str, resource: str, body: object = None, user: str | None = None
    ) -> JobResponse:
        """Send a request about jobs, as the service's user or another, and return the response.

        Raises Unreachable when nothing that speaks Slurm's API answers, and for the reasons that any request
        may be refused; why a job was refused is for the caller to find in the response.
        """
        status, content = await self._send(method, versions.path(self._version, resource), body, user)
        # Without an error of the API itself, it is the path that is missing
        if status == HTTPStatus.NOT_FOUND and not any(error.error_number for error in _errors(content)):
            await self._find_version()
            status, content = await self._send(method, versions.path(self._version, resource), body, user)
        reply = self._decode(content, JobReply) if content[:1] == b"{" else JobReply(errors=_errors(content))
        numbers = {error.error_number for error in reply.errors}
        if status in (401, 511, 502, 503, 504) or numbers & (_AUTHENTICATION | _CONTROLLER_AWAY):
            self._refuse(status, reply.errors)
        return JobResponse(status, reply)

    def fail(self, response: JobResponse) -> NoReturn:
        """Raise the error for an unexpected response."""
        self._refuse(response.status, response.reply.errors)

    @asynccontextmanager
    async def time_limit(self, seconds: float) -> AsyncIterator[None]:
        """Limit the time of several requests together. Raises Unreachable when it has passed."""
        try:
            async with asyncio.timeout(seconds):
                yield
        except TimeoutError as error:
            raise self._timed_out() from error

    async def close(self) -> None:
        await self._http.aclose()

    async def _get(self, resource: str, kind: type[R]) -> R:
        status, content = await self._send("GET", versions.path(self._version, resource))
        if status == HTTPStatus.NOT_FOUND:
            await self._find_version()
            status, content = await self._send("GET", versions.path(self._version, resource))
        if status != HTTPStatus.OK:
            self._refuse(status, _errors(content))
        reply = self._decode(content, kind)
        if reply.errors:  # slurmrestd says 200 to some requests that failed
            self._refuse(status, reply.errors)
        return reply

    async def _find_version(self) -> None:
        """Read which API versions are served now; Slurm may have been upgraded."""
        status, content = await self._send("GET", versions.OPENAPI_PATH)
        if status != HTTPStatus.OK:
            self._not_slurmrestd(f"answered {status} to {versions.OPENAPI_PATH}")
        served = versions.served(self._decode(content, OpenApi).paths)
        if (version := versions.choose(served)) is None:
            raise Refused(
                "EngineVersionUnknown",
                f"slurmrestd at {self._url} serves {', '.join(served) or 'no version of the Slurm API'}; "
                f"Fairway speaks {', '.join(sorted(versions.SUPPORTED))}",
                "run a slurmrestd of Slurm 23.11 or later, with its slurmctld plugin:  slurmrestd -s list",
            )
        self._version = version

    async def _send(
        self, method: str, path: str, body: object = None, user: str | None = None
    ) -> tuple[int, bytes]:
        if user is not None:
            self.tokens.require_person(user)  # before the cache, which has the token of Fairway's own user
        token = self.tokens.cached(user or self._user)
        if token is None:
            sign = self.tokens.current if user is None else partial(self.tokens.of, user)
            token = await asyncio.to_thread(sign)
        headers = {"X-SLURM-USER-NAME": user or self._user, "X-SLURM-USER-TOKEN": token}
        content = None if body is None else msgspec.json.encode(body)
        if content is not None:
            headers["Content-Type"] = "application/json"
        url = self._url.rstrip("/") + path
        try:
            async with self._http.stream(method, url, headers=headers, content=content) as response:
                return response.status_code, await self._read(response)
        except httpx2.TimeoutException as error:
            raise self._timed_out() from error
        except (httpx2.UnsupportedProtocol, httpx2.InvalidURL) as error:
            raise Refused(
                "UrlUnusable",
                f"{self._url} is not the address of a slurmrestd: {error}",
                "write  url: http://HOST:6820",
            ) from error
        except httpx2.HTTPError as error:
            raise Unreachable(
                "ClusterUnreachable",
                f"no connection to slurmrestd at {self._url}: {error or type(error).__name__}",
                "on its host:  systemctl status slurmrestd",
            ) from error

    async def _read(self, response: httpx2.Response) -> bytes:
        content = bytearray()
        async for chunk in response.aiter_bytes():
            content += chunk
            if len(content) > MAX_REPLY_BYTES:
                raise Refused(
                    "ReplyTooLarge",
                    f"slurmrestd at {self._url} sent more than {MAX_REPLY_BYTES // 2**20} MiB",
                    "check that the url is slurmrestd's own:  scontrol show nodes | wc -c",
                )
        return bytes(content)

    def _timed_out(self) -> Unreachable:
        return Unreachable(
            "ClusterUnreachable",
            f"slurmrestd at {self._url} did not respond in time",
            "on its host:  scontrol ping; systemctl status slurmrestd",
        )

    def _decode(self, content: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(content, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError) as error:
            self._not_slurmrestd(f"sent something else than the Slurm API's JSON ({error})")

    def _not_slurmrestd(self, problem: str) -> NoReturn:
        raise Refused(
            "NotSlurmrestd",
            f"{self._url} {problem}",
            f"check that the url is slurmrestd's:  curl {self._url.rstrip('/')}{versions.OPENAPI_PATH}",
        )

    def _refuse(self, status: int, errors: tuple[ReplyError, ...]) -> NoReturn:
        numbers = {error.error_number for error in errors}
        texts = [error.error or error.description for error in errors]
        message = "; ".join(filter(None, texts)) or f"HTTP {status}"
        if status in (401, 511) or numbers & _AUTHENTICATION:
            self.tokens.forget()
            raise Refused(
                "CredentialsRejected",
                f"Slurm at {self._url} rejected the token of {self._user}: {message}",
                KEY_HINT
                if self._has_key
                else f"make a new token:  scontrol token username={self._user} lifespan=86400",
            )
        if status == HTTPStatus.FORBIDDEN or numbers & _NO_RIGHT:
            raise Refused(
                "RightMissing",
                f"Slurm at {self._url} does not allow {self._user} do this: {message}",
                f"sacctmgr modify user {self._user} set adminlevel=operator  (to apply: administrator)",
            )
        if numbers & _JOBS_ACTIVE:
            raise Refused(
                "TeamBusy",
                f"Slurm at {self._url} keeps it, because jobs of it are still active: {message}",
                "wait for them, or end them:  squeue --account=TEAM",
            )
        from_accounting = any((e.source or "").startswith(_ACCOUNTING_SOURCES) for e in errors)
        if numbers & _ACCOUNTING_AWAY or (from_accounting and status >= HTTPStatus.INTERNAL_SERVER_ERROR):
            raise Unreachable(
                "AccountingUnreachable",
                f"slurmrestd at {self._url} responds, but its slurmdbd does not: {message}",
                "on slurmdbd's host:  systemctl status slurmdbd; running jobs continue",
            )
        if numbers & _CONTROLLER_AWAY or status in (502, 503, 504):
            raise Unreachable(
                "ControllerUnreachable",
                f"slurmrestd at {self._url} responds, but its slurmctld does not: {message}",
                "on slurmctld's host:  scontrol ping; systemctl status slurmctld",
            )
        if 400 <= status < 500:
            raise Refused(
                "EngineRefused",
                f"slurmrestd at {self._url} refused ({status}): {message}",
                "journalctl -u slurmrestd",
            )
        raise Unreachable(
            "EngineFailed",
            f"Slurm at {self._url} failed ({status}): {message}",
            "journalctl -u slurmrestd -u slurmctld",
        )


def _errors(content: bytes) -> tuple[ReplyError, ...]:
    """Parse the errors of a reply; some replies are plain text."""
    try:
        return msgspec.json.decode(content, type=Reply).errors
    except (msgspec.MsgspecError, UnicodeDecodeError):
        text = content[:200].decode("utf-8", errors="replace").strip()
        return (ReplyError(error=text),) if text else ()
