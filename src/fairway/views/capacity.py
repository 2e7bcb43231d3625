"""Build the report of a capacity plan from its replays. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from decimal import Decimal

from fairway.model.fleet import Fleet
from fairway.model.names import PoolName
from fairway.model.slo import Slo
from fairway.simulate.capacity import MONTH_HOURS, NO_COST, monthly_cost, price_by_kind
from fairway.simulate.replay import PoolSizes, ScenarioRun
from fairway.wire import capacity as wire


def planned_month(
    fleet: Fleet,
    sizes: PoolSizes,
    slos: Sequence[Slo],
    pool: PoolName,
    month: int,
    demand: float,
    nodes: int | None,
    tried: int,
    run: ScenarioRun,
) -> wire.PlannedMonth:
    """Return what a pool needs in a month, with the cost of its GPUs beyond the present ones."""
    place, of = sizes[pool], fleet.pool(pool)
    measured = (run.metrics.end - run.metrics.begin) / 3600
    hours = run.beyond.get(pool, 0.0) * float(MONTH_HOURS) / measured if measured else 0.0
    more = None if nodes is None else (nodes - place.nodes) * place.gpus_per_node
    day = datetime.fromtimestamp(max(0.0, run.metrics.end), UTC).date()
    prices = price_by_kind(fleet.pools, of, {one.name: one.list_price(day) for one in fleet.pools})
    cost = NO_COST if more is None else monthly_cost(prices, more, hours)
    return wire.PlannedMonth(
        pool=pool,
        month=month,
        demand=demand,
        nodes=nodes,
        gpus=None if nodes is None else nodes * place.gpus_per_node,
        more_gpus=more,
        objectives=[
            wire.PlannedObjective(
                name=slo.name, target=slo.target, compliance=run.objectives[slo.name].compliance
            )
            for slo in slos
        ],
        tried=tried,
        burst_gpu_hours=hours,
        buy=_rounded(cost.buy),
        reserve=_rounded(cost.reserve),
        burst=_rounded(cost.burst),
    )


def _rounded(amount: Decimal | None) -> Decimal | None:
    return None if amount is None else amount.quantize(Decimal("0.01"))
