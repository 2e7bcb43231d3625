"""Fairway keeps shared GPU clusters fair, full and accounted for."""

__version__ = "0.1.0.dev0"
