"""Real PostgreSQL in the lab."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from lab import Instance
from tests.lab.driving import LOOPBACK, addresses_of, assert_nothing_is_left, lab, launch, ports, status, up

pytestmark = [pytest.mark.lab, pytest.mark.timeout(120)]


@pytest.fixture(scope="module")
def postgres() -> Iterator[Instance]:
    instance = up("postgres", "pg")
    yield instance
    instance.wipe()
    assert_nothing_is_left(instance)


def connect(instance: Instance) -> psycopg.Connection[tuple[object, ...]]:
    url = instance.env()["DATABASE_URL"].replace("postgresql+psycopg:", "postgresql:")
    return psycopg.connect(url, connect_timeout=5, autocommit=True)


def test_it_answers(postgres: Instance) -> None:
    with connect(postgres) as session:
        assert session.execute("select 1").fetchone() == (1,)
    assert (
        lab("run", "pg", "psql", "-Atc", "select current_user, current_database()").strip()
        == "fairway|fairway"
    )


def test_only_those_who_know_the_password_come_in(postgres: Instance) -> None:
    wrong = f"postgresql://fairway:wrong@127.0.0.1:{postgres.port('sql')}/fairway"
    with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
        psycopg.connect(wrong, connect_timeout=5)
    with psycopg.connect(
        f"host={postgres.folder / 'socket'} port={postgres.port('sql')} user=fairway"
    ) as session:
        assert session.execute("select 1").fetchone() == (1,)


def test_it_listens_on_loopback(postgres: Instance) -> None:
    assert addresses_of(postgres) == {postgres.port("sql"): LOOPBACK}


def test_killed_it_comes_back_with_its_data(postgres: Instance) -> None:
    with connect(postgres) as session:
        session.execute("create table kept (number int)")
        session.execute("insert into kept values (42)")
        # A client that stays keeps a server process, and with it the shared memory, alive.
        lab("kill", "pg", "postgres")
        assert status("pg")["state"] == "down"
        up("postgres", "pg")
    with connect(postgres) as session:
        assert session.execute("select number from kept").fetchone() == (42,)


def test_down_leaves_nothing_but_data_even_with_a_client(postgres: Instance) -> None:
    with connect(postgres) as session:
        session.execute("create table also_kept (number int)")
        lab("down", "pg")
        assert_nothing_is_left(postgres)
    lab("down", "pg")  # again: nothing to do
    up("postgres", "pg")
    with connect(postgres) as session:
        assert session.execute("select count(*) from also_kept").fetchone() == (0,)


def test_racing_ups_do_not_collide() -> None:
    names = ["race-1", "race-2", "race-2", "race-3"]  # one of them even twice
    racers = [launch("up", "postgres", "--name", name) for name in names]
    for racer in racers:
        _, complained = racer.communicate(timeout=100)
        assert racer.returncode == 0, complained
    instances = [up("postgres", name) for name in sorted(set(names))]
    try:
        taken = [port for instance in instances for port in ports(instance)]
        assert len(taken) == len(set(taken)) == 3
        for instance in instances:
            with connect(instance) as session:
                assert session.execute("select 1").fetchone() == (1,)
            assert len(addresses_of(instance)) == 1
    finally:
        lab("wipe", *sorted(set(names)))
    for instance in instances:
        assert_nothing_is_left(instance)
