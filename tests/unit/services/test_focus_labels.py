"""A FOCUS file has the project and the labels for cost of each row."""

from __future__ import annotations

import csv
import json
from dataclasses import replace

from fairway.ledger import Ledger
from fairway.model.price import Sharing
from fairway.services.charges import Costs
from fairway.services.focus_export import focus_lines
from fairway.services.reports import window_of
from tests.unit.services.cost_history import NOW, OCTOBER, CostBook, fill, with_rules


async def test_projects_and_labels_are_in_columns_and_tags(ledger: Ledger, database_url: str) -> None:
    book = CostBook(database_url)
    made = await fill(ledger, book, OCTOBER, 2)
    book.close()
    plain = with_rules(Sharing.OWN_LINE, Sharing.OWN_LINE)
    fleet = replace(plain, cost=replace(plain.cost, labels=("experiment",)))
    pieces = focus_lines(Costs(ledger), fleet, window_of(fleet, "2026-10", NOW))
    text = "".join([piece async for piece in pieces])
    rows = [row for row in csv.DictReader(text.splitlines()) if row["x_Kind"] == "usage" and row["x_User"]]
    found = set()
    for row in rows:
        tags = json.loads(row["Tags"])
        assert tags.get("fairway/project", "") == row["x_Project"]
        found.add((row["x_User"], row["x_Project"], tags.get("experiment", "")))
    assert found == {(r.of.user, r.of.project, r.of.experiment) for r in made}
