"""Objectives on the pages: who sees which, what needs attention, and the plot of the error budget."""

from __future__ import annotations

import html
from dataclasses import replace
from datetime import UTC, datetime
from decimal import Decimal

import pytest

from fairway.ledger import FLEET as ALL
from fairway.ledger import Ledger
from fairway.ledger.slos.counts import SloCursor
from fairway.model.access import Role
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName
from fairway.model.price import Sharing
from fairway.model.slo import DAY, Slo, StartsWithin
from fairway.policy.slo import Counts, measure
from fairway.services.slos import stored_slo
from fairway.web.pages.teams.objectives import PLOT_HEIGHT, PLOT_WIDTH, budget_line
from fairway.wire import slos as wire
from tests.unit.services.cost_history import with_rules
from tests.unit.web.conftest import SignIn

UNTIL = 20_000 * DAY
NLP = Slo("nlp-starts", StartsWithin(3600), Decimal("0.95"), team=TeamName("nlp"))
PRODUCT = Slo("product-starts", StartsWithin(3600), Decimal("0.95"), team=TeamName("product"))
EVERYBODY = Slo("all-starts", StartsWithin(7200), Decimal("0.9"))


@pytest.fixture
def fleet() -> Fleet:
    """nlp (alice, bob) is inside research (lead); product is dan's; each has an objective."""
    return replace(with_rules(Sharing.BY_GUARANTEE, Sharing.BY_USAGE), slos=(NLP, PRODUCT, EVERYBODY))


@pytest.fixture
async def measured(ledger: Ledger) -> None:
    """That of nlp is missed, the others are kept."""
    lease = await ledger.leases.take("slos", ALL, "test", 60)
    assert lease is not None
    counts = {
        slo.digest: {UNTIL - n * DAY: Counts(80, 20 if slo is NLP else 0) for n in range(1, 6)}
        for slo in (NLP, PRODUCT, EVERYBODY)
    }
    async with ledger.writing(lease) as tx:
        cursor = SloCursor(UNTIL - 10 * DAY, UNTIL)
        await tx.slos.count(counts, dict.fromkeys(counts, cursor))
        await tx.slos.write(
            [stored_slo(measure(s, counts[s.digest], cursor.since, UNTIL)) for s in (NLP, PRODUCT, EVERYBODY)]
        )


@pytest.mark.usefixtures("measured")
async def test_members_see_the_objectives_of_their_teams_alone(sign_in: SignIn) -> None:
    alice, viewer = await sign_in(Role.MEMBER, user="alice"), await sign_in(Role.VIEWER)
    for client, path, shown in (
        (alice, "/teams", {"nlp-starts"}),
        (alice, "/teams/nlp", {"nlp-starts"}),
        (viewer, "/teams", {"nlp-starts", "product-starts", "all-starts"}),
        (viewer, "/teams/research", {"nlp-starts"}),
        (viewer, "/teams/product", {"product-starts"}),
    ):
        answer = await client.get(path)
        assert answer.status_code == 200, answer.text
        found = {name for name in ("nlp-starts", "product-starts", "all-starts") if name in answer.text}
        assert found == shown, path
    text = html.unescape((await viewer.get("/teams/nlp")).text)
    assert "95% of jobs of nlp start within 1h, over 30d" in text
    assert "error budget used up" in text and "spent 4.0x" in text and "<polyline" in text


@pytest.mark.usefixtures("measured")
async def test_home_names_objectives_that_are_missed(sign_in: SignIn) -> None:
    for user, role, is_shown in (
        ("alice", Role.MEMBER, True),
        ("dan", Role.MEMBER, False),
        ("ops", Role.VIEWER, True),
    ):
        text = (await (await sign_in(role, user=user)).get("/")).text
        assert ("SLO nlp-starts: error budget used up" in text) is is_shown, user
        assert "SLO product-starts" not in text


def points(*left: float | None) -> list[wire.SloPoint]:
    at = datetime(2026, 11, 1, tzinfo=UTC)
    return [wire.SloPoint(at=at, good=0, bad=0, budget_left=one) for one in left]


def test_the_plot_reaches_from_all_of_the_budget_to_none_or_the_worst() -> None:
    assert budget_line(points(None, 1.0)) == ("", PLOT_HEIGHT)
    line, zero = budget_line(points(1.0, 0.5, None, 0.0))
    assert zero == PLOT_HEIGHT
    assert line == f"0.0,0.0 80.0,{PLOT_HEIGHT / 2} {PLOT_WIDTH:.1f},{PLOT_HEIGHT:.1f}"
    line, zero = budget_line(points(1.0, -1.0))
    assert (line, zero) == (f"0.0,0.0 {PLOT_WIDTH:.1f},{PLOT_HEIGHT:.1f}", PLOT_HEIGHT / 2)
