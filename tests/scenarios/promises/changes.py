"""Changing the policy under running jobs, taking a team away, taking Fairway away."""

from __future__ import annotations

import pytest

from fairway.services.plans import PlanRefused
from tests.scenarios.promises import promise
from tests.scenarios.promises.fleets import TWO_TEAMS
from tests.scenarios.stage import Stage, over, running

TIGHTER = """
teams:
  research: { share: 60, guarantee: { gpu: 16 }, borrow: { gpu: 16 }, members: [alice, carol] }
  product:
    share: 40
    guarantee: { gpu: 8 }
    borrow: { gpu: 0 }
    limits: { job: { gpus: 8, time: 1h } }
    members: [bob]
"""


@promise("no-surprise")
async def tightening_ends_nothing_that_runs(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    product = await lab.submit("product", gpus=8, count=3, limit_seconds=1800)
    await lab.until(running(product))
    lab.always("nothing that runs ends", lambda s: all(s[j].attempts == 1 for j in product))

    await lab.apply(TIGHTER)  # 24 held, 8 allowed
    await lab.stays(running(product), 4, "running jobs go on under a tighter policy")
    late = await lab.submit("product", gpus=8, limit_seconds=1800)
    await lab.stays(lambda s: s[late[0]].attempts == 0, 3, "nothing new starts beyond the new limit")
    lab.note(f"24 GPUs run on where 8 are allowed; new jobs wait: {await lab.hand.words(late[0].id)}")

    await lab.apply(TWO_TEAMS)
    took = await lab.until(running(late))
    lab.note(f"loosened again: the waiting one runs after {took:.1f} s")


WITHOUT_PRODUCT = """
teams:
  research: { share: 60, guarantee: { gpu: 16 }, borrow: { gpu: 16 }, members: [alice, carol] }
"""


@promise("removal")
async def a_team_with_jobs_is_drained_not_removed(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    job = await lab.submit("product", gpus=8)
    await lab.until(running(job))

    with pytest.raises(PlanRefused) as refusal:
        await lab.apply(WITHOUT_PRODUCT)
    assert "drain" in refusal.value.hint, refusal.value.hint
    await lab.stays(running(job), 1, "the refused removal touches nothing")
    lab.note(f"removal with a running job: {refusal.value.code}: {refusal.value}; hint: {refusal.value.hint}")

    await lab.apply(TWO_TEAMS.replace("members: [bob]", "draining: true, members: [bob]"))
    lab.note(f"draining, a new job: {await lab.stopped('product', gpus=1)}")
    await lab.stays(running(job), 1, "what runs may end")
    await lab.cancel(job)
    await lab.until(over(job))

    await lab.apply(WITHOUT_PRODUCT)
    assert not (await lab.plan(WITHOUT_PRODUCT)).changes
    lab.note("its last job over, the drained team went")


@promise("give-way")
async def without_fairway_the_engine_goes_on(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    await lab.without_fairway()

    product = await lab.submit("product", gpus=8, count=4)
    await lab.until(running(product))
    research = await lab.submit("research", gpus=8)
    took = await lab.until(running(research))
    assert len(await lab.taken(product)) == 1
    await lab.clear()

    changes = (await lab.plan(TWO_TEAMS)).changes
    assert not changes, [str(c.key) for c in changes]
    lab.note(
        f"no Fairway: a guaranteed job took a lent one's place after {took:.1f} s; then plan: no changes"
    )
