"""A job is found by its Fairway id, its engine's id or its name; several matches are listed, not guessed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from fairway.ledger import Ledger
from fairway.model.job import JobId, format_job_id
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.job_references import find_job, find_jobs
from tests.unit.control.job_toy import applied, submit


@pytest.fixture
def db(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database_url, autocommit=True) as connection:
        yield connection


async def _jobs(ledger: Ledger, count: int) -> list[JobId]:
    await applied(ledger)
    return [(await submit(ledger))[0] for _ in range(count)]


def _sent(db: psycopg.Connection[Any], job: JobId, engine_id: str, cluster: str = "hpc") -> None:
    """Store that an engine knows a job by this id."""
    db.execute("INSERT INTO engine_job VALUES (%s, %s, %s, 1, 0, false)", (cluster, engine_id, job))
    db.execute(
        "INSERT INTO job_class (cluster, native) VALUES (%s, false) ON CONFLICT DO NOTHING", (cluster,)
    )


async def _found(ledger: Ledger, word: str) -> JobId:
    return (await find_job(ledger, word)).row.id


async def _refused(ledger: Ledger, word: str) -> RequestError:
    with pytest.raises(RequestError) as told:
        await find_job(ledger, word)
    return told.value


@pytest.mark.parametrize(
    ("engine_id", "words"),
    [
        ("15421", ["15421", "hpc/15421"]),
        ("15421_4", ["15421_4", "hpc/15421_4"]),
        ("nlp/train-0", ["nlp/train-0", "hpc/nlp/train-0"]),
        ("nlp/train-0/1a2b3c4d", ["nlp/train-0", "hpc/nlp/train-0", "nlp/train-0/1a2b3c4d"]),
        ("nlp/pod/train-0/1a2b3c4d", ["nlp/train-0", "hpc/nlp/train-0", "hpc/nlp/pod/train-0"]),
        ("nlp/deployment/llm/1a2b3c4d", ["nlp/llm", "hpc/nlp/llm", "nlp/deployment/llm"]),
    ],
)
async def test_engine_ids(
    ledger: Ledger, db: psycopg.Connection[Any], engine_id: str, words: list[str]
) -> None:
    job, other = await _jobs(ledger, 2)
    _sent(db, job, engine_id)
    _sent(db, other, "nlp/train-00")
    assert [await _found(ledger, word) for word in words] == [job] * len(words)
    assert (await _refused(ledger, f"cloud/{engine_id}")).code == "NoSuchJob"


async def test_an_array_of_an_engine_is_its_first_task(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    (job,) = await _jobs(ledger, 1)
    db.execute("INSERT INTO engine_array VALUES ('hpc', '77001', %s)", (job,))
    assert await _found(ledger, "77001") == job


async def test_a_fairway_id_wins(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    first, second = await _jobs(ledger, 2)
    db.execute("UPDATE job SET name = %s WHERE id = %s", (format_job_id(first), second))
    _sent(db, second, format_job_id(first))
    assert await _found(ledger, format_job_id(first)) == first
    assert await _found(ledger, f"hpc/{format_job_id(first)}") == second


async def test_one_engine_id_on_two_clusters(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    first, second = await _jobs(ledger, 2)
    _sent(db, first, "15421")
    _sent(db, second, "15421", "cloud")
    refused = await _refused(ledger, "15421")
    assert (refused.kind, refused.code) == (ErrorKind.CONFLICT, "AmbiguousJobName")
    assert format_job_id(first) in refused.message
    assert format_job_id(second) in refused.message
    assert await _found(ledger, "cloud/15421") == second
    db.execute("UPDATE job SET state = 'done' WHERE id = %s", (second,))
    assert await _found(ledger, "15421") == first  # the only one that is not finished


async def test_names(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    first, second, third = await _jobs(ledger, 3)
    db.execute("UPDATE job SET name = 'train'")
    refused = await _refused(ledger, "train")
    assert refused.code == "AmbiguousJobName"
    assert all(format_job_id(job) in refused.message for job in (first, second, third))
    assert format_job_id(third) in refused.hint
    db.execute("UPDATE job SET state = 'done' WHERE id <> %s", (second,))
    assert await _found(ledger, "train") == second
    db.execute("UPDATE job SET state = 'done'")
    assert (await _refused(ledger, "train")).code == "AmbiguousJobName"


async def test_many_at_once(ledger: Ledger, db: psycopg.Connection[Any]) -> None:
    first, second, third = await _jobs(ledger, 3)
    db.execute("UPDATE job SET name = 'eval' WHERE id = %s", (third,))
    _sent(db, second, "15421")
    words = ["eval", "15421", format_job_id(first), "hpc/15421"]
    assert [row.id for row in await find_jobs(ledger, words)] == [third, second, first]
    with pytest.raises(RequestError, match="no job nobody"):
        await find_jobs(ledger, [*words, "nobody"])
    with pytest.raises(RequestError, match="at most 100"):
        await find_jobs(ledger, [f"name-{n}" for n in range(101)])


@pytest.mark.parametrize("word", ["", "x\n", "\0", "x" * 1000, "hpc/", "/", "a/b/c/d/e", "%", "15421_"])
async def test_what_no_job_is_called(ledger: Ledger, word: str) -> None:
    await _jobs(ledger, 1)
    assert (await _refused(ledger, word)).code == "NoSuchJob"
