"""What tells open pages that something changed: one look at the ledger for all of them."""

from __future__ import annotations
