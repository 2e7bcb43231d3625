"""The demo's fleet file over time: three applied revisions and their changes. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from types import MappingProxyType

from fairway.demo.fleet_text import fleet_text
from fairway.engines.virtual.engine import VERSION
from fairway.engines.virtual.policy import translate as policy_translate
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger.seed import PastApply
from fairway.model.fleet import EngineKind, Fleet
from fairway.model.names import ClusterName, TeamName
from fairway.policy.objects import Change, FoundObject, FoundPolicy, Translation
from fairway.policy.plan import build_plan, compute_changes

Amounts = Mapping[TeamName, Decimal]
"""Monthly budgets."""
_NOTHING = FoundPolicy(VERSION, (), MappingProxyType({}))


def revisions(price_day: date, before: Amounts, now: Amounts, prometheus: str) -> tuple[str, str, str]:
    """Return the first file, the file after prices and shares changed, and the current file."""
    last = fleet_text(price_day, now, prometheus)
    older = fleet_text(price_day, before, prometheus)
    second = _replaced(older, {"half_life: 1d": "half_life: 7d", "people: 14000": "people: 12500"})
    first = _replaced(
        second,
        {
            f"price: {{ before: 1.90, {price_day}: 1.75 }} # lower from this day on": "price: 1.90",
            "share: 60": "share: 50",
            "share: 40": "share: 50",
            "power: 9500": "power: 9000",
        },
    )
    return first, second, last


def applies(texts: Sequence[str], users: Sequence[str], times: Sequence[int]) -> Iterator[PastApply]:
    """Generate an apply for each revision: user, time, and the changes that a plan computes."""
    before: dict[ClusterName, FoundPolicy] = {}
    for text, by, time in zip(texts, users, times, strict=True):
        fleet = parse_fleet(text, "fleet.yaml")
        at = datetime.fromtimestamp(time, UTC)
        changes = {c.name: _planned(fleet, c.name, before.get(c.name, _NOTHING)) for c in fleet.clusters}
        before = {c.name: _found(policy_translate.translate(fleet, c.name)) for c in fleet.clusters}
        yield PastApply(text, fleet_digest(text), by, at, at + timedelta(seconds=2), changes)


def _planned(fleet: Fleet, cluster: ClusterName, found: FoundPolicy) -> tuple[str, tuple[Change, ...]]:
    wanted = policy_translate.translate(fleet, cluster)
    changes = compute_changes(wanted, found)
    plan = build_plan(cluster, EngineKind.VIRTUAL, wanted, found, changes, {})
    return plan.fingerprint, changes


def _found(wanted: Translation) -> FoundPolicy:
    """Return the policy that is found after everything in `wanted` was written."""
    objects = tuple(FoundObject(o.key, o.fields, True, None, o.after, o.team) for o in wanted.objects)
    return FoundPolicy(VERSION, objects, MappingProxyType({}))


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    for old, new in replacements.items():
        if old not in text:
            raise ValueError(f"the demo's fleet file has no {old!r}")
        text = text.replace(old, new)
    return text
