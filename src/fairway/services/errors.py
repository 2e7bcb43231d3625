"""Errors that services raise for the caller to read. The API and the pages translate them."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum
from typing import Final

from fairway.model.errors import FairwayError
from fairway.model.text import first_few
from fairway.wire.fleet import Fault

_MAX_NAMED: Final = 10
"""How many jobs a message names before it only counts."""


class ErrorKind(StrEnum):
    """Why a request failed, apart from any protocol; the API maps each kind to an HTTP status."""

    INVALID = "invalid"
    """The request is malformed or contradicts itself."""
    FORBIDDEN = "forbidden"
    """The caller may not do this."""
    NOT_FOUND = "not found"
    """The request names something that does not exist."""
    CONFLICT = "conflict"
    """The request contradicts the current state."""
    ENGINE_FAILED = "engine failed"
    """A cluster did not respond, or refused."""


class RequestError(FairwayError):
    """An error of a request, with a code, a message and a hint written for the caller.

    Other FairwayErrors may name hosts and files of the server: they go to the log, not to callers.
    """

    def __init__(
        self, kind: ErrorKind, code: str, message: str, hint: str, *, faults: Sequence[Fault] = ()
    ) -> None:
        super().__init__(code, message, hint)
        self.kind = kind
        self.faults = list(faults)

    @classmethod
    def wrap(cls, kind: ErrorKind, error: FairwayError) -> RequestError:
        """Show `error` to the caller as it is. Only for errors whose text is safe to show."""
        return cls(kind, error.code, error.message, error.hint)


def no_such_job(words: Sequence[str], what_for: str = "") -> RequestError:
    """Build the error for ids that do not exist."""
    return RequestError(
        ErrorKind.NOT_FOUND,
        "NoSuchJob",
        f"there is no job {first_few(words, _MAX_NAMED)} {what_for}".rstrip(),
        "list jobs with  fairway get jobs;  use an id (8f3k), a name, or an engine id (1542, hpc/1542)",
    )
