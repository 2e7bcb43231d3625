"""Jobs as people ask for them: kept once, whole, and brought on their way."""

from __future__ import annotations

import asyncio

import pytest

from fairway.ledger import DesiredState, EventKind, JobFilter, KeyReused, Ledger
from fairway.model.access import Role
from fairway.model.job import JobId, JobState, Retries, When
from tests.unit.ledger.job_samples import Desk, after, new_job, seen


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    return await Desk.of(ledger)


async def test_a_job_is_kept_as_it_was_asked_for(desk: Desk) -> None:
    new = new_job(env={"A": "1", "NUL": "\0"}, retries=Retries(3, 5), time_seconds=600, nodes=2)
    (id_,) = await desk.submit(new)
    detail = await desk.detail(id_)
    assert detail.spec == new.spec
    assert detail.placement_reason == "the only pool"
    assert (detail.row.state, detail.row.devices, detail.row.user) == (JobState.QUEUED, 4, "ann")
    assert [e.kind for e in detail.events] == [EventKind.SUBMITTED]
    (order,) = await desk.ledger.dispatch.pending_submits("hpc", 10)
    assert order.spec == new.spec
    assert order.engine_name == detail.engine_name
    assert await desk.ledger.dispatch.order_of(id_) == order
    assert await desk.ledger.dispatch.pending_submits("cloud", 10) == ()


async def test_an_array_is_a_job_a_task(desk: Desk) -> None:
    ((first, *rest), (single,)) = await desk.ledger.jobs.submit(
        [new_job(array=(1, 3, 7)), new_job("one")], by="ann"
    )
    rows = await desk.ledger.jobs.rows([first, *rest, single])
    assert [(r.array, r.array_index) for r in rows] == [(first, 1), (first, 3), (first, 7), (None, None)]
    assert (await desk.detail(rest[1])).spec == new_job(array=(1, 3, 7)).spec
    assert [r.id for r in await desk.ledger.jobs.page(JobFilter(array=first))] == [rest[1], rest[0], first]


async def test_the_same_key_gives_the_same_jobs(desk: Desk) -> None:
    batch = [new_job(array=tuple(range(50))), new_job("b")]
    once = await desk.ledger.jobs.submit(batch, by="ann", key="k")
    assert await desk.ledger.jobs.submit(batch, by="ann", key="k") == once
    assert await desk.ledger.jobs.submit(batch, by="bob", key="k") != once
    with pytest.raises(KeyReused):
        await desk.ledger.jobs.submit([new_job("other")], by="ann", key="k")
    assert len(await desk.due()) == 102


async def test_the_same_key_at_once_gives_the_same_jobs(desk: Desk) -> None:
    batch = [new_job(f"j{i}") for i in range(20)]
    answers = await asyncio.gather(*(desk.ledger.jobs.submit(batch, by="ann", key="k") for _ in range(8)))
    assert len(set(answers)) == 1
    assert len(await desk.due()) == 20


async def test_what_was_never_sent_is_held_released_and_cancelled_at_once(desk: Desk) -> None:
    a, b = await desk.submit(new_job(), new_job(hold=True))
    assert await desk.due() == [a]
    assert await desk.ledger.jobs.set_desired_state([a, b], DesiredState.HOLD, by="ann") == (a,)
    assert await desk.due() == []
    assert await desk.ledger.jobs.set_desired_state([a, b], DesiredState.RUN, by="ann") == (a, b)
    assert await desk.due() == [a, b]
    assert await desk.ledger.jobs.set_desired_state([a, b, JobId(9999)], DesiredState.CANCEL, by="bob") == (
        a,
        b,
    )
    assert await desk.states([a, b]) == ["cancelled", "cancelled"]
    assert await desk.ledger.jobs.set_desired_state([a, b], DesiredState.RUN, by="ann") == ()
    assert [(e.kind, e.by) for e in (await desk.detail(a)).events] == [
        (EventKind.SUBMITTED, "ann"),
        (EventKind.HELD, "ann"),
        (EventKind.RELEASED, "ann"),
        (EventKind.CANCELLED, "bob"),
    ]


async def test_a_job_cancelled_before_it_goes_out_does_not(desk: Desk) -> None:
    a, b = await desk.submit(new_job(), new_job())
    await desk.ledger.jobs.set_desired_state([a], DesiredState.CANCEL, by="ann")
    assert await desk.begin(a, b) == {b}


