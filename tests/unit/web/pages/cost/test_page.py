"""The pages of cost over a real ledger: the API's answers and rights, as pages and as files."""

from __future__ import annotations

import asyncio
import csv
import html
import io
import json
import re
from dataclasses import replace
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI

from fairway.ledger import Ledger, StoredForecast
from fairway.model.access import Role
from fairway.model.charge import Label
from fairway.model.fleet import Fleet
from fairway.model.job import JobId
from fairway.model.names import TeamName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.price import Sharing
from fairway.web.cache import last_known
from fairway.web.cache.cost_queries import CachedCostQueries
from fairway.web.format import rate
from fairway.web.pages.cost import page as cost_page
from tests.unit.ledger.usage_samples import Row
from tests.unit.services.cost_history import CLASSES, OCTOBER, CostBook, fill, in_cents, with_rules
from tests.unit.web.conftest import SignIn, token

MONTH = "window=2026-10"


@pytest.fixture
def fleet() -> Fleet:
    """alice and bob are of nlp, which is inside research, lead's; dan is of product."""
    return with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE)


@pytest.fixture
async def october(ledger: Ledger, database_url: str) -> None:
    """Six days of usage."""
    book = CostBook(database_url)
    await fill(ledger, book, OCTOBER, 6)
    book.close()


async def page(client: httpx2.AsyncClient, path: str, status: int = 200) -> str:
    answer = await client.get(path)
    assert answer.status_code == status, answer.text
    return answer.text


