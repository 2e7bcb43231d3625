"""How a job's specification, and what tells one request from another, are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

import msgspec

from fairway.ledger.job_records import NewJob
from fairway.model.job import JobSpec


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError


# Sorted, so that the same jobs always have the same digest.
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain, order="sorted")
_DECODER: Final = msgspec.json.Decoder(JobSpec)


def encoded(spec: JobSpec) -> str:
    """As text. Fields that a later Fairway adds have their defaults when an older row is read."""
    return _ENCODER.encode(spec).decode()


def decoded(text: str) -> JobSpec:
    """The same again."""
    return _DECODER.decode(text)


def digest(jobs: Sequence[NewJob]) -> bytes:
    """Of what was asked for, not of what was decided: a request that is repeated may be decided otherwise."""
    total = blake2b(digest_size=16)
    for job in jobs:
        total.update(_ENCODER.encode((job.spec, job.user, job.hold)))
    return total.digest()


def ranges(numbers: Sequence[int]) -> str:
    """Ids in few characters: `17-2016,2040-2041`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" for first, last in runs)


def unranged(text: str) -> list[int]:
    """The same again."""
    pairs = (run.split("-") for run in text.split(",") if run)
    return [number for first, last in pairs for number in range(int(first), int(last) + 1)]


def compact(rows: Sequence[Mapping[str, object]]) -> str:
    """Rows for `jsonb_to_recordset`."""
    return msgspec.json.encode(rows).decode()
