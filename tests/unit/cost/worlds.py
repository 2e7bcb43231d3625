"""Small worlds to charge for: a fleet with prices, hours of some zone, what there was and who held it.

Everything is drawn from one seed. Hours and days are found here by looking at a clock minute by minute, money
is kept in whole millionths beside the fleet's decimals: the check (`conservation`) needs nothing of what it
checks.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from functools import cache
from itertools import pairwise
from random import Random
from typing import Final
from zoneinfo import ZoneInfo

from fairway.model.charge import CapacitySum
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName, TeamName
from fairway.model.price import Commitment, CostRules, PricePoint, PriceStep, Pricing, Sharing
from fairway.model.team import Grant, Supply, Team
from fairway.model.usage import AttemptUsage

A100: Final = CATALOGUE["A100-80GB"]
WHOLE: Final = CATALOGUE["H100-80GB"]
MEMORY_EIGHTHS: Final = {"1g.10gb": 1, "1g.20gb": 2, "2g.20gb": 2, "3g.40gb": 4}
SHARINGS: Final = tuple(Sharing)
CENTS: Final = {"USD": Decimal("0.01"), "JPY": Decimal(1), "KWD": Decimal("0.001")}
CURRENCIES: Final = ("USD", "USD", "JPY", "KWD")

MICRO: Final = {
    Decimal(text): int(Decimal(text) * 1_000_000)
    for text in (
        "0",
        "0.01",
        "0.333333",
        "0.5",
        "1.10",
        "1.77",
        "2.005",
        "2.37",
        "3.6",
        "7.999999",
        "36",
        "98.32",
    )
}
PRICES: Final = tuple(MICRO)
DISCOUNTS: Final = tuple((Decimal(n).scaleb(-3), n) for n in (0, 0, 0, 100, 175, 333))
OVERHEADS: Final = tuple(Decimal(text) for text in ("0.01", "31", "999.99", "12345.67", "0.333"))

# Where clocks do something, and where they do nothing unusual: a zone and moments (UTC) to look around.
_MOMENTS: Final = {
    "UTC": ("2024-02-29", "2026-03-01", "2027-01-01", "2028-02-28", "2028-03-01"),
    "Europe/Berlin": ("2024-03-31", "2026-10-25", "2028-03-01", "2026-02-28", "2027-10-31"),
    "America/New_York": ("2026-03-08", "2026-11-01", "2024-03-01", "2028-11-05"),
    "Asia/Kolkata": ("2024-02-29", "2026-09-30", "2027-12-31"),
    "Asia/Kathmandu": ("2024-02-28", "2026-04-30"),
    "Australia/Lord_Howe": ("2026-04-04", "2026-10-03", "2027-04-03", "2024-02-29"),
    "Pacific/Chatham": ("2026-04-04", "2026-09-26"),
    "America/Sao_Paulo": ("2018-11-04", "2018-02-18", "2019-02-17"),
    "Africa/Cairo": ("2026-04-23", "2026-10-29"),
    "Asia/Beirut": ("2026-03-28", "2026-10-24"),
    "America/Havana": ("2026-03-08", "2026-11-01"),
    "Atlantic/Azores": ("2026-03-29", "2026-10-25"),
    "America/St_Johns": ("2006-10-29", "2006-04-02", "2026-11-01"),
    "America/Santiago": ("2026-04-05", "2026-09-06"),
    "Asia/Pyongyang": ("2015-08-14", "2018-05-04"),
    "Pacific/Apia": ("2011-12-30", "2011-12-31"),
    "Pacific/Kiritimati": ("2024-02-29", "2026-12-31"),
    "Pacific/Pago_Pago": ("2028-03-01", "2026-12-31"),
}


@dataclass(frozen=True, slots=True)
class Hour:
    start: int
    end: int
    day: date


@dataclass(frozen=True, slots=True)
class Stage:
    """A zone and the hours around a moment."""

    zone: ZoneInfo
    hours: tuple[Hour, ...]
    starts: tuple[int, ...]
    middle: int
    """Which of the hours the clocks change in, or else begins the day."""
    day_seconds: dict[date, int]


def moments() -> list[tuple[str, str]]:
    """Each zone with a day of its own at which something happens."""
    return [(name, moment) for name, days in _MOMENTS.items() for moment in days]


@cache
def stage_of(name: str, moment: str) -> Stage:
    """Some days around one moment, found by looking at the clock each minute."""
    zone = ZoneInfo(name)
    noon = int((datetime.fromisoformat(moment).replace(tzinfo=UTC) + timedelta(hours=12)).timestamp())
    began: list[tuple[int, date]] = []
    day = date.min
    changed = offset = None
    for at in range(noon - 130 * 3600, noon + 130 * 3600, 60):
        shown = datetime.fromtimestamp(at, zone)
        now = shown.utcoffset()
        if offset not in (None, now) and abs(at - noon) < 40 * 3600:
            changed = at
        new_day, offset = shown.date() > day, now
        day = max(day, shown.date())
        if new_day or (shown.minute == 0 and shown.second == 0):
            began.append((at, day))
    # The first may have begun before we looked, and the last has no end: neither is used.
    hours = tuple(Hour(a, b, d) for (a, d), (b, _) in pairwise(began[1:]))
    if changed is None:
        changed = next(hour.start for hour in hours if hour.day >= date.fromisoformat(moment))
    starts = tuple(hour.start for hour in hours)
    day_seconds: dict[date, int] = {}
    for hour in hours:
        day_seconds[hour.day] = day_seconds.get(hour.day, 0) + hour.end - hour.start
    return Stage(zone, hours, starts, bisect_right(starts, changed) - 1, day_seconds)


def days_in_month(zone: ZoneInfo, day: date) -> int:
    """As the wall calendar has it; Samoa left one out when it crossed the date line."""
    lengths = (31, 29 if day.year % 4 == 0 else 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31)
    return lengths[day.month - 1] - (zone.key == "Pacific/Apia" and (day.year, day.month) == (2011, 12))


@dataclass(frozen=True, slots=True)
class Stock:
    """What there is of a supply from a moment on."""

    at: int
    total: int
    drained: int
    down: int
    fragmented: int
    gpus: int


@dataclass(slots=True)
class World:
    """One case."""

    stage: Stage
    first: int
    last: int
    """The window is hours [first, last) of the stage."""
    fleet: Fleet
    permille: dict[PoolName, int]
    points: dict[PoolName, list[PricePoint]]
    stocks: dict[Supply, list[Stock]]
    holders: list[tuple[Supply, str, str]]
    """Supply, team and user by holder."""
    stories: list[list[AttemptUsage | None]] = field(default_factory=list)
    """Of each attempt, what was held to be true of it, one after the other; the last is the truth."""

    @property
    def hours(self) -> tuple[Hour, ...]:
        return self.stage.hours[self.first : self.last]

    @property
    def supplies(self) -> tuple[Supply, ...]:
        """What there is, and what is held: shares of GPUs that are counted whole, too."""
        return tuple(dict.fromkeys((*self.stocks, *(supply for supply, _, _ in self.holders))))

    def capacity(self) -> list[CapacitySum]:
        """By hour, from the stocks."""
        rows = []
        cluster_of = {pool.name: pool.cluster for pool in self.fleet.pools}
        for supply, stocks in self.stocks.items():
            cluster = cluster_of[supply.pool]
            for hour in self.hours:
                sums = [0, 0, 0, 0, 0]
                for stock, seconds in _within(stocks, hour):
                    sums[0] += stock.total * seconds
                    sums[1] += stock.drained * seconds
                    sums[2] += stock.down * seconds
                    sums[3] += stock.fragmented * seconds
                    sums[4] += stock.gpus * seconds
                if stocks:
                    rows.append(CapacitySum(hour.start, cluster, supply, *sums))
        return rows


def _within(stocks: list[Stock], hour: Hour) -> Iterator[tuple[Stock, int]]:
    for i, stock in enumerate(stocks):
        end = stocks[i + 1].at if i + 1 < len(stocks) else hour.end
        seconds = min(end, hour.end) - max(stock.at, hour.start)
        if seconds > 0:
            yield stock, seconds


def world(seed: int) -> World:
    """The world of a seed: mostly a few hours, two pools and a handful of attempts."""
    rng = Random(seed)
    each = moments()
    stage = stage_of(*each[int(rng.random() * len(each))])
    length = 1 + int(rng.random() * (3 if rng.random() < 0.99 else 55))
    first = max(0, min(stage.middle - int(rng.random() * (length + 1)), len(stage.hours) - length))
    last = first + length
    hours = stage.hours[first:last]
    teams = _team_names(rng)
    pools: list[Pool] = []
    permille: dict[PoolName, int] = {}
    points: dict[PoolName, list[PricePoint]] = {}
    stocks: dict[Supply, list[Stock]] = {}
    clusters = tuple(_cluster(rng, name) for name in ("hpc", "cloud")[: 1 + (rng.random() < 0.2)])
    for name in ("p", "q", "r")[: 1 + int(rng.random() ** 3 * 2.2)]:
        pool, permille[PoolName(name)] = _pool(rng, name, clusters, hours)
        pools.append(pool)
        if rng.random() < 0.3:
            points[pool.name] = _points(rng, hours)
        stocks.update(_stocks(rng, pool, hours))
    fleet = Fleet(
        "f",
        CURRENCIES[int(rng.random() * 4)],
        clusters,
        tuple(pools),
        _teams(rng, teams, list(stocks)),
        cost=CostRules("", SHARINGS[int(rng.random() * 3)], SHARINGS[int(rng.random() * 3)]),
    )
    found = World(stage, first, last, fleet, permille, points, stocks, [])
    _attempts(rng, found, teams)
    return found


def _cluster(rng: Random, name: str) -> Cluster:
    overhead = {}
    if rng.random() < 0.6:
        overhead = {"power": _of(rng, OVERHEADS)}
        if rng.random() < 0.3:
            overhead["people"] = _of(rng, OVERHEADS)
    return Cluster(ClusterName(name), VirtualConnection(), overhead=overhead)


def _of(rng: Random, choices: tuple[Decimal, ...]) -> Decimal:
    return choices[int(rng.random() * len(choices))]


def _pool(rng: Random, name: str, clusters: tuple[Cluster, ...], hours: tuple[Hour, ...]) -> tuple[Pool, int]:
    some_day = hours[int(rng.random() * len(hours))].day
    slices = tuple(SliceName(s) for s in MEMORY_EIGHTHS if rng.random() < 0.5) if rng.random() < 0.4 else ()
    discount, permille = DISCOUNTS[int(rng.random() * 6)]
    steps: tuple[PriceStep, ...] = ()
    if rng.random() < 0.3:
        steps = (PriceStep(some_day, _of(rng, PRICES)),)
        if rng.random() < 0.3:
            steps = (*steps, PriceStep(some_day + timedelta(days=1), _of(rng, PRICES)))
    commitments: tuple[Commitment, ...] = ()
    while rng.random() < 0.3 and len(commitments) < 2:
        since = some_day - timedelta(days=int(rng.random() * 3))
        until = some_day + timedelta(days=int(rng.random() * 3))
        commitments = (*commitments, Commitment(1 + int(rng.random() * 9), _of(rng, PRICES), since, until))
    own = {s: _of(rng, PRICES) for s in slices if rng.random() < 0.2}
    pool = Pool(
        PoolName(name),
        clusters[int(rng.random() * len(clusters))].name,
        A100 if slices else WHOLE,
        Capacity.SPOT,
        _of(rng, PRICES),
        VirtualPlace(1),
        slices,
        pricing=Pricing(steps, discount, commitments, own),
    )
    return pool, permille


def _points(rng: Random, hours: tuple[Hour, ...]) -> list[PricePoint]:
    begin, end = hours[0].start - 3000, hours[-1].end
    moments = sorted({begin + int(rng.random() * (end - begin)) for _ in range(1 + int(rng.random() * 4))})
    return [PricePoint(datetime.fromtimestamp(at, UTC), _of(rng, PRICES)) for at in moments]


def _stocks(rng: Random, pool: Pool, hours: tuple[Hour, ...]) -> dict[Supply, list[Stock]]:
    """What there is of each supply, changing once or twice or never; now and then nothing is known at all."""
    begin, end = hours[0].start, hours[-1].end
    if rng.random() < 0.05:
        return {supply: [] for supply in pool.supplies}
    changes = [begin]
    while rng.random() < 0.4:
        changes.append(begin + int(rng.random() * (end - begin)))
    changes.sort()
    found: dict[Supply, list[Stock]] = {supply: [] for supply in pool.supplies}
    for at in changes:
        gpus = 0
        for stocks in found.values():
            total = int(rng.random() * 9) if rng.random() < 0.9 else 0
            drained, down, fragmented = (int(rng.random() * 3) if rng.random() < 0.3 else 0 for _ in range(3))
            stocks.append(Stock(at, total, drained, down, fragmented, total))
            gpus += total
        if pool.slices:  # the GPUs behind them stand with the first supply
            first = min(found)
            gpus = -(-gpus // 5) if gpus else 0
            for supply, stocks in found.items():
                s = stocks[-1]
                there = gpus if supply == first else 0
                stocks[-1] = Stock(at, s.total, s.drained, s.down, s.fragmented, there)
    return found


def _team_names(rng: Random) -> tuple[str, ...]:
    return ("a", "b", "c", "d")[: int(rng.random() * 5)]


def _teams(rng: Random, names: tuple[str, ...], supplies: list[Supply]) -> tuple[Team, ...]:
    """`b` may be inside `a`, and `c` inside `b`: a guarantee is promised on."""
    teams: list[Team] = []
    above: dict[Supply, int] = {}
    for i, name in enumerate(names):
        inside = teams[-1] if 0 < i < 3 and rng.random() < 0.5 else None
        grants = []
        for supply in supplies:
            own = int(rng.random() * 4)
            if inside is not None:
                own = min(own, above.get(supply, 0))
            above[supply] = own
            if own or rng.random() < 0.5:
                grants.append(Grant(supply, own))
        teams.append(Team(TeamName(name), None if inside is None else inside.name, grants=tuple(grants)))
    return tuple(teams)


def _attempts(rng: Random, found: World, teams: tuple[str, ...]) -> None:
    """Each with one or several versions of what it held: engines tell of it late and correct themselves."""
    supplies = list(found.stocks)
    starts, hours = found.stage.starts, found.stage.hours
    begin, end = starts[max(0, found.first - 3)], hours[min(len(hours), found.last + 3) - 1].end
    for supply in supplies:
        for team in (*teams[:2], ""):
            found.holders.append((supply, team, "u" if rng.random() < 0.5 else "v"))
    for _ in range(int(rng.random() * 4)):
        start = begin + int(rng.random() * (end - begin))
        devices = 1 + int(rng.random() * 4)
        holder = int(rng.random() * len(found.holders))
        until = min(end, start + int(rng.random() * 20000))
        now = AttemptUsage(holder, devices, start, until)
        story: list[AttemptUsage | None] = [now]
        while rng.random() < 0.45:
            changed = _changed(rng, now, len(found.holders), begin, end)
            story.append(changed)
            now = changed or now
        found.stories.append(story)


def _changed(rng: Random, now: AttemptUsage, holders: int, begin: int, end: int) -> AttemptUsage | None:
    match int(rng.random() * 7):
        case 0:
            return None
        case 1:
            return AttemptUsage(int(rng.random() * holders), now.devices, now.start, now.end)
        case 2:
            return AttemptUsage(now.holder, 1 + int(rng.random() * 5), now.start, now.end)
        case 3:
            return AttemptUsage(
                now.holder, now.devices, max(begin, now.start - int(rng.random() * 900)), now.end
            )
        case 4:
            return AttemptUsage(now.holder, now.devices, now.start, now.start + (now.end - now.start) // 2)
        case _:
            return AttemptUsage(
                now.holder, now.devices, now.start, min(end, now.end + int(rng.random() * 7200))
            )
