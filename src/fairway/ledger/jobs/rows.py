"""Job classes: look up the shared attributes of jobs, and insert new ones."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass
from hashlib import blake2b
from types import MappingProxyType
from typing import Any, Final

import msgspec
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.records.jobs import NewJob
from fairway.model.job import JobSpec


def _plain(value: Any) -> Any:
    if isinstance(value, MappingProxyType):
        return dict(value)
    raise NotImplementedError


# Sorted, so that the same jobs always have the same digest.
_ENCODER: Final = msgspec.json.Encoder(enc_hook=_plain, order="sorted")

_DECODER: Final = msgspec.json.Decoder(JobSpec)


def encoded(spec: JobSpec) -> str:
    """Encode a spec as JSON. Fields that a later version adds have their defaults when an old row is read."""
    return _ENCODER.encode(spec).decode()


def decoded(text: str) -> JobSpec:
    """Decode a spec encoded by `encoded`."""
    return _DECODER.decode(text)


def digest(jobs: Sequence[NewJob]) -> bytes:
    """Hash what was requested, not what was decided: a repeated request may be decided differently."""
    total = blake2b(digest_size=16)
    for job in jobs:
        total.update(_ENCODER.encode((job.spec, job.user, job.hold)))
    return total.digest()


def ranges(numbers: Sequence[int]) -> str:
    """Format ids as compact ranges: `17-2016,2040-2041`."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}-{last}" for first, last in runs)


def unranged(text: str) -> list[int]:
    """Parse ids formatted by `ranges`."""
    pairs = (run.split("-") for run in text.split(",") if run)
    return [number for first, last in pairs for number in range(int(first), int(last) + 1)]


def compact(rows: Sequence[Mapping[str, object]]) -> str:
    """Encode rows for `jsonb_to_recordset`."""
    return msgspec.json.encode(rows).decode()


_ARRAYS = """
    unnest(
        CAST(:clusters AS text[]), CAST(:users AS text[]), CAST(:teams AS text[]), CAST(:pools AS text[]),
        CAST(:slices AS text[]), CAST(:priorities AS text[]), CAST(:natives AS bool[])
    ) WITH ORDINALITY AS wanted (cluster, user_name, team, pool, slice, priority, native, place)
"""

_ALIKE = "cluster, user_name, team, pool, slice, priority, native"


_FIND = text(f"""
    SELECT wanted.place, job_class.id FROM {_ARRAYS}
    JOIN job_class USING ({_ALIKE})
""")  # noqa: S608


# Always in the same order, so that two transactions that insert the same classes cannot deadlock.
_MAKE = text(f"""
    INSERT INTO job_class ({_ALIKE})
    SELECT {_ALIKE} FROM {_ARRAYS} ORDER BY {_ALIKE}
    ON CONFLICT DO NOTHING
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class JobClass:
    """The owner and placement of a job; an empty string means none."""

    cluster: str
    user: str
    team: str
    pool: str
    slice: str
    priority: str
    native: bool


async def numbers(connection: AsyncConnection, classes: Iterable[JobClass]) -> dict[JobClass, int]:
    """Return the id of each class, inserting those that are missing."""
    wanted = sorted(set(classes), key=astuple)
    if not wanted:
        return {}
    found = await _found(connection, wanted)
    missing = [c for c in wanted if c not in found]
    if missing:
        await connection.execute(_MAKE, _arrays(missing))
        found |= await _found(connection, missing)
    return found


async def _found(connection: AsyncConnection, wanted: list[JobClass]) -> dict[JobClass, int]:
    rows = await connection.execute(_FIND, _arrays(wanted))
    return {wanted[place - 1]: number for place, number in rows}


def _arrays(classes: list[JobClass]) -> dict[str, object]:
    return {
        "clusters": [c.cluster for c in classes],
        "users": [c.user for c in classes],
        "teams": [c.team for c in classes],
        "pools": [c.pool for c in classes],
        "slices": [c.slice for c in classes],
        "priorities": [c.priority for c in classes],
        "natives": [c.native for c in classes],
    }
