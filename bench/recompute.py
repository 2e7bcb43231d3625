"""Every figure of money, recomputed from the ledger's raw rows without `fairway.cost`, and compared.

Hours are priced one by one, naively and in floats (`recompute_rows` reads what happened in them), unused
capacity is netted by day and rate, and both are shared out by day. `recompute_server` then asks a server of
a demo, or of a lab, for the same figures. The largest difference must be less than a cent.
"""

from __future__ import annotations

from bisect import bisect_right
from calendar import monthrange
from collections import defaultdict
from collections.abc import Iterator, Mapping
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

from bench.figure import Figure
from bench.recompute_rows import Key, Line, Lines, RawLedger
from fairway.model.gpu_catalogue import CATALOGUE


async def run(size: str) -> list[Figure]:
    """small: a demo with a history of 8 days. 60: of 60 days. lab: a server that is running."""
    from bench.recompute_server import compared

    return [await compared(size)]


class Recomputed:
    """The charges of a window, in which running jobs and capacity count until a moment."""

    def __init__(self, ledger: RawLedger, start: int, end: int, until: int) -> None:
        self.ledger, self.until, self.hours = ledger, until, dict(ledger.hours(start, end))
        self.day = {h: datetime.fromtimestamp(h, ledger.zone).date() for h in self.hours}
        self.found: Lines = defaultdict(lambda: [0.0, 0.0])
        self.costs: dict[tuple[str, str, int], dict[Line, float]] = defaultdict(lambda: defaultdict(float))
        self.due: dict[tuple[str, Key, int], float] = defaultdict(float)
        self.file = {h: bisect_right(ledger.since, h) - 1 for h in self.hours}

    def pieces(self, rows: list[Any]) -> Iterator[tuple[int, float, Any]]:
        begins = list(self.hours)
        for began, ended, *row in rows:
            last = self.until if ended is None else ended
            for hour in begins[max(0, bisect_right(begins, began) - 1) : bisect_right(begins, last)]:
                seconds = min(last, self.hours[hour], self.until) - max(began, hour)
                if seconds > 0 and self.file[hour] >= 0:
                    yield hour, seconds, row

    def lines(self) -> Lines:
        there: dict[Any, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0] * 5))
        used: dict[Any, dict[Key, float]] = defaultdict(lambda: defaultdict(float))
        for hour, seconds, (cluster, pool, slice_, *counts) in self.pieces(self.ledger.capacity):
            if pool in self.ledger.files[self.file[hour]]["pools"]:
                sums = there[hour, cluster, pool]
                sums[slice_] = [a + n * seconds for a, n in zip(sums[slice_], counts, strict=True)]
        for hour, seconds, (devices, cluster, pool, *who) in self.pieces(self.ledger.attempts):
            used[hour, cluster, pool][tuple(who)] += devices * seconds
        nets: dict[Any, list[float]] = defaultdict(lambda: [0.0] * 5)
        others: dict[Any, float] = defaultdict(float)
        for cell in sorted({*self.pools(), *used}):
            hour, cluster, pool = cell
            file, day = self.file[hour], self.day[hour].isoformat()
            part, rate, missing = self.rates(pool, hour, there[cell], {who[0] for who in used[cell]})
            self.due["commitment", (day, cluster, pool, ""), file] += missing
            group = (file, (day, cluster, pool), tuple(sorted(rate.items())))
            for slice_, counted in there[cell].items():
                net = nets[*group, slice_, part[slice_]]
                net[:4] = [a + b for a, b in zip(net, counted[:4], strict=False)]
            for (slice_, team, *rest), seconds in used[cell].items():
                path = self.ledger.path(team, file)
                labels = (day, cluster, pool, slice_, path[0], *rest)
                line = Line(labels, "usage", True, (cluster, pool, slice_), path)
                self.found[line][0] += seconds * rate[slice_]
                self.found[line][1] += seconds * part[slice_] / 3600
                for place in (cluster, pool):
                    self.costs[place, day, file][line] += seconds * rate[slice_]
                if slice_ in there[cell]:
                    nets[*group, slice_, part[slice_]][4] += seconds
                else:  # such as shards of GPUs that are counted whole
                    others[group] += seconds * part[slice_]
        self.unused(nets, others)
        self.overhead()
        for (kind, where, file), amount in self.due.items():
            self.share(kind, where, file, amount)
        return self.found

    def unused(self, nets: Mapping[Any, list[float]], others: dict[Any, float]) -> None:
        for (file, where, rates, slice_, part_), (total, drained, down, split, held) in sorted(nets.items()):
            left = max(0.0, total - held)
            taken = min(others[file, where, rates] / part_, left)
            others[file, where, rates] -= taken * part_
            left -= taken
            kinds = {"down": down, "drained": drained, "fragmented": split, "idle": left}
            for kind, limit in kinds.items():
                seconds = min(limit, left)
                left -= seconds
                self.due[kind, (*where, slice_), file] += seconds * dict(rates)[slice_]

    def overhead(self) -> None:
        ledger = self.ledger
        for hour, file in self.file.items():
            its_day = self.day[hour]
            length = ledger.midnight(its_day + timedelta(days=1)) - ledger.midnight(its_day)
            of_month = (self.hours[hour] - hour) / length / monthrange(its_day.year, its_day.month)[1]
            for cluster, its in ledger.files[file]["clusters"].items() if file >= 0 else ():
                monthly = sum(map(float, its.get("overhead", {}).values()))
                self.due["overhead", (its_day.isoformat(), cluster, "", ""), file] += monthly * of_month

    def pools(self) -> Iterator[tuple[int, str, str]]:
        for hour, file in self.file.items():
            for name, pool in self.ledger.files[file]["pools"].items() if file >= 0 else ():
                yield hour, pool["cluster"], name

    def file_of_pool(self, pool: str, file: int) -> dict[str, Any]:
        """As the file in force has a pool, or the last one that had it: then without commitments."""
        has = next(n for n in range(file, -1, -1) if pool in self.ledger.files[n]["pools"])
        found: dict[str, Any] = self.ledger.files[has]["pools"][pool]
        return found if has == file else {**found, "commitments": ()}

    def list_price(self, pool: str, file: int, day: str) -> float:
        """A dated price of the newest file by its day, whenever that was applied; others as applied then."""
        newest = self.ledger.files[-1]["pools"].get(pool, {}).get("price")
        for price in (newest, self.file_of_pool(pool, file)["price"]):
            if isinstance(price, dict) and (dated := [d for d in price if d != "before" and d <= day]):
                return float(price[max(dated)])
        return float(next(iter(price.values())) if isinstance(price, dict) else price)

    def rates(
        self, pool: str, hour: int, there: Mapping[str, list[float]], held: set[str]
    ) -> tuple[dict[str, float], dict[str, float], float]:
        """Parts of a GPU and rates a second by slice, and what commitments cost that were not there."""
        file, day, over = (
            self.file[hour],
            self.day[hour].isoformat(),
            max(hour, min(self.hours[hour], self.until)),
        )
        its = self.file_of_pool(pool, file)
        part = {s: memory(its["gpu"], s) for s in {"", *there, *held}}
        cut = sum(sums[0] * part[s] for s, sums in there.items())
        if set(there) - {""} and cut and (gpus := sum(sums[4] for sums in there.values())):
            part |= {s: part[s] * gpus / cut for s in there}
        discount = 1 - float(its.get("discount", "0").rstrip("%")) / 100
        rate = self.list_price(pool, file, day) / 3600 * discount
        if its["capacity"] == "spot" and over > hour:
            points = sorted(
                (at, price / 3600) for name, at, price in self.ledger.points if name == pool and at < over
            )
            first = next((p for at, p in reversed(points) if at <= hour), rate)
            steps = [(hour, first), *((at, p) for at, p in points if at > hour), (over, 0.0)]
            rate = sum(p * (b - a) for (a, p), (b, _) in pairwise(steps)) / (over - hour)
        here = left = sum(sums[0] * part[s] for s, sums in there.items())
        cost = missing = 0.0
        for one in its.get("commitments", ()):
            if one["from"] <= day < one["until"]:
                wanted, each = int(one["gpus"]) * (over - hour), float(one["price"]) / 3600
                taken = min(wanted, left)
                cost, missing, left = cost + taken * each, missing + (wanted - taken) * each, left - taken
        if left < here:
            rate = (cost + rate * left) / here
        own = {s: float(price) / 3600 for s, price in its.get("slice_prices", {}).items() if s in part}
        return part, {s: rate * p for s, p in part.items()} | own, missing

    def share(self, kind: str, where: Key, file: int, amount: float) -> None:
        """Share an amount of a day as the file in force says; what nobody pays is a line of its own."""
        day, *place = where
        overhead = kind == "overhead"
        rule = self.ledger.files[file].get("cost", {}).get("overhead" if overhead else "idle", "own-line")
        parts: dict[Line, float] = {}
        if rule == "by-usage":
            parts = self.costs[place[0] if overhead else place[1], day, file]
        elif rule == "by-guarantee":
            for name, team in self.ledger.teams[file].items():
                line = Line((*where, name, "", "", ""), kind, True, (), team.path)
                parts[line] = max(0.0, self.guaranteed(name, kind, place, file))
        whole = sum(parts.values())
        for line, own in list(parts.items()) if amount and whole else ():
            if own > 0:
                self.found[line._replace(kind=kind, place=tuple(place))][0] += amount * own / whole
        if amount and not whole:
            self.found[Line((*where, "", "", "", ""), kind, False, tuple(place), ())][0] += amount

    def guaranteed(self, team: str, kind: str, place: list[str], file: int) -> float:
        """A team's guarantee of a supply, a pool or a cluster, less those of the teams in it."""
        cluster, pool, slice_ = place
        found, pools, exact = 0.0, self.ledger.files[file]["pools"], kind not in ("overhead", "commitment")
        for its in self.ledger.teams[file].values():
            for supply, gpus in its.guarantee.items():
                name, _, cut = supply.partition("/")
                if pools[name]["cluster"] == cluster and pool in ("", name) and (not exact or cut == slice_):
                    weight = int(gpus) * (1.0 if exact else memory(pools[name]["gpu"], cut))
                    found += weight * ((its.path[0] == team) - (its.path[1:2] == (team,)))
        return found


def memory(gpu: str, slice_: str) -> float:
    """The part of a GPU's memory that a slice has."""
    profile = CATALOGUE[gpu].profile(slice_) if slice_ else None
    return float(CATALOGUE[gpu].fraction(profile)) if profile else 1.0
