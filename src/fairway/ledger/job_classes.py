"""What jobs have in common: looked up, and made when they are new."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple, dataclass

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

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

# Always in the same order: two who make the same ones at once then wait for, and never block, each other.
_MAKE = text(f"""
    INSERT INTO job_class ({_ALIKE})
    SELECT {_ALIKE} FROM {_ARRAYS} ORDER BY {_ALIKE}
    ON CONFLICT DO NOTHING
""")  # noqa: S608


@dataclass(frozen=True, slots=True)
class JobClass:
    """Whose a job is and where it goes; empty: none."""

    cluster: str
    user: str
    team: str
    pool: str
    slice: str
    priority: str
    native: bool


async def numbers(connection: AsyncConnection, classes: Iterable[JobClass]) -> dict[JobClass, int]:
    """The number of each, made if need be."""
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
