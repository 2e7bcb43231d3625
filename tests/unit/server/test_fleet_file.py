"""The fleet file that a server is started with must not drop what nobody confirmed."""

from __future__ import annotations

import pytest

from fairway.files import fleet_digest, parse_fleet
from fairway.ledger import Ledger
from fairway.model.errors import PermanentError
from fairway.server.fleet_file import keep_fleet_file
from fairway.services.fleets import Fleets

HEAD = """
apiVersion: fairway/v1alpha1
kind: Fleet
name: acme
currency: USD
clusters:
  hpc: { engine: virtual }
"""
POOL = "{{ cluster: {0}, gpu: L40S, capacity: owned, price: 1, virtual: {{ nodes: 1, gpus_per_node: 4 }} }}"
SMALL = f"{HEAD}pools:\n  a: {POOL.format('hpc')}\n"
LARGE = SMALL.replace("pools:", "  cloud: { engine: virtual }\npools:") + f"  b: {POOL.format('cloud')}\n"


async def keep(ledger: Ledger, text: str) -> str:
    """Start a server with this file; the file that it serves then."""
    fleets = Fleets(ledger, lambda r: parse_fleet(r.text, "revision"))
    await keep_fleet_file(ledger, fleets, parse_fleet(text, "fleet.yaml"), text, "fleet.yaml")
    newest = await ledger.revisions.newest()
    assert newest is not None
    return newest.text


async def test_a_larger_file_is_taken_and_a_smaller_one_refused(ledger: Ledger) -> None:
    assert await keep(ledger, SMALL) == SMALL
    assert await keep(ledger, LARGE) == LARGE
    other = SMALL.replace("price: 1", "price: 2")
    with pytest.raises(PermanentError) as refused:
        await keep(ledger, other)
    assert refused.value.code == "RemovalsNotConfirmed"
    assert "cluster cloud" in refused.value.message
    assert "fairway apply -f fleet.yaml" in refused.value.hint
    newest = await ledger.revisions.newest()
    assert newest is not None and newest.text == LARGE


async def test_a_file_that_an_apply_has_replaced_since_changes_nothing(ledger: Ledger) -> None:
    await keep(ledger, SMALL)
    await ledger.revisions.add(LARGE, fleet_digest(LARGE), "ada")
    assert await keep(ledger, SMALL) == LARGE
