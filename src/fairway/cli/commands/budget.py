"""The command group `fairway budget`: request, approve and deny raises of team budgets."""

from __future__ import annotations

from decimal import Decimal, InvalidOperation

import click

from fairway.cli import completion
from fairway.cli.connect import connect, server_options
from fairway.cli.group import Group
from fairway.cli.output.budget_raises import decided_text, raises_view, requested_text
from fairway.cli.output.format import Format, Listing, ScreenLine, output_option, show, show_document
from fairway.cli.parameter import ParsedParam
from fairway.wire.budget_raises import MAX_AMOUNT, MAX_TEXT


def _parse_amount(text: str) -> Decimal:
    try:
        amount = Decimal(text.strip().replace(",", "").replace("_", ""))
    except InvalidOperation:
        amount = Decimal("NaN")
    if not amount.is_finite() or not 0 < amount <= MAX_AMOUNT or amount != round(amount, 3):
        raise ValueError(f"{text!r} is not an amount to add, such as 5000 or 1,250.50")
    return amount


def _parse_reason(text: str) -> str:
    if not text.strip():
        raise ValueError("say what the money is for")
    return _parse_comment(text)


def _parse_comment(text: str) -> str:
    if len(text) > MAX_TEXT:
        raise ValueError(f"use at most {MAX_TEXT} characters")
    return text


_AMOUNT = ParsedParam("amount", _parse_amount)
_REASON = ParsedParam("text", _parse_reason)
_COMMENT = ParsedParam("text", _parse_comment)
_NUMBER = click.IntRange(1, 10**18 - 1)


@click.group(
    cls=Group,
    epilog="""\b
Examples:
  fairway get budgets                                            see what is spent
  fairway budget raise nlp 5000 --reason "deadline of the paper"
  fairway budget requests                                        see what waits for a decision
  fairway budget approve 7
""",
)
def budget() -> None:
    """Request, approve and deny raises of team budgets."""


@budget.command(
    "raise",
    epilog="""\b
Examples:
  fairway budget raise nlp 5000 --reason "deadline of the paper"
""",
)
@click.argument("team", shell_complete=completion.teams)
@click.argument("amount", type=_AMOUNT)
@click.option("--reason", type=_REASON, required=True, help="What the money is for; the approver reads it.")
@server_options
@output_option
def raise_(
    team: str, amount: Decimal, reason: str, context: str | None, url: str | None, output: Format
) -> None:
    """Request to add AMOUNT to the budget of TEAM until its current period ends.

    Leads of the team or of a team around it request; operators, or leads of a parent team with a budget
    that holds its jobs, approve. One request of a team is open at a time.
    """
    with connect(context, url) as client:
        found = client.request_budget_raise(team, amount, reason)
    show_document(found, lambda: [ScreenLine(line) for line in requested_text(found)], output)


@budget.command(
    epilog="""\b
Examples:
  fairway budget requests
  fairway budget requests --team nlp --all
  fairway budget requests -o json | jq '.[] | select(.may_approve)'
"""
)
@click.option("--team", metavar="NAME", help="Only this team.", shell_complete=completion.teams)
@click.option("--all", "all_states", is_flag=True, help="Also requests that are approved, denied or expired.")
@output_option
@server_options
def requests(
    *, team: str | None, all_states: bool, context: str | None, url: str | None, output: Format
) -> None:
    """List requests for raises that wait for a decision.

    Members and leads see those of their own teams.
    """
    with connect(context, url) as client:
        found = client.budget_raises(team, all_states=all_states)
    show(Listing(found.raises, raises_view(found, wide=output is Format.WIDE)), output)


@budget.command(
    epilog="""\b
Examples:
  fairway budget approve 7
  fairway budget approve 7 --comment "for the paper only"
"""
)
@click.argument("id", type=_NUMBER)
@click.option("--comment", type=_COMMENT, default="", help="Shown with the decision.")
@server_options
@output_option
def approve(
    id: int,
    comment: str,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Approve a request: the raise counts at once, and ends with the period.

    Waiting jobs of the team start within seconds. `fairway budget requests` lists the IDs.
    """
    with connect(context, url) as client:
        found = client.approve_budget_raise(id, comment)
    show_document(found, lambda: [ScreenLine(decided_text(found))], output)


@budget.command(
    epilog="""\b
Examples:
  fairway budget deny 7 --reason "use spot until December"
"""
)
@click.argument("id", type=_NUMBER)
@click.option("--reason", type=_COMMENT, default="", help="Shown with the decision.")
@server_options
@output_option
def deny(
    id: int,
    reason: str,
    context: str | None,
    url: str | None,
    output: Format,
) -> None:
    """Deny a request, or withdraw your own.

    The team may request another raise afterwards.
    """
    with connect(context, url) as client:
        found = client.deny_budget_raise(id, reason)
    show_document(found, lambda: [ScreenLine(decided_text(found))], output)
