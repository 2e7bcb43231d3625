"""What people install: units, the image, the chart, rules and dashboards, the ledger's verb."""
