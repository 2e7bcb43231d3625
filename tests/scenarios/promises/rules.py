"""What may not be: over a limit, without a grant, in other people's business, past its time, of no team."""

from __future__ import annotations

import pytest

from tests.scenarios.hand import Denied, Order, State
from tests.scenarios.promises import promise
from tests.scenarios.promises.fleets import TWO_TEAMS
from tests.scenarios.stage import Condition, Jobs, Stage, over, running


@promise("limits")
async def over_a_limit_is_said_at_once(lab: Stage) -> None:
    await lab.apply("""
teams:
  research:
    guarantee: { gpu: 16 }
    limits: { job: { gpus: 4, time: 1h }, user: { gpus: 8 } }
    members: [alice, carol]
  product: { guarantee: { gpu: 16 }, members: [bob] }
""")
    lab.note(f"8 GPUs where a job may have 4: {await lab.stopped('research', gpus=8)}")
    lab.note(f"2 h where a job may have 1 h: {await lab.stopped('research', gpus=1, limit_seconds=7200)}")

    allowed = await lab.submit("research", gpus=4, count=2, limit_seconds=1800)
    await lab.until(running(allowed))
    third = await lab.submit("research", gpus=4, limit_seconds=1800)
    if await lab.comes(running(third), 4) is None:
        lab.note(f"a third 4 where a user may have 8: {await lab.hand.words(third[0].id)}")
    else:
        lab.caveat("a user whose jobs may hold 8 GPUs together holds 12")
    await lab.cancel(third)

    other = await lab.submit("research", user="carol", gpus=4, limit_seconds=1800)
    await lab.until(running(other))  # the limit is a user's, not the team's
    unlimited = await lab.submit("product", gpus=8)
    await lab.until(running(unlimited))


@promise("access")
async def without_a_grant_there_is_no_way_in(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16, mig/1g.10gb: 4 }, members: [alice] }
  product: { guarantee: { gpu: 16 }, members: [bob] }
""")
    order = Order("bob", "product", pool="mig", slice="1g.10gb")
    lab.note(f"asked plainly: {await lab.stopped('product', pool='mig', slice='1g.10gb')}")
    lab.note(f"in another team's name: {await lab.stopped('research', user='bob', gpus=1)}")

    tried = await lab.hand.smuggle(order)
    assert tried
    ids = {way: job for way, job in tried.items() if not job.startswith("refused")}
    await lab.stays(
        lambda seen: all(seen.jobs[job].attempts == 0 for job in ids.values() if job in seen.jobs),
        5,
        f"a job got in: {tried}",
    )
    for way, job in tried.items():
        lab.note(f"{way}: {f'waits, {await lab.hand.words(job)}' if way in ids else job}")

    granted = await lab.submit("research", pool="mig", slice="1g.10gb")
    await lab.until(running(granted))


@promise("isolation")
async def nobody_meddles_with_another_teams_job(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    job = (await lab.submit("research", gpus=1, log=True))[0]
    await lab.until(running([job]))

    with pytest.raises(Denied) as cancel:
        await lab.hand.cancel(job.id, "bob")
    with pytest.raises(Denied) as change:
        await lab.hand.change(job.id, "bob")
    try:
        seen = await lab.hand.read(job.id, "bob")
    except Denied as refusal:
        seen, told = "", str(refusal)
    else:
        told = "nothing is shown"
    assert not seen, f"bob sees alice's job: {seen}"
    assert await lab.hand.read(job.id, "alice"), "alice sees her own"
    await lab.stays(running([job]), 1)
    lab.note(f"cancel: {cancel.value}; change: {change.value}; read: {told}")


@promise("time")
async def a_job_past_its_limit_ends(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    job = await lab.submit(
        "product", gpus=1, seconds=600, limit_seconds=5
    )  # engines may round up to a minute
    begun = lab.hand.now()
    await lab.until(running(job))

    await lab.until(over(job), 120)

    took = lab.hand.now() - begun
    seen = (await lab.look())[job[0]]
    assert seen.state is State.ENDED, seen
    assert took > 4, f"ended after {took:.1f} s, before its limit"
    lab.note(f"limit 5 s, ended after {took:.1f} s: {seen.reason}")


@promise("native")
async def plain_tools_are_governed(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16 }, members: [alice] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [bob] }
""")
    for way in lab.hand.ways:  # plain: no queue, no QOS is named
        full = await lab.submit("product", gpus=8, way=way)
        await lab.until(running(full), what=way)
        more = await lab.submit("product", gpus=1, way=way)
        await lab.stays(_never_started(more), 1.5, f"{way}: product is at its ceiling")
        await lab.clear()
    lab.note(f"{len(lab.hand.ways)} ways held to product's ceiling: {', '.join(lab.hand.ways)}")

    full = await lab.submit("product", gpus=8)
    await lab.until(running(full))
    lab.note(f"bob names no team: {await lab.stopped(None, user='bob', gpus=1)}")  # refused, or product's
    lab.note(f"somebody of no team: {await lab.stopped(None, user=lab.hand.stranger, gpus=1)}")


def _never_started(jobs: Jobs) -> Condition:
    return lambda seen: all(seen[job].attempts == 0 for job in jobs)
