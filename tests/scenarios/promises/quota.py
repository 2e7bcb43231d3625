"""What is guaranteed, what is lent, and the most a team ever holds."""

from __future__ import annotations

import random
from itertools import combinations

from tests.scenarios.promises import promise
from tests.scenarios.promises.fleets import TWO_TEAMS
from tests.scenarios.stage import Jobs, Sample, Stage, number_running, running


@promise("guarantee")
async def what_is_lent_comes_back(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    product = await lab.submit("product", gpus=8, count=4)  # holds all 32, half of them lent
    await lab.until(running(product))

    research = await lab.submit("research", gpus=8)

    took = await lab.until(running(research))
    assert len(await lab.taken(product)) == 1  # and not one more than needed

    research += await lab.submit("research", gpus=8)
    took = max(took, await lab.until(running(research)))
    assert len(await lab.taken(product)) == 2

    beyond = await lab.submit("research", gpus=8)  # product is at its guarantee now
    await lab.stays(lambda seen: seen[beyond[0]].attempts == 0, 4, "a job beyond the guarantee takes nothing")
    assert len(await lab.taken(product)) == 2
    lab.note(f"guaranteed jobs started within {took:.1f} s of asking, one lent job taken for each")


@promise("guarantee")
async def lent_jobs_that_wait_in_front_do_not_get_the_place(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    product = await lab.submit("product", gpus=8, count=14, priority="urgent")  # earlier and of higher rank
    await lab.until(number_running(product, 4))

    research = await lab.submit("research", gpus=8, last=True)

    took = await lab.until(running(research))
    await lab.stays(running(research), 2, "the place stays research's")
    assert len(await lab.taken(product)) == 1
    lab.note(f"under pressure of 10 better-placed waiting jobs: {took:.1f} s, one lent job taken")


@promise("guarantee")
async def a_whole_node_comes_back_from_small_jobs(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    product = await lab.submit("product", gpus=2, count=26)  # 16 run, 10 wait
    await lab.until(number_running(product, 16))

    research = await lab.submit("research", gpus=8)

    took = await lab.until(running(research))
    taken = sum(job.devices for job in await lab.taken(product))
    assert taken <= 16, f"{taken} GPUs taken for 8"  # which ones is least-harm's matter
    lab.note(f"a node of small lent jobs: {took:.1f} s, {taken} GPUs taken for 8")


@promise("borrow")
async def idle_gpus_go_to_whoever_asks(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16 }, members: [alice] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 16 }, members: [bob] }
""")
    product = await lab.submit("product", gpus=8, count=4)

    took = await lab.until(number_running(product, 3))  # 8 guaranteed, 16 borrowed
    await lab.stays(lambda seen: seen.held_by("product") == 24, 4, "product holds 8 + 16")
    seen = await lab.look()
    waiting = next(j for j in product if seen[j].attempts == 0)
    lab.note(f"24 of 8 + 16 after {took:.1f} s; the next 8 wait: {await lab.hand.words(waiting.id)}")

    research = await lab.submit("research", gpus=8)  # borrow left out: whatever is idle
    await lab.until(running(research))
    assert not await lab.taken(product)


@promise("ceiling")
async def guarantee_plus_borrow_is_never_exceeded(lab: Stage) -> None:
    await lab.apply("""
teams:
  research:
    guarantee: { gpu: 8 }
    borrow: { gpu: 10 }
    teams:
      nlp: { guarantee: { gpu: 4 }, borrow: { gpu: 10 }, members: [alice] }
      vision: { borrow: { gpu: 6 }, members: [carol] }
  product: { guarantee: { gpu: 4 }, borrow: { gpu: 5 }, members: [bob] }
""")
    lab.always("research is within 8 + 10", lambda s: s.held_by("research", "nlp", "vision") <= 18)
    lab.always("nlp is within 4 + 10", lambda s: s.held_by("nlp") <= 14)
    lab.always("vision is within 6", lambda s: s.held_by("vision") <= 6)
    lab.always("product is within 4 + 5", lambda s: s.held_by("product") <= 9)
    await lab.stream("nlp", gpus=2, seconds=20, depth=6)
    await lab.stream("vision", gpus=2, seconds=12, depth=4)
    await lab.stream("product", gpus=1, seconds=20, depth=6)
    await lab.until(  # a busy engine needs a while to start so many
        lambda s: s.held_by("research", "nlp", "vision") >= 15 and s.held_by("product") >= 7,
        90,
        "research and product come near their ceilings",
    )
    await lab.comes(lambda s: s.held_by("vision") >= 4, 30)  # once what nlp holds ends
    await lab.stays(lambda seen: True, 10)

    peaks = lab.peak("research", "nlp", "vision"), lab.peak("vision"), lab.peak("product")
    assert peaks[1] >= 4, f"vision never came near its ceiling: {peaks}"
    lab.note(f"at most {peaks} GPUs of (18, 6, 9) in {lab.samples} samples, {len(lab.jobs)} jobs")


@promise("ceiling")
async def nor_by_jobs_of_whole_nodes_nor_while_places_change_hands(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16 }, borrow: { gpu: 0 }, members: [alice] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 16 }, members: [bob] }
""")
    lab.always("research is within 16", lambda s: s.held_by("research") <= 16)
    lab.always("product is within 8 + 16", lambda s: s.held_by("product") <= 24)
    whole = await lab.submit("product", gpus=8, nodes=3)  # more than the guarantee: borrowed whole
    await lab.until(running(whole))
    more = await lab.submit("product", gpus=8)  # its guarantee is untouched, its ceiling is not
    await lab.stays(lambda seen: seen[more[0]].attempts == 0, 3, "product is at its ceiling")

    research = await lab.submit("research", gpus=8, count=3)  # takes back; the third is over its ceiling
    await lab.until(number_running(research, 2))
    await lab.stays(lambda seen: True, 3)
    lab.note(f"whole nodes: peaks research {lab.peak('research')} of 16, product {lab.peak('product')} of 24")


