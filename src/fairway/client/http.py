"""Calls as values: what to ask, and how to read the answer. Both clients share all but the sending."""

from __future__ import annotations

import ssl
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar

import httpx2
from pydantic import BaseModel, ValidationError

from fairway import __version__
from fairway.client.contexts import Target
from fairway.model.errors import FairwayError, PermanentError, TemporaryError
from fairway.model.hosts import is_loopback
from fairway.wire import fleet as wire

TIMEOUT: Final = httpx2.Timeout(30.0, connect=5.0)
PAUSES_SECONDS: Final = (0.1, 0.4)
"""Before each further try of what may be asked twice."""
MOST_PAGES: Final = 100_000
_RETRIED: Final = frozenset({502, 503, 504})

Answer = TypeVar("Answer", bound=BaseModel)


class ServerUnreachable(TemporaryError):
    """Nobody answers at that URL, or not in time."""


class ServerRefused(PermanentError):
    """The server answered no; code and hint are its own, `faults` is all that is wrong with what was sent."""

    def __init__(self, code: str, message: str, hint: str, faults: Sequence[wire.Fault] = ()) -> None:
        super().__init__(code, message, hint)
        self.faults = tuple(faults)


class ServerFailed(TemporaryError):
    """The server answered that it cannot now."""


@dataclass(frozen=True, slots=True)
class Call(Generic[Answer]):
    """One request."""

    method: str
    path: str
    answer: type[Answer]
    params: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    """JSON."""
    timeout: httpx2.Timeout | None = None
    """None: the client's own."""
    again: bool = False
    """Whether asking twice is asking once: a create whose answer was lost may have happened."""

    @property
    def pauses(self) -> tuple[float, ...]:
        """How long to wait before each further try."""
        return PAUSES_SECONDS if self.again else ()


def get(path: str, answer: type[Answer], params: Sequence[tuple[str, object]] = ()) -> Call[Answer]:
    """A read; parameters that are None are left out."""
    said = tuple((key, str(value)) for key, value in params if value is not None)
    return Call("GET", path, answer, said, again=True)


def post(
    path: str,
    asked: BaseModel,
    answer: type[Answer],
    *,
    again: bool = False,
    timeout: httpx2.Timeout | None = None,
) -> Call[Answer]:
    """A request with a body."""
    body = asked.model_dump_json(by_alias=True).encode()
    return Call("POST", path, answer, body=body, again=again, timeout=timeout)


def next_page(call: Call[Answer], cursor: str) -> Call[Answer]:
    """The call for the page that begins at `cursor`."""
    params = tuple(p for p in call.params if p[0] != "cursor")
    return replace(call, params=(*params, ("cursor", cursor)))


class Exchange:
    """What is the same for every call to one server: how to connect, and what its answers mean."""

    def __init__(self, target: Target) -> None:
        self.url: Final = target.url
        headers = {"User-Agent": f"fairway/{__version__}", "Accept": "application/json"}
        if target.token:
            headers["Authorization"] = f"Bearer {target.token}"
        self.connecting: Final[dict[str, Any]] = {
            "base_url": target.url,
            "headers": headers,
            "verify": _trust(target.ca_file) if target.url.startswith("https:") else False,
            # A proxy from the environment must not see the token of a server on loopback.
            "trust_env": not is_loopback(httpx2.URL(target.url).host),
        }

    def sending(self, call: Call[Answer], timeout: httpx2.Timeout) -> dict[str, Any]:
        """The arguments of a request."""
        return {
            "method": call.method,
            "url": call.path,
            "params": list(call.params) or None,
            "content": call.body,
            "headers": {"Content-Type": "application/json"} if call.body is not None else None,
            "timeout": call.timeout or timeout,
        }

    def read(self, call: Call[Answer], response: httpx2.Response) -> Answer:
        """The answer, or the refusal as an error."""
        if not response.is_success:
            raise self.refused(response)
        try:
            return call.answer.model_validate_json(response.content)
        except ValidationError as error:
            raise self._not_fairway(response.status_code) from error

    def lost(self, error: Exception) -> FairwayError:
        """What no answer means."""
        slow = isinstance(error, httpx2.TimeoutException)
        why = "it did not answer in time" if slow else str(error) or type(error).__name__
        return ServerUnreachable(
            "ServerUnreachable",
            f"no server answers at {self.url}: {why}",
            "start one:  fairway server -f fleet.yaml   or choose another:  fairway context list",
        )

    def endless(self, path: str) -> FairwayError:
        """A list whose pages never end."""
        return ServerRefused("EndlessList", f"{self.url}{path} never ends", "report it as a defect")

    def refused(self, response: httpx2.Response) -> FairwayError:
        """What an answer that is no success means."""
        try:
            problem = wire.Problem.model_validate_json(response.content)
        except ValidationError:
            return self._not_fairway(response.status_code)
        if response.status_code in _RETRIED:
            return ServerFailed(problem.code, problem.detail, problem.hint)
        return ServerRefused(problem.code, problem.detail, problem.hint, problem.faults)

    def _not_fairway(self, status: int) -> FairwayError:
        kind = ServerFailed if status in _RETRIED else ServerRefused
        return kind(
            "NotFairway",
            f"what answers at {self.url} (HTTP {status}) does not speak Fairway's API",
            "look at the URL:  fairway context list",
        )


def _trust(ca_file: str | None) -> ssl.SSLContext:
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:
        raise PermanentError(
            "CertificateNotReadable", f"cannot use the CA file {ca_file}: {error}", "fairway context list"
        ) from error
