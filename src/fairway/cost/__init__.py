"""Compute prices, charges, idle shares, budgets and FOCUS rows. Pure functions on model values."""