async def report(app: FastAPI, ledger: Ledger, path: str, role: Role = Role.ADMIN, user: str = "root") -> Any:
    """What the API answers to a token."""
    secret = await token(ledger, role, f"api-{user}-{path}"[:60], user)
    transport = httpx2.ASGITransport(app=app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as client:
        answer = await client.get(path, headers={"Authorization": f"Bearer {secret}"})
    assert answer.status_code == 200, answer.text
    return answer.text if path.startswith("/v1/exports") else answer.json()


def cells(text: str) -> list[list[str]]:
    """The rows of the last table but that of months, as text."""
    body = text.split('aria-label="Table of rows"')[1].partition("</table>")[0]
    rows = re.findall(r"<tr.*?</tr>", body, re.DOTALL)
    return [
        [
            html.unescape(re.sub(r"<svg.*?</svg>|<[^>]+>", "", cell, flags=re.DOTALL)).strip()
            for cell in re.findall(r"<t[dh].*?</t[dh]>", row, re.DOTALL)
        ]
        for row in rows
    ]


def plotted(text: str) -> Any:
    found = re.search(r"data-plot='([^']*)'", text)
    assert found is not None
    return json.loads(html.unescape(found[1]))


@pytest.mark.usefixtures("october")
async def test_the_page_says_what_the_api_says(
    app: FastAPI, ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    for by in ("by=team", "by=pool&by=priority", "by=user", "by=cluster"):
        text = await page(admin, f"/cost?{MONTH}&{by}")
        told = await report(app, ledger, f"/v1/reports/cost?{MONTH}&{by}")
        head, *rows, total = cells(text)
        column = head.index("Total EUR")
        amounts = [Decimal(r[column].replace(",", "")) for r in rows]
        for shown, exact in zip(amounts, told["rows"], strict=True):
            assert abs(shown - Decimal(exact["total"])) < Decimal("0.06")
        assert sum(amounts) == in_cents(told)
        labels = len(told["by"])
        assert total[0] == "Total"
        assert total[column - labels + 1] == f"{in_cents(told):,.2f}"
        drawn = plotted(text)
        assert drawn["days"][0] == "2026-10-01"
        every = sum(Decimal(v) for s in drawn["series"] for v in s["values"])
        assert every == in_cents(told)


@pytest.mark.usefixtures("october")
async def test_a_day_is_one_row(app: FastAPI, ledger: Ledger, admin: httpx2.AsyncClient) -> None:
    told = await report(app, ledger, f"/v1/reports/cost?{MONTH}&by=day")
    days = sorted({row["labels"][0] for row in told["rows"]})
    assert len(days) < len(told["rows"])  # what nobody carries is told apart there
    _, *rows, total = cells(await page(admin, f"/cost?{MONTH}&by=day"))
    assert [row[0] for row in rows] == days
    amounts = [Decimal(row[1].replace(",", "")) for row in rows]
    assert sum(amounts) == Decimal(total[1].replace(",", "")) == in_cents(told)


@pytest.mark.usefixtures("october")
async def test_many_names_are_no_plot(
    app: FastAPI, ledger: Ledger, admin: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fairway.web.pages.cost.data._MANY", 1)
    drawn = plotted(await page(admin, f"/cost?{MONTH}&by=user"))
    assert {s["name"] for s in drawn["series"]} == {"used", "idle", "overhead"}
    told = await report(app, ledger, f"/v1/reports/cost?{MONTH}")
    assert sum(Decimal(v) for s in drawn["series"] for v in s["values"]) == in_cents(told)
    one = plotted(await page(admin, f"/cost?{MONTH}&by=pool&user=alice"))
    assert {s["name"] for s in one["series"]} == {"a100", "spot"}


@pytest.mark.usefixtures("october")
@pytest.mark.parametrize("what", ["cost", "usage", "waste"])
async def test_days_of_many_people_come_after_the_page(
    admin: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    at_once = plotted(await page(admin, f"/cost?what={what}&{MONTH}&by=day"))
    monkeypatch.setattr("fairway.web.pages.cost.data._LATE", 1)
    text = await page(admin, f"/cost?what={what}&{MONTH}&by=pool")
    assert "data-plot" not in text and 'id="cost-over-time"' in text
    part = await admin.get(
        f"/cost?what={what}&{MONTH}&by=pool",
        headers={"HX-Request": "true", "HX-Target": "cost-over-time"},
    )
    assert part.status_code == 200 and "<html" not in part.text
    assert plotted(part.text) == at_once


@pytest.mark.usefixtures("october")
async def test_the_three_questions(admin: httpx2.AsyncClient, app: FastAPI, ledger: Ledger) -> None:
    used = await page(admin, f"/cost?what=usage&{MONTH}&by=team")
    assert cells(used)[0] == ["Team", "GPU-hours", "Of all", "Slice-hours", "Bar"]
    wasted = await page(admin, f"/cost?what=waste&{MONTH}")
    told = await report(app, ledger, f"/v1/reports/waste?{MONTH}")
    assert [r[1] for r in cells(wasted)[1:-1]] == [f"{Decimal(r['amount']):,.2f}" for r in told["rows"]]
    assert {s["name"] for s in plotted(wasted)["series"]} >= {"idle", "down"}
    by_name = await page(admin, f"/cost?{MONTH}&by=name")
    assert "job-0" in by_name


@pytest.mark.usefixtures("october")
async def test_members_see_their_own(sign_in: SignIn, app: FastAPI, ledger: Ledger) -> None:
    alice = await sign_in(Role.MEMBER, user="alice")
    text = await page(alice, f"/cost?{MONTH}")
    assert [r[0] for r in cells(text)[1:-1]] == ["nlp"]
    assert "product" not in text
    for path in ("/cost", "/cost/export.csv", "/cost/export.json", "/cost/focus.csv", "/cost/months/2026-10"):
        refused = await page(alice, f"{path}?{MONTH}&team=product", 403)
        assert "NotYourTeam" in refused
    files = await page(alice, f"/cost/export.csv?{MONTH}&by=team&by=user")
    assert {r["team"] for r in csv.DictReader(io.StringIO(files))} == {"nlp"}
    focus = await page(alice, f"/cost/focus.csv?{MONTH}")
    assert "product" not in focus and "vision" not in focus
    month = await page(alice, "/cost/months/2026-10")
    assert "nlp" in month and "product" not in month
    assert "idle" in await page(alice, f"/cost?what=waste&{MONTH}")  # nobody's: everybody's to see
    stranger = await page(await sign_in(Role.LEAD, user="stranger"), f"/cost?{MONTH}")
    assert "you are in no team" in stranger and "No usage and no cost" in stranger


@pytest.mark.usefixtures("october")
async def test_two_people_at_once_see_each_their_own(sign_in: SignIn) -> None:
    """What is remembered between requests is nobody's."""
    alice, dan = await sign_in(Role.MEMBER, user="alice"), await sign_in(Role.MEMBER, user="dan")
    for _ in range(2):
        hers, his = await asyncio.gather(page(alice, f"/cost?{MONTH}"), page(dan, f"/cost?{MONTH}"))
        assert [r[0] for r in cells(hers)[1:-1]] == ["nlp"]
        assert [r[0] for r in cells(his)[1:-1]] == ["product"]


@pytest.mark.usefixtures("october")
async def test_files_are_the_apis_answers(admin: httpx2.AsyncClient, app: FastAPI, ledger: Ledger) -> None:
    told = await report(app, ledger, f"/v1/reports/cost?{MONTH}&by=user")
    as_json = await admin.get(f"/cost/export.json?{MONTH}&by=user")
    assert {k: v for k, v in as_json.json().items() if k != "window"} == {
        k: v for k, v in told.items() if k != "window"
    }
    as_csv = await admin.get(f"/cost/export.csv?{MONTH}&by=user")
    assert as_csv.headers["content-disposition"] == 'attachment; filename="cost-2026-10-by-user.csv"'
    assert "no-store" in as_csv.headers["cache-control"]
    rows = list(csv.DictReader(io.StringIO(as_csv.text)))
    assert [r["total"] for r in rows] == [r["total"] for r in told["rows"]]
    focus = await page(admin, f"/cost/focus.csv?{MONTH}&team=nlp")
    assert focus == await report(app, ledger, f"/v1/exports/focus?{MONTH}&team=nlp")


async def test_names_are_no_formulas(admin: httpx2.AsyncClient, ledger: Ledger, database_url: str) -> None:
    book = CostBook(database_url)
    start = book.local.day_start(OCTOBER)
    name = "=HYPERLINK(1)<script>"
    await book.add(ledger, [Row(CLASSES[0], start, 3600, 2, job=1, name=name)])
    book.close()
    rows = list(csv.DictReader(io.StringIO(await page(admin, f"/cost/export.csv?{MONTH}&by=name"))))
    assert f"'{name}" in {r["name"] for r in rows}
    text = await page(admin, f"/cost?{MONTH}&by=name")
    assert "<script>" not in text.split("<main")[1]
    assert "=HYPERLINK(1)&lt;script&gt;" in text


@pytest.mark.parametrize(
    ("query", "status", "said"),
    [
        ("window=last-wek", 422, "is not a time window"),
        ("window=2026-13", 422, "names a day or month that does not exist"),
        ("by=colour", 422, "cannot be grouped by"),
        ("team=nobody", 404, "there is no team nobody"),
        ("pool=nothing", 404, "there is no pool nothing"),
    ],
)
async def test_it_says_what_is_wrong(admin: httpx2.AsyncClient, query: str, status: int, said: str) -> None:
    text = html.unescape(await page(admin, f"/cost?{query}", status))
    assert said in text.lower()
    if "window" in query:
        assert 'name="window"' in text  # the form is still there to mend it


async def test_nothing_yet(admin: httpx2.AsyncClient) -> None:
    assert "No usage and no cost in this range" in await page(admin, "/cost?user=nobody")
    assert "No capacity was recorded" in await page(admin, "/cost?what=waste&pool=a100")
    assert "No usage and no cost" in await page(admin, "/cost/months/2026-09?team=product")
    assert "NoSuchMonth" in await page(admin, "/cost/months/2026-00", 404)
    assert await page(admin, "/cost/export.csv?user=nobody") == ""


@pytest.mark.usefixtures("october")
async def test_where_it_takes_too_long_the_last_known_figures_are_shown(
    admin: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object) -> None:
        await asyncio.sleep(60)

    known = await page(admin, "/cost?window=2026-10")
    total = re.search(r"<dt>Total</dt><dd>(.*?)</dd>", known)
    assert total is not None
    monkeypatch.setattr(cost_page, "MAX_SECONDS", 0.05)
    monkeypatch.setattr(cost_page, "read_page", slow)
    monkeypatch.setattr(last_known, "FRESH", timedelta(0))
    text = await page(admin, "/cost?window=2026-10")
    assert total[0] in text and "newer ones could not be calculated in time" in text and "Retry" in text
    first = await page(admin, "/cost?window=2026-09")
    assert "Cost could not be calculated within 0 s" in first and "Retry" in first
    assert "fairway report cost --window 2026-09" in first


@pytest.mark.usefixtures("october")
async def test_statements_show_the_last_known_figures_while_new_ones_are_calculated(
    admin: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def slow(*_: object) -> None:
        await asyncio.sleep(60)

    known = await page(admin, "/cost/months/2026-10")
    charged = re.search(r"<dt>Charged</dt><dd>(.*?)</dd>", known)
    assert charged is not None
    assert "could not be calculated" not in known
    monkeypatch.setattr(CachedCostQueries, "statements", slow)
    monkeypatch.setattr(last_known, "FRESH", timedelta(0))
    text = await page(admin, "/cost/months/2026-10")
    assert charged[0] in text
    assert "newer ones could not be calculated in time" in text


async def test_the_chosen_range_is_kept_between_pages(admin: httpx2.AsyncClient) -> None:
    assert '<a href="/fleet?window=7d" aria-current="true">7 days</a>' in await page(admin, "/fleet")
    await page(admin, "/cost?window=90d")
    assert '<a href="/fleet?window=90d" aria-current="true">90 days</a>' in await page(admin, "/fleet")
    assert "90 days</a>" in await page(admin, "/teams/research")
    await page(admin, "/fleet?window=24h")
    assert 'aria-current="true">Today</a>' in await page(admin, "/cost")
    assert "is not a time window" in await page(admin, "/fleet?window=x", 422)
    assert 'aria-current="true">24 h</a>' in await page(admin, "/fleet")


@pytest.mark.usefixtures("october")
async def test_months(admin: httpx2.AsyncClient, app: FastAPI, ledger: Ledger, fleet: Fleet) -> None:
    told = await report(app, ledger, "/v1/statements/2026-10")
    text = await page(admin, "/cost/months/2026-10")
    assert f"{Decimal(told['total']):,.2f} EUR" in text
    assert "not closed" in text
    used = [line for one in told["statements"] for line in one["lines"] if line["kind"] == "usage"]
    hourly = {rate(Decimal(line["amount"]), Decimal(line["hours"])) for line in used}
    assert hourly and hourly <= set(re.findall(r'<td class="n less">([\d.]+)</td>', text))
    lines = await page(admin, "/cost/months/2026-10/statements.csv")
    document = await page(admin, "/cost/months/2026-10/statements.html?team=nlp")
    assert "Statement for nlp, October 2026" in document
    assert sum(Decimal(r["amount"]) for r in csv.DictReader(io.StringIO(lines))) == Decimal(told["total"])
    await ledger.months.close(date(2026, 10, 1), [], by="olga", currency="EUR", timezone="UTC")
    assert "by olga" in await page(admin, "/cost/months/2026-10")


@pytest.mark.usefixtures("october")
async def test_forecasts_are_of_projects_where_the_page_is_about_them(
    admin: httpx2.AsyncClient, ledger: Ledger
) -> None:
    nlp = StoredForecast(Label.TEAM, "nlp", OCTOBER, Decimal(1), Decimal(9), Decimal(8), Decimal(10))
    llm = replace(nlp, label=Label.PROJECT, payer="llm")
    none = replace(llm, payer="")
    lease = await ledger.leases.take("forecast", "", "me", 60)
    assert lease is not None
    async with ledger.writing(lease) as tx:
        await tx.forecasts.write([nlp, llm, none])
    team = '<a href="/teams/nlp">nlp</a>'
    for query, found in (
        ("by=team", {team}),
        ("by=user&team=nlp", {team}),
        ("by=user&team=vision", set()),
        ("by=project", {">llm</a>", "(no project)"}),
        ("by=user&project=llm", {">llm</a>"}),
        ("by=project&team=nlp", {team}),
    ):
        text = await page(admin, f"/cost?{MONTH}&{query}")
        shown = text.partition("<h2>This month</h2>")[2].partition("</section>")[0]
        assert {one for one in (team, ">llm</a>", "(no project)") if one in shown} == found, query


@pytest.mark.usefixtures("october")
async def test_unusual_days_are_of_the_teams_that_the_page_is_about(
    admin: httpx2.AsyncClient, sign_in: SignIn, ledger: Ledger
) -> None:
    said = "nlp spent 900 on 2026-10-12, usually 300"
    await ledger.notices.add(
        [Notice(NoticeKind.ANOMALY, "anomaly/nlp/2026-10-12", said, said, TeamName("nlp"), operators=True)]
    )
    dan = await sign_in(Role.MEMBER, user="dan")
    for client, query, shown in (
        (admin, "by=team", True),
        (admin, "by=team&team=nlp", True),
        (admin, "by=team&team=product", False),
        (admin, "what=waste&by=pool", False),
        (dan, "by=team", False),
    ):
        assert (said in await page(client, f"/cost?{MONTH}&{query}")) is shown, query


@pytest.mark.usefixtures("october")
async def test_months_before_the_first_usage_are_not_listed(admin: httpx2.AsyncClient) -> None:
    listed = re.findall(r'href="/cost/months/(\d{4}-\d\d)"', await page(admin, "/cost?window=2026-10"))
    assert listed[-1] == "2026-10", "months without data are not open"
    assert len(listed) == len(set(listed)) >= 1


@pytest.mark.usefixtures("october")
async def test_a_live_update_is_the_part_alone(admin: httpx2.AsyncClient) -> None:
    part = await admin.get(f"/cost?{MONTH}", headers={"HX-Request": "true", "HX-Target": "cost-part"})
    assert part.status_code == 200
    assert "<html" not in part.text and 'id="plot"' in part.text


@pytest.mark.usefixtures("october")
async def test_the_cost_of_a_unit_is_that_of_the_api(
    app: FastAPI, ledger: Ledger, admin: httpx2.AsyncClient
) -> None:
    assert 'name="per"' not in await page(admin, f"/cost?{MONTH}")  # nothing to divide by
    for job, steps in ((1, 3000), (4, 500)):
        await ledger.units.report(JobId(job), {"steps": steps}, OCTOBER + timedelta(days=1))
    text = await page(admin, f"/cost?{MONTH}")
    assert '<option value="1000:steps">1,000 steps</option>' in text
    for by in ("by=team", "by=pool&by=user", "by=day"):
        path = f"{MONTH}&{by}&per=1000:steps"
        text = await page(admin, f"/cost?{path}")
        assert '<option value="1000:steps" selected>' in text
        told = await report(app, ledger, f"/v1/reports/cost?{path}")
        head, *rows, total = cells(text)
        count, unit = head.index("Count"), head.index("EUR/1,000 steps")
        assert sum(int(row[count].replace(",", "")) for row in rows if row[count] != "–") == 3500
        assert total[count - len(told["by"]) + 1] == "3,500"
        if by == "by=day":
            (day,) = [row for row in rows if row[count] != "–"]
            of_day = sum(Decimal(r["total"]) for r in told["rows"] if r["labels"] == ["2026-10-02"])
            assert Decimal(day[unit]) == pytest.approx(of_day * 1000 / 3500, abs=Decimal("0.001"))
            continue
        for row, exact in zip(rows, told["rows"], strict=True):
            wanted = exact["per_unit"]
            assert row[unit] == ("–" if wanted is None else f"{Decimal(wanted):,.4f}")
    text = await page(admin, f"/cost?{MONTH}&per=label:experiment")
    assert "Cost per experiment" in text
    text = await page(admin, f"/cost?{MONTH}&per=tokens")
    assert "fairway count JOB tokens=TOTAL" in text
    assert "what=usage" in text
    assert "per=tokens&amp;what" not in text
    await page(admin, f"/cost?{MONTH}&by=name&per=steps", 422)
    await page(admin, f"/cost?{MONTH}&per=<x>", 422)
    exported = csv.DictReader(io.StringIO(await page(admin, f"/cost/export.csv?{MONTH}&per=steps")))
    assert sum(int(row["count"] or 0) for row in exported) == 3500
