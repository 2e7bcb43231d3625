"""Queries and writes of prices, closed months and budgets."""
