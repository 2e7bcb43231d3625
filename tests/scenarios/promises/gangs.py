"""Jobs of several nodes: whole or not at all, in bounded time, in one rack."""

from __future__ import annotations

from tests.scenarios.hand import State
from tests.scenarios.promises import promise
from tests.scenarios.promises.fleets import TWO_TEAMS
from tests.scenarios.stage import Stage, over, running


@promise("gang")
async def gangs_that_half_fit_go_one_after_the_other(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    gangs = await lab.submit("research", gpus=8, nodes=3, seconds=4)
    gangs += await lab.submit("product", gpus=8, nodes=3, seconds=4)
    lab.always(
        "never do both hold a part",
        lambda s: sum(bool(s[g].nodes) for g in gangs) <= 1,
    )
    lab.always(
        "one that runs has all its nodes",
        lambda s: all(len(s[g].nodes) == 3 for g in gangs if s[g].state is State.RUNNING),
    )

    took = await lab.until(over(gangs), 90)

    seen = await lab.look()
    assert all(seen[g].state is State.DONE for g in gangs), lab.show(seen)
    lab.note(f"two gangs of 3 nodes on 4: one after the other in {took:.1f} s, {lab.samples} samples")


@promise("gang")
async def a_guaranteed_gang_takes_back_all_it_needs(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    lent = await lab.submit("product", gpus=4, count=8)
    await lab.until(running(lent))

    gang = await lab.submit("research", gpus=8, nodes=2)

    took = await lab.until(running(gang))
    taken = sum(job.devices for job in await lab.taken(lent))
    assert taken == 16, f"{taken} GPUs taken for 16"
    lab.note(f"a guaranteed gang of 2 nodes over small lent jobs: {took:.1f} s, 16 GPUs taken for 16")


@promise("no-starvation")
async def a_large_gang_starts_while_small_jobs_keep_coming(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { borrow: { gpu: 32 }, members: [alice] }
  product: { borrow: { gpu: 32 }, members: [bob] }
""")
    await lab.stream("product", gpus=4, seconds=5, depth=6)
    await lab.stays(lambda seen: True, 6)  # the pool is full of small jobs that end one by one

    gang = await lab.submit("research", gpus=8, nodes=4, seconds=5)  # all there is

    took = await lab.until(running(gang), 90)
    lab.note(
        f"a gang of all 4 nodes started after {took:.1f} s in another team's endless stream of 4-GPU jobs"
    )


@promise("no-starvation")
async def its_own_teams_small_jobs_do_not_starve_it_either(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    await lab.stream("product", gpus=4, seconds=5, depth=6)
    await lab.stays(lambda seen: True, 6)

    gang = await lab.submit("product", gpus=8, nodes=4, seconds=5)  # all that its team may ever hold

    took = await lab.until_or_caveat(running(gang), 75, "a gang as large as its team's ceiling waits on")
    if took is not None:
        lab.note(f"a gang as large as its team's ceiling, in its own team's stream: {took:.1f} s")


@promise("together")
async def one_rack_or_wait(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    singles = await lab.submit("product", gpus=8, count=4)
    await lab.until(running(singles))
    seen = await lab.look()
    racks: dict[str, list[str]] = {}
    by_node = {seen[j].nodes[0]: j for j in singles}
    for node in by_node:
        racks.setdefault(lab.hand.rack(node), []).append(node)
    (a, b), (c, _) = racks.values()
    await lab.cancel([by_node[a], by_node[c]])  # a node free in each rack: two, but not together

    pair = await lab.submit("product", gpus=8, nodes=2, together=True)
    await lab.stays(lambda s: s[pair[0]].attempts == 0, 6, "no rack has two free nodes")
    lab.note(f"no rack has room: waits, {await lab.hand.words(pair[0].id)}")

    await lab.cancel([by_node[b]])
    took = await lab.until(running(pair))
    nodes = (await lab.look())[pair[0]].nodes
    assert len({lab.hand.rack(node) for node in nodes}) == 1, nodes
    lab.note(f"a rack is free: {took:.1f} s, on {', '.join(nodes)}")
