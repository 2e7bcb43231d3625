"""How anything in Fairway says no: a code for programs, a message for people, a hint that helps."""

from __future__ import annotations


class FairwayError(Exception):
    """An error meant to be read by a user. Anything else that reaches one is a defect.

    `code` is PascalCase and stable: scripts match on it, the docs have a page for it.
    `hint` is a thing to do, if possible a command to run; never empty.
    """

    def __init__(self, code: str, message: str, hint: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message
        self.hint = hint


class TemporaryError(FairwayError):
    """May go away by itself: loops back off and try again."""


class PermanentError(FairwayError):
    """Stays until somebody changes something: loops report it and keep a long interval."""
