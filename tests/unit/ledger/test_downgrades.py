"""The tables go back a step without losing what older Fairways keep, or say honestly that they cannot."""

from __future__ import annotations

import re
from pathlib import Path

import psycopg
import pytest
from alembic.config import Config
from alembic.script import ScriptDirectory

from fairway.ledger import DowngradeRefused, Ledger, LedgerNewer, LedgerNotMigrated, migrate
from fairway.ledger.records.jobs import JobFilter
from fairway.ledger.schema.tables import VERSION_TABLE
from fairway.model.access import Role
from fairway.model.job import JobState
from fairway.model.names import ClusterName
from tests.tier import sized
from tests.unit.ledger.job_samples import Desk, new_job, seen
from tests.unit.ledger.samples import many
from tests.unit.ledger.usage_samples import Book, Class, Row

FIRST_WITH_DOWNGRADE = 5
"""The steps before were made when nothing could be undone, and say so."""


def scripts() -> ScriptDirectory:
    config = Config()
    config.set_main_option("script_location", str(migrate.FOLDER))
    return ScriptDirectory.from_config(config)


STEPS = sorted(step.revision for step in scripts().walk_revisions())
UNDOABLE = [step for step in STEPS if int(step) >= FIRST_WITH_DOWNGRADE]
TRIED = sized(ci=[UNDOABLE[0], *UNDOABLE[-5:]], nightly=UNDOABLE)
"""Steps that are released do not change; going back to the first of them undoes and redoes all."""


def before(step: str) -> str:
    return STEPS[STEPS.index(step) - 1]


def columns(url: str, table: str) -> list[str]:
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT column_name FROM information_schema.columns WHERE table_name = %s ORDER BY 1", (table,)
        )
        return [row[0] for row in found]


def rows(url: str, told: dict[str, list[str]] | None = None) -> dict[str, list[str]]:
    """What is in each table; with `told`, of those tables the named columns."""
    with psycopg.connect(url) as connection:
        named = told or {
            row[0]: columns(url, row[0])
            for row in connection.execute(
                "SELECT c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
                " WHERE n.nspname = 'public' AND c.relkind IN ('r', 'p') AND NOT c.relispartition"
            )
            if row[0] != VERSION_TABLE
        }
        return {
            table: [
                row[0]
                for row in connection.execute(
                    f'SELECT ROW({", ".join(names)})::text FROM "{table}" ORDER BY 1'
                )
            ]
            for table, names in named.items()
        }


