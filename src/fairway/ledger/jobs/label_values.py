"""Bound the values of labels and the projects that count apart in sums of usage."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger.sql_values import arrays
from fairway.model.labels import MAX_NEW_VALUES, OTHER_VALUE, VALUE_DAYS

# Of each key at most so many values are new within some days. Two transactions may add a few more.
_ADD_VALUES = text("""
    INSERT INTO label_value (key, value)
    SELECT key, value FROM (
        SELECT key, value, row_number() OVER (PARTITION BY key ORDER BY value) AS place
        FROM unnest(CAST(:keys AS text[]), CAST(:values AS text[])) AS wanted (key, value)
        WHERE NOT EXISTS (
            SELECT FROM label_value AS known WHERE known.key = wanted.key AND known.value = wanted.value
        )
    ) AS new
    WHERE place <= :most - (
        SELECT count(*) FROM label_value AS known
        WHERE known.key = new.key AND added_at > now() - make_interval(days => :days)
    )
    ORDER BY key, value
    ON CONFLICT DO NOTHING
""")

_KNOWN_VALUES = text("""
    SELECT key, value FROM label_value
    JOIN unnest(CAST(:keys AS text[]), CAST(:values AS text[])) AS wanted (key, value) USING (key, value)
""")

# When a value last became `(other)`.
_NOTE_OTHER = text("""
    INSERT INTO label_value (key, value) SELECT key, :other FROM unnest(CAST(:keys AS text[])) AS key
    ORDER BY key ON CONFLICT (key, value) DO UPDATE SET added_at = excluded.added_at
    WHERE label_value.added_at < now() - interval '1 minute'
""")

# Of each key of which a job of the cluster became `(other)` today; empty: projects.
LIMITED = text(f"""
    SELECT key FROM label_value
    WHERE value = '{OTHER_VALUE}' AND added_at > now() - interval '1 day' AND EXISTS (
        SELECT FROM job_class WHERE cluster = :cluster AND '{OTHER_VALUE}' =
            CASE WHEN label_value.key = '' THEN project ELSE labels ->> label_value.key END
    )
    ORDER BY key
""")  # noqa: S608


async def known(connection: AsyncConnection, wanted: Sequence[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return which keys and values count apart, adding new ones as long as there are not too many.

    The key of projects is empty.
    """
    parameters = arrays(wanted, "keys", "values")
    await connection.execute(_ADD_VALUES, parameters | {"most": MAX_NEW_VALUES, "days": VALUE_DAYS})
    found = {(key, value) for key, value in await connection.execute(_KNOWN_VALUES, parameters)}
    if others := sorted({key for key, value in wanted if (key, value) not in found}):
        await connection.execute(_NOTE_OTHER, {"keys": others, "other": OTHER_VALUE})
    return found
