"""The sections that say who shares the fleet, into teams with everything inherited written out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fairway.files import team_shape as ts
from fairway.files.records import Key, Section
from fairway.files.shape import Found
from fairway.files.supplies import Supplies
from fairway.model.budget import Budget
from fairway.model.names import PriorityName, TeamName, UserName
from fairway.model.team import DEFAULT_PRIORITIES, Fairness, Grant, Limits, Priority, Supply, Team


@dataclass(frozen=True, slots=True)
class WrittenTeam:
    """A team as it stands in the file, and what it comes to with what it inherits."""

    section: Section
    parent: WrittenTeam | None
    team: Team
    """Of a file with faults: what can be made of the sound parts."""

    @property
    def name(self) -> str:
        return self.team.name

    def told(self, key: Key[Any], supply: Supply) -> Found[int | None] | None:
        """What the team itself says of a supply under `guarantee` or `borrow`."""
        said: Mapping[str, Found[int | None]] = self.section.get(key) or {}
        return said.get(str(supply))


def priorities_of(file: Section) -> tuple[Priority, ...]:
    """The fleet's priorities, the highest rank first; the usual three if the file names none."""
    told = file.get(ts.PRIORITIES)
    if told is None:
        return DEFAULT_PRIORITIES
    found = (
        Priority(
            PriorityName(name),
            entry.value.get(ts.RANK) or 0,
            default=entry.value.get(ts.IS_DEFAULT) is True,
            preemptible=entry.value.get(ts.PREEMPTIBLE) is not None,
        )
        for name, entry in told.items()
    )
    return tuple(sorted(found, key=lambda p: -p.rank))


def fairness_of(file: Section) -> Fairness:
    """How past use counts."""
    told = file.get(ts.FAIRNESS)
    half_life = told.get(ts.HALF_LIFE) if told else None
    return Fairness() if half_life is None else Fairness(half_life)


def chosen_teams_of(file: Section) -> Mapping[UserName, TeamName]:
    """The default teams that the file gives to users."""
    return MappingProxyType(
        {
            UserName(user): TeamName(found.value.need(ts.DEFAULT_TEAM))
            for user, found in (file.get(ts.USERS) or {}).items()
        }
    )


def teams_of(file: Section, supplies: Supplies, priorities: tuple[Priority, ...]) -> tuple[WrittenTeam, ...]:
    """Every team, parents before children, otherwise in the order of the file."""
    ranked = tuple(p.name for p in priorities)
    return tuple(_walk(file.get(ts.TEAMS) or {}, None, supplies, ranked))


def _walk(
    teams: Mapping[str, Found[Section]],
    parent: WrittenTeam | None,
    supplies: Supplies,
    ranked: tuple[PriorityName, ...],
) -> Iterator[WrittenTeam]:
    for name, found in teams.items():
        section = found.value
        above = parent.team if parent else None
        told = section.get(ts.TEAM_PRIORITIES)
        chosen = {item.value for item in told} if told is not None else None
        inherited = above.priorities if above else ranked
        written = WrittenTeam(
            section,
            parent,
            Team(
                name=TeamName(name),
                parent=above.name if above else None,
                share=section.get(ts.SHARE) or 1,
                grants=_grants(section, above, supplies),
                limits=_limits(section, above.limits if above else Limits()),
                priorities=inherited if chosen is None else tuple(p for p in ranked if p in chosen),
                members=tuple(UserName(item.value) for item in section.get(ts.MEMBERS) or ()),
                draining=section.get(ts.DRAINING) is True or (above is not None and above.draining),
                budget=_budget(section),
            ),
        )
        yield written
        yield from _walk(section.get(ts.INNER_TEAMS) or {}, written, supplies, ranked)


def _grants(section: Section, above: Team | None, supplies: Supplies) -> tuple[Grant, ...]:
    guarantee, borrow = section.get(ts.GUARANTEE) or {}, section.get(ts.BORROW) or {}
    if above is not None and not guarantee and not borrow:
        return tuple(Grant(g.supply) for g in above.grants)
    named = {supply for text in (*guarantee, *borrow) if (supply := supplies.named(text)) is not None}
    inherited = {g.supply for g in above.grants} if above else set()
    found = []
    for supply in sorted(named | inherited, key=supplies.order.__getitem__):
        text = str(supply)
        grant = Grant(
            supply,
            guarantee[text].value if text in guarantee else 0,
            borrow[text].value if text in borrow else None,
        )
        if grant.ceiling != 0:  # no access is having no grant
            found.append(grant)
    return tuple(found)


def _limits(section: Section, inherited: Limits) -> Limits:
    limits = section.get(ts.LIMITS)
    job = limits.get(ts.JOB_LIMITS) if limits else None
    user = limits.get(ts.USER_LIMITS) if limits else None
    if job is None and user is None:
        return inherited
    return Limits(
        job_gpus=_told(job, ts.JOB_GPUS, inherited.job_gpus),
        job_seconds=_told(job, ts.JOB_TIME, inherited.job_seconds),
        user_gpus=_told(user, ts.USER_GPUS, inherited.user_gpus),
    )


def _budget(section: Section) -> Budget | None:
    """What the team itself may spend; a parent's is not inherited, it covers the team as it is."""
    told = section.get(ts.BUDGET)
    amount = told.get(ts.AMOUNT) if told else None
    if told is None or amount is None:
        return None
    usual = Budget(amount)
    return Budget(
        amount,
        told.get(ts.EVERY) or usual.every,
        told.get(ts.WARN_AT) or usual.warn_at,
        told.get(ts.AT_LIMIT) or usual.at_limit,
        told.get(ts.RUNNING) or usual.running,
    )


def _told(section: Section | None, key: Key[int | None], inherited: int | None) -> int | None:
    """`unlimited` reads as None and lifts the parent's limit; only a key that is not there inherits."""
    found = section.found(key) if section else None
    return inherited if found is None else found.value
