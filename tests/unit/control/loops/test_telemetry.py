"""The telemetry loop reads no window for which it does not know who held GPUs."""

from __future__ import annotations

from typing import Any

import psycopg
import pytest

from fairway.control.loops.telemetry import ReadTelemetry
from fairway.files import parse_fleet
from fairway.ledger import Ledger
from fairway.model.fleet import Telemetry
from fairway.services.fleets import Fleets, LastApplied
from fairway.telemetry.prometheus import MatrixRow, VectorRow

FLEET = parse_fleet(
    "apiVersion: fairway/v1alpha1\nkind: Fleet\nname: acme\ncurrency: USD\n"
    "clusters: { hpc: { engine: virtual } }\n",
    "fleet.yaml",
)
START = 1_200_000


class Silent:
    """A Prometheus that has nothing."""

    def __init__(self, source: Telemetry) -> None:
        pass

    async def vector(self, query: str, at: float) -> tuple[VectorRow, ...]:
        return ()

    async def matrix(self, query: str, at: float) -> tuple[MatrixRow, ...]:
        return ()

    async def close(self) -> None:
        pass


@pytest.fixture
def db(database_url: str) -> Any:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


async def test_it_waits_for_the_mirror(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    await ledger.revisions.add("fleet", "digest", "test")
    name = FLEET.clusters[0].name
    applied = LastApplied(name, ledger, Fleets(ledger, lambda _: FLEET))
    now = [float(START)]
    step = ReadTelemetry(
        name,
        Telemetry("http://127.0.0.1:9"),
        ledger,
        applied,
        clock=lambda: now[0],
        prometheus=Silent,  # type: ignore[arg-type]
    )
    lease = await ledger.leases.take("telemetry", name, "test", 60)
    assert lease is not None

    async def read_to() -> int:
        await step(lease)
        mark = await ledger.gpu_use.mark(name)
        assert mark is not None
        return mark.read_to - START

    def followed(to: int) -> None:
        db.execute(
            "INSERT INTO mirror_mark (cluster, mark, at) VALUES ('hpc', 'm', to_timestamp(%s))"
            " ON CONFLICT (cluster) DO UPDATE SET at = excluded.at",
            (START + to,),
        )

    assert await read_to() == -300
    followed(310)
    now[0] += 2000
    assert await read_to() == 300
    assert await read_to() == 300
    followed(900)
    assert await read_to() == 900
    followed(5000)
    assert await read_to() == 1800  # a minute after the end of a window
    await step.close()
