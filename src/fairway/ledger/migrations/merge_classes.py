"""Merge job classes that a downgrade makes alike: rows of the younger ones move to the oldest."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from alembic import op

_MERGED = """
    CREATE TEMPORARY TABLE merged_class ON COMMIT DROP AS
    SELECT id AS old, class FROM (
        SELECT id, min(id) OVER (PARTITION BY {}) AS class FROM job_class
    ) AS alike WHERE id <> class
"""

_MOVE = "UPDATE {0} SET class = merged.class FROM merged_class AS merged WHERE {0}.class = merged.old"

_ADD_SUMS = """
    WITH moved AS (
        DELETE FROM {0} USING merged_class AS merged WHERE {0}.class = merged.old
        RETURNING {1}, merged.class AS into_class, {2}
    )
    INSERT INTO {0} ({1}, class, {2}) SELECT {1}, into_class, {3} FROM moved GROUP BY {1}, into_class
    ON CONFLICT ({1}, class) DO UPDATE SET {4}
"""


def merge_classes(key: Sequence[str], sums: Sequence[str]) -> None:
    """Merge classes that differ in none of the columns `key`. `sums` are the tables with sums by class."""
    op.execute(_MERGED.format(", ".join(key)))
    for table in ("job", "metered", "usage"):
        op.execute(_MOVE.format(table))
    for table in sums:
        _add_sums(table)
    op.execute("DELETE FROM job_class USING merged_class WHERE id = old")
    op.execute("DROP TABLE merged_class")  # a later step of the same transaction may merge more


def _add_sums(table: str) -> None:
    """Add up the rows of merged classes; a peak is the highest of them."""
    inspector = sa.inspect(op.get_bind())
    key = [name for name in inspector.get_pk_constraint(table)["constrained_columns"] if name != "class"]
    columns = [one["name"] for one in inspector.get_columns(table) if one["name"] not in (*key, "class")]
    peaks = {name for name in columns if name.endswith("_peak")}
    sums = ", ".join(f"max({name})" if name in peaks else f"sum({name})" for name in columns)
    sets = ", ".join(
        f"{name} = greatest({table}.{name}, excluded.{name})"
        if name in peaks
        else f"{name} = {table}.{name} + excluded.{name}"
        for name in columns
    )
    op.execute(_ADD_SUMS.format(table, ", ".join(key), ", ".join(columns), sums, sets))
