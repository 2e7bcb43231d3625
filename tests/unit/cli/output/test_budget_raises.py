"""Raises of budgets on the command line: the table, the sentences, and the amounts it takes."""

from __future__ import annotations

from datetime import UTC, date, datetime
from decimal import Decimal

import pytest
from click.testing import CliRunner

from fairway.cli.commands.budget import _parse_amount, budget
from fairway.cli.output.budget_raises import decided_text, raises_view, requested_text
from fairway.cli.output.format import table
from fairway.model.budget import Every
from fairway.wire import budget_raises as wire

ASKED = wire.BudgetRaise(
    id=7,
    team="nlp",
    currency="USD",
    every=Every.MONTH,
    period=date(2026, 11, 1),
    until=date(2026, 12, 1),
    amount=Decimal(5000),
    reason="deadline of the paper",
    requested_by="lee",
    requested_at=datetime(2026, 11, 18, 9, tzinfo=UTC),
    state="requested",
    decided_by=None,
    decided_at=None,
    comment="",
    may_approve=True,
    may_deny=True,
)
DONE = ASKED.model_copy(
    update={
        "id": 6,
        "every": Every.QUARTER,
        "period": date(2026, 10, 1),
        "until": date(2027, 1, 1),
        "state": "approved",
        "decided_by": "olga",
        "decided_at": datetime(2026, 11, 18, 10, tzinfo=UTC),
        "comment": "once",
        "may_approve": False,
    }
)


def test_the_table() -> None:
    view = raises_view(wire.BudgetRaises(raises=[ASKED, DONE], of_teams=None), wide=False)
    lines = table(view.columns, view.rows, 160)
    assert " ".join(lines[0].split()) == "ID TEAM FOR AMOUNT STATE REQUESTED BY DECIDED BY REASON"
    assert lines[1].split()[:6] == ["7", "nlp", "November", "5,000", "USD", "requested"]
    assert "October to December" in lines[2] and "olga" in lines[2]
    assert view.notes == ["hint: fairway budget approve 7"]
    wide = raises_view(wire.BudgetRaises(raises=[DONE], of_teams=None), wide=True)
    assert wide.rows[0][-1] == "once" and wide.notes == []


def test_the_sentences() -> None:
    first, second = requested_text(ASKED)
    assert first == "requested 5,000 USD more for nlp until 1 December (request 7)"
    assert second.endswith("fairway budget approve 7")
    assert decided_text(DONE) == "nlp may spend 5,000 USD more until 1 January"
    assert decided_text(DONE.model_copy(update={"state": "denied"})) == "request 6 of nlp is denied"


@pytest.mark.parametrize(
    ("text", "amount"), [("5000", "5000"), ("1,250.50", "1250.50"), ("0.001", "0.001"), ("1_000", "1000")]
)
def test_amounts(text: str, amount: str) -> None:
    assert _parse_amount(text) == Decimal(amount)


@pytest.mark.parametrize("text", ["0", "-5", "nan", "inf", "1e13", "0.0001", "", "much", "5000 USD"])
def test_what_is_no_amount(text: str) -> None:
    with pytest.raises(ValueError, match="is not an amount to add"):
        _parse_amount(text)


def test_a_comment_may_be_left_out_and_is_bounded() -> None:
    for verb, option in (("approve", "--comment"), ("deny", "--reason")):
        result = CliRunner().invoke(budget, [verb, "7", option, "x" * 501])
        assert result.exit_code == 2 and "at most 500 characters" in result.output
        without = CliRunner().invoke(budget, [verb, "7"], env={"FAIRWAY_URL": "http://127.0.0.1:9"})
        assert without.exit_code != 2  # a usage error: it fails at the server that is not there


def test_a_request_needs_a_reason() -> None:
    for given in ([], ["--reason", " "], ["--reason", "x" * 501]):
        result = CliRunner().invoke(budget, ["raise", "nlp", "5000", *given])
        assert result.exit_code == 2 and "--reason" in result.output