async def test_a_job_cancelled_while_it_goes_out_is_ended_there(desk: Desk) -> None:
    (a,) = await desk.submit(new_job())
    await desk.begin(a)
    await desk.ledger.jobs.set_desired_state([a], DesiredState.CANCEL, by="ann")
    assert await desk.state(a) is JobState.QUEUED
    assert await desk.due() == []
    assert await desk.ledger.dispatch.pending_actions("hpc", 10) == ()
    await desk.sent((a, 1, "e1"))
    (todo,) = await desk.ledger.dispatch.pending_actions("hpc", 10)
    assert (todo.id, todo.engine_id, todo.desired_state) == (a, "e1", DesiredState.CANCEL)
    order = await desk.ledger.dispatch.order_of(a)
    assert order is not None
    await desk.see(seen("e1", order.engine_name, JobState.CANCELLED))
    assert await desk.ledger.dispatch.pending_actions("hpc", 10) == ()
    assert await desk.state(a) is JobState.CANCELLED


async def test_even_if_nobody_heeds_that_it_was_cancelled(desk: Desk) -> None:
    (a,) = await desk.submit(new_job())
    await desk.ledger.jobs.set_desired_state([a], DesiredState.CANCEL, by="ann")
    await desk.sent((a, 1, "e1"))  # made all the same
    assert await desk.state(a) is JobState.WAITING
    assert [t.desired_state for t in await desk.ledger.dispatch.pending_actions("hpc", 10)] == [
        DesiredState.CANCEL
    ]


async def test_a_cancelled_order_that_never_arrived_is_given_up(desk: Desk) -> None:
    (a,) = await desk.submit(new_job())
    await desk.begin(a, seconds=-59)
    await desk.ledger.jobs.set_desired_state([a], DesiredState.CANCEL, by="ann")
    assert await desk.settle() == 0
    await desk.begin(a, seconds=-61)  # refused: nothing begins that is to be cancelled
    assert await desk.settle() == 0
    (b,) = await desk.submit(new_job())
    await desk.begin(b, seconds=-61)
    await desk.ledger.jobs.set_desired_state([b], DesiredState.CANCEL, by="ann")
    assert await desk.settle() == 1
    assert await desk.states([a, b]) == ["queued", "cancelled"]


async def test_a_chain_goes_on_link_by_link(desk: Desk) -> None:
    (a,) = await desk.submit(new_job("a"))
    (b,) = await desk.submit(new_job("b", **after(a)))
    (c,) = await desk.submit(new_job("c", **after(b)))
    assert await desk.due() == [a]
    for id_, name in ((a, "a"), (b, "b"), (c, "c")):
        assert await desk.due() == [id_]
        (engine_name,) = await desk.send(id_)
        await desk.see(seen(f"e{id_}-1", engine_name, JobState.DONE))
        assert await desk.state(id_) is JobState.DONE, name
    assert await desk.settle() == 0


async def test_a_chain_ends_whole(desk: Desk) -> None:
    chain = await desk.submit(new_job())
    for _ in range(5):
        chain += await desk.submit(new_job(**after(chain[-1])))
    (ended,) = await desk.submit(new_job(**after(chain[0], When.ENDED)))
    (failed,) = await desk.submit(new_job(**after(chain[0], When.FAILED)))
    (engine_name,) = await desk.send(chain[0])
    await desk.see(seen(f"e{chain[0]}-1", engine_name, JobState.FAILED, exit_code=3))
    assert await desk.settle() == 5
    assert set(await desk.states(chain[1:])) == {"cancelled"}
    row = await desk.row(chain[1])
    assert row.code == "DependencyFailed"
    assert "failed" in row.reason
    assert await desk.due() == [ended, failed]
    assert EventKind.NOT_STARTED in [e.kind for e in (await desk.detail(chain[3])).events]


@pytest.mark.parametrize(
    ("when", "ends", "fate"),
    [
        (When.OK, "ddd", "due"),
        (When.OK, "df", "cancelled"),  # at once, though one is not over
        (When.OK, "dd", "waits"),
        (When.ENDED, "dfc", "due"),
        (When.FAILED, "dfd", "due"),
        (When.FAILED, "df", "waits"),
        (When.FAILED, "ddd", "cancelled"),
        (When.FAILED, "ccc", "cancelled"),
    ],
)
async def test_after_an_array(desk: Desk, when: When, ends: str, fate: str) -> None:
    tasks = await desk.submit(new_job(array=(0, 1, 2)))
    (waits,) = await desk.submit(new_job(**after(tasks[0], when)))
    names = await desk.send(*tasks)
    states = {"d": JobState.DONE, "f": JobState.FAILED, "c": JobState.CANCELLED}
    for id_, name, end in zip(tasks, names, ends, strict=False):
        await desk.see(seen(f"e{id_}-1", name, states[end]))
    await desk.settle()
    due = await desk.due()
    state = await desk.state(waits)
    found = "due" if waits in due else "cancelled" if state is JobState.CANCELLED else "waits"
    assert found == fate


