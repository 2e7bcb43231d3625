"""Detect changes: a version string per topic, read in one statement of constant cost.

Open pages poll it, so nothing here may grow with jobs or usage. Where a table has no small index that shows
a change, PostgreSQL's statistics counters of its rows do: they need no write, count the writes of every
server, and lag behind a commit by about a second, by ten at most.
"""

from __future__ import annotations

from enum import StrEnum

from sqlalchemy import text

from fairway.ledger.connection import LedgerStore
from fairway.ledger.schema.tables import OPEN_APPLIES_SQL
from fairway.model.job import JobState


class Topic(StrEnum):
    """The subject of a page."""

    NODES = "nodes"
    """Clusters, pools, nodes and how many of their devices are in use."""
    JOBS = "jobs"
    POLICY = "policy"
    """Fleet, applies, drift, interventions."""
    COST = "cost"
    """Budgets and spending."""


def _written(table: str) -> str:
    """Return SQL for the number of rows ever written to a table."""
    counters = ("inserted", "updated", "deleted")
    return " + ".join(f"pg_stat_get_tuples_{c}('{table}'::regclass)" for c in counters)


# What runs costs something every second: while anything does, the minute is part of the version.
_VERSIONS = text(f"""
    SELECT
        concat_ws(' ',
            (SELECT hashtextextended(string_agg(concat_ws(' ', cluster, reachable, code, since,
                engine_version, encode(digest, 'hex')), ',' ORDER BY cluster), 0) FROM cluster_state),
            (SELECT hashtextextended(string_agg(concat_ws(' ', cluster, type, code, message, detail), ','
                ORDER BY cluster, type), 0) FROM cluster_condition))
        AS nodes,
        concat_ws(' ', (SELECT max(id) FROM job), {_written("job")}, {_written("job_event")})
        AS jobs,
        concat_ws(' ',
            (SELECT max(id) FROM fleet_revision), (SELECT max(id) FROM apply), (SELECT max(id) FROM nudge),
            (SELECT string_agg(concat_ws(' ', apply, cluster, state, done), ',' ORDER BY apply, cluster)
                FROM apply_cluster WHERE state IN ({OPEN_APPLIES_SQL})),
            {_written("drift")}, {_written("cluster_condition")})
        AS policy,
        concat_ws(' ', (SELECT max(id) FROM budget_event), {_written("usage_hour")},
            {_written("price_point")}, {_written("closed_month")},
            CASE WHEN EXISTS (SELECT FROM job WHERE state = '{JobState.RUNNING.value}')
                THEN date_trunc('minute', now()) END)
        AS cost
""")  # noqa: S608 - only names of our own


class ChangeFeed(LedgerStore):
    """Reports which topics changed."""

    async def versions(self) -> dict[Topic, str]:
        """Return a version string per topic that differs whenever the topic changed, and rarely otherwise."""
        (row,) = await self._fetch(_VERSIONS)
        return {topic: str(row._mapping[topic.value]) for topic in Topic}
