"""Parsed fleets: each revision is parsed once for everybody, and what is used stays parsed."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

import pytest

from fairway.files import InvalidFile, parse_fleet
from fairway.ledger import Ledger, Revision
from fairway.model.fleet import Fleet
from fairway.model.names import ClusterName
from fairway.services.fleets import MAX_PARSED, NO_FLEET, Fleets, LastApplied


@dataclass
class Parser:
    """Parses a text into a fleet of that name, and counts."""

    parsed: list[str] = field(default_factory=list)

    def __call__(self, revision: Revision) -> Fleet:
        self.parsed.append(revision.text)
        if revision.text == "broken":
            parse_fleet(revision.text, "fleet.yaml")
        return Fleet(revision.text, "USD", (), ())


async def keep(ledger: Ledger, *texts: str) -> list[int]:
    return [(await ledger.revisions.add(text, text, "test")).id for text in texts]


async def test_a_new_revision_is_parsed_once_for_all_who_ask(ledger: Ledger) -> None:
    parser = Parser()
    fleets = Fleets(ledger, parser)
    assert await fleets.current() is NO_FLEET
    (number,) = await keep(ledger, "one")
    revision = await ledger.revisions.one(number)
    assert revision is not None
    loops = [LastApplied(ClusterName(f"c{n}"), ledger, fleets).fleet() for n in range(5)]
    found = await asyncio.gather(fleets.current(), fleets.read(number), fleets.parsed(revision), *loops)
    assert parser.parsed == ["one"]
    assert all(fleet is found[0] for fleet in found)


async def test_what_is_used_stays_parsed_and_the_rest_goes(ledger: Ledger) -> None:
    parser = Parser()
    fleets = Fleets(ledger, parser)
    first, *others = await keep(ledger, *(f"fleet {n}" for n in range(MAX_PARSED + 3)))
    kept = await fleets.read(first)
    for other in others:
        await fleets.read(other)
        assert await fleets.read(first) is kept
    assert len(parser.parsed) == len(others) + 1
    await fleets.read(others[0])
    assert parser.parsed[-1] == "fleet 1"


async def test_a_revision_that_cannot_be_read_hides_no_other(ledger: Ledger) -> None:
    fleets = Fleets(ledger, Parser())
    broken, good = await keep(ledger, "broken", "good")
    assert await fleets.at(broken) is None
    with pytest.raises(InvalidFile):
        await fleets.read(broken)
    assert (await fleets.current()).name == "good"
    assert await fleets.read(good + 1000) is None