@promise("ceiling")
async def nor_by_jobs_that_come_and_go_all_the_time(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16 }, members: [alice] }
  product: { guarantee: { gpu: 2 }, borrow: { gpu: 3 }, members: [bob] }
""")
    lab.always("product is within 2 + 3", lambda s: s.held_by("product") <= 5)
    await lab.stream("product", gpus=1, seconds=1, depth=6)
    if await lab.comes(lambda s: s.held_by("product") == 5, 30) is None:
        # A slow machine starts fewer than five a second: longer jobs beside them fill the ceiling.
        await lab.stream("product", gpus=1, seconds=15, depth=6)
    await lab.until(lambda s: s.held_by("product") == 5, 60, "product comes to its ceiling")
    await lab.stays(lambda seen: True, 8)
    lab.note(
        f"at most {lab.peak('product')} of 5 in {lab.samples} samples, {len(lab.jobs)} jobs came and went"
    )


NODES, GPUS_A_NODE = 4, 8


def least_needed(seen: Sample, lent: Jobs, gpus: int) -> int:
    """The fewest GPUs of lent jobs whose going leaves `gpus` free on one node."""
    nodes = {node for job in seen.known for node in seen[job].nodes}
    if len(nodes) < NODES:
        return 0  # a whole node is idle
    best = NODES * GPUS_A_NODE
    for node in nodes:
        free = GPUS_A_NODE - seen.held(j for j in seen.known if node in seen[j].nodes)
        here = [job for job in lent if node in seen[job].nodes]
        for size in range(len(here) + 1):
            for some in combinations(here, size):
                if seen.held(some) + free >= gpus:
                    best = min(best, seen.held(some))
    return best


@promise("least-harm")
async def taking_back_takes_no_more_than_needed(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [alice] }
  ops: { guarantee: { gpu: 8 }, borrow: { gpu: 0 }, members: [carol] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 24 }, members: [bob] }
""")
    worse: list[str] = []
    layouts = 8
    for layout in range(layouts):
        dice = random.Random(layout)
        ops = await lab.submit("ops", gpus=4, count=2)
        await lab.until(running(ops))
        product: Jobs = ()
        left = 24
        while left:
            gpus = min(left, dice.choice((1, 2, 2, 4, 8)))
            product += await lab.submit("product", gpus=gpus)
            left -= gpus
        await lab.comes(running(product), 6)  # what does not fit in one piece stays waiting
        seen = await lab.look()
        lent = seen.running(product)
        asked = dice.choice((1, 2, 4, 8))
        needed = least_needed(seen, lent, asked)

        research = await lab.submit("research", gpus=asked)
        await lab.until(running(research))
        await lab.stays(running(ops), 1, "ops is within its guarantee: nobody takes from it")
        after = await lab.look()
        assert after.held_by("product") >= 8, "product is never taken below its guarantee"
        taken = sum(job.devices for job in await lab.taken(lent))
        if taken > needed:
            worse.append(f"{taken} for {asked} where {needed} would do")
        assert not await lab.taken(ops)
        await lab.clear()
    lab.note(f"{layouts - len(worse)} of {layouts} random layouts: exactly the least that frees the place")
    if worse:
        lab.caveat(f"the engine picks victims by its own order, took more in: {'; '.join(worse)}")
