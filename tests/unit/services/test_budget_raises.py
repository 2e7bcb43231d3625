"""Who may request and approve a raise, for which period, and what becomes of it when that is over."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

from fairway.ledger import Ledger, Token
from fairway.model.access import Role
from fairway.model.budget import AtLimit, Budget, Every, RaiseState
from fairway.model.fleet import Fleet, NamedBudget
from fairway.model.names import TeamName, UserName
from fairway.model.team import Team, TeamTree
from fairway.services.budget_raises import MAX_RAISES, BudgetRaises, may_approve, may_request
from fairway.services.errors import ErrorKind, RequestError
from fairway.services.fleets import Fleets, with_raised_budgets
from fairway.services.rights import person_of
from fairway.wire import budget_raises as wire
from tests.unit.services.test_rights import token_of

STOP = Budget(Decimal(1000), at_limit=AtLimit.STOP)
NOVEMBER = datetime(2026, 11, 18, 12, tzinfo=UTC).timestamp()
DECEMBER = datetime(2026, 12, 1, 0, 0, 1, tzinfo=UTC).timestamp()
NOBODY = token_of("zoe", Role.LEAD)
LEE, BOSS, OLGA = token_of("lee", Role.LEAD), token_of("boss", Role.LEAD), token_of("olga", Role.OPERATOR)


def fleet(nlp: Budget | None = STOP, research: Budget | None = STOP) -> Fleet:
    """institute (dean) has research (boss), which has nlp (lee) and vision (vic); only some have budgets."""
    teams = (
        Team(TeamName("institute"), members=(UserName("dean"),)),
        Team(TeamName("research"), TeamName("institute"), members=(UserName("boss"),), budget=research),
        Team(TeamName("nlp"), TeamName("research"), members=(UserName("lee"),), budget=nlp),
        Team(TeamName("vision"), TeamName("research"), members=(UserName("vic"),)),
    )
    cloud = NamedBudget("cloud", Budget(Decimal(100)), team=TeamName("nlp"))
    return Fleet("acme", "USD", (), (), teams, budgets=(cloud,))


@pytest.mark.parametrize(
    ("user", "role", "requests", "approves"),
    [
        ("lee", Role.MEMBER, False, False),
        ("lee", Role.LEAD, True, False),  # a lead of the team itself
        ("boss", Role.LEAD, True, True),
        ("boss", Role.MEMBER, False, False),
        ("dean", Role.LEAD, True, True),  # above research, whose budget bounds it
        ("vic", Role.LEAD, False, False),
        ("zoe", Role.LEAD, False, False),
        ("zoe", Role.VIEWER, False, False),
        ("zoe", Role.OPERATOR, True, True),
        ("zoe", Role.ADMIN, True, True),
    ],
)
def test_rights(user: str, role: Role, requests: bool, approves: bool) -> None:
    of = fleet()
    tree, person = TeamTree(of.teams), person_of(token_of(user, role), of)
    nlp = tree[TeamName("nlp")]
    assert may_request(person, nlp.name) is requests
    assert may_approve(person, tree, nlp, "somebody") is approves


@pytest.mark.parametrize("research", [None, replace(STOP, at_limit=AtLimit.WARN)])
def test_a_parent_team_that_is_not_bounded_itself_approves_nothing(research: Budget | None) -> None:
    of = fleet(research=research)
    tree = TeamTree(of.teams)
    for who, may in ((BOSS, False), (token_of("dean", Role.LEAD), False), (OLGA, True)):
        assert may_approve(person_of(who, of), tree, tree[TeamName("nlp")], "lee") is may


def test_nobody_but_an_operator_approves_what_they_requested() -> None:
    of = fleet()
    tree = TeamTree(of.teams)
    nlp = tree[TeamName("nlp")]
    assert not may_approve(person_of(BOSS, of), tree, nlp, "boss")
    assert may_approve(person_of(OLGA, of), tree, nlp, "olga")
    assert not may_approve(person_of(BOSS, of), tree, None, "lee")  # the team has left the fleet
    assert not may_approve(person_of(BOSS, of), tree, tree[TeamName("research")], "lee")


@dataclass
class Desk:
    """The service at a time and with a fleet that the test sets."""

    ledger: Ledger
    fleet: Fleet
    now: float = NOVEMBER

    def __post_init__(self) -> None:
        fleets = Fleets(self.ledger, lambda _: self.fleet)
        self.raises = BudgetRaises(self.ledger, fleets, clock=lambda: self.now)

    async def change(self, fleet: Fleet) -> None:
        self.fleet = fleet
        await self.ledger.revisions.add(f"{id(fleet)}", f"{id(fleet)}", "test")

    async def ask(self, amount: str = "250", who: Token = LEE, team: str = "nlp") -> wire.BudgetRaise:
        wanted = wire.RaiseRequest(team=team, amount=Decimal(amount), reason="the paper")
        return await self.raises.request(who, wanted)

    async def decide(self, number: int, state: RaiseState, who: Token) -> wire.BudgetRaise:
        return await self.raises.decide(who, number, state, wire.RaiseDecision(comment="ok"))

    async def approve(self, number: int, who: Token = OLGA) -> wire.BudgetRaise:
        return await self.decide(number, RaiseState.APPROVED, who)

    async def deny(self, number: int, who: Token = OLGA) -> wire.BudgetRaise:
        return await self.decide(number, RaiseState.DENIED, who)

    async def amount(self) -> Decimal:
        fleet = await with_raised_budgets(self.fleet, self.ledger, int(self.now))
        budget = TeamTree(fleet.teams)[TeamName("nlp")].budget
        assert budget is not None
        return budget.amount


@pytest.fixture
async def desk(ledger: Ledger) -> Desk:
    made = Desk(ledger, fleet())
    await made.change(made.fleet)
    return made


def refused(error: pytest.ExceptionInfo[RequestError], kind: ErrorKind, code: str) -> None:
    assert (error.value.kind, error.value.code) == (kind, code)
    assert error.value.hint


async def test_a_raise_counts_from_the_approval_to_the_end_of_the_period(desk: Desk) -> None:
    made = await desk.ask()
    assert (made.state, made.period, made.until) == ("requested", date(2026, 11, 1), date(2026, 12, 1))
    assert await desk.amount() == 1000
    done = await desk.approve(made.id, BOSS)
    assert (done.state, done.decided_by, done.comment) == ("approved", "boss", "ok")
    assert await desk.amount() == 1250
    await desk.approve((await desk.ask("0.5")).id)
    assert await desk.amount() == Decimal("1250.5")
    desk.now = DECEMBER
    assert await desk.amount() == 1000


async def test_a_denied_raise_adds_nothing_and_another_may_be_requested(desk: Desk) -> None:
    made = await desk.ask()
    await desk.deny(made.id, BOSS)
    assert await desk.amount() == 1000
    assert (await desk.ask()).id != made.id


async def test_the_same_request_again_is_the_same_one_and_another_is_refused(desk: Desk) -> None:
    made = await desk.ask()
    assert await desk.ask() == made
    for again in (desk.ask("300"), desk.ask(who=BOSS)):
        with pytest.raises(
            RequestError, match=r"lee requested 250 USD more for nlp at .* not decided"
        ) as error:
            await again
        refused(error, ErrorKind.CONFLICT, "RaiseIsOpen")


async def test_it_is_decided_once(desk: Desk) -> None:
    made = await desk.ask()
    await desk.approve(made.id)
    for again in (desk.approve(made.id), desk.deny(made.id), desk.deny(made.id, LEE)):
        with pytest.raises(RequestError, match=f"request {made.id} was approved by olga at ") as error:
            await again
        refused(error, ErrorKind.CONFLICT, "RaiseDecided")
    assert await desk.amount() == 1250


async def test_whoever_requested_it_may_withdraw_it_and_not_approve_it(desk: Desk) -> None:
    made = await desk.ask()
    assert (made.may_approve, made.may_deny) == (False, True)
    with pytest.raises(RequestError, match="their own requests") as error:
        await desk.approve(made.id, LEE)
    refused(error, ErrorKind.FORBIDDEN, "CannotDecideRaise")
    assert (await desk.deny(made.id, LEE)).state == "denied"
    assert (await desk.ledger.budgets.events())[0].text == "lee withdraws 250 USD more for November: ok"
    own = await desk.ask(who=BOSS)
    with pytest.raises(RequestError, match="their own requests"):
        await desk.approve(own.id, BOSS)
    with pytest.raises(RequestError, match="needs an operator"):
        await desk.deny(own.id, LEE)
    by_operator = await desk.deny(own.id)
    assert by_operator.state == "denied"
    mine = await desk.ask(who=OLGA)
    assert mine.may_approve and (await desk.approve(mine.id)).state == "approved"


async def test_who_may_not_see_the_team_learns_nothing(desk: Desk) -> None:
    made = await desk.ask()
    vic = token_of("vic", Role.LEAD)
    for who in (NOBODY, vic):
        with pytest.raises(RequestError) as error:
            await desk.approve(made.id, who)
        refused(error, ErrorKind.NOT_FOUND, "NoSuchRaise")
        with pytest.raises(RequestError) as error:
            await desk.ask(who=who)
        refused(error, ErrorKind.FORBIDDEN, "NotYourTeam")
        assert (await desk.raises.requests(who)).raises == []
    with pytest.raises(RequestError) as error:
        await desk.raises.requests(vic, "nlp")
    refused(error, ErrorKind.FORBIDDEN, "NotYourTeam")
    with pytest.raises(RequestError) as error:
        await desk.approve(10**17)
    refused(error, ErrorKind.NOT_FOUND, "NoSuchRaise")


async def test_what_cannot_be_raised_says_what_to_do_instead(desk: Desk) -> None:
    with pytest.raises(RequestError, match="only warns") as error:
        await desk.ask(team="cloud")
    refused(error, ErrorKind.CONFLICT, "BudgetOnlyWarns")
    assert "budgets.cloud.amount" in error.value.hint
    with pytest.raises(RequestError) as error:
        await desk.ask(team="cloud", who=token_of("vic", Role.LEAD))
    refused(error, ErrorKind.NOT_FOUND, "NoSuchTeam")
    with pytest.raises(RequestError, match="vision has no budget of its own; research has one") as error:
        await desk.ask(team="vision", who=BOSS)
    refused(error, ErrorKind.CONFLICT, "NoBudget")
    assert error.value.hint == "fairway budget raise research AMOUNT --reason TEXT"
    with pytest.raises(RequestError, match=r"institute has no budget of its own\n") as error:
        await desk.ask(team="institute", who=OLGA)
    with pytest.raises(RequestError) as error:
        await desk.raises.request(OLGA, wire.RaiseRequest(team="nlp", amount=Decimal(1), reason=" \n"))
    refused(error, ErrorKind.INVALID, "InvalidRequest")


async def test_a_request_expires_with_its_period(desk: Desk) -> None:
    made = await desk.ask()
    desk.now = DECEMBER
    assert (await desk.raises.requests(OLGA)).raises == []
    (old,) = (await desk.raises.requests(OLGA, all_states=True)).raises
    assert (old.state, old.may_approve, old.may_deny) == ("expired", False, True)
    with pytest.raises(RequestError, match="is for November") as error:
        await desk.approve(made.id)
    refused(error, ErrorKind.CONFLICT, "RaisePeriodOver")
    assert (await desk.ask()).period == date(2026, 12, 1)  # the old one is in nobody's way


async def test_a_budget_that_changed_meanwhile(desk: Desk) -> None:
    made = await desk.ask()
    await desk.change(fleet(nlp=replace(STOP, every=Every.QUARTER)))
    with pytest.raises(RequestError) as error:
        await desk.approve(made.id)
    refused(error, ErrorKind.CONFLICT, "RaisePeriodOver")
    quarter = await desk.ask()
    assert (quarter.every, quarter.period) == (Every.QUARTER, date(2026, 10, 1))
    await desk.change(fleet(nlp=None))
    with pytest.raises(RequestError) as error:
        await desk.approve(made.id)
    refused(error, ErrorKind.CONFLICT, "NoBudget")
    assert (await desk.deny(made.id)).state == "denied"


async def test_a_renamed_team_keeps_its_request_and_its_raise(desk: Desk) -> None:
    made = await desk.ask()
    of = fleet()
    nlp = TeamName("nlp")
    teams = (replace(t, name=TeamName("lang"), renamed_from=nlp) if t.name == nlp else t for t in of.teams)
    await desk.change(replace(of, teams=tuple(teams), budgets=()))
    assert [one.id for one in (await desk.raises.requests(LEE)).raises] == [made.id]
    await desk.approve(made.id, BOSS)
    raised = await with_raised_budgets(desk.fleet, desk.ledger, int(desk.now))
    budget = TeamTree(raised.teams)[TeamName("lang")].budget
    assert budget is not None and budget.amount == 1250


async def test_requests_of_a_period_are_bounded(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fairway.services.budget_raises.MAX_RAISES", 2)
    assert MAX_RAISES > 2
    for _ in range(2):
        await desk.deny((await desk.ask()).id)
    with pytest.raises(RequestError) as error:
        await desk.ask()
    refused(error, ErrorKind.CONFLICT, "TooManyRaises")


async def test_notices_go_to_who_decides_and_then_to_the_team(desk: Desk) -> None:
    made = await desk.ask()
    await desk.approve(made.id, BOSS)
    asked, done = [one.notice for one in await desk.ledger.notices.unrouted(10)]
    assert (asked.key, asked.team, asked.operators) == (f"raise/{made.id}/requested", "research", True)
    assert asked.subject == "nlp requests 250 USD more for November"
    assert "budget is 1,000 USD now" in asked.text and "reason: the paper" in asked.text
    assert f"fairway budget approve {made.id}" in asked.text
    assert (done.key, done.team, done.user, done.operators) == (
        f"raise/{made.id}/approved",
        "nlp",
        "lee",
        False,
    )
    assert done.subject == "the raise of nlp by 250 USD is approved"
    assert done.text.startswith("nlp: boss approves 250 USD more for November: ok")
