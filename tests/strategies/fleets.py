"""Fleets for property tests: valid ones on given clusters and pools, and small edits of them.

    fleets()                                       on two virtual pools
    fleets([(cluster, [pool])], {Supply("p"): 16}, members=["alice", "bob"])
    changed(fleet, capacity)                       one to three edits, still valid

What is drawn is what a person would write: the sections of a file. They are read by `files`, so that what is
inherited is inherited there and nowhere else.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

import yaml
from hypothesis import assume
from hypothesis import strategies as st

from fairway.files import check_text
from fairway.files.fleet.write import compose_fleet
from fairway.model.fleet import Capacity, Cluster, Fleet, Pool, VirtualConnection, VirtualPlace
from fairway.model.gpu_catalogue import CATALOGUE
from fairway.model.names import ClusterName, PoolName, SliceName
from fairway.model.team import Supply

Clusters = Sequence[tuple[Cluster, Sequence[Pool]]]
Section = dict[str, Any]

PEOPLE: Final = ("alice", "bob", "carol", "dana", "erin", "frank", "grace", "henry")
_NAMES: Final = (
    "research",
    "nlp",
    "vision",
    "product",
    "search",
    "ads",
    "ops",
    "bio",
    "chem",
    "labs",
    "robots",
    "infra",
)
_PRIORITIES: Final = (
    None,
    {"normal": {"rank": 50, "default": True}},
    {
        "critical": {"rank": 200},
        "urgent": {"rank": 100},
        "normal": {"rank": 50, "default": True},
        "calm": {"rank": 30},
        "low": {"rank": 10, "preemptible": "always"},
        "nightly": {"rank": 5, "preemptible": "always"},
    },
)
_TIMES: Final = ("30m", "8h", "1d12h", "7d")


def _virtual() -> Clusters:
    lab = ClusterName("lab")
    a100, cut = CATALOGUE["A100-80GB"], {SliceName("1g.10gb"): 4, SliceName("3g.40gb"): 1}
    return [
        (
            Cluster(lab, VirtualConnection()),
            [
                Pool(PoolName("lab-a100"), lab, a100, Capacity.OWNED, Decimal("1.90"), VirtualPlace(4, 8)),
                Pool(
                    PoolName("lab-mig"),
                    lab,
                    a100,
                    Capacity.OWNED,
                    Decimal("1.90"),
                    VirtualPlace(1, 2, cut),
                    tuple(cut),
                ),
            ],
        )
    ]


VIRTUAL: Final = _virtual()


def capacity_of(clusters: Clusters) -> dict[Supply, int]:
    """What virtual pools, and pools that say their `gpus`, have of each supply."""
    found = {}
    for pool in (pool for _, pools in clusters for pool in pools):
        for supply in pool.supplies:
            place, profile = pool.place, pool.gpu.profile(supply.slice or "")
            if isinstance(place, VirtualPlace):
                each = place.slices_per_gpu[supply.slice] if supply.slice else 1
                found[supply] = place.nodes * place.gpus_per_node * each
            elif pool.gpus is not None:
                # Each kind of slice gets its part of the GPUs, so that all of them fit together.
                found[supply] = pool.gpus * (profile.max_instances if profile else 1) // len(pool.supplies)
    return found


@st.composite
def fleets(
    draw: st.DrawFn,
    clusters: Clusters = VIRTUAL,
    capacity: Mapping[Supply, int] | None = None,
    members: Sequence[str] = PEOPLE,
    most_teams: int = 8,
) -> Fleet:
    """A valid fleet on `clusters`, with nested teams whose guarantees fit into `capacity`.

    Supplies without a capacity are not granted. Members are drawn from `members`.
    """
    known = dict(capacity if capacity is not None else capacity_of(clusters))
    base = Fleet(
        name=draw(st.sampled_from(["acme", "x", "the-whole-fleet"])),
        currency="USD",
        clusters=tuple(cluster for cluster, _ in clusters),
        pools=tuple(pool for _, pools in clusters for pool in pools),
    )
    sections: Section = {}
    priorities = draw(st.sampled_from(_PRIORITIES))
    if priorities is not None:
        sections["priorities"] = priorities
    if draw(st.booleans()):
        sections["fairness"] = {"half_life": draw(st.sampled_from(_TIMES))}
    ranked = list(priorities or ("urgent", "normal", "low"))
    writer = _Writer(draw, ranked, list(members), draw(st.integers(1, most_teams)))
    supplies = {str(supply): count for supply, count in known.items() if count > 0}
    sections["teams"] = writer.teams(supplies, dict.fromkeys(supplies, None), top=True)
    sections["users"] = _users(draw, sections["teams"])
    fleet = _read(base, sections)
    assert fleet is not None, f"the strategy drew a fleet that is not valid: {json.dumps(sections)}"
    return fleet


@dataclass
class _Writer:
    """Draws the `teams` of a file, as deep as there are teams left to give."""

    draw: st.DrawFn
    priorities: list[str]
    people: list[str]
    left: int
    made: int = 0

    def teams(
        self, rest: dict[str, int], most: Mapping[str, int | None], *, top: bool, depth: int = 0
    ) -> Section:
        """Siblings that share the guarantees in `rest` and the ceilings in `most` of what they are in."""
        found: Section = {}
        for _ in range(self.draw(st.integers(1, 3))):
            if not self.left:
                break
            self.left -= 1
            name = _NAMES[self.made % len(_NAMES)] + (str(self.made) if self.made >= len(_NAMES) else "")
            self.made += 1
            found[name] = self.team(rest, most, top=top, depth=depth)
        return found

    def team(self, rest: dict[str, int], most: Mapping[str, int | None], *, top: bool, depth: int) -> Section:
        draw = self.draw
        team: Section = {}
        if draw(st.booleans()):
            team["share"] = draw(st.integers(1, 100))
        guarantee, borrow, ceilings = self.grants(rest, most, top=top)
        team |= {key: told for key, told in (("guarantee", guarantee), ("borrow", borrow)) if told}
        limits = draw(_limits())
        team |= {"limits": limits} if limits else {}
        if draw(st.integers(0, 3)) == 0:
            some = st.lists(st.sampled_from(self.priorities), min_size=1, unique=True)
            team["priorities"] = draw(some)
        if self.people:
            team["members"] = draw(st.lists(st.sampled_from(self.people), max_size=3, unique=True))
        if draw(st.sampled_from([False] * 9 + [True])):
            team["draining"] = True
        if depth < 3 and self.left and draw(st.booleans()):
            inner = {supply: guarantee.get(supply, 0) for supply in ceilings}
            team["teams"] = self.teams(inner, ceilings, top=False, depth=depth + 1)
        return team

    def grants(
        self, rest: dict[str, int], most: Mapping[str, int | None], *, top: bool
    ) -> tuple[dict[str, int], dict[str, Any], dict[str, int | None]]:
        """Guarantees, borrow limits, and the ceilings that they leave to the teams inside."""
        draw, supplies = self.draw, list(most)
        named = draw(st.lists(st.sampled_from(supplies), min_size=1, unique=True)) if supplies else []
        guarantee: dict[str, int] = {}
        borrow: dict[str, Any] = {}
        ceilings: dict[str, int | None] = {
            s: limit for s, limit in most.items() if not top and s not in named
        }
        for i, supply in enumerate(named):
            most_here = rest.get(supply, 0)
            promises = most_here > 0 and draw(st.sampled_from([True, True, False]))
            promised = draw(st.integers(1, most_here)) if promises else 0
            room = 64 if most[supply] is None else (most[supply] or 0) - promised
            told = self._told(max(0, room))
            if i == 0 and told == 0 and not promised:
                told = "unlimited"  # what it has nothing of at all, it cannot run on
            rest[supply] = rest.get(supply, 0) - promised
            if promised:
                guarantee[supply] = promised
            if told is not None or (top and not promised):
                borrow[supply] = "unlimited" if told is None else told
            if told != 0 or promised:
                ceilings[supply] = promised + told if isinstance(told, int) else most[supply]
        return guarantee, borrow, ceilings

    def _told(self, room: int) -> int | str | None:
        """What stands under `borrow`; None: nothing."""
        match self.draw(st.sampled_from(["nothing", "unlimited", "zero", "some"])):
            case "unlimited":
                return "unlimited"
            case "zero":
                return 0
            case "some":
                return self.draw(st.integers(0, room))
        return None


@st.composite
def _limits(draw: st.DrawFn) -> Section:
    limits: Section = {}
    if draw(st.booleans()):
        limits["job"] = draw(
            st.fixed_dictionaries(
                {},
                optional={
                    "gpus": st.one_of(st.just("unlimited"), st.integers(1, 64)),
                    "time": st.one_of(st.just("unlimited"), st.sampled_from(_TIMES)),
                },
            )
        )
    if draw(st.integers(0, 3)) == 0:
        limits["user"] = {"gpus": draw(st.one_of(st.just("unlimited"), st.integers(1, 64)))}
    return limits


def _users(draw: st.DrawFn, teams: Section) -> Section:
    places: dict[str, list[str]] = {}
    for name, team in _all_teams(teams):
        for member in team.get("members", ()):
            places.setdefault(member, []).append(name)
    return {
        user: {"default_team": draw(st.sampled_from(names))}
        for user, names in places.items()
        if len(names) > 1 or draw(st.integers(0, 9)) == 0
    }


def _all_teams(teams: Section) -> list[tuple[str, Section]]:
    found = []
    for name, team in teams.items():
        found += [(name, team), *_all_teams(team.get("teams", {}))]
    return found


def _read(base: Fleet, sections: Section) -> Fleet | None:
    text = compose_fleet(base) + yaml.safe_dump(sections, sort_keys=False, width=10_000)
    return check_text(text, "strategy", Path("/")).fleet


# --- edits ------------------------------------------------------------------------------------------------

_KEPT: Final = ("priorities", "fairness", "teams", "users")


@st.composite
def changed(
    draw: st.DrawFn,
    fleet: Fleet,
    capacity: Mapping[Supply, int] | None = None,
    members: Sequence[str] = PEOPLE,
    most_edits: int = 3,
) -> Fleet:
    """`fleet` after one to `most_edits` edits, such as people make; valid, and within `capacity`.

    Clusters and pools stay as they are. Without a capacity, that of virtual and counted pools is kept.
    """
    pools = [(c, [p for p in fleet.pools if p.cluster == c.name]) for c in fleet.clusters]
    known = dict(capacity if capacity is not None else capacity_of(pools))
    file = yaml.safe_load(compose_fleet(fleet))
    sections = {key: file[key] for key in _KEPT if key in file}
    base = Fleet(fleet.name, fleet.currency, fleet.clusters, fleet.pools)
    for _ in range(draw(st.integers(1, most_edits))):
        draw(st.sampled_from(_EDITS))(draw, sections, sorted(str(s) for s in known), list(members))
    teams = sections.setdefault("teams", {})
    sections["users"] = _kept_users(draw, sections.get("users", {}), teams)
    found = _read(base, sections)
    assume(found is not None and found != fleet and _fits(found, known))
    assert found is not None
    return found


def _fits(fleet: Fleet, capacity: Mapping[Supply, int]) -> bool:
    promised: dict[Supply, int] = {}
    for team in fleet.teams:
        for grant in team.grants if team.parent is None else ():
            promised[grant.supply] = promised.get(grant.supply, 0) + grant.guarantee
    return all(count <= capacity.get(supply, 0) for supply, count in promised.items())


def _kept_users(draw: st.DrawFn, users: Section, teams: Section) -> Section:
    """Defaults that still hold, and new ones for whoever came into several teams."""
    places: dict[str, list[str]] = {}
    for name, team in _all_teams(teams):
        for member in team.get("members", ()):
            places.setdefault(member, []).append(name)
    kept = {u: told for u, told in users.items() if told["default_team"] in places.get(u, ())}
    return kept | {
        user: {"default_team": draw(st.sampled_from(names))}
        for user, names in places.items()
        if len(names) > 1 and user not in kept
    }


_Edit = Callable[[st.DrawFn, Section, list[str], list[str]], None]


def _some_team(draw: st.DrawFn, sections: Section) -> Section:
    teams = [team for _, team in _all_teams(sections.get("teams", {}))]
    return draw(st.sampled_from(teams)) if teams else {}


def _share(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    _some_team(draw, sections)["share"] = draw(st.integers(1, 100))


def _guarantee(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    team = _some_team(draw, sections)
    told = team.get("guarantee")
    if told:  # one that is there; another pool would rarely be the parent's
        supply = draw(st.sampled_from(sorted(told)))
        told[supply] = max(0, told[supply] + draw(st.integers(-4, 4)))


def _borrow(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    if supplies:
        team = _some_team(draw, sections)
        amount = draw(st.one_of(st.just("unlimited"), st.integers(0, 16)))
        team.setdefault("borrow", {})[draw(st.sampled_from(supplies))] = amount


def _limit(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    team = _some_team(draw, sections)
    limits = draw(_limits())
    team.pop("limits", None)
    team |= {"limits": limits} if limits else {}


def _member(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    people = _some_team(draw, sections).setdefault("members", [])
    if people and draw(st.booleans()):
        people.remove(draw(st.sampled_from(people)))
    elif others := [m for m in members if m not in people]:
        people.append(draw(st.sampled_from(others)))


def _drain(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    team = _some_team(draw, sections)
    team["draining"] = not team.get("draining", False)


def _half_life(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    sections["fairness"] = {"half_life": draw(st.sampled_from(_TIMES))}


def _remove(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    homes = [
        sections.get("teams", {}),
        *(t.get("teams", {}) for _, t in _all_teams(sections.get("teams", {}))),
    ]
    home = draw(st.sampled_from([h for h in homes if h] or [{}]))
    if home:
        del home[draw(st.sampled_from(sorted(home)))]


def _add(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    teams = sections.setdefault("teams", {})
    taken = {name for name, _ in _all_teams(teams)}
    name = next(f"new{i}" for i in range(100) if f"new{i}" not in taken)
    new: Section = (
        {"members": draw(st.lists(st.sampled_from(members), max_size=2, unique=True))} if members else {}
    )
    inside: bool = draw(st.booleans())
    if taken and inside:
        _some_team(draw, sections).setdefault("teams", {})[name] = new
    elif supplies:
        teams[name] = new | {"borrow": {draw(st.sampled_from(supplies)): draw(st.integers(1, 8))}}


def _allowed(draw: st.DrawFn, sections: Section, supplies: list[str], members: list[str]) -> None:
    names = list(sections.get("priorities", ("urgent", "normal", "low")))
    some = st.lists(st.sampled_from(names), min_size=1, unique=True)
    _some_team(draw, sections)["priorities"] = draw(some)


_EDITS: Final[tuple[_Edit, ...]] = (
    _share,
    _guarantee,
    _borrow,
    _limit,
    _member,
    _drain,
    _half_life,
    _remove,
    _add,
    _allowed,
)
