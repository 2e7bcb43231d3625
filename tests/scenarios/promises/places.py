"""Where jobs run: spot nodes, slices."""

from __future__ import annotations

from tests.scenarios.promises import promise
from tests.scenarios.stage import Stage, number_running, running


@promise("tolerance")
async def spot_is_for_jobs_that_tolerate_loss(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16, spot: 8 }, members: [alice] }
  product: { guarantee: { gpu: 16 }, members: [bob] }
""")
    lab.note(f"without a word: {await lab.stopped('research', pool='spot', gpus=8)}")

    job = await lab.submit("research", pool="spot", gpus=8, tolerates_loss=True)
    await lab.until(running(job))
    before = (await lab.look())[job[0]]
    assert before.attempts == 1, before
    node = before.nodes[0]
    await lab.hand.lose(node)
    try:
        took = await lab.until(
            lambda s: s[job[0]].nodes != (node,) and running(job)(s), 110, f"runs again after {node} was lost"
        )
        after = (await lab.look())[job[0]]
        assert after.attempts == 2, f"a new run is a new attempt: {after}"
        lab.note(f"{node} was lost: attempt 2 on {', '.join(after.nodes)} after {took:.1f} s")
    finally:
        await lab.clear()
        await lab.hand.restore(node)


@promise("slices")
async def slices_are_guaranteed_lent_and_counted(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { mig/1g.10gb: 2 }, borrow: { mig/1g.10gb: 2 }, members: [alice] }
  product: { guarantee: { mig/1g.10gb: 2 }, borrow: { mig/1g.10gb: 2 }, members: [bob] }
""")
    lab.always("no more slices than there are", lambda s: s.held_by("research", "product", pool="mig") <= 4)
    product = await lab.submit("product", pool="mig", slice="1g.10gb", count=5)
    await lab.until(number_running(product, 4))  # two guaranteed, two lent

    research = await lab.submit("research", pool="mig", slice="1g.10gb", count=3)
    took = await lab.until(number_running(research, 2))

    await lab.stays(
        lambda s: s.held_by("product", pool="mig") == 2 and s.held_by("research", pool="mig") == 2,
        3,
        "each holds its two",
    )
    assert len(await lab.taken(product)) == 2
    lab.note(f"4 slices held by product; research's 2 came back within {took:.1f} s, two taken, no more")
