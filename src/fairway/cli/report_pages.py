"""What an HTML report asks beside the report itself: the same by day."""

from __future__ import annotations

from fairway.api import cost_wire as wire
from fairway.cli.report_html import cost_page, daily_of, usage_page, waste_page
from fairway.client.client import Client
from fairway.client.cost_calls import Asked
from fairway.model.charge import Label


def page_of(
    client: Client, asked: Asked, found: wire.CostReport | wire.UsageReport | wire.WasteReport
) -> str:
    """The page of a report; rows by day are few, for only one more label is told apart."""
    first = next((label for label in found.by if label is not Label.DAY), None)
    by_day: Asked = {**asked, "by": ["day", *([first.value] if first else [])], "most": wire.MOST_ROWS}
    match found:
        case wire.CostReport():
            return cost_page(found, daily_of(client.report_cost(**by_day)))
        case wire.UsageReport():
            return usage_page(found, daily_of(client.report_usage(**by_day)))
        case wire.WasteReport():
            by_day["by"] = ["day"]
            return waste_page(found, daily_of(client.report_waste(**by_day)))
