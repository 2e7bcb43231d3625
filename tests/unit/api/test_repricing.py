"""A closed month changes only on request, over HTTP."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx2
from prometheus_client import CollectorRegistry

from fairway.api.app import create_app
from fairway.api.openapi import NO_JOB_SERVICES
from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.ledger.seed import PastApply, write_applies
from fairway.model.access import Role
from fairway.model.names import ClusterName
from fairway.services.charges import Costs
from fairway.services.fleet_history import FleetHistory
from fairway.services.fleets import Fleets
from fairway.services.statements import MonthStatements
from tests.unit.api.conftest import bearer, build_policy_services
from tests.unit.api.governed import Memory
from tests.unit.api.test_policy import FLEET, plan
from tests.unit.api.test_problems import check


async def test_a_closed_month_changes_on_request(ledger: Ledger, memory: Memory) -> None:
    today = datetime.now(UTC).date()
    month = (today.replace(day=1) - timedelta(days=1)).replace(day=1)
    past = datetime(month.year, month.month, 1, tzinfo=UTC)
    once = PastApply(FLEET, fleet_digest(FLEET), "ada", past, past, {ClusterName("hpc"): ("", ())})
    await write_applies(ledger, [once])
    fleets = Fleets(ledger, lambda revision: parse_fleet(revision.text, "fleet", Path("/srv")))
    statements = MonthStatements(ledger, Costs(ledger, FleetHistory(ledger, fleets)))
    await statements.close(await fleets.in_force(), month, "ada")
    services = build_policy_services(memory)
    app = create_app(ledger, CollectorRegistry(), fleets, services, NO_JOB_SERVICES)
    operator = await bearer(ledger, Role.OPERATOR)
    # 2 GPUs × 0.50 × 5 days: commitments are paid whether or not there are GPUs.
    commitment = (
        f"commitments: [{{ gpus: 2, price: 0.5, from: {month}, until: {month + timedelta(days=5)} }}]"
    )
    text = FLEET.replace("price: 1.9, slurm", f"price: 1.9, {commitment}, slurm")
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://fairway.test") as http:
        made = await plan(http, operator, text)
        said = f"{month:%B %Y} is closed: its statement would change by +120.00 USD"
        assert [(o["code"], o["message"]) for o in made["objections"]] == [("ClosedMonthWouldChange", said)]
        assert made["diff"][0] == {
            "team": None,
            "sign": "~",
            "what": f"charges of {month:%Y-%m} (closed)",
            "before": "0.00 USD",
            "after": "120.00 USD (+120.00 USD)",
        }
        asked = {"fleet": text, "fingerprints": {"hpc": "f"}, "force": True}
        answer = await http.post("/v1/applies", json=asked, headers=operator)
        check(answer, 409, "ClosedMonthWouldChange")
        assert said in answer.text and "--reprice-past" in answer.text
        newest = await ledger.revisions.newest()
        assert newest is not None and newest.text == FLEET
        answer = await http.post("/v1/applies", json=asked | {"reprice_past": True}, headers=operator)
        assert answer.status_code == 202, answer.text
        kept = (await http.get(f"/v1/applies/{answer.json()['id']}", headers=operator)).json()
        assert kept["force"] and kept["reprice_past"]  # who changed a closed month can be found