@pytest.fixture
async def filled_url(database_url: str, ledger: Ledger) -> str:
    """Something in every corner: fleet, token, observation, jobs, attempts, usage, an apply, a session."""
    await ledger.revisions.add("name: acme", "digest", "ann")
    await ledger.tokens.create("ann", Role.ADMIN, b"hash", "test")
    await ledger.applies.queue("name: acme 2", "digest-2", {ClusterName("hpc"): "f"}, force=False, by="ann")
    lease = await ledger.leases.take("observe", "hpc", "me", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.observations.write(many(20))
    await (await Desk.of(ledger)).submit(*(new_job(f"train-{n}") for n in range(10)))
    book = Book(database_url)
    hour = 1_790_000_000 // 3600 * 3600
    await book.add(
        ledger, [Row(Class(), hour + 3600 * n, 3600, 2, job=1_000_000 + n, name="old") for n in range(10)]
    )
    for number in range(10):
        book.attempt(1_000_000 + number, hour, hour + 3600, devices=2)
    book.close()
    return database_url


@pytest.mark.parametrize("step", TRIED)
async def test_a_step_back_and_forward_again_loses_no_row_of_older_tables(
    step: str, filled_url: str, ledger: Ledger
) -> None:
    if step != STEPS[-1]:
        await ledger.downgrade(step, force=True)
    there = rows(filled_url)
    await ledger.downgrade(before(step), force=True)
    older = {table: columns(filled_url, table) for table in rows(filled_url)}
    back = rows(filled_url, older)
    assert {name: len(found) for name, found in back.items()} == {name: len(there[name]) for name in back}
    held = {"job": 20, "attempt": 10, "usage": 10, "apply": 1, "api_token": 1, "node": 20}
    assert {name: len(back[name]) for name in held} == held
    await ledger.migrate()
    await ledger.ready()
    assert rows(filled_url, older) == back  # every value of the older columns, too


async def test_sums_by_team_are_made_from_those_there_are(filled_url: str, ledger: Ledger) -> None:
    sums = rows(filled_url)["usage_team_day"]
    await ledger.downgrade("0026", force=True)  # later steps may lose something
    await ledger.downgrade("0025")
    with psycopg.connect(filled_url, autocommit=True) as db:
        db.execute("UPDATE usage_day SET device_seconds = device_seconds + 1")
    await ledger.migrate()
    again = rows(filled_url)["usage_team_day"]
    assert len(again) == len(sums) > 0 and not set(again) & set(sums)


async def test_a_job_that_waited_before_codes_were_kept_has_its_code_at_the_next_sighting(
    database_url: str, ledger: Ledger
) -> None:
    desk = await Desk.of(ledger)
    waits = seen("1", "train", JobState.WAITING, reason="Resources", reason_code="NotEnoughFree")
    await desk.see(waits)
    await ledger.downgrade("0007", force=True)  # later steps may lose something
    await ledger.downgrade("0006")  # loses nothing that is not told again
    assert "reason_code" not in columns(database_url, "job")
    await ledger.migrate()
    (row,) = await ledger.jobs.page(JobFilter(), limit=2)
    assert (row.reason, row.reason_code) == ("Resources", "")
    await desk.see(waits)
    assert (await desk.row(row.id)).reason_code == "NotEnoughFree"


@pytest.mark.parametrize("step", UNDOABLE)
def test_a_step_says_what_undoing_it_loses(step: str) -> None:
    module = scripts().get_revision(step).module
    assert callable(module.downgrade)
    assert isinstance(module.LOSES, str)


async def test_a_step_that_loses_something_is_undone_only_by_force(database_url: str, ledger: Ledger) -> None:
    if STEPS[-1] != "0005":
        await ledger.downgrade("0005", force=True)
    whole = rows(database_url)
    with pytest.raises(DowngradeRefused, match="0005 loses the sessions") as caught:
        await ledger.downgrade("0004")
    assert "--force" in caught.value.hint
    assert rows(database_url).keys() == whole.keys()
    await ledger.downgrade("0004", force=True)
    assert "web_session" not in rows(database_url)


@pytest.mark.parametrize("to", ["0001", "0003"])
async def test_what_cannot_be_undone_is_refused_even_by_force(
    to: str, database_url: str, ledger: Ledger
) -> None:
    whole = rows(database_url).keys()
    with pytest.raises(DowngradeRefused, match="step 0004 cannot be undone") as caught:
        await ledger.downgrade(to, force=True)
    assert caught.value.code == "DowngradeImpossible"
    assert rows(database_url).keys() == whole  # 0005 was not undone on the way: all or nothing
    await ledger.ready()


@pytest.mark.parametrize(("to", "code"), [("0042", "UnknownStep"), (STEPS[-1], "NotBackward")])
async def test_nonsense_is_refused(to: str, code: str, ledger: Ledger) -> None:
    await ledger.downgrade("0004", force=True)
    with pytest.raises(DowngradeRefused) as caught:
        await ledger.downgrade(to, force=True)
    assert caught.value.code == code


async def test_a_ledger_of_a_newer_fairway_is_not_touched(database_url: str, ledger: Ledger) -> None:
    with psycopg.connect(database_url) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
    with pytest.raises(LedgerNewer):
        await ledger.downgrade("0004", force=True)


async def test_an_empty_database_has_no_version(empty_database_url: str) -> None:
    ledger = await Ledger.connect(empty_database_url)
    version = await ledger.table_version()
    assert (version.current, version.newest) == (None, STEPS[-1])
    with pytest.raises(LedgerNotMigrated):
        await ledger.downgrade("0004")
    await ledger.migrate()
    assert (await ledger.table_version()).current == STEPS[-1]
    await ledger.close()


def test_steps_are_numbered_in_order() -> None:
    files = sorted(Path(migrate.FOLDER / "versions").glob("m*.py"))
    assert [re.match(r"m(\d{4})_", file.name)[1] for file in files] == STEPS  # type: ignore[index]
