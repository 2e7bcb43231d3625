"""Request, approve and deny raises of team budgets, by the rights of leads, parent teams and operators.

A raise adds to the budget of a team until its period ends. The fleet file remains as it is.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import Final

from fairway.cost.budget_text import money_text, period_text
from fairway.cost.budgets import period, period_start
from fairway.cost.calendar import calendar_of
from fairway.ledger import BudgetRaise, Ledger, NewBudgetRaise, Token
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget, Every, RaiseState
from fairway.model.fleet import Fleet
from fairway.model.names import TeamName, UserName
from fairway.model.notice import Notice
from fairway.model.notice_rules import NoticeKind
from fairway.model.team import Team, TeamTree
from fairway.model.text import clean
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Clock, Fleets, with_raised_budgets
from fairway.services.rights import Person, no_such_team, person_of, usage_filter, visible_teams
from fairway.wire import budget_raises as wire
from fairway.wire.fleet import zulu

MAX_RAISES: Final = 100
"""Requests of one team in one period, whatever became of them."""
MAX_LISTED: Final = 500


def may_request(person: Person, team: TeamName) -> bool:
    """Return whether a person may request a raise: a lead of the team or of one above it, or an operator."""
    return person.role.may(Role.OPERATOR) or (person.role.may(Role.LEAD) and team in person.teams)


def may_approve(person: Person, tree: TeamTree, team: Team | None, requester: str) -> bool:
    """Return whether a person may approve a raise of `team` that `requester` asked for.

    Operators may approve any. A lead may approve what somebody else requested for a team below their own, if
    a team of theirs above it has a budget that holds its jobs: that one still bounds what is spent.
    """
    if person.role.may(Role.OPERATOR):
        return True
    if team is None or not person.role.may(Role.LEAD) or person.user == requester:
        return False
    return any(
        above.name in person.teams and above.budget is not None and above.budget.at_limit is not AtLimit.WARN
        for above in tree.ancestors(team)
    )


@dataclass(frozen=True, slots=True)
class _View:
    """The fleet in force and a caller, at one moment."""

    fleet: Fleet
    """With the amounts in force."""
    tree: TeamTree
    person: Person
    today: date

    def team(self, name: str) -> Team | None:
        """Return the team with a name, or the one that was renamed from it; None if it has left the fleet."""
        by_name = {team.name: team for team in self.fleet.teams}
        former = (team for team in self.fleet.teams if team.renamed_from == name)
        return by_name.get(TeamName(name)) or next(former, None)

    def until(self, found: BudgetRaise) -> date:
        """Return the first day after the period of a raise."""
        calendar = calendar_of(self.fleet)
        return calendar.day_of(period(found.every, found.period, calendar).end)


class BudgetRaises:
    """Lists, requests and decides raises for a caller. Raises RequestError with a hint if they may not."""

    def __init__(self, ledger: Ledger, fleets: Fleets, *, clock: Clock = time.time) -> None:
        self._ledger = ledger
        self._fleets = fleets
        self._clock = clock

    async def requests(
        self, caller: Token, team: str | None = None, *, all_states: bool = False, limit: int = 100
    ) -> wire.BudgetRaises:
        """Return raises of the teams that the caller may see: those that wait for a decision, or all."""
        view = await self._view(caller)
        usage_filter(caller, view.fleet, team, None, None)  # raises if the team is unknown or not visible
        visible = visible_teams(caller, view.fleet)
        found = await self._ledger.budget_raises.page(
            teams=_names(view.fleet, visible if team is None else {team}),
            state=None if all_states else RaiseState.REQUESTED,
            since=None if all_states else period_start(Every.QUARTER, view.today),
            limit=min(limit, MAX_LISTED),
        )
        raises = [_wire(view, one) for one in found]
        return wire.BudgetRaises(
            raises=[one for one in raises if all_states or one.state != "expired"],
            of_teams=None if visible is None else sorted(visible),
        )

    async def request(self, caller: Token, wanted: wire.RaiseRequest) -> wire.BudgetRaise:
        """Request a raise for the current period. The same request again returns the first one."""
        view = await self._view(caller)
        team = _requestable(view, wanted.team)
        budget = _budget_of(view, team)
        reason = clean(wanted.reason).strip()
        if not reason:
            raise RequestError(
                ErrorKind.INVALID,
                "InvalidRequest",
                "reason: is empty",
                "say what the money is for; whoever decides reads it",
            )
        first = period_start(budget.every, view.today)
        new = NewBudgetRaise(
            team.name, budget.every, first, wanted.amount, reason, UserName(view.person.user)
        )
        earlier = await self._ledger.budget_raises.of_period(team.name, budget.every, first)
        _require_few(earlier, team.name)
        money = _money(wanted.amount, view.fleet)
        event = f"{new.by} requests {money} more for {period_text(first, budget.every)}: {reason}"
        parent = view.tree.parent(team)
        stored = await self._ledger.budget_raises.request(
            new,
            event=event,
            notice_of=lambda one: requested_notice(one, view.fleet, budget, parent),
        )
        if stored is None:
            stored = await self._repeated(new, view)
        return _wire(view, stored)

    async def decide(
        self, caller: Token, number: int, state: RaiseState, decision: wire.RaiseDecision
    ) -> wire.BudgetRaise:
        """Approve or deny a request, once. An approved raise counts at once, until its period ends."""
        view = await self._view(caller)
        found = await self._ledger.budget_raises.find(number)
        visible = visible_teams(caller, view.fleet)
        names = _names(view.fleet, visible)
        if found is None or (names is not None and found.team not in names):
            raise RequestError(
                ErrorKind.NOT_FOUND,
                "NoSuchRaise",
                f"there is no request {number} of a team that you may see",
                "fairway budget requests  lists them",
            )
        _require_right(view, found, state)
        if found.state is not RaiseState.REQUESTED:
            raise _decided(found)
        team = view.team(found.team)
        if state is RaiseState.APPROVED:
            _require_in_force(view, found, team)
        comment = clean(decision.comment).strip()
        event = _decision_text(found, view.fleet, state, view.person.user, comment)
        owner = found.team if team is None else team.name
        notice = decided_notice(found, view.fleet, state, event, owner)
        stored = await self._ledger.budget_raises.decide(
            number, state, by=view.person.user, comment=comment, event=event, notices=[notice]
        )
        if stored is None:  # somebody else decided meanwhile
            raise _decided(await self._ledger.budget_raises.find(number) or found)
        return _wire(await self._view(caller), stored)

    async def _repeated(self, new: NewBudgetRaise, view: _View) -> BudgetRaise:
        """Return the open request if it is the same one, sent again. Raises RequestError if it is another."""
        raises = await self._ledger.budget_raises.of_period(new.team, new.every, new.period)
        first = next((one for one in raises if one.state is RaiseState.REQUESTED), None)
        if first is None:
            raise RequestError(
                ErrorKind.CONFLICT,
                "RaiseIsOpen",
                f"a request for {new.team} was decided just now",
                f"see what became of it, then try again:  fairway budget requests --team {new.team} --all",
            )
        if (first.amount, first.reason, first.requested_by) == (new.amount, new.reason, new.by):
            return first
        raise RequestError(
            ErrorKind.CONFLICT,
            "RaiseIsOpen",
            f"{first.requested_by} requested {_money(first.amount, view.fleet)} more for {new.team} at "
            f"{zulu(first.requested_at)}, which is not decided yet",
            f"wait for the decision; {first.requested_by} may withdraw it:  fairway budget deny {first.id}",
        )

    async def _view(self, caller: Token) -> _View:
        now = int(self._clock())
        fleet = await with_raised_budgets(await self._fleets.in_force(), self._ledger, now)
        today = calendar_of(fleet).day_of(now)
        return _View(fleet, TeamTree(fleet.teams), person_of(caller, fleet), today)


def _names(fleet: Fleet, teams: frozenset[str] | set[str] | None) -> set[str] | None:
    """Return the names under which raises of these teams are stored: those of before a renaming, too."""
    if teams is None:
        return None
    return {name for t in fleet.teams if t.name in teams for name in (t.name, t.renamed_from or t.name)}


def _requestable(view: _View, name: str) -> Team:
    """Return the team `name`. Raises RequestError unless the caller may request raises for it."""
    visible = view.person.visible_teams
    if any(n.name == name and (visible is None or n.team in visible) for n in view.fleet.budgets):
        raise RequestError(
            ErrorKind.CONFLICT,
            "BudgetOnlyWarns",
            f"{name} is a budget of the fleet file that only warns: there is nothing to approve",
            f"change  budgets.{name}.amount  in the fleet file and run  fairway apply",
        )
    team = next((team for team in view.fleet.teams if team.name == name), None)
    if team is None:
        raise no_such_team(name)
    if not may_request(view.person, team.name):
        raise RequestError(
            ErrorKind.FORBIDDEN,
            "NotYourTeam",
            f"{view.person.user} with the role {view.person.role} may not request a raise for {name}",
            f"ask a lead of {name}, or of a team around it, or an operator",
        )
    return team


def _budget_of(view: _View, team: Team) -> Budget:
    """Return the budget of a team. Raises RequestError if it has none of its own."""
    if team.budget is None:
        above = next((t.name for t in view.tree.ancestors(team) if t.budget is not None), None)
        raise RequestError(
            ErrorKind.CONFLICT,
            "NoBudget",
            f"team {team.name} has no budget of its own{'' if above is None else f'; {above} has one'}",
            "fairway get budgets  lists them"
            if above is None
            else f"fairway budget raise {above} AMOUNT --reason TEXT",
        )
    return team.budget


def _require_few(earlier: Sequence[BudgetRaise], team: TeamName) -> None:
    if len(earlier) >= MAX_RAISES:
        raise RequestError(
            ErrorKind.CONFLICT,
            "TooManyRaises",
            f"{MAX_RAISES} raises of {team} were requested in this period",
            f"change  budget.amount  of {team} in the fleet file and run  fairway apply",
        )


def _require_right(view: _View, found: BudgetRaise, state: RaiseState) -> None:
    own = view.person.user == found.requested_by
    approves = may_approve(view.person, view.tree, view.team(found.team), found.requested_by)
    if approves or (own and state is RaiseState.DENIED):
        return
    if own:
        why = "people do not approve their own requests"
    else:
        why = "this needs an operator, or a lead of a parent team whose own budget holds its jobs"
    raise RequestError(
        ErrorKind.FORBIDDEN,
        "CannotDecideRaise",
        f"{view.person.user} with the role {view.person.role} may not decide request {found.id}: {why}",
        f"ask one of them to run  fairway budget approve {found.id}",
    )


def _require_in_force(view: _View, found: BudgetRaise, team: Team | None) -> None:
    """Raise RequestError unless the raise would count now."""
    budget = None if team is None else team.budget
    if budget is None:
        raise RequestError(
            ErrorKind.CONFLICT,
            "NoBudget",
            f"{found.team} no longer has a budget",
            f"close the request:  fairway budget deny {found.id}",
        )
    if (budget.every, period_start(budget.every, view.today)) != (found.every, found.period):
        raise RequestError(
            ErrorKind.CONFLICT,
            "RaisePeriodOver",
            f"request {found.id} is for {period_text(found.period, found.every)}, and another period of the "
            "budget is in force now",
            f"request it for this period:  fairway budget raise {found.team} AMOUNT --reason TEXT",
        )


def _decided(found: BudgetRaise) -> RequestError:
    at = "" if found.decided_at is None else f" at {zulu(found.decided_at)}"
    return RequestError(
        ErrorKind.CONFLICT,
        "RaiseDecided",
        f"request {found.id} was {found.state} by {found.decided_by}{at}; nothing was changed",
        f"another raise needs another request:  fairway budget raise {found.team} AMOUNT --reason TEXT",
    )


def _money(amount: Decimal, fleet: Fleet) -> str:
    return f"{money_text(amount, like=amount)} {fleet.currency}"


def _decision_text(found: BudgetRaise, fleet: Fleet, state: RaiseState, by: str, comment: str) -> str:
    verb = "approves" if state is RaiseState.APPROVED else "denies"
    if state is RaiseState.DENIED and by == found.requested_by:
        verb = "withdraws"
    what = f"{_money(found.amount, fleet)} more for {period_text(found.period, found.every)}"
    return f"{by} {verb} {what}{': ' if comment else ''}{comment}"


def requested_notice(found: BudgetRaise, fleet: Fleet, budget: Budget, parent: Team | None) -> Notice:
    """Build the notice of a request: to the operators, and to the parent team."""
    what = f"{_money(found.amount, fleet)} more for {period_text(found.period, found.every)}"
    return Notice(
        NoticeKind.BUDGET,
        f"raise/{found.id}/{RaiseState.REQUESTED}",
        f"{found.team} requests {what}",
        f"{found.requested_by} requests {what} for team {found.team}, whose budget is "
        f"{_money(budget.amount, fleet)} now.\nreason: {found.reason}\n"
        f"  fairway budget approve {found.id}\n  fairway budget deny {found.id} --reason TEXT",
        None if parent is None else parent.name,
        operators=True,
    )


def decided_notice(found: BudgetRaise, fleet: Fleet, state: RaiseState, event: str, team: TeamName) -> Notice:
    """Build the notice of a decision: to the team, and to whoever requested it."""
    return Notice(
        NoticeKind.BUDGET,
        f"raise/{found.id}/{state}",
        f"the raise of {team} by {_money(found.amount, fleet)} is {state}",
        f"{team}: {event}\n  fairway get budgets",
        team,
        found.requested_by,
    )


def _wire(view: _View, found: BudgetRaise) -> wire.BudgetRaise:
    until = view.until(found)
    is_open = found.state is RaiseState.REQUESTED
    approves = may_approve(view.person, view.tree, view.team(found.team), found.requested_by)
    over = is_open and until <= view.today
    return wire.BudgetRaise(
        id=found.id,
        team=found.team,
        currency=view.fleet.currency,
        every=found.every,
        period=found.period,
        until=until,
        amount=found.amount,
        reason=found.reason,
        requested_by=found.requested_by,
        requested_at=found.requested_at,
        state="expired" if over else found.state.value,
        decided_by=found.decided_by,
        decided_at=found.decided_at,
        comment=found.comment,
        may_approve=is_open and not over and approves,
        may_deny=is_open and (approves or view.person.user == found.requested_by),
    )
