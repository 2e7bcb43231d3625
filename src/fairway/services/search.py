"""Search for jobs, teams, users, nodes and pools by a part of their names. Everything is bounded."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final
from urllib.parse import quote, urlencode

from fairway.ledger import Ledger
from fairway.ledger.records.jobs import JobFilter, JobRow
from fairway.model.fleet import Fleet
from fairway.model.job import format_job_id
from fairway.model.text import clean
from fairway.services.rights import Person
from fairway.views.jobs import STATE_WORDS

MAX_LENGTH: Final = 200
"""The longest text to search for; longer names do not exist."""
MAX_OF_A_KIND: Final = 6


class FoundKind(StrEnum):
    """What was found."""

    JOB = "job"
    TEAM = "team"
    POOL = "pool"
    NODE = "node"
    USER = "user"


@dataclass(frozen=True, slots=True)
class Found:
    """One result of a search."""

    kind: FoundKind
    name: str
    detail: str
    href: str
    """The page that shows it."""


async def search(ledger: Ledger, fleet: Fleet, person: Person, text: str) -> list[Found]:
    """Find what has `text` in its name, or its id; at most MAX_OF_A_KIND of each kind.

    Results are what the person may open: a team whose money is not theirs to see leads to its jobs.
    """
    text = clean(text)[:MAX_LENGTH].strip()
    if not text:
        return []
    part = text.lower()
    return [
        *_jobs(await _job_rows(ledger, text)),
        *_first(_teams(fleet, person, part)),
        *_first(_pools(fleet, part)),
        *[
            Found(
                FoundKind.NODE,
                node.name,
                f"{node.health} on {node.cluster}",
                f"/pools/{quote(node.pool)}" if node.pool else "/fleet",
            )
            for node in await ledger.clusters.find_nodes(part, MAX_OF_A_KIND)
        ],
        *_first(_users(fleet, await ledger.jobs.find_users(part, MAX_OF_A_KIND), part)),
    ]


async def _job_rows(ledger: Ledger, text: str) -> list[JobRow]:
    """Return the job of this engine id first, then those whose name or id matches, the newest first."""
    found = {row.id: row for rows in (await ledger.jobs.by_references([text])).values() for row in rows}
    which = JobFilter(once_an_array=True)
    found |= {row.id: row for row in await ledger.jobs.page(which, search=text, limit=MAX_OF_A_KIND)}
    return list(found.values())[:MAX_OF_A_KIND]


def _jobs(rows: Sequence[JobRow]) -> list[Found]:
    return [
        Found(
            FoundKind.JOB,
            f"{clean(row.name)} ({format_job_id(row.id)})",
            ", ".join(
                filter(
                    None,
                    (clean(row.kind), STATE_WORDS[row.state], row.user, row.team, row.pool or row.cluster),
                )
            ),
            f"/jobs?array={format_job_id(row.array)}"
            if row.array == row.id
            else f"/jobs/{format_job_id(row.id)}",
        )
        for row in rows
    ]


def _teams(fleet: Fleet, person: Person, part: str) -> Iterator[Found]:
    for team in fleet.teams:
        if part in team.name.lower():
            visible = person.visible_teams is None or team.name in person.visible_teams
            href = f"/teams/{quote(team.name)}" if visible else f"/jobs?{urlencode({'team': team.name})}"
            yield Found(FoundKind.TEAM, team.name, f"in {team.parent}" if team.parent else "", href)


def _pools(fleet: Fleet, part: str) -> Iterator[Found]:
    for pool in fleet.pools:
        if part in pool.name.lower() or part in pool.gpu.name.lower():
            yield Found(
                FoundKind.POOL, pool.name, f"{pool.gpu.name} on {pool.cluster}", f"/pools/{quote(pool.name)}"
            )


def _users(fleet: Fleet, with_jobs: Sequence[str], part: str) -> Iterator[Found]:
    """Yield users who have jobs, and members of teams."""
    teams: dict[str, list[str]] = {}
    for team in fleet.teams:
        for member in team.members:
            if part in member.lower():
                teams.setdefault(member, []).append(team.name)
    for user in sorted({*with_jobs, *teams}):
        href = f"/jobs?{urlencode({'user': user})}"
        yield Found(FoundKind.USER, user, ", ".join(teams.get(user, ())), href)


def _first(found: Iterator[Found]) -> list[Found]:
    return [one for one, _ in zip(found, range(MAX_OF_A_KIND), strict=False)]
