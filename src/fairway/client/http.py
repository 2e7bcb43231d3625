"""Requests as values, and their translation to and from httpx2. Both clients share all but the sending."""

from __future__ import annotations

import random
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import httpx2
from pydantic import BaseModel, RootModel, ValidationError

from fairway import __version__
from fairway.client.contexts import Target
from fairway.model.errors import FairwayError, PermanentError, TemporaryError
from fairway.model.hosts import is_loopback
from fairway.wire import fleet as wire

TIMEOUT: Final = httpx2.Timeout(30.0, connect=5.0)
RETRY_DELAYS_SECONDS: Final = (0.1, 0.4)
"""Delays before each retry of an idempotent request."""
BUSY: Final = "ServerBusy"
BUSY_SECONDS: Final = 60.0
"""How long a busy server is asked again."""
MAX_PAGES: Final = 100_000
_TEMPORARY_STATUSES: Final = frozenset({502, 503, 504})

Response = TypeVar("Response", bound=BaseModel)


class ServerUnreachable(TemporaryError):
    """Raised if no server responds at the URL, or not in time."""


class ServerRefused(PermanentError):
    """Raised if the server refuses a request: code and hint are the server's, `faults` lists every fault."""

    def __init__(self, code: str, message: str, hint: str, faults: Sequence[wire.Fault] = ()) -> None:
        super().__init__(code, message, hint)
        self.faults = tuple(faults)


class ServerFailed(TemporaryError):
    """Raised if the server responds that it is temporarily unavailable."""

    def __init__(self, code: str, message: str, hint: str, retry_after: float | None = None) -> None:
        super().__init__(code, message, hint)
        self.retry_after = retry_after
        """The seconds after which to try again, if the server did nothing and says when."""


@dataclass(frozen=True, slots=True)
class ApiRequest(Generic[Response]):
    """A request to the API and the type of its response."""

    method: str
    path: str
    response_type: type[Response]
    params: tuple[tuple[str, str], ...] = ()
    body: BaseModel | None = None
    timeout: httpx2.Timeout | None = None
    """None is the client's own timeout."""
    idempotent: bool = False
    """Whether the request may be retried: a create whose response was lost may have been executed."""


class Retries:
    """When to send one request again."""

    def __init__(self, *, idempotent: bool, random: Callable[[], float] = random.random) -> None:
        self._delays = iter(RETRY_DELAYS_SECONDS if idempotent else ())
        self._busy_seconds = 0.0
        self._random = random

    def delay(self, error: TemporaryError) -> float:
        """Return the seconds to wait before the next attempt. Raises the error if there is none.

        A busy server has done nothing, so any request may be sent again: when it says, and not all at once.
        """
        after = error.retry_after if isinstance(error, ServerFailed) else None
        if after is None:
            delay = next(self._delays, None)
        else:
            delay = after * (1 + self._random() / 2)
            self._busy_seconds += delay
        if delay is None or self._busy_seconds > BUSY_SECONDS:
            raise error
        return delay


def get(
    path: str,
    response_type: type[Response],
    params: Sequence[tuple[str, object]] = (),
    timeout: httpx2.Timeout | None = None,
) -> ApiRequest[Response]:
    """Build a GET request, leaving out parameters that are None."""
    given = tuple((key, str(value)) for key, value in params if value is not None)
    return ApiRequest("GET", path, response_type, given, timeout=timeout, idempotent=True)


class Document(RootModel[dict[str, Any]]):
    """A response of any type: a JSON object."""


def next_page(request: ApiRequest[Response], cursor: str) -> ApiRequest[Response]:
    """Build the request for the page that begins at `cursor`."""
    params = tuple(p for p in request.params if p[0] != "cursor")
    return replace(request, params=(*params, ("cursor", cursor)))


class ApiCodec:
    """The translation between requests to one server and httpx2: connection, arguments, responses, errors."""

    def __init__(self, target: Target) -> None:
        self.url: Final = target.url
        headers = {"User-Agent": f"fairway/{__version__}", "Accept": "application/json"}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self.client_options: Final[dict[str, Any]] = {
            "base_url": target.url,
            "headers": headers,
            "verify": _ssl_context(target.ca_file) if target.url.startswith("https:") else False,
            # A proxy from the environment must not see the token of a server on loopback.
            "trust_env": not is_loopback(httpx2.URL(target.url).host),
        }

    def encode(self, request: ApiRequest[Response]) -> dict[str, Any]:
        """Return the arguments of httpx2's `request`."""
        body = request.body.model_dump_json(by_alias=True).encode() if request.body is not None else None
        return {
            "method": request.method,
            "url": request.path,
            "params": list(request.params) or None,
            "content": body,
            "headers": {"Content-Type": "application/json"} if body is not None else None,
            "timeout": request.timeout or httpx2.USE_CLIENT_DEFAULT,
        }

    def decode(self, request: ApiRequest[Response], response: httpx2.Response) -> Response:
        """Parse a response. Raises the error that it reports, or NotFairway if it cannot be parsed."""
        if not response.is_success:
            raise self.refused(response)
        try:
            return request.response_type.model_validate_json(response.content)
        except ValidationError as error:
            raise self._not_fairway(response.status_code) from error

    def unreachable(self, error: Exception) -> FairwayError:
        """Return the error for a request that got no response."""
        slow = isinstance(error, httpx2.TimeoutException)
        why = "it did not respond in time" if slow else str(error) or type(error).__name__
        return ServerUnreachable(
            "ServerUnreachable",
            f"cannot reach the server at {self.url}: {why}",
            "check the context:  fairway context list   or start a server:  fairway server -f fleet.yaml",
        )

    def endless(self, path: str) -> FairwayError:
        """Return the error for a list whose pages never end."""
        return ServerRefused("EndlessList", f"{self.url}{path} never ends", "report it as a bug")

    def refused(self, response: httpx2.Response) -> FairwayError:
        """Return the error that an unsuccessful response reports."""
        try:
            problem = wire.Problem.model_validate_json(response.content)
        except ValidationError:
            return self._not_fairway(response.status_code)
        if response.status_code in _TEMPORARY_STATUSES:
            return ServerFailed(problem.code, problem.detail, problem.hint, _retry_after(response, problem))
        return ServerRefused(problem.code, problem.detail, problem.hint, problem.faults)

    def _not_fairway(self, status: int) -> FairwayError:
        kind = ServerFailed if status in _TEMPORARY_STATUSES else ServerRefused
        return kind(
            "NotFairway",
            f"the server at {self.url} (HTTP {status}) is not a Fairway server",
            "check the URL:  fairway context list",
        )


def _retry_after(response: httpx2.Response, problem: wire.Problem) -> float | None:
    seconds = response.headers.get("retry-after", "")
    return float(seconds) if problem.code == BUSY and seconds.isdecimal() and len(seconds) < 4 else None


def _ssl_context(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise PermanentError(
            "CertificateNotReadable", f"cannot use the CA file {ca_file}: {error}", "fairway context list"
        ) from error
