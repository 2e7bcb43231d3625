"""Writes attempts: two statements, whatever their number."""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection

from fairway.ledger import job_specs
from fairway.ledger.sightings import Merged

_PUT = text("""
    INSERT INTO attempt (
        job, number, engine_id, started_at, ended_at, ending, exit_code, signal, devices, nodes, reason
    )
    SELECT job, number, engine_id, started_at, ended_at, ending, exit_code, signal, devices,
        ARRAY(SELECT jsonb_array_elements_text(nodes)), reason
    FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS seen (
        job bigint, number int, engine_id text, started_at timestamptz, ended_at timestamptz, ending text,
        exit_code int, signal int, devices int, nodes jsonb, reason text
    )
    ON CONFLICT (job, number) DO UPDATE SET
        engine_id = excluded.engine_id, started_at = excluded.started_at, ended_at = excluded.ended_at,
        ending = excluded.ending, exit_code = excluded.exit_code, signal = excluded.signal,
        devices = excluded.devices, nodes = excluded.nodes, reason = excluded.reason
""")

_DROP = text("""
    DELETE FROM attempt USING unnest(CAST(:jobs AS bigint[]), CAST(:numbers AS int[])) AS gone (job, number)
    WHERE attempt.job = gone.job AND attempt.number = gone.number
""")


async def write(connection: AsyncConnection, attempts: Sequence[tuple[int, str, Merged]]) -> None:
    """Make the ledger show what changed of these attempts: job, engine job, what to put and what is gone."""
    gone = [(job, number) for job, _, merged in attempts for number in merged.gone]
    if gone:
        values = {"jobs": [job for job, _ in gone], "numbers": [number for _, number in gone]}
        await connection.execute(_DROP, values)
    rows: list[dict[str, object]] = [
        {
            "job": job,
            "number": n.number,
            "engine_id": engine_id,
            "started_at": n.attempt.started_at,
            "ended_at": n.attempt.ended_at,
            "ending": n.attempt.ending,
            "exit_code": n.attempt.exit_code,
            "signal": n.attempt.signal,
            "devices": n.attempt.devices,
            "nodes": n.attempt.nodes,
            "reason": n.attempt.reason,
        }
        for job, engine_id, merged in attempts
        for n in merged.put
    ]
    if rows:
        await connection.execute(_PUT, {"rows": job_specs.compact(rows)})
