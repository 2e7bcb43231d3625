"""Decode responses as records: for tables, without pydantic, whose import takes longer than most requests."""

from __future__ import annotations

import json
from datetime import datetime
from decimal import Decimal
from typing import Any, Final

from fairway.model.job import JobState

_TIMES: Final = frozenset({"at", "earliest", "expected", "latest", "read_to", "since"})
_AMOUNTS: Final = frozenset({"amount", "per_hour", "price_change", "price_per_gpu_hour", "saved_money"})


class Record(dict[str, Any]):
    """A JSON object with the attributes of its wire type; an absent field is None.

    Times, amounts and states of jobs are converted. Other enumerations stay strings, which are equal to their
    members. A test compares this with every wire type that a Reader returns.
    """

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = self.get(name)
        return _converted(name, value) if isinstance(value, str) else value


def is_time(name: str) -> bool:
    """Return whether fields of this name are times."""
    return name in _TIMES or name.endswith("_at")


def _converted(name: str, value: str) -> Any:
    if is_time(name):
        return datetime.fromisoformat(value)
    if name in _AMOUNTS:
        return Decimal(value)
    return JobState(value) if name == "state" and value in _STATES else value


_STATES: Final = frozenset(state.value for state in JobState)


def decode(body: bytes) -> Record:
    """Decode a response. Raises ValueError if it is not a JSON object."""
    document = json.loads(body, object_hook=Record)
    if not isinstance(document, Record):
        raise ValueError("the response is not a JSON object")  # noqa: TRY004 - of what was sent
    return document
