"""Query and write prices, closed months and budgets."""