async def test_after_what_is_over_already_or_unknown(desk: Desk) -> None:
    (a,) = await desk.submit(new_job())
    await desk.ledger.jobs.set_desired_state([a], DesiredState.CANCEL, by="ann")
    ok, ended, unknown = await desk.submit(
        new_job(**after(a)), new_job(**after(a, When.ENDED)), new_job(**after(JobId(9999)))
    )
    assert await desk.due() == [ended]
    assert await desk.settle() == 2
    assert await desk.states([ok, unknown]) == ["cancelled", "cancelled"]
    assert "does not exist" in (await desk.row(unknown)).reason


async def test_after_jobs_that_end_while_it_is_submitted(desk: Desk) -> None:
    """Whoever comes first: nobody is forgotten."""
    for _ in range(10):
        tasks = await desk.submit(new_job(array=(0, 1, 2, 3)))
        pairs = [tasks[:2], tasks[2:]]
        *_, made = await asyncio.gather(
            *(desk.ledger.jobs.set_desired_state(pair, DesiredState.CANCEL, by="ann") for pair in pairs),
            desk.submit(new_job(**after(tasks[0], When.ENDED))),
        )
        assert made[0] in await desk.due()


async def test_retried_deletion_of_a_waiting_job(desk: Desk) -> None:
    (a,) = await desk.submit(new_job())
    (b,) = await desk.submit(new_job(**after(a)))
    await desk.ledger.jobs.set_desired_state([b], DesiredState.CANCEL, by="ann")
    await desk.ledger.jobs.set_desired_state([a], DesiredState.CANCEL, by="ann")
    assert await desk.settle() == 0
    assert await desk.states([a, b]) == ["cancelled", "cancelled"]


async def test_a_hold_does_not_hide_what_it_waits_for(desk: Desk) -> None:
    (a,) = await desk.submit(new_job())
    (b,) = await desk.submit(new_job(hold=True, **after(a)))
    await desk.ledger.jobs.set_desired_state([b], DesiredState.RUN, by="ann")
    assert await desk.due() == [a]


async def test_many_at_once(desk: Desk) -> None:
    clock = asyncio.get_running_loop().time
    started = clock()
    (ids,) = await desk.ledger.jobs.submit([new_job(array=tuple(range(10_000)))], by="ann", key="k")
    assert clock() - started < 5  # about half a second on a quiet machine
    assert len(ids) == len(set(ids)) == 10_000


async def test_counts_of_what_is_open(desk: Desk) -> None:
    await desk.submit(*(new_job() for _ in range(3)), new_job(team="product", hold=True))
    (gone,) = await desk.submit(new_job())
    await desk.ledger.jobs.set_desired_state([gone], DesiredState.CANCEL, by="ann")
    counts = await desk.ledger.jobs.counts()
    assert [(c.team, c.state, c.jobs, c.devices) for c in counts] == [
        ("product", JobState.HELD, 1, 2),
        ("research", JobState.QUEUED, 3, 6),
    ]
    assert await desk.ledger.jobs.counts("hpc") == counts
    assert await desk.ledger.jobs.counts("cloud") == ()


async def test_the_mark_is_the_ledgers_own(desk: Desk, database_url: str) -> None:
    mark = await desk.ledger.jobs.mark()
    assert len(mark) == 4
    other = await Ledger.connect(database_url)
    assert await other.jobs.mark() == mark
    await other.close()


async def test_a_token_is_of_a_user(ledger: Ledger) -> None:
    made = await ledger.tokens.create("ann-laptop", Role.LEAD, b"1", "root", user=new_job().user)
    assert made.user == "ann"
    assert (await ledger.tokens.create("ci", Role.MEMBER, b"2", "root")).user == "ci"
    found = await ledger.tokens.by_hash(b"1")
    assert found is not None
    assert found.user == "ann"
