"""A team whose budget is spent: what still starts, what goes on, and that it comes back.

The holds are written as the server's loop writes them; what is spent, the loop's own tests show.
"""

from __future__ import annotations

from fairway.model.budget import Hold
from tests.scenarios.promises import promise
from tests.scenarios.stage import Stage, running

BUDGETS = """
teams:
  research: { guarantee: { gpu: 8 }, members: [alice, carol] }
  product:
    guarantee: { gpu: 24 }
    members: [bob]
    budget: { amount: 1000, at_limit: low-only }
"""


@promise("budget")
async def a_spent_budget_starts_nothing_more_but_low(lab: Stage) -> None:
    await lab.apply(BUDGETS)
    first = await lab.submit("product", gpus=8)
    await lab.until(running(first))
    lab.always("what runs goes on", lambda s: s[first[0]].attempts == 1)

    await lab.hold(product=Hold.LOW_ONLY)
    late = await lab.submit("product", gpus=8) + await lab.submit("product", gpus=8, priority="urgent")
    low = await lab.submit("product", gpus=8, priority="low")
    other = await lab.submit("research", gpus=8)
    took = await lab.until(running(low + other))
    await lab.stays(lambda s: all(s[j].attempts == 0 for j in late), 6, "nothing but low starts")
    lab.note(
        f"low-only: low and the other team run after {took:.1f} s; the rest waits: "
        f"{await lab.hand.words(late[0].id)}"
    )
    await lab.hold()
    took = await lab.until(running(late))
    lab.note(f"let go: what waited runs after {took:.1f} s")


@promise("budget")
async def a_stopped_team_starts_nothing(lab: Stage) -> None:
    await lab.apply(BUDGETS)
    first = await lab.submit("product", gpus=8)
    await lab.until(running(first))
    lab.always("what runs goes on", lambda s: s[first[0]].attempts == 1)

    await lab.hold(product=Hold.STOP)
    late = await lab.submit("product", gpus=8) + await lab.submit("product", gpus=8, priority="low")
    await lab.stays(lambda s: all(s[j].attempts == 0 for j in late), 5, "nothing starts")
    lab.note(f"stop: people may queue, nothing starts: {await lab.hand.words(late[1].id)}")
    await lab.hold()
    took = await lab.until(running(late))
    lab.note(f"let go: what waited runs after {took:.1f} s")
    assert not (await lab.plan(BUDGETS)).changes
