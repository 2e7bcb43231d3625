"""What a fleet file says of money: read, checked, written again."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from decimal import Decimal
from typing import Any

import jsonschema
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fairway.files import Severity, check_text, fleet_schema
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Fleet, Pool
from fairway.model.price import Commitment, CostRules, PriceStep, Pricing, Sharing, commitment_ids
from fairway.policy.fleet_diff import describe
from tests.tier import examples
from tests.unit.files.fleets import SHARED, SOUND, changed, checked, only_fault
from tests.unit.files.yaml_values import plain

VALIDATOR = jsonschema.Draft202012Validator(fleet_schema())
PRICE = "    price: 1.90\n    slurm:"
SLICED = "    price: 1.90\n    virtual:"


def priced(lines: str, text: str = SOUND) -> str:
    """The sound file with other lines for the price of its first pool."""
    return changed(PRICE, "".join(f"    {line}\n" for line in lines.splitlines()) + "    slurm:", text)


def pool_of(text: str, number: int = 0) -> Pool:
    report = checked(text)
    assert report.fleet is not None, report.faults
    assert not list(VALIDATOR.iter_errors(plain(text)))
    return report.fleet.pools[number]


def steps(*told: tuple[str, str]) -> tuple[PriceStep, ...]:
    return tuple(PriceStep(date.fromisoformat(day), Decimal(price)) for day, price in told)


# --- read -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written",
    [
        "{ 2026-01-01: 1.90, 2026-07-01: 1.75 }",
        '{ "2026-01-01": 1.90, "2026-07-01": 1.75 }',
        "\n  2026-01-01: 1.90\n  '2026-07-01': 1.75",
    ],
)
def test_prices_by_day_are_read_with_quotes_and_without(written: str) -> None:
    pool = pool_of(priced(f"price: {written}"))
    assert pool.pricing.steps == steps(("2026-01-01", "1.90"), ("2026-07-01", "1.75"))
    assert str(pool.price) == "1.90"  # holds before its day too
    on = {day: str(pool.list_price(date.fromisoformat(day))) for day in ("2025-12-31", "2026-06-30")}
    assert on == {"2025-12-31": "1.90", "2026-06-30": "1.90"}
    assert str(pool.list_price(date(2026, 7, 1))) == "1.75"


def test_the_first_price_may_have_no_day() -> None:
    pool = pool_of(priced("price: { before: 2.10, 2026-07-01: 1.75 }"))
    assert (str(pool.price), pool.pricing.steps) == ("2.10", steps(("2026-07-01", "1.75")))
    assert pool_of(priced("price: { before: 2.10 }")) == pool_of(priced("price: 2.10"))


def test_everything_a_pool_can_say_of_money() -> None:
    lines = (
        "price: 1.90\ndiscount: 12.5%\n"
        "commitments: [{ gpus: 32, price: 1.10, from: 2026-01-01, until: 2027-01-01 }]"
    )
    assert pool_of(priced(lines)).pricing == Pricing(
        discount=Decimal("0.125"),
        commitments=(Commitment(32, Decimal("1.10"), date(2026, 1, 1), date(2027, 1, 1)),),
    )
    cut = changed(SLICED, "    price: 1.90\n    slice_prices: { 1g.10gb: 0.30 }\n    virtual:")
    assert dict(pool_of(cut, 2).pricing.slices) == {"1g.10gb": Decimal("0.30")}


def test_commitments_have_ids() -> None:
    lines = (
        "price: 1.90\ncommitments:\n"
        "  - { id: sp-1, gpus: 1, price: 1, from: 2026-01-01, until: 2027-01-01 }\n"
        "  - { gpus: 2, price: 1, from: 2026-01-01, until: 2027-01-01 }\n"
        "  - { gpus: 3, price: 1, from: 2026-01-01, until: 2027-01-01 }"
    )
    commitments = pool_of(priced(lines)).pricing.commitments
    assert [c.id for c in commitments] == ["sp-1", "", ""]
    assert list(commitment_ids("hpc", commitments).values()) == ["sp-1", "hpc-2026-01-01", "hpc-2026-01-01-2"]


def test_a_pool_without_a_price_is_warned_of_and_can_be_used() -> None:
    report = checked(priced("price: 0"))
    (fault,) = report.faults
    assert report.fleet is not None
    assert (fault.code, fault.severity, fault.path) == ("NoPrice", Severity.WARNING, "pools.hpc-a100.price")
    assert (
        "charges will be 0" in fault.message and "price: 1.90" in fault.hint and "price owned" in fault.hint
    )


@pytest.mark.parametrize(
    "lines",
    [
        "price: { before: 0, 2026-07-01: 1.75 }",
        "price: 0\ncommitments: [{ gpus: 32, price: 1.10, from: 2026-01-01, until: 2027-01-01 }]",
    ],
)
def test_a_pool_that_costs_something_in_another_way_is_not(lines: str) -> None:
    assert checked(priced(lines)).faults == ()


def test_clusters_have_overhead_and_the_fleet_has_rules() -> None:
    text = changed(
        "    engine: virtual\n", "    engine: virtual\n    overhead: { power: 4000, people: 9000.50 }\n"
    )
    text += "cost: { timezone: Europe/Berlin, idle: by-guarantee, overhead: by-usage }\n"
    fleet = checked(text).fleet
    assert fleet is not None
    assert dict(fleet.cluster("lab").overhead) == {"power": Decimal(4000), "people": Decimal("9000.50")}
    assert fleet.cost == CostRules("Europe/Berlin", Sharing.BY_GUARANTEE, Sharing.BY_USAGE)
    assert checked(SOUND).fleet.cost == CostRules("UTC", Sharing.OWN_LINE, Sharing.OWN_LINE)  # type: ignore[union-attr]


# --- faults -----------------------------------------------------------------------------------------------

# lines for the first pool, code, path, pieces of message and hint
MISTAKES = [
    ("price: {}", "OutOfRange", "pools.hpc-a100.price", "before: 2.10"),
    (
        "price: { 2026-07-01: 1.75, 2026-01-01: 1.90 }",
        "NotInOrder",
        "pools.hpc-a100.price.2026-01-01",
        "in the order in which they hold",
    ),
    (
        "price: { 2026-01-01: 1.90, before: 2.10 }",
        "NotInOrder",
        "pools.hpc-a100.price.before",
        "put before before every day",
    ),
    ("price: { 2026-1-1: 1.90 }", "BadValue", "pools.hpc-a100.price.2026-1-1", "write 2026-01-01"),
    ("price: { 1.7.2026: 1.90 }", "BadValue", 'pools.hpc-a100.price."1.7.2026"', "write 2026-07-01"),
    ("price: { 2026-02-30: 1.90 }", "BadValue", "pools.hpc-a100.price.2026-02-30", "no such day"),
    ("price: { 0026-02-03: 1.90 }", "BadValue", "pools.hpc-a100.price.0026-02-03", "no such day"),
    ("price: { always: 1.90 }", "BadValue", "pools.hpc-a100.price.always", "before for the first"),
    ("price: { 2026-01-01: dear }", "WrongType", "pools.hpc-a100.price.2026-01-01", "write a number"),
    ("price: [1.90]", "WrongType", "pools.hpc-a100.price", "write a number"),
    ("price: 1.90\ndiscount: 100%", "OutOfRange", "pools.hpc-a100.discount", "price: 0"),
    ("price: 1.90\ndiscount: 100.0%", "OutOfRange", "pools.hpc-a100.discount", "price: 0"),
    ("price: 1.90\ndiscount: 0.12", "WrongType", "pools.hpc-a100.discount", "write 12%"),
    ("price: 1.90\ndiscount: 12", "WrongType", "pools.hpc-a100.discount", "write 12%"),
    ("price: 1.90\ndiscount: -3%", "BadValue", "pools.hpc-a100.discount", "from 0% to 99%"),
    ("price: 1.90\ncommitments: { gpus: 1 }", "WrongType", "pools.hpc-a100.commitments", "in brackets"),
    (
        "price: 1.90\ncommitments: [{ gpus: 1, price: 1, from: 2026-01-01 }]",
        "MissingKey",
        "pools.hpc-a100.commitments[0].until",
        "add:  until: 2027-01-01",
    ),
    (
        "price: 1.90\ncommitments: [{ gpus: 0, price: 1, from: 2026-01-01, until: 2027-01-01 }]",
        "OutOfRange",
        "pools.hpc-a100.commitments[0].gpus",
        "from 1 to",
    ),
    (
        "price: 1.90\ncommitments: [{ gpus: 1, price: 1, from: 2026-01-01, until: 2026-01-01 }]",
        "NotInOrder",
        "pools.hpc-a100.commitments[0].until",
        "no longer holds",
    ),
    (
        "price: 1.90\nslice_prices: { 1g.10gb: 0.3 }",
        "WholePool",
        'pools.hpc-a100.slice_prices."1g.10gb"',
        "cut",
    ),
    (
        "price: 1.90\ncommitments:\n"
        "  - { id: sp-1, gpus: 1, price: 1, from: 2026-01-01, until: 2027-01-01 }\n"
        "  - { id: sp-1, gpus: 1, price: 2, from: 2026-01-01, until: 2027-01-01 }",
        "RepeatedValue",
        "pools.hpc-a100.commitments[1].id",
        "its own id",
    ),
    ("price: 1.90\nslice_prices: { 1G: 0.3 }", "BadValue", "pools.hpc-a100.slice_prices.1G", "1g"),
]


@pytest.mark.parametrize(("lines", "code", "path", "piece"), MISTAKES, ids=[m[0][:40] for m in MISTAKES])
def test_one_mistake_is_one_fault(lines: str, code: str, path: str, piece: str) -> None:
    fault = only_fault(priced(lines))
    assert (fault.code, fault.path) == (code, path)
    assert piece in fault.hint
    assert fault.expected


def test_a_price_for_a_slice_the_pool_has_not() -> None:
    text = changed(SLICED, "    price: 1.90\n    slice_prices: { 2g.20gb: 0.50 }\n    virtual:")
    fault = only_fault(text)
    assert (fault.code, fault.path) == ("UnknownSlice", 'pools.lab-mig.slice_prices."2g.20gb"')
    assert "not cut into 2g.20gb" in fault.message


def on_slices(lines: str, per_gpu: str = "1g.10gb: 7") -> str:
    """The sound file, its sliced pool with these lines for its price and its GPUs cut so."""
    names = ", ".join(part.split(":")[0] for part in per_gpu.split(", "))
    text = changed("slices: [1g.10gb, 3g.40gb]", f"slices: [{names}]")
    text = changed("1g.10gb: 4, 3g.40gb: 1", per_gpu, text)
    return changed(SLICED, "".join(f"    {line}\n" for line in lines.splitlines()) + "    virtual:", text)


@pytest.mark.parametrize(
    ("lines", "per_gpu", "pieces"),
    [
        ("price: 2.10\nslice_prices: { 1g.10gb: 5.00 }", "1g.10gb: 7", "more 7 × 1g.10gb 35.00 2.10"),
        ("price: 2.10\nslice_prices: { 1g.10gb: 0.10 }", "1g.10gb: 7", "less 7 × 1g.10gb 0.70 2.10"),
        ("price: 2.10\ndiscount: 50%\nslice_prices: { 1g.10gb: 0.30 }", "1g.10gb: 7", "more 2.10 1.05"),
        ("price: { before: 2.10, 2026-07-01: 1.75 }\nslice_prices: { 1g.10gb: 0.30 }", "1g.10gb: 7", "1.75"),
        # The 3g.40gb is half of the memory that is cut, and so costs 0.95.
        (
            "price: 1.90\nslice_prices: { 1g.10gb: 0.30 }",
            "1g.10gb: 4, 3g.40gb: 1",
            "more 4 × 1g.10gb + 1 × 3g.40gb 2.15 1.90",
        ),
    ],
)
def test_slices_that_cost_something_else_than_their_gpu(lines: str, per_gpu: str, pieces: str) -> None:
    report = checked(on_slices(lines, per_gpu))
    assert report.fleet is not None  # it can be meant so
    (fault,) = report.faults
    assert (fault.code, fault.severity) == ("SlicePricesDiffer", Severity.WARNING)
    assert fault.path == "pools.lab-mig.slice_prices"
    assert [piece for piece in pieces.split() if piece not in fault.message] == []


@pytest.mark.parametrize(
    ("lines", "per_gpu"),
    [
        ("price: 2.10\nslice_prices: { 1g.10gb: 0.30 }", "1g.10gb: 7"),
        ("price: 1.90\nslice_prices: { 1g.10gb: 0.27 }", "1g.10gb: 7"),  # 1.89: a cent has no sevenths
        ("price: 1.90\nslice_prices: { 1g.10gb: 0.2375 }", "1g.10gb: 4, 3g.40gb: 1"),
        (
            "price: { before: 9, 2026-07-01: 4.20 }\ndiscount: 50%\nslice_prices: { 1g.10gb: 0.30 }",
            "1g.10gb: 7",
        ),
        ("price: 0\nslice_prices: { 1g.10gb: 0.30 }", "1g.10gb: 7"),  # priced by the slice alone
    ],
)
def test_slices_that_cost_what_their_gpu_costs(lines: str, per_gpu: str) -> None:
    assert checked(on_slices(lines, per_gpu)).faults == ()


def test_slices_are_compared_in_the_way_to_cut_that_differs_most() -> None:
    """Outside of a virtual cluster, a file does not say how many slices a GPU is cut into."""

    def text(slices: str, prices: str) -> str:
        return changed(
            PRICE, f"    slices: [{slices}]\n    price: 2.10\n    slice_prices: {{ {prices} }}\n    slurm:"
        )

    assert (
        "7 × 1g.10gb costs 35.00" in only_fault(text("1g.10gb, 3g.40gb", "1g.10gb: 5, 3g.40gb: 1.05")).message
    )
    assert "2 × 3g.40gb costs 9.00" in only_fault(text("1g.10gb, 3g.40gb", "3g.40gb: 4.50")).message
    assert "4 × shared-4 costs 4.00" in only_fault(text("shared-4", "shared-4: 1")).message
    assert checked(text("shared-4", "shared-4: 0.525")).faults == ()


def test_slice_prices_beside_commitments_are_a_warning() -> None:
    """What is committed is paid; slices with a price of their own are not charged it."""
    lines = (
        "price: 2.10\nslice_prices: { 1g.10gb: 0.30 }\n"
        "commitments: [{ gpus: 2, price: 1.00, from: 2026-01-01, until: 2027-01-01 }]"
    )
    fault = only_fault(on_slices(lines))
    assert (fault.code, fault.severity) == ("SlicePricesDiffer", Severity.WARNING)
    assert "7 × 1g.10gb is charged at 2.10 per hour, and a committed GPU is paid for at 1.00" in fault.message
    assert checked(on_slices(lines.replace("slice_prices: { 1g.10gb: 0.30 }\n", ""))).faults == ()


def test_commitments_beyond_the_pool_are_a_warning() -> None:
    lines = (
        "gpus: 40\nprice: 1.90\ncommitments:\n"
        "  - { gpus: 32, price: 1.10, from: 2026-01-01, until: 2027-01-01 }\n"
        "  - { gpus: 9, price: 1.00, from: 2026-06-01, until: 2026-07-01 }"
    )
    report = checked(priced(lines))
    assert report.fleet is not None  # it can be so, and is charged
    (fault,) = report.faults
    assert (fault.code, fault.severity) == ("CommittedTooMuch", Severity.WARNING)
    assert "41 GPUs on 2026-06-01, but it has 40" in fault.message
    assert fault.path == "pools.hpc-a100.commitments[1]"
    assert checked(priced(lines.replace("gpus: 9", "gpus: 8"))).faults == ()
    later = lines.replace("2026-06-01", "2027-01-01").replace("2026-07-01", "2028-01-01")
    assert checked(priced(later)).faults == ()  # one after the other, never together


@pytest.mark.parametrize(
    ("zone", "piece"),
    [
        ("Europe/Berlln", "did you mean Europe/Berlin"),
        ("Berlin", "did you mean Europe/Berlin?"),
        ("europe/berlin", "did you mean Europe/Berlin"),
        ("Mars/Olympus", "like Europe/Berlin"),
        ("localtime", "like Europe/Berlin"),
    ],
)
def test_a_zone_that_is_none(zone: str, piece: str) -> None:
    fault = only_fault(f"{SOUND}cost: {{ timezone: {zone} }}\n")
    assert (fault.code, fault.path) == ("UnknownTimeZone", "cost.timezone")
    assert piece in fault.hint


@pytest.mark.parametrize("zone", ["../../etc/passwd", "/etc/localtime", "a/../b", "x" * 65])
def test_a_zone_is_never_a_path(zone: str) -> None:
    assert only_fault(f"{SOUND}cost: {{ timezone: {zone} }}\n").code == "BadValue"


def test_rules_are_words() -> None:
    fault = only_fault(f"{SOUND}cost: {{ idle: by-guarantees }}\n")
    assert fault.hint == "did you mean by-guarantee?"
    assert only_fault(f"{SOUND}cost: {{ ilde: own-line }}\n").hint == "did you mean idle?"


def test_overhead_has_names_and_amounts() -> None:
    text = changed("    engine: virtual\n", "    engine: virtual\n    overhead: { Power: 4000 }\n")
    assert (only_fault(text).path, only_fault(text).hint) == ("clusters.lab.overhead.Power", "write power")
    text = changed("    engine: virtual\n", "    engine: virtual\n    overhead: { power: -1 }\n")
    assert only_fault(text).code == "OutOfRange"


# --- written again ----------------------------------------------------------------------------------------

DAYS = st.dates(date(1971, 1, 1), date(2199, 12, 31))
AMOUNTS = st.decimals(0, 1_000_000, places=6).map(lambda d: d.quantize(Decimal("0.01")))


@st.composite
def money(draw: st.DrawFn) -> dict[str, Any]:
    """A pool's keys of money, as somebody would write them."""
    days = sorted(draw(st.lists(DAYS, unique=True, max_size=4)))
    told: dict[str, str] = {"before": str(draw(AMOUNTS))} if draw(st.booleans()) or not days else {}
    told |= {str(day): str(draw(AMOUNTS)) for day in days}
    found: dict[str, Any] = {"price": "{ " + ", ".join(f"{k}: {v}" for k, v in told.items()) + " }"}
    if draw(st.booleans()):
        found["discount"] = f"{draw(st.decimals(0, 99, places=2))}%"
    if draw(st.booleans()):
        spans = draw(st.lists(st.tuples(DAYS, DAYS).filter(lambda two: two[0] < two[1]), max_size=3))
        inner = (
            f"{{ gpus: {draw(st.integers(1, 100))}, price: {draw(AMOUNTS)}, from: {a}, until: {b} }}"
            for a, b in spans
        )
        found["commitments"] = f"[{', '.join(inner)}]"
    return found


