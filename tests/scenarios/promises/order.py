"""Who goes first: priorities within a team, shares and memory between teams."""

from __future__ import annotations

from tests.scenarios.promises import promise
from tests.scenarios.promises.fleets import TWO_TEAMS
from tests.scenarios.stage import Jobs, Stage, number_running, running


@promise("priority")
async def urgent_takes_its_own_teams_place(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    normal = await lab.submit("product", gpus=8, count=2)
    research = await lab.submit("research", gpus=8, count=2)  # each team at its guarantee, the pool full
    await lab.until(running(normal + research))
    lab.always("no guaranteed job of research is taken", lambda s: all(s[j].attempts == 1 for j in research))

    first = await lab.submit("product", gpus=8, priority="urgent")
    took = [await lab.until(running(first))]
    assert len(await lab.taken(normal)) == 1
    second = await lab.submit("product", gpus=8, priority="urgent")
    took.append(await lab.until(running(second)))
    assert len(await lab.taken(normal)) == 2

    third = await lab.submit("product", gpus=8, priority="urgent")  # equals spare each other
    await lab.stays(running(first + second), 6, "urgent jobs do not take each other's place")
    assert (await lab.look())[third[0]].attempts == 0
    lab.note(
        f"urgent jobs started {took[0]:.1f} s and {took[1]:.1f} s after asking, each in a normal one's place"
    )


@promise("priority")
async def at_the_ceiling_too(lab: Stage) -> None:
    await lab.apply("""
teams:
  research: { guarantee: { gpu: 16 }, members: [alice] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 8 }, members: [bob] }
""")
    normal = await lab.submit("product", gpus=8, count=2)  # 16 of 16, while 16 lie idle
    await lab.until(running(normal))
    lab.always("product is within 8 + 8", lambda s: s.held_by("product") <= 16)

    urgent = await lab.submit("product", gpus=8, priority="urgent")

    took = await lab.until(running(urgent))
    assert len(await lab.taken(normal)) == 1
    lab.note(f"at the team's ceiling: {took:.1f} s")


@promise("low-only-idle")
async def low_jobs_make_way_for_everybody(lab: Stage) -> None:
    await lab.apply(TWO_TEAMS)
    low = await lab.submit("product", gpus=8, count=6, priority="low")
    await lab.until(number_running(low, 4))  # everything is idle: low may have it all

    guaranteed = await lab.submit("research", gpus=8)
    took = [await lab.until(running(guaranteed))]
    guaranteed += await lab.submit("product", gpus=8)  # its own team's low jobs too
    took.append(await lab.until(running(guaranteed)))
    guaranteed += await lab.submit("research", gpus=8)
    took.append(await lab.until(running(guaranteed)))
    lab.note("guaranteed jobs started over low ones after " + ", ".join(f"{t:.1f} s" for t in took))

    lent = await lab.submit("research", gpus=8)
    late = await lab.until_or_caveat(running(lent), 15, "a lent job waits behind low ones")
    if late is not None:
        lab.note(f"a lent one after {late:.1f} s")
    await lab.stays(running(guaranteed), 3, "waiting low jobs take nothing back")


@promise("share")
async def what_is_lent_is_held_by_shares(lab: Stage) -> None:
    await lab.apply("""
fairness: { half_life: 1h }
teams:
  research: { share: 60, guarantee: { gpu: 4 }, borrow: { gpu: 28 }, members: [alice] }
  product: { share: 40, guarantee: { gpu: 4 }, borrow: { gpu: 28 }, members: [bob] }
""")
    begun = lab.hand.now()
    for team in ("research", "product"):  # at any moment more than everything is wanted by each
        await lab.stream(team, gpus=2, seconds=5, depth=8)
        await lab.stream(team, gpus=2, seconds=6, depth=8)
    for _ in range(15):
        await lab.stays(lambda seen: True, 7)
        await lab.weigh()

    held = {team: lab.gpu_seconds(team, since=begun) for team in ("research", "product")}
    lent = {team: lab.gpu_seconds(team, beyond=4, since=begun) for team in held}
    part = lent["research"] / (lent["research"] + lent["product"])
    lab.note(
        f"research {held['research']:.0f} and product {held['product']:.0f} GPU-seconds in"
        f" {lab.hand.now() - begun:.0f} s; of what is lent research had {part:.0%} (share 60 %)"
    )
    assert 0.53 <= part <= 0.68, f"research had {part:.0%} of what is lent, not about 60 %"


MEMORY = """
fairness: { half_life: 1m }
teams:
  ops: { guarantee: { gpu: 32 }, borrow: { gpu: 0 }, members: [carol] }
  research: { borrow: { gpu: 32 }, members: [alice] }
  product: { borrow: { gpu: 32 }, members: [bob] }
"""


@promise("memory")
async def whoever_used_much_lately_yields(lab: Stage) -> None:
    await lab.apply(MEMORY)
    used = await lab.submit("research", gpus=8, count=4)
    await lab.until(running(used))
    await lab.stays(running(used), 15)

    first = await _first(lab, asks_first="research")
    assert first == "product", f"research used 32 GPUs for 15 s, product none, and {first} goes first"
    lab.note("research used 32 GPUs for 15 s, product none: product went first, though it asked later")


@promise("memory")
async def the_half_life_forgives(lab: Stage) -> None:
    await lab.apply(MEMORY)
    much = await lab.submit("research", gpus=8, count=4)
    await lab.until(running(much))
    await lab.stays(running(much), 15)  # 480 GPU-seconds
    await lab.cancel(much)
    await lab.stays(lambda seen: True, 70)  # worth less than half of it by now
    less = await lab.submit("product", gpus=8, count=2)
    await lab.until(running(less))
    await lab.stays(running(less), 20)  # 320 GPU-seconds, less than research had, but lately

    first = await _first(lab, asks_first="product")
    assert first == "research", f"research's use is a half-life older, and {first} goes first"
    lab.note("480 GPU-seconds of research a half-life ago weighed less than 320 of product just now")


async def _first(lab: Stage, *, asks_first: str) -> str:
    """Which of the two starts when both wait for all 32 GPUs, held by a third team until now."""
    blocker = await lab.submit("ops", gpus=8, count=4)
    await lab.until(running(blocker))
    await lab.cancel([job for job in lab.jobs if job.order.team != "ops"])
    waiting: Jobs = ()
    for team in sorted(("research", "product"), key=lambda team: team != asks_first):
        waiting += await lab.submit(team, gpus=8, nodes=4)
    await lab.weigh()
    await lab.stays(lambda seen: True, 2)
    await lab.cancel(blocker)
    await lab.until(lambda seen: bool(seen.running(waiting)))
    (first,) = (await lab.look()).running(waiting)
    assert first.order.team is not None
    return first.order.team
