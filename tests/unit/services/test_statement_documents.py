"""A statement explains each amount: hours, prices, rules, reasons. It is mailed when its month is closed."""

from __future__ import annotations

import html as entities
import re
from collections.abc import AsyncIterator, Iterator
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from fairway.control.loops.notify import DeliverNotices
from fairway.control.metrics import NoticeMetrics
from fairway.ledger import FLEET as ALL
from fairway.ledger import BudgetRaise, Ledger, NewBudgetRaise
from fairway.model.backoff import Backoff
from fairway.model.budget import Budget, Every, RaiseState
from fairway.model.channel import Channels, Mail
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind, NoticeRule, NoticeRules
from fairway.model.price import PriceStep, Pricing, Sharing
from fairway.services.charges import Costs
from fairway.services.fleets import Fleets
from fairway.services.statement_documents import StatementDocuments, cost_centre
from fairway.services.statements import MonthStatements
from fairway.settings import Settings
from tests.unit.control.loops.receivers import Mails, mails
from tests.unit.ledger.usage_samples import Class, Row
from tests.unit.services.cost_history import NOW, OCTOBER, CostBook, calendar, fill, with_rules

NOVEMBER = date(2026, 11, 1)


def priced_fleet() -> Fleet:
    """With a discount and a price that changes in the month, a budget, a cost centre and a channel."""
    fleet = with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)
    pricing = Pricing((PriceStep(date(2026, 10, 15), Decimal("1.20")),), Decimal("0.1"))
    pools = tuple(replace(p, pricing=pricing) if p.name == "a100" else p for p in fleet.pools)
    statements = NoticeRules((NoticeRule(NoticeKind.STATEMENT),))
    changes = {
        "research": {
            "cost_centre": "4711-AI",
            "notify": Channels(mail=Mail(("pi@example.org",)), rules=statements),
        },
        "nlp": {"budget": Budget(Decimal(10000))},
    }
    teams = tuple(replace(t, **changes.get(t.name, {})) for t in fleet.teams)  # type: ignore[arg-type]
    return replace(fleet, pools=pools, teams=teams)


@pytest.fixture
def book(database_url: str) -> Iterator[CostBook]:
    made = CostBook(database_url)
    yield made
    made.close()


@pytest.fixture
async def mail() -> AsyncIterator[Mails]:
    async with mails() as received:
        yield received


def documents(ledger: Ledger, fleet: Fleet) -> tuple[MonthStatements, StatementDocuments]:
    costs = Costs(ledger)
    statements = MonthStatements(ledger, costs)
    return statements, StatementDocuments(ledger, statements, costs, Fleets(ledger, lambda _: fleet))


def text_of(page: str) -> str:
    return " ".join(entities.unescape(re.sub(r"<style>.*</style>|<[^>]+>", " ", page, flags=re.S)).split())


def amounts(page: str) -> list[Decimal]:
    """The last cell of each line of the tables of charges and corrections."""
    rows = re.findall(r'<td class="n">([-0-9.,]+)</td></tr>', page)
    return [Decimal(row.replace(",", "")) for row in rows]


async def test_a_statement_explains_each_amount(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 31)
    fleet = priced_fleet()
    statements, rendered = documents(ledger, fleet)
    found = await statements.statement(fleet, OCTOBER, NOW)
    page = await rendered.render(fleet, OCTOBER, {"nlp"}, NOW)
    own = [line.billed for line in found.lines if line.billed.team == "nlp"]
    total = sum(line.amount for line in own)
    assert sorted(amounts(page)) == sorted(line.amount for line in own)
    text = text_of(page)
    assert "Statement for nlp, October 2026 Number acme-2026-10-nlp Issued by acme" in text
    assert "Period 2026-10-01 to 2026-10-31" in text
    assert "Cost centre 4711-AI" in text  # of the team above it
    assert "Draft: the month is not closed" in text
    assert f"Total {total:,.2f} EUR" in text
    assert (
        "01 Oct to 14 Oct: list price 1.37 less 10 % discount = 1.233."
        " 15 Oct to 31 Oct: list price 1.20 less 10 % discount = 1.080." in text
    )
    usage = next(line for line in own if line.kind == "usage" and str(line.supply) == "a100")
    hours = Decimal(usage.device_seconds) / 3600
    assert f"{hours:,.2f} {usage.amount / hours:,.4f} {usage.amount:,.2f}" in text
    idle = [x.billed for x in found.lines if x.billed.kind == "idle" and str(x.billed.supply) == "a100"]
    whole, mine = sum(x.amount for x in idle), next(x for x in idle if x.team == "nlp")
    assert (
        f"{mine.amount / whole * 100:.1f} % of {whole:,.2f} EUR, the cost of free GPUs of a100;"
        " shared in proportion to guarantees" in text
    )
    assert (
        "the overhead of the cluster hpc; shared each day in proportion to the cost of what teams used"
        in text
    )
    assert f"10,000.00 EUR a month; in this month, without corrections, the team spent {total:,.2f}" in text
    assert not re.search(r"<script|<link|<img|url\(|https?://", page)
    every = await rendered.render(fleet, OCTOBER, None, NOW)
    assert sum(amounts(every)) == found.total
    assert every.count("<article>") == len({line.billed.team for line in found.lines})


