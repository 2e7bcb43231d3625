"""Whether anything changed: a few numbers a topic, read in one statement that costs the same on any ledger.

Open pages ask again and again, so nothing here may grow with jobs or usage. Where a table has no small index
that tells, PostgreSQL's own counters of its rows do: they need no write, count on every server alike, and
lag behind a commit by a second or so, by ten at most.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from sqlalchemy import text

from fairway.ledger.connection import Connections
from fairway.ledger.policy_records import OPEN_STATES
from fairway.model.job import JobState


class Topic(StrEnum):
    """What a page may be about."""

    NODES = "nodes"
    """Clusters, pools, nodes and what is in use of them."""
    JOBS = "jobs"
    POLICY = "policy"
    """Fleet, applies, drift, nudges."""
    COST = "cost"
    """Budgets and spending."""


def _written(table: str) -> str:
    """How many rows were ever written to a table, in SQL."""
    counters = ("inserted", "updated", "deleted")
    return " + ".join(f"pg_stat_get_tuples_{c}('{table}'::regclass)" for c in counters)


_OPEN: Final = ", ".join(f"'{state.value}'" for state in OPEN_STATES)

# What runs costs something every second: while anything does, the minute is part of the version.
_VERSIONS = text(f"""
    SELECT
        (SELECT hashtextextended(string_agg(concat_ws(' ', cluster, reachable, code, since, engine_version,
            encode(digest, 'hex')), ',' ORDER BY cluster), 0) FROM cluster_state)
        AS nodes,
        concat_ws(' ', (SELECT max(id) FROM job), {_written("job")}, {_written("job_event")})
        AS jobs,
        concat_ws(' ',
            (SELECT max(id) FROM fleet_revision), (SELECT max(id) FROM apply), (SELECT max(id) FROM nudge),
            (SELECT string_agg(concat_ws(' ', apply, cluster, state, done), ',' ORDER BY apply, cluster)
                FROM apply_cluster WHERE state IN ({_OPEN})), {_written("drift")})
        AS policy,
        concat_ws(' ', (SELECT max(id) FROM budget_event), {_written("usage_hour")},
            {_written("price_point")}, {_written("closed_month")},
            CASE WHEN EXISTS (SELECT FROM job WHERE state = '{JobState.RUNNING.value}')
                THEN date_trunc('minute', now()) END)
        AS cost
""")  # noqa: S608 - only names of our own


async def versions(connections: Connections) -> dict[Topic, str]:
    """A word for each topic that is another one whenever the topic changed, and rarely otherwise."""
    async with connections.single() as connection:
        row = (await connection.execute(_VERSIONS)).one()
    return {topic: str(row._mapping[topic.value]) for topic in Topic}
