"""Define the errors of Fairway: each has a code for programs, a message for users, and a hint."""

from __future__ import annotations


class FairwayError(Exception):
    """An error meant for users. Any other exception that reaches a user is a bug.

    `code` is PascalCase and stable: scripts match on it, the docs have a page for it.
    `hint` says what to do, if possible with a command to run; never empty.
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.add_note(f"hint: {hint}")  # shown below the message where Python prints the exception
        self.code = code
        self.message = message
        self.hint = hint


class TemporaryError(FairwayError):
    """An error that may go away by itself: loops back off and retry."""


class PermanentError(FairwayError):
    """An error that stays until something is changed: loops report it and use a long interval."""


class Refused(PermanentError):
    """An engine refused a request: bad credentials, missing permissions, a job that could never run."""