def _no_notice(made: BudgetRaise) -> Notice:
    return Notice(NoticeKind.TEST, f"raise/{made.id}", "raise", "raise")


async def test_a_statement_has_the_budget_as_it_was_raised_in_its_month(
    ledger: Ledger, book: CostBook
) -> None:
    await fill(ledger, book, OCTOBER, 31)
    fleet = priced_fleet()
    for period, amount in ((OCTOBER, 2500), (NOVEMBER, 1)):
        wanted = NewBudgetRaise(
            TeamName("nlp"), Every.MONTH, period, Decimal(amount), "paper", UserName("alice")
        )
        made = await ledger.budget_raises.request(wanted, event="raise", notice_of=_no_notice)
        assert made is not None
        await ledger.budget_raises.decide(
            made.id, RaiseState.APPROVED, by="olga", comment="", event="approved", notices=()
        )
    text = text_of(await documents(ledger, fleet)[1].render(fleet, OCTOBER, {"nlp"}, NOW))
    assert "12,500.00 EUR (2,500.00 EUR of it by approved raises) a month; in this month" in text


async def test_corrections_of_a_closed_month_have_a_reason(ledger: Ledger, book: CostBook) -> None:
    await fill(ledger, book, OCTOBER, 31)
    fleet = priced_fleet()
    statements, rendered = documents(ledger, fleet)
    await statements.close(fleet, OCTOBER, "finance", NOW)
    assert "Closed on" in text_of(await rendered.render(fleet, OCTOBER, {"product"}, NOW))
    hour = calendar().day_start(date(2026, 10, 7)) + 3600 * 5
    await book.add(ledger, [Row(Class("hpc", "dan", "product", "a100"), hour, 3600, 3, job=4)])
    page = await rendered.render(fleet, NOVEMBER, {"product"}, NOW)
    text = text_of(page)
    assert (
        "2026-10: a100, used more GPU-hours were used in that month than was known when it was closed +3.00"
        in text
    )
    november = await statements.statement(fleet, NOVEMBER, NOW)
    lines = [x.billed for x in november.lines if x.used_in == OCTOBER and x.billed.team == "product"]
    assert f"Corrections of earlier months {sum(x.amount for x in lines):,.2f} EUR" in text
    cheaper = replace(fleet, pools=tuple(replace(p, price=Decimal("1.30")) for p in fleet.pools))
    text = text_of(await documents(ledger, cheaper)[1].render(cheaper, NOVEMBER, {"nlp"}, NOW))
    assert "the same hours, at prices that were changed for the past after the month was closed" in text


async def test_closing_a_month_mails_each_team_its_statement_once(
    ledger: Ledger, book: CostBook, mail: Mails
) -> None:
    await fill(ledger, book, OCTOBER, 31)
    await ledger.revisions.add("acme", "digest", "test")
    fleet = priced_fleet()
    statements, rendered = documents(ledger, fleet)
    await statements.close(fleet, OCTOBER, "finance", NOW)
    lease = await ledger.leases.take("notify", ALL, "test", 60)
    assert lease is not None
    deliver = DeliverNotices(
        ledger,
        Fleets(ledger, lambda _: fleet),
        Settings(state_dir=Path("/nonexistent"), smtp_url=mail.url),
        NoticeMetrics(CollectorRegistry()),
        rendered,
        backoff=Backoff(0, 0),
    )
    for _ in range(3):
        await deliver(lease)
    await deliver.close()
    # Product has no channels; nlp and vision have those of research, which used nothing itself.
    got = {one["Subject"]: one for _, one in mail.got}
    assert len(got) == len(mail.got)
    subjects = {subject.split(":")[1].strip() for subject in got}
    assert subjects >= {"statement of nlp for 2026-10", "statement of vision for 2026-10"}
    assert not any("product" in subject for subject in subjects)
    for subject, one in got.items():
        team = subject.split()[3]
        (attached,) = one.iter_attachments()
        assert attached.get_filename() == f"statement-2026-10-{team}.html"
        assert f"acme-2026-10-{team}" in attached.get_content()
        found = await statements.statement(fleet, OCTOBER, NOW)
        total = sum(line.billed.amount for line in found.lines if line.billed.team == team)
        assert f"{total:,.2f} EUR" in subject


def test_the_cost_centre_is_that_of_the_nearest_team() -> None:
    fleet = priced_fleet()
    assert [cost_centre(fleet, name) for name in ("research", "nlp", "product", "gone", "")] == [
        "4711-AI",
        "4711-AI",
        "",
        "",
        "",
    ]
    own = tuple(replace(t, cost_centre="17") if t.name == TeamName("nlp") else t for t in fleet.teams)
    assert cost_centre(replace(fleet, teams=own), "nlp") == "17"
