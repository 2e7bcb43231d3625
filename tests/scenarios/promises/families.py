"""Teams inside teams."""

from __future__ import annotations

from tests.scenarios.promises import promise
from tests.scenarios.promises.fleets import FAMILY
from tests.scenarios.stage import Stage, running


@promise("hierarchy")
async def siblings_before_strangers(lab: Stage) -> None:
    await lab.apply(FAMILY)
    product = await lab.submit("product", gpus=8, count=4)  # borrows all that research leaves
    await lab.until(running(product))
    lab.always("product keeps its guarantee", lambda s: s.held_by("product") >= 16)

    vision = await lab.submit("vision", gpus=8)  # research's own 8
    await lab.until(running(vision))
    vision += await lab.submit("vision", gpus=8)  # the 8 that nlp leaves
    took = [await lab.until(running(vision))]
    assert len(await lab.taken(product)) == 2
    await lab.stays(running(vision), 3, "what nlp leaves stays in the family while product waits")

    nlp = await lab.submit("nlp", gpus=8)  # its own guarantee, now with its sibling
    took.append(await lab.until(running(nlp)))
    assert len(await lab.taken(vision)) == 1
    assert len(await lab.taken(product)) == 2  # product is at its guarantee: not one more
    lab.note(
        f"vision had nlp's idle 8 after {took[0]:.1f} s, before product; nlp had them back after"
        f" {took[1]:.1f} s, from vision"
    )


@promise("hierarchy")
async def a_family_at_its_guarantee_takes_back_nothing_more(lab: Stage) -> None:
    await lab.apply("""
teams:
  research:
    guarantee: { gpu: 16 }
    borrow: { gpu: 16 }
    teams:
      nlp: { guarantee: { gpu: 8 }, members: [alice] }
      vision: { members: [carol] }
  product: { guarantee: { gpu: 8 }, borrow: { gpu: 24 }, members: [bob] }
""")
    family = await lab.submit("nlp", gpus=8) + await lab.submit("vision", gpus=8)
    await lab.until(running(family))
    product = await lab.submit("product", gpus=8, count=2)  # one of them lent
    await lab.until(running(product))

    more = await lab.submit("vision", gpus=8)

    if await lab.comes(running(more), 6) is None:
        lab.note("a family at its guarantee left what was lent to another team")
    else:
        lab.caveat("a family at its guarantee of 16 took 8 more, which were lent to another team")
    assert (await lab.look()).held_by("product") >= 8, "never from a team within its guarantee"