@settings(max_examples=examples(60), deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
@given(money())
def test_it_reads_back(keys: dict[str, str]) -> None:
    fleet = checked(priced("\n".join(f"{key}: {told}" for key, told in keys.items()))).fleet
    assert fleet is not None
    assert read_back(fleet) == fleet


def test_every_word_reads_back() -> None:
    text = changed(SLICED, "    price: 1.90\n    slice_prices: { 1g.10gb: 0.30 }\n    virtual:")
    text = changed("    engine: virtual\n", "    engine: virtual\n    overhead: { power: 4000 }\n", text)
    fleet = checked(text + "cost: { timezone: Asia/Kolkata, overhead: by-usage }\n").fleet
    assert fleet is not None
    assert read_back(fleet) == fleet
    again = compose_fleet(fleet)
    assert "cost:\n  timezone: Asia/Kolkata\n  overhead: by-usage\n" in again


LABELLED = "cost: { labels: [experiment, app.kubernetes.io/name] }\n"


def test_labels_for_cost() -> None:
    fleet = checked(priced("price: 1.90") + LABELLED).fleet
    assert fleet is not None
    assert fleet.cost.labels == ("experiment", "app.kubernetes.io/name")
    assert read_back(fleet) == fleet


@pytest.mark.parametrize("keys", ["a, b, c, d, e", "a b", "a'b", "a, a"])
def test_labels_for_cost_are_few_and_plain(keys: str) -> None:
    report = checked(priced("price: 1.90") + f"cost: {{ labels: [{keys}] }}\n")
    assert report.fleet is None


def test_projects_are_inherited() -> None:
    inner = "    projects: [llm, Vision-2]\n"
    text = changed("    share: 60\n", f"    share: 60\n{inner}", SHARED)
    report = checked(changed("    priorities: [urgent, normal]\n", "    projects: [other]\n", text))
    assert report.fleet is not None, report.faults
    found = {str(team.name): team.projects for team in report.fleet.teams}
    assert found["research"] == found["nlp"] == ("llm", "Vision-2")
    assert found["product"] == ("other",)
    assert read_back(report.fleet) == report.fleet
    was = replace(report.fleet, teams=tuple(replace(t, projects=()) for t in report.fleet.teams))
    changes = [(d.what, d.before, d.after) for team in describe(was, report.fleet) for d in team.changes]
    assert changes == [("projects", "any", "llm, Vision-2"), ("projects", "any", "other")]


def read_back(fleet: Fleet) -> Fleet | None:
    return check_text(compose_fleet(fleet), "composed", None).fleet
